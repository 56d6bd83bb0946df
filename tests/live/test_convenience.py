"""A live log for people: pairs in, records out, transactions as `with` blocks."""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from cordwood.common.types import Codec
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.producer_state import AppendOrigin
from cordwood.live.validation import read_batches
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from tests.live.live_logs import NOW_MS, World, batch
from tests.storage.index_twins import index_all


@pytest.fixture
def log() -> Log:
    return World().load()


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def test_pairs_are_one_batch_and_come_back_as_records(log: Log) -> None:
    assert log.append([("a", "1"), ("b", b"2")]) == 0
    assert log.append([("a", None), (None, "3")], timestamp_ms=5) == 2
    found = list(log.records())
    assert [(one.offset, one.key, one.value) for one in found] == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (2, b"a", None),
        (3, None, b"3"),
    ]
    assert [one.timestamp for one in found] == [NOW_MS, NOW_MS, 5, 5]
    assert [one.offset for one in log.records(3)] == [3]
    assert log.append({}) == 4 and log.log_end_offset == 4


def test_a_transaction_counts_when_its_block_ends(log: Log) -> None:
    with log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        transaction.append({"b": "2"})
        assert values(log) == []
    assert values(log) == [b"1", b"2"]
    with log.transaction(7) as transaction:
        transaction.append({"c": "3"})
    assert values(log) == [b"1", b"2", b"3"]


def test_a_block_that_ends_with_an_error_leaves_nothing_to_read(log: Log) -> None:
    log.append({"x": "0"})
    with contextlib.suppress(KeyError), log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        log.append({"y": "2"})
        raise KeyError
    assert values(log) == [b"0", b"2"]
    assert log.read(0, 1 << 20, FetchIsolation.LOG_END).offset == 0
    with log.transaction(7) as transaction:
        transaction.append({"a": "3"})
    assert values(log) == [b"0", b"2", b"3"]


def test_a_transaction_without_records_writes_nothing(log: Log) -> None:
    with log.transaction(7):
        pass
    assert log.log_end_offset == 0


def test_transactions_of_two_producers_do_not_wait_for_each_other(log: Log) -> None:
    with log.transaction(1) as one:
        one.append({"a": "1"})
        with contextlib.suppress(KeyError), log.transaction(2) as two:
            two.append({"b": "2"})
            raise KeyError
        assert values(log) == [], "the first one is open"
        one.append({"c": "3"})
    assert values(log) == [b"1", b"3"]


def test_a_producer_that_was_replaced_is_refused(log: Log) -> None:
    with log.transaction(7, epoch=1) as transaction:
        transaction.append({"a": "1"})
    with pytest.raises(InvalidProducerEpochError), log.transaction(7, epoch=0) as transaction:
        transaction.append({"a": "2"})


def test_many_records_are_read_in_pieces(log: Log) -> None:
    for number in range(40):
        log.append({"a": "v" * 100_000 + str(number)})
    assert [record.offset for record in log.records()] == list(range(40))


def test_a_reader_that_follows_gets_what_comes(log: Log) -> None:
    log.append({"a": "0"})
    threading.Timer(0.2, lambda: log.append({"a": "1"})).start()
    found = list(itertools.islice(log.records(follow=True), 2))
    assert [record.value for record in found] == [b"0", b"1"]


def test_a_start_outside_the_log_is_refused(log: Log) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        list(log.records(5))


def test_headers_come_back_with_their_records(log: Log) -> None:
    log.append([("a", "1", {"trace": "x", "none": None}), ("b", None, [("n", b"\0"), ("n", "2")]), ("c", "3")])
    assert [one.headers for one in log.records()] == [
        (("trace", b"x"), ("none", None)),
        (("n", b"\0"), ("n", b"2")),
        (),
    ]


@pytest.mark.parametrize("setting", ["max.message.bytes", "segment.bytes"])
def test_what_exceeds_a_limit_is_split_into_batches_in_order(setting: str) -> None:
    log = World().load({setting: "1000"})
    texts = [(str(number), "v" * (number * 7 % 300)) for number in range(60)]
    assert log.append(texts) == 0
    with log.transaction(7) as transaction:
        assert transaction.append(texts) == 60
    found = list(log.records())
    assert [(one.key, one.value) for one in found] == [(key.encode(), value.encode()) for key, value in texts] * 2
    sizes = [one.size_bytes for one in read_batches(log.read(0, 1 << 20).records)]
    assert len(sizes) > 10 or setting == "segment.bytes"
    assert max(sizes) <= 1000


def test_a_record_above_the_limit_is_refused_with_its_size_and_nothing_is_appended() -> None:
    log = World().load({"max.message.bytes": "1000"})
    with pytest.raises(RecordTooLargeError, match=r"Record 1 .* takes 10\d\d bytes .* above 1000.*max.message.bytes"):
        log.append([("a", "1"), ("b", "v" * 1000), ("c", "3")])
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ("ab", "mapping, or pairs of key and value, not 'ab'"),
        (5, "mapping, or pairs of key and value, not 5"),
        (["ab"], r"record 0 is not \(key, value\).*'ab'"),
        ([("a", "1"), ("b",)], "record 1 is not"),
        ([("a", 1)], r"the value of record 0 is text, bytes or None, not 1 \(int\)"),
        ([(1.5, "a")], "the key of record 0"),
        ([("a", "1", "h")], "the headers of record 0"),
        ([("a", "1", {b"h": "x"})], "a header of record 0 is not a name, which is text"),
        ([("a", "1", [("h", 2)])], "the header 'h' of record 0"),
    ],
)
def test_what_no_record_is_made_of_is_refused_in_words(log: Log, pairs: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        log.append(pairs)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("timestamp", [1.5, "5", True])
def test_a_timestamp_that_is_no_whole_number_is_refused(log: Log, timestamp: Any) -> None:
    with pytest.raises(TypeError, match="timestamp_ms is a whole number, not"):
        log.append({"a": "1"}, timestamp_ms=timestamp)
    with pytest.raises(ValueError, match="timestamp_ms is -2; it can be -1 to"):
        log.append({"a": "1"}, timestamp_ms=-2)


def test_a_producer_is_refused_that_is_no_producer(log: Log) -> None:
    for producer_id, epoch in ("7", 0), (7, 1.0):
        with pytest.raises(TypeError), log.transaction(producer_id, epoch):  # type: ignore[arg-type]
            pass
    for producer_id, epoch in (-1, 0), (7, 2**15):
        with pytest.raises(ValueError), log.transaction(producer_id, epoch):
            pass


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_that_has_ended_takes_no_append(log: Log, fails: bool) -> None:
    with contextlib.suppress(KeyError), log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        if fails:
            raise KeyError
    end = log.log_end_offset
    with pytest.raises(InvalidTxnStateError, match="producer 7 in t-0 has ended; begin another one"):
        transaction.append({"b": "2"})
    assert (log.log_end_offset, log.last_stable_offset) == (end, end)


def test_a_second_transaction_of_a_producer_is_refused_until_the_first_has_ended(log: Log) -> None:
    with log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        for epoch in 0, 1:
            second = log.transaction(7, epoch)
            with pytest.raises(InvalidTxnStateError, match="producer 7 is in a transaction in t-0 already"), second:
                pass
        transaction.append({"b": "2"})
    with log.transaction(7) as transaction:
        transaction.append({"c": "3"})
    assert values(log) == [b"1", b"2", b"3"]


def test_a_transaction_that_a_program_left_open_is_aborted_by_a_higher_epoch() -> None:
    world = World()
    before = world.load()
    guard = before.maybe_start_transaction_verification(7, 0, 0, supports_epoch_bump=False)
    before.append_as_leader(batch("lost", producer_id=7, transactional=True), 0, guard=guard)
    before.flush(force_active_segment=True)
    log = world.load(clean_shutdown=False)
    words = r"open in t-0, from offset 0 on; log.transaction\(7, epoch=1\)"
    with pytest.raises(InvalidTxnStateError, match=words), log.transaction(7):
        pass
    with log.transaction(7, epoch=1) as transaction:
        transaction.append({"b": "2"})
    assert values(log) == [b"2"]
    assert log.last_stable_offset == log.log_end_offset


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_all_records_of_a_key_are_found_while_the_log_is_appended_to(log: Log) -> None:
    log.append([("a", "1"), ("b", "2")])
    with log.transaction(7) as transaction:
        transaction.append({"a": "3"})
        assert [(one.offset, one.outcome) for one in log.get("a")] == [(0, "committed"), (2, "open")]
    log.roll()
    log.append({"a": None})
    assert [(one.offset, one.value, one.superseded_by) for one in log.get(b"a")] == [
        (0, b"1", 2),
        (2, b"3", 4),
        (4, None, None),
    ]
    assert [one.offset for one in log.get("a", last=True)] == [4]
    log.delete_records(1)
    assert [one.offset for one in log.get("a")] == [2, 4] and log.get("none") == []


def test_keys_are_found_in_a_log_whose_segments_have_key_indexes() -> None:
    world = World()
    log = world.load()
    for at in range(50):
        log.append({f"k{at % 7}": f"{at}"})
        if at == 30:
            log.roll()
    expected = log.get("k3")
    assert len(expected) == 7
    assert index_all(world.fs, LogView(log.directory, fs=world.fs)) == 2
    log.append({"k3": "last"})
    assert log.get("k3")[:-1] == [*expected[:-1], replace(expected[-1], superseded_by=50)]
    log.truncate_to(45)
    log.append({"k3": "other"})
    assert [one.value for one in log.get("k3")] == [b"3", b"10", b"17", b"24", b"31", b"38", b"other"]


#: A part of a log: a producer (-1 for no producer), its batches, their codec, and whether it commits.
PARTS = st.lists(
    st.tuples(
        st.sampled_from([-1, 1, 2]),
        st.lists(st.sampled_from(["v", "v" * 300, "v" * 40_000]), min_size=1, max_size=3),
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP]),
        st.booleans(),
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(parts=PARTS, start=st.integers(0, 20))
def test_records_of_all_kinds_of_batches_are_those_that_were_committed(parts: list[Any], start: int) -> None:
    log, committed = World().load(), []
    for producer, values, codec, is_committed in parts:
        at = log.log_end_offset
        records = [Record(n, NOW_MS, None, f"{at + n} {value}".encode()) for n, value in enumerate(values)]
        if producer < 0:
            log.append_as_leader(encode_batch(records, codec=codec), 0)
            log.update_high_watermark(log.log_end_offset)
        else:
            with contextlib.suppress(KeyError), log.transaction(producer) as transaction:
                transaction.append([(None, record.value) for record in records])
                if not is_committed:
                    raise KeyError
        if producer < 0 or is_committed:
            committed += [(at + n, record.value) for n, record in enumerate(records)]
    start = min(start, log.log_end_offset)
    assert [(one.offset, one.value) for one in log.records(start)] == [one for one in committed if one[0] >= start]


@pytest.mark.parametrize("size", [10, 40_000])
def test_records_before_a_damaged_batch_are_read_before_its_error(size: int) -> None:
    world = World()
    log = world.load({"max.message.bytes": "100000"})
    for number in range(6):
        log.append({"a": f"{number}" * size})
    log.flush()
    path = f"{log.directory}/{0:020d}.log"
    damaged = read_file(world.fs, path).replace(b"44444", b"4444x")
    with world.fs.open_for_update(path) as file:
        file.write(0, damaged)
    found: list[int] = []
    with pytest.raises(CorruptRecordError, match="offset 4"):
        found.extend(record.offset for record in log.records())
    assert found == [0, 1, 2, 3]


def test_a_transaction_ends_also_after_a_marker_of_a_later_coordinator(log: Log) -> None:
    with log.transaction(7) as transaction:
        transaction.append({"a": "1"})
    marker = Marker(0, NOW_MS, 7, 0, committed=True, coordinator_epoch=3)
    log.append_as_leader(encode_marker(marker), 0, AppendOrigin.COORDINATOR)
    with log.transaction(7) as transaction:
        transaction.append({"a": "2"})
    assert log.open_transactions() == [] and values(log) == [b"1", b"2"]
