"""Cleans of logs that Hypothesis makes up, against the plain-Python cleaner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cordwood.cleaning.engine import readahead
from cordwood.cleaning.engine.facts import segment_facts
from cordwood.cleaning.rules import rewrite, thinning
from cordwood.cleaning.rules.selection import group_segments, segments_between
from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import NONE, Codec, TimestampType
from cordwood.kernels.encode import RECORD_EXTRA_BYTES
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set
from cordwood.record.record import Record
from cordwood.storage.log.files import read_file, write_file
from cordwood.testing import reference_cleaner
from cordwood.testing.reference_cleaner import Rank, StoredBatch, StoredSegment
from tests.cleaning.modes import using
from tests.cleaning.ranked import LARGEST_TIMESTAMP, timestamp
from tests.cleaning.scripted import ScriptedLog, aborted, contents, settings_of
from tests.logs import read, window

RECORDS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"", None]), st.sampled_from([b"1", b"22", b"", None])),
    min_size=1,
    max_size=4,
)
CODECS = st.sampled_from([Codec.NONE] * 6 + [Codec.GZIP, Codec.LZ4])
#: First offset whose keys a clean reads: None for the checkpoint, or this number of offsets before the end; 1000 covers
#: all.
STARTS = st.sampled_from([None, None, 1000, 3, 6])
#: Events of a log, the most frequent first.
EVENTS = st.one_of(
    st.tuples(st.just("data"), RECORDS, st.sampled_from([NONE, 1, 2]), CODECS, st.integers(0, 2)),
    st.tuples(st.just("transaction"), RECORDS, st.sampled_from([1, 2, 3]), CODECS, st.just(0)),
    st.tuples(st.just("marker"), st.sampled_from([1, 2, 3]), st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("old"), RECORDS, st.integers(0, 1), CODECS),
    st.tuples(st.just("late"), RECORDS, CODECS),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sampled_from([0, 1, 500, 1000, 90_000_000]), STARTS),
)


class Writer:
    """Appends batches for events; a producer's epoch rises with some of its markers, as with transactions version 2."""

    def __init__(self, log: ScriptedLog) -> None:
        self.log = log
        self.epochs = {1: 0, 2: 0, 3: 0}
        self.open: set[int] = set()

    def write(self, event: tuple[Any, ...]) -> None:
        kind, *rest = event
        offset, now = self.log.next_offset, self.log.now_ms
        match kind, rest:
            case "roll", _:
                self.log.roll()
            case (("data" | "transaction"), (pairs, producer, codec, gap)):
                if kind == "data" and producer in self.open:
                    return  # a producer does not mix the two
                self.open |= {producer} if kind == "transaction" else set()
                records = self.records(pairs)
                epoch = self.epochs.get(producer, NONE)
                identity = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": 0}
                self.log.append(
                    encode_batch(
                        records,
                        codec=codec,
                        last_offset=records[-1].offset + gap,
                        leader_epoch=0,
                        transactional=kind == "transaction",
                        **(identity if producer != NONE else {}),
                    )
                )
            case "marker", (producer, committed, bump):
                self.epochs[producer] += bump
                self.open.discard(producer)
                self.log.append(encode_marker(Marker(offset, now, producer, self.epochs[producer], committed)))
            case "old", (pairs, magic, codec):
                records = [Record(r.offset, NONE, r.key, r.value) if magic == 0 else r for r in self.records(pairs)]
                self.log.append(encode_message_set(magic, records, codec=codec))
            case "late", (pairs, codec):
                kind_of = TimestampType.LOG_APPEND_TIME
                self.log.append(
                    encode_batch(self.records(pairs), codec=codec, timestamp_type=kind_of, max_timestamp=now + 5)
                )

    def records(self, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> list[Record]:
        first = self.log.next_offset
        return [Record(first + at, self.log.now_ms - 3 * at, *pair) for at, pair in enumerate(pairs)]


def stored(log: ScriptedLog) -> list[StoredSegment]:
    """The log in the plain cleaner's form."""
    found = []
    for one in log.log().segments:
        data = read_file(one.fs, one.path)
        batches = [
            StoredBatch(b, data[b.position : b.position + b.size_bytes], records) for b, records in contents(one)
        ]
        found.append(StoredSegment(one.base_offset, one.mtime_ms, batches, aborted(one)))
    return found


def comparable(batches: Sequence[bytes]) -> list[object]:
    """Batches as bytes, compressed ones by header and records."""
    found: list[object] = []
    for data in batches:
        row = window(data).batches[0]
        if row["attributes"] & 7 == 0:
            found.append(data.hex())
        else:
            found.append((data[:8], data[12:17], data[21:61], read(data)))
    return found


def check_clean(log: ScriptedLog, *, now_ms: int, back: int | None, rank: Rank = lambda _: 0, **settings: Any) -> None:
    """Clean, and compare with the plain cleaner: every batch, and every entry of the transaction indexes."""
    before = stored(log)
    known = {id: (one.last_offset, one.epoch) for id, one in log.producers.by_id.items()}
    facts = [segment_facts(one) for one in log.log().segments]
    first_dirty, end, cleaned = log.clean(
        first_dirty=None if back is None else max(0, log.next_offset - back), now_ms=now_ms, **settings
    )
    if cleaned is None:
        return
    limits = settings_of(log.config)
    by_base = {one.base_offset: one for one in before}
    groups = [
        [by_base[one.base_offset] for one in group]
        for group in group_segments(
            segments_between(facts, 0, cleaned.end_offset),
            end,
            segment_bytes=limits.segment_bytes,
            index_bytes=limits.index.size_bytes,
        )
    ]
    expected = reference_cleaner.clean(
        before,
        groups,
        known,
        first_dirty=first_dirty,
        first_uncleanable=end,
        now_ms=now_ms,
        delete_retention_ms=limits.delete_retention_ms,
        deletes_for_good=log.deletes_for_good,
        rank=rank,
    )
    after = {one.base_offset: one for one in stored(log)}
    for group, output in zip(cleaned.outputs, expected, strict=True):
        batches = [batch.data for base in group for batch in after[base].batches]
        assert comparable(batches) == comparable(output.batches)
        assert [entry for base in group for entry in after[base].aborted] == output.aborted
    untouched = {base for base in by_base if base not in {one.base_offset for group in groups for one in group}}
    assert all(after[base] == by_base[base] for base in untouched)


@pytest.mark.parametrize("window_bytes", [1 << 20, pytest.param(100, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    "large",
    [pytest.param(False, id="small batches"), pytest.param(True, id="large batches", marks=pytest.mark.more)],
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])  # sizes are set each time
@given(st.data())
def test_cleans_leave_what_the_plain_cleaner_leaves(set_sizes, window_bytes, large, data) -> None:
    # cases 22, 133
    set_sizes(window_bytes, large)
    config = {
        "delete.retention.ms": data.draw(st.sampled_from([0, 500, 86_400_000])),
        "segment.bytes": data.draw(st.sampled_from([300, 1 << 30])),
    }
    log = ScriptedLog(config, now_ms=1_000_000)
    log.deletes_for_good = data.draw(st.booleans())
    log.in_place = data.draw(st.booleans())
    writer = Writer(log)
    for event in data.draw(st.lists(EVENTS, min_size=3, max_size=25)):
        if event[0] == "clean":
            log.roll()
            log.set_clock(log.now_ms + event[1])
            check_clean(log, now_ms=log.now_ms, back=event[2])
        else:
            writer.write(event)
    log.roll()
    log.set_clock(log.now_ms + 1000)
    check_clean(log, now_ms=log.now_ms, back=1000)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(["whole", "chunks", "batches"]))
def test_under_another_keep_rule_cleans_leave_what_the_plain_cleaner_leaves(data, mode) -> None:
    log = ScriptedLog({"segment.bytes": 300, "delete.retention.ms": 500}, now_ms=1_000_000)
    writer = Writer(log)
    for event in data.draw(st.lists(EVENTS, min_size=3, max_size=25)):
        log.now_ms = data.draw(st.integers(1_000_000, 1_000_010))  # producers' clocks differ
        if event[0] != "clean":
            writer.write(event)
    log.roll()
    for now_ms in (1_000_010, 1_000_510, 1_001_010):
        log.set_clock(now_ms)
        with using(mode):
            check_clean(log, now_ms=now_ms, back=1000, rank=timestamp, precedence=LARGEST_TIMESTAMP)


def test_the_last_batch_of_the_range_stays_as_a_header_if_an_earlier_record_wins() -> None:
    log = ScriptedLog()
    for offset, time in enumerate((9, 5)):
        log.append(encode_batch([Record(offset, time, b"a", b"1")]))
    log.roll()
    with using("chunks"):  # which skips each dropped batch
        check_clean(log, now_ms=0, back=1000, rank=timestamp, precedence=LARGEST_TIMESTAMP)
    assert [len(batch.records) for one in stored(log) for batch in one.batches] == [1, 0]


#: Sizes from which every batch is large, and some of its records.
SIZES_OF_LARGE = {
    (thinning, "LARGE_BYTES"): 0,
    (rewrite, "COPIED_BYTES"): RECORD_EXTRA_BYTES + 1,
    (rewrite, "RUN_BYTES"): 60,
    (rewrite, "PIECE_BYTES"): 1,
}


@pytest.fixture
def set_sizes():
    """Set the sizes of windows and of large logs, so that a window may end behind any batch."""
    before = readahead.WINDOW_BYTES
    sizes_before = {(module, name): getattr(module, name) for module, name in SIZES_OF_LARGE}

    def set_to(window_bytes: int, large: bool) -> None:
        readahead.WINDOW_BYTES = window_bytes
        for (module, name), size in (SIZES_OF_LARGE if large else sizes_before).items():
            setattr(module, name, size)

    yield set_to
    set_to(before, False)


def test_what_only_replicas_keep_is_counted_and_goes_once_there_are_none() -> None:
    log = ScriptedLog({"delete.retention.ms": 0})
    log.append(encode_batch([Record(0, 0, b"a", None), Record(1, 0, b"b", b"1")], leader_epoch=0))
    log.append(
        encode_batch([Record(2, 0, b"b", b"2")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    log.append(encode_marker(Marker(3, 0, 1, 0, True)))
    log.append(encode_batch([Record(4, 0, b"b", b"3")], producer_id=1, producer_epoch=0, base_sequence=1))
    log.roll()
    log.deletes_for_good = False
    kept = []
    for now_ms in (1, 2, 3, 4):
        _, _, cleaned = log.clean(first_dirty=0, now_ms=now_ms)
        assert cleaned is not None
        counts = cleaned.counts
        kept.append((counts.tombstones_kept_for_replicas, counts.markers_kept_for_replicas, counts.records_kept))
    # The tombstone has its horizon after the first clean; the marker after the clean that found its data dropped.
    assert kept == [(0, 0, 3), (1, 0, 3), (1, 1, 3), (1, 1, 3)]
    log.deletes_for_good = True
    _, _, cleaned = log.clean(first_dirty=0, now_ms=5)
    assert cleaned is not None and cleaned.counts.records_kept == 1
    assert (cleaned.counts.tombstones_expired, cleaned.counts.markers_expired) == (1, 1)


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.label)
def test_a_large_batch_keeps_its_records_byte_for_byte(codec: Codec) -> None:
    log = ScriptedLog({})
    large, headers = b"0123456789abcdef" * (9 << 16), (("h", b"1"), ("", None), ("long", b"x" * 300_000))
    small = [Record(10 + at, 60 + at, b"k%d" % at, b"v" * 1000, headers[: at % 3]) for at in range(5000)]
    records = [
        Record(0, 50, b"a", b"1"),
        Record(1, 70, b"large", large, headers),
        Record(2, 40, None, large),
        Record(3, 55, b"b", b"", headers),
        Record(4, 30, large, None),
        *small,
        Record(9000, 99, b"a", b"3"),
        Record(9001, 10, b"last", large),
    ]
    log.append(encode_batch(records, codec=codec, leader_epoch=3))
    log.append(encode_batch([Record(9002, 5, b"a", b"2")]))
    log.roll()
    log.clean(first_dirty=0, now_ms=1000)
    expected = [record for record in records if record.key not in (b"a", None)]
    found = [record for record in log.log().records() if record.offset < 9002]
    assert [record.offset for record in found] == [record.offset for record in expected]
    assert found == expected


@pytest.mark.parametrize("strict", [False, True])
def test_a_segment_whose_offsets_span_too_much_becomes_several(strict: bool) -> None:
    # case 146
    # Case 146. Old brokers' cleaners could merge segments that far; Kafka splits such a one and cleans it afterwards.
    far = 2**31 + 7
    log = ScriptedLog()
    for offset, key in ((0, b"a"), (1, b"b"), (far, b"a"), (far + 1, b"c")):
        log.append(encode_batch([Record(offset, 0, key, b"1")], leader_epoch=0))
    log.roll()
    both = b"".join(read_file(one.fs, one.path) for one in log.log().segments)
    for one in log.log().segments[1:-1]:
        log.fs.unlink(one.path)
    write_file(log.fs, log.log().segments[0].path, both)
    assert [one.base_offset for one in log.log().segments] == [0, far + 2]
    _, _, cleaned = log.clean(strict_kafka=strict)
    assert cleaned is not None and cleaned.outputs == ((0, far),)
    left = [[record.offset for _, records in contents(one) for record in records] for one in log.log().segments]
    assert left == [[1], [far, far + 1], []]


@pytest.mark.parametrize("segment_bytes", [100, 900])
def test_segments_that_hold_the_same_offsets_are_not_written_over_each_other(segment_bytes: int) -> None:
    # As its index is full, a segment becomes two, the second from offset 4 on; another segment begins at 2.
    log = ScriptedLog({"index.interval.bytes": 0})
    for offset in range(5):
        if offset == 2:
            log.roll()
        log.append(encode_batch([Record(offset, 0, b"%d" % offset, b"1")], leader_epoch=0))
    log.roll()
    first, second, _ = log.log().segments
    write_file(log.fs, first.path, read_file(log.fs, first.path) + read_file(log.fs, second.path))
    log.config |= {"segment.bytes": segment_bytes, "segment.index.bytes": 24}
    with pytest.raises(CorruptBatchError, match="a batch of offsets 2 to 2 is not in its segment"):
        log.clean()
