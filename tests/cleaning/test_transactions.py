"""The tracker of aborted transactions, where logs as brokers write them do not lead."""

from __future__ import annotations

import pytest

from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.formats.transaction_index import AbortedTransaction
from tests.cleaning.scripted import ScriptedLog, contents
from tests.logs import window


def data(offset: int) -> bytes:
    return encode_batch([Record(offset, 0, b"k", b"v")], producer_id=1, producer_epoch=0, transactional=True)


def abort(offset: int) -> bytes:
    return encode_marker(Marker(offset, 0, 1, 0, committed=False))


def discard(tracker: AbortTracker, *batches: bytes) -> tuple[list[bool], list[AbortedTransaction]]:
    result, kept = tracker.discard(window(b"".join(batches)).batches)
    return result.tolist(), kept


FIRST, SECOND = AbortedTransaction(1, 0, 1, 2), AbortedTransaction(1, 2, 4, 5)


def test_data_of_one_transaction_does_not_keep_the_marker_of_the_next() -> None:
    tracker = AbortTracker()
    tracker.add([FIRST, SECOND])
    assert discard(tracker, data(0), abort(1)) == ([True, False], [FIRST])
    assert discard(tracker, abort(4)) == ([True], [])


def test_transaction_without_marker_ends_at_its_producers_next_marker() -> None:
    tracker = AbortTracker()
    tracker.add([SECOND, FIRST])
    assert discard(tracker, data(0), data(3), abort(4)) == ([True, True, False], [FIRST])


def test_learning_of_a_transaction_twice_does_no_harm() -> None:
    tracker = AbortTracker()
    tracker.add([FIRST])
    tracker.add([FIRST])
    assert discard(tracker, data(0), abort(1)) == ([True, False], [FIRST])
    assert discard(tracker, encode_batch([Record(5, 0, b"k", b"v")])) == ([False], [])


def test_an_emptied_marker_may_go() -> None:
    emptied = encode_batch(
        [], base_offset=1, last_offset=1, producer_id=1, producer_epoch=0, transactional=True, control=True
    )
    assert discard(AbortTracker(), emptied) == ([True], [])


@pytest.mark.parametrize("in_place", [False, True], ids=["a copy", "in place"])
def test_to_a_clean_that_begins_behind_its_marker_an_aborted_transaction_goes_on(in_place: bool) -> None:
    # As in Kafka: it finds the transaction in the index and reads keys from offset 2 on. So to it the second
    # transaction is aborted as well, and does not supersede offset 3.
    log = ScriptedLog({"index.interval.bytes": 1})
    log.in_place = in_place
    plain = [encode_batch([Record(offset, 0, b"k", b"v")]) for offset in range(7)]
    commit = encode_marker(Marker(5, 0, 1, 0, committed=True))
    for segment in ([data(0), abort(1), plain[2]], [plain[3]], [data(4), commit], [plain[6]]):
        log.roll()
        for batch in segment:
            log.append(batch)
    log.config["segment.bytes"] = 100
    log.clean(first_dirty=2, first_uncleanable=6)
    segments = log.log().segments
    assert [one.base_offset for one in segments] == [0, 3, 4, 6]
    assert [record.offset for one in segments for _, records in contents(one) for record in records] == [1, 3, 4, 5, 6]
