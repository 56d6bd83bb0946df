"""Producer states replayed from headers equal those of a live log, which checks each batch first."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cordwood.common.types import NONE, ControlType
from cordwood.kernels.layout import BATCH_ROW, CONTROL, TRANSACTIONAL, BatchRows
from cordwood.live.producer_state import DecodedMarker, ProducerState
from cordwood.record.batch import MAX_SEQUENCE, to_batches
from cordwood.storage.formats.producer_state import ProducerEntry, rows_of
from cordwood.storage.recovery.replay import Producers

pytestmark = pytest.mark.more

BATCHES, PRODUCERS = 400, 6


def random_batches(source: random.Random) -> BatchRows:
    """Batches of some producers, each of them in a transaction until its marker; sequences start near the largest."""
    rows = np.zeros(BATCHES, BATCH_ROW)
    offset, is_open = 0, dict.fromkeys(range(PRODUCERS), False)
    for row in rows:
        producer = source.randrange(PRODUCERS)
        ends = source.random() < 0.3
        size = 1 if ends else source.randrange(1, 4)
        row["magic"], row["record_count"], row["producer_id"] = 2, size, producer
        row["producer_epoch"] = source.choice([3, 3, 3, 4])
        row["base_offset"], row["last_offset"] = offset, offset + size - 1
        row["max_timestamp"] = 1_000 + offset
        row["control_type"] = row["base_sequence"] = NONE
        if ends:
            row["attributes"] = TRANSACTIONAL | CONTROL
            row["control_type"] = source.choice([ControlType.ABORT, ControlType.COMMIT])
            is_open[producer] = False
        else:
            is_open[producer] = is_open[producer] or source.random() < 0.5
            row["attributes"] = TRANSACTIONAL if is_open[producer] else 0
            row["base_sequence"] = source.choice([NONE, 0, 7, MAX_SEQUENCE - 1, MAX_SEQUENCE])
        offset += size
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_a_live_log_and_one_that_is_only_read_come_to_the_same_producers(seed: int) -> None:
    rows = random_batches(random.Random(seed))
    known = {at: at % 3 for at in rows["last_offset"].tolist()}
    replayed, live = Producers(), ProducerState(expiration_ms=1_000)
    aborted = [one for part in np.array_split(rows, 7) for one in replayed.replay(part, known)]
    taken = list(
        live.take(
            (batch, DecodedMarker(ControlType(batch.control_type), known[batch.last_offset], batch.max_timestamp))
            if batch.is_control
            else (batch, None)
            for batch in to_batches(rows)
        )
    )
    assert aborted and aborted == taken
    assert replayed.by_id == live.by_id and replayed.rows().tolist() == live.rows().tolist()
    assert [one[:2] for one in replayed.ongoing] == [one[:2] for one in live.ongoing]
    assert (Producers.of_snapshot(live.rows(), now_ms=0, expiration_ms=1_000).rows() == live.rows()).all()


def test_a_batch_without_a_sequence_leaves_its_producer_without_one() -> None:
    # Replayed from headers it was the largest sequence there is. Kafka: DefaultRecordBatch.lastSequence.
    row = np.zeros(1, BATCH_ROW)
    row["magic"], row["producer_id"], row["base_sequence"] = 2, 1, NONE
    producers = Producers()
    producers.replay(row)
    assert producers.by_id[1].last_sequence == NONE


def test_producers_of_a_snapshot_and_those_that_changed_since_are_one_table() -> None:
    # Entries in no order; of two with the same id the last counts, and an open transaction never expires.
    entries = [
        ProducerEntry(9, 1, 4, 40, 4, 5_000, NONE, NONE),
        ProducerEntry(2, 0, 1, 10, 1, 5_000, NONE, NONE),
        ProducerEntry(7, 0, NONE, NONE, 0, 1_000, 3, NONE),
        ProducerEntry(5, 0, 0, 30, 0, 1_000, NONE, 30),
        ProducerEntry(2, 0, 3, 20, 1, 5_000, NONE, NONE),
    ]
    producers = Producers.of_snapshot(rows_of(entries), now_ms=6_000, expiration_ms=5_000)
    assert producers.rows()["producer_id"].tolist() == [2, 5, 9] and len(producers.by_id) == 3
    assert producers.by_id[2].last_offset == 20 and 7 not in producers.by_id
    assert producers.by_id.in_transaction() == [(5, producers.by_id[5])] and producers.first_unstable_offset == 30

    rows = np.zeros(2, BATCH_ROW)
    rows["magic"], rows["producer_id"], rows["max_timestamp"] = 2, [9, 3], 7_000
    rows["producer_epoch"], rows["base_sequence"] = 1, [5, 0]
    rows["base_offset"] = rows["last_offset"] = [50, 51]
    producers.replay(rows)
    assert list(producers.by_id) == [2, 3, 5, 9] and len(producers.by_id) == 4
    assert producers.rows()["last_offset"].tolist() == [20, 51, 30, 50]
    producers.expire(now_ms=11_000, expiration_ms=5_000)
    assert list(producers.by_id) == [3, 5, 9]
