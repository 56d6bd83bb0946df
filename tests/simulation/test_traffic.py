"""Simulated traffic of a log: the drawn records, in batches as a producer encodes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from cordwood.live.validation import read_batches, read_records
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.simulation.batches import LEADER_EPOCH, Records, Written, encode, value_bytes
from cordwood.simulation.measure import Traffic
from cordwood.simulation.sizing.workload import KEY_BYTES, TOMBSTONE_BYTES, Keys, Workload

pytestmark = pytest.mark.more

NOW = 1_700_000_000_000


def traffic(workload: Workload, *, batch_records: int = 4, record_bytes: int = 100) -> Traffic:
    source = np.random.default_rng(1)
    return Traffic(
        workload,
        Keys(workload, 1, source),
        source,
        records_per_ms=1.0,
        record_bytes=record_bytes,
        batch_records=batch_records,
        start_ms=NOW,
    )


def take(source: Traffic, until_ms: int, room_bytes: int = 1 << 30, offset: int = 0) -> list[Written]:
    return list(source.until(NOW + until_ms, NOW, offset, lambda: room_bytes))


def records_of(data: bytes) -> list[Record]:
    return [record for batch in read_batches(data) if not batch.is_control for record in read_records(data, batch)]


def slowly(first: int, keys: Sequence[int], tombstones: Sequence[bool], value: bytes, batch_records: int) -> bytes:
    records = [
        Record(first + at, NOW, key.to_bytes(KEY_BYTES, "big"), None if is_tombstone else value)
        for at, (key, is_tombstone) in enumerate(zip(keys, tombstones, strict=True))
    ]
    parts = [records[at : at + batch_records] for at in range(0, len(records), batch_records)]
    return b"".join(encode_batch(part, leader_epoch=LEADER_EPOCH) for part in parts)


@pytest.mark.parametrize("record_bytes", [27, 30, 80, 81, 82, 100, 200, 8206, 20_000])
def test_the_bytes_are_those_of_the_encoder_of_batches(record_bytes: int) -> None:
    keys, tombstones = np.array([5, 0, 1 << 40, 5, 6, 7]), np.array([False, True, False, False, True, False])
    data, starts = encode(1000, Records.alike(keys, tombstones, record_bytes), 4, NOW)
    value = b"v" * value_bytes(record_bytes)
    assert data == slowly(1000, keys.tolist(), tombstones.tolist(), value, 4)
    assert [batch.position for batch in read_batches(data)] == starts[:-1].tolist() and starts[-1] == len(data)


@pytest.mark.parametrize("record_bytes", [*range(27, 300), 8190, 8191, 8192, 8193, 8200, 20_000])
def test_a_record_takes_what_it_is_to_take(record_bytes: int) -> None:
    data, _ = encode(0, Records.alike(np.array([1]), np.array([False]), record_bytes), 1, NOW)
    # One byte less where a byte more would need a longer length.
    assert record_bytes - 1 <= len(data) - 61 <= record_bytes
    data, _ = encode(0, Records.alike(np.array([1]), np.array([True]), record_bytes), 1, NOW)
    assert len(data) - 61 == TOMBSTONE_BYTES


def test_what_comes_is_whole_batches_and_nothing_twice() -> None:
    source = traffic(Workload(rate="1"))
    sizes = [sum(part.records.keys.size for part in take(source, until)) for until in (3, 4, 11, 12, 12, 30)]
    assert sizes == [0, 4, 4, 4, 0, 16]


def test_parts_fill_the_room_and_are_a_batch_at_least() -> None:
    whole = take(traffic(Workload(rate="1", keys=10)), 40)
    assert len(whole) == 1
    (batch,) = {batch.size_bytes for batch in read_batches(whole[0].data)}
    for room, batches in ((10 * batch, 10), (4 * batch - 1, 3), (batch, 1), (1, 1)):
        parts = take(traffic(Workload(rate="1", keys=10)), 40, room)
        assert max(len(list(read_batches(part.data))) for part in parts) == batches
        assert b"".join(part.data for part in parts) == whole[0].data
        assert np.concatenate([part.records.keys for part in parts]).tolist() == whole[0].records.keys.tolist()
        ends = [part.next_offset for part in parts]
        assert [part.first_offset for part in parts] == [0, *ends[:-1]] and ends[-1] == 40


def test_the_first_records_are_one_of_each_key() -> None:
    source = traffic(Workload(rate="1", keys=10, preload=True, tombstones=0.5))
    parts = take(source, 4, 300)
    keys = np.concatenate([part.records.keys for part in parts])
    assert keys[:10].tolist() == list(range(10)) and keys.size == 14
    assert not np.concatenate([part.records.tombstones for part in parts])[:10].any()
    assert [record.offset for part in parts for record in records_of(part.data)] == list(range(14))
    assert sum(part.records.keys.size for part in take(source, 8)) == 4


@pytest.mark.parametrize("room", [1 << 20, 600, 1])
def test_a_transaction_ends_with_its_marker_which_is_of_its_last_part(room: int) -> None:
    source = traffic(Workload(rate="1", keys=10, transactions=10, aborted=0.5))
    parts = take(source, 205, room)
    assert sum(part.has_marker for part in parts) == 20
    at, sequence, fates = 0, 0, []
    for part in parts:
        assert part.first_offset == at
        batches = list(read_batches(part.data))
        assert [batch.is_control for batch in batches] == [False] * (len(batches) - part.has_marker) + (
            [True] * part.has_marker
        )
        for batch in batches:
            assert batch.is_transactional and batch.base_offset == at and batch.is_valid
            if not batch.is_control:
                assert batch.base_sequence == sequence
                sequence += batch.record_count
            at = batch.last_offset + 1
        assert part.next_offset == at
        if part.has_marker:
            (marker,) = read_records(part.data, batches[-1])
            assert marker.key is not None
            fates.append(part.aborted)
            assert (marker.key[-1] == 0) is part.aborted  # ABORT is type 0
    assert 4 < sum(fates) < 16
