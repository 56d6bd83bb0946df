"""Filters leave the rows that filtering afterwards leaves, and the bytes that they can do without are not read."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cordwood.common.types import Isolation, TopicPartition, override
from cordwood.fs.base import LocalFileSystem, ReadableFile, Store
from cordwood.fs.wrapped import WrappedReadableFile, WrappedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.index.build import build, new_secret
from cordwood.storage.index.files import write_index
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.view import LogView
from cordwood.tables.source import slices
from cordwood.tables.source.filters import NULL, Condition, is_decided, microseconds, offset_range, oldest_ms, selects
from tests.knobs import SEED, scaled
from tests.tables.source.random_logs import NOW_MS, PARTITIONS, ROOT, Row, Writer, random_directory, read_rows


def expected_rows(fs: Store, isolation: Isolation, root: str = ROOT) -> list[Row]:
    """All rows of a directory as `LogView` has them, which reads every header and no transaction index."""
    found = []
    for partition in PARTITIONS:
        path = f"{root}/{partition}"
        if not fs.exists(path):
            continue
        for record in LogView(path, fs=fs).records(isolation=isolation):
            found.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "offset": record.offset,
                    "timestamp": record.timestamp * 1000,
                    "key": record.key,
                    "value": record.value,
                    "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                }
            )
    return found


#: Random directories.
DIRECTORIES = scaled(8, 300)

_MEANS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda found, values: found in values,
    "starts with": lambda found, value: found.startswith(value),
    "ends with": lambda found, value: found.endswith(value),
    "contains": lambda found, value: value in found,
}


def meets(row: Row, one: Condition) -> bool:
    """Evaluate a condition as SQL does."""
    found = row[one.column]
    if one.test == NULL:
        return (found is None) is not one.negated
    return found is not None and _MEANS[one.test](found, one.value) is not one.negated


def random_conditions(rows: Sequence[Row], source: random.Random) -> list[Condition]:
    """A few conditions, with values that some rows have, or nearly."""

    def value(column: str) -> Any:
        found = source.choice(rows)[column] if rows else 0
        return found + source.randrange(-2, 3) if isinstance(found, int) else found

    def condition() -> Condition:
        column = source.choice(["topic", "partition", "offset", "offset", "timestamp", "timestamp", "key", "value"])
        tests = {"topic": ["=", "in", "starts with", "contains", ">"], "key": ["=", "in", NULL], "value": [NULL]}
        test = source.choice(tests.get(column, ["=", ">", ">=", "<", "<=", "in", NULL]))
        values = tuple(one for one in (value(column) for _ in range(source.randrange(4))) if one is not None)
        wanted: Any = values if test == "in" else value(column)
        if test == NULL or (wanted is None and column == "key"):
            return Condition(column, NULL, negated=source.random() < 0.7)
        return Condition(column, test, wanted, negated=source.random() < 0.3)

    return [condition() for _ in range(source.randrange(1, 4))]


def make_key_indexes(fs: LocalFileSystem, source: random.Random) -> None:
    """Key indexes of most segments; some are damaged, stale or do not cover the end."""
    for partition in PARTITIONS:
        for segment in LogView(f"{ROOT}/{partition}", fs=fs).segments:
            index = build(segment, new_secret(), 1 << 30) if segment.size_bytes else None
            if index is None or source.random() < 0.2:
                continue
            write_index(fs, segment.directory, index)
            if source.random() < 0.2:
                data = bytearray(read_file(fs, segment.key_index_path))
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
                fs.unlink(segment.key_index_path)
                write_file(fs, segment.key_index_path, bytes(data))


@pytest.mark.more
@pytest.mark.parametrize("number", range(DIRECTORIES))
def test_filtering_early_leaves_what_filtering_afterwards_leaves(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(SEED + number)
    fs = random_directory(SEED + number).fs
    if number % 3:
        make_key_indexes(fs, source)
        monkeypatch.setattr(slices, "GAP_BYTES", number % 3 * 100)
    for level in Isolation:
        rows = expected_rows(fs, level)
        for _ in range(8):
            conditions = random_conditions(rows, source)
            assert all(map(is_decided, conditions)), conditions
            options = {"kafka.isolation.level": level.value, "includeHeaders": "true"}
            options |= source.choice([{}, {"maxBytesPerPartition": "700"}, {"minPartitions": "5"}])
            options |= source.choice([{}, {}, {"useIndexes": "false"}])
            found, counts = read_rows(fs, options, conditions)
            wanted = [row for row in rows if all(meets(row, one) for one in conditions)]
            for row in found:
                del row["timestampType"]
            assert found == wanted, f"seed {SEED + number}, {options}, {conditions}"
            assert counts.records == len(wanted)


# ---- Skipped data ----------------------------------------------------------------------------------------------------


class Watched(WrappedStore):
    """Notes the ranges of `.log` files that are read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reads: dict[str, list[tuple[int, int]]] = {}

    @override
    def open(self, path: str) -> ReadableFile:
        file = self._store.open(path)
        return _WatchedFile(file, self.reads.setdefault(path, [])) if path.endswith(".log") else file

    def bytes_of(self, path: str) -> int:
        """Number of bytes read of a file, each counted once."""
        covered, end = 0, 0
        for start, stop in sorted(self.reads.get(path, [])):
            covered += max(0, stop - max(start, end))
            end = max(end, stop)
        return covered


class _WatchedFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, reads: list[tuple[int, int]]) -> None:
        super().__init__(file)
        self._reads = reads

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        count = self._file.read_into(position, target)
        self._reads.append((position, position + count))
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        data = self._file.read(position, size_bytes)
        self._reads.append((position, position + len(data)))
        return data


BATCH = 50
OLD_MS = NOW_MS - 86_400_000


def batch_records(first: int) -> list[Record]:
    """The records of a batch: one a second, and of a hundred keys."""
    return [Record(at, OLD_MS + 1000 * (first + at), b"%02d" % ((first + at) % 100), b"v" * 100) for at in range(BATCH)]


BATCH_BYTES = len(encode_batch(batch_records(0)))
INTERVAL = 4 * BATCH_BYTES
SEGMENT = 20 * BATCH_BYTES
#: Bytes read to decode a header, two for each end of a range.
LOOK = 4200
#: Bytes read besides the batches with wanted offsets: the distance of index entries.
SLACK = 2 * (INTERVAL + 2 * LOOK)
#: The end of a log is looked for in its headers, which are read in pieces of this size.
PIECE = 64 << 10


LARGE = (f"internal.segment.bytes={SEGMENT}", f"index.interval.bytes={INTERVAL}", "log.cleaner.enable=false")


@pytest.fixture(scope="module")
def large() -> Writer:
    """Two topics of two partitions, with 100 batches each; offsets and seconds rise together."""
    writer = Writer(config=LARGE)
    for topic in ("orders", "users"):
        for partition in range(2):
            for number in range(100):
                writer.append(TopicPartition(topic, partition), batch_records(number * BATCH))
    writer.manager.shutdown()
    return writer


def logs_of(fs: Store, partition: str) -> dict[str, int]:
    return {
        f"{ROOT}/{partition}/{info.name}": info.size_bytes
        for info in fs.list(f"{ROOT}/{partition}")
        if info.name.endswith(".log")
    }


def read_watched(writer: Writer, *conditions: Condition, **options: str) -> tuple[Watched, list[Row], Any]:
    watched = Watched(writer.fs)
    rows, counts = read_rows(watched, options, conditions)
    return watched, rows, counts


def test_other_topics_and_partitions_are_not_opened(large: Writer) -> None:
    watched, rows, counts = read_watched(large, Condition("topic", "=", "orders"), Condition("partition", "in", (1,)))
    assert len(rows) == 100 * BATCH
    assert set(watched.reads) == set(logs_of(large.fs, "orders-1"))
    assert counts.segments == len(watched.reads)


def test_of_other_offsets_no_more_is_read_than_the_index_leaves_open(large: Writer) -> None:
    watched, rows, counts = read_watched(
        large,
        *(Condition("topic", "=", "orders"), Condition("partition", "=", 0)),
        *(Condition("offset", ">=", 2210), Condition("offset", "<", 2260)),
    )
    assert [row["offset"] for row in rows] == list(range(2210, 2260))
    sizes = logs_of(large.fs, "orders-0")
    (holder,) = (path for path in sorted(sizes) if path.endswith(f"{2000:020}.log"))
    *_, last = sorted(sizes)
    # The end of the last segment, to find the end of the log.
    assert set(watched.reads) == {holder, last}
    assert watched.bytes_of(holder) <= 2 * BATCH_BYTES + SLACK < sizes[holder]
    assert watched.bytes_of(last) <= PIECE < sizes[last]
    assert counts.segments_skipped == 4
    assert counts.bytes_skipped >= sum(sizes.values()) - 2 * BATCH_BYTES - SLACK


def test_of_older_times_no_more_is_read_than_the_time_index_leaves_open(large: Writer) -> None:
    start = OLD_MS * 1000 + 3_480 * 1_000_000
    watched, rows, counts = read_watched(
        large, Condition("topic", "=", "orders"), Condition("partition", "=", 0), Condition("timestamp", ">=", start)
    )
    assert [row["offset"] for row in rows] == list(range(3480, 5000))
    sizes = logs_of(large.fs, "orders-0")
    # Of the others only the batches from the last entry of the time index on, which confirm it.
    read = {path for path in sizes if watched.bytes_of(path) > 2 * INTERVAL}
    assert read == {path for path in sizes if path.endswith((f"{3000:020}.log", f"{4000:020}.log"))}
    assert watched.bytes_of(min(read)) <= sizes[min(read)] - 480 // BATCH * BATCH_BYTES + SLACK
    assert counts.segments_skipped == 3
    assert counts.batches_skipped <= INTERVAL // BATCH_BYTES + 1


def test_newer_times_are_no_reason_to_skip_anything_as_times_are_in_no_order(large: Writer) -> None:
    end = OLD_MS * 1000 + 480 * 1_000_000
    watched, rows, _ = read_watched(
        large, Condition("topic", "=", "orders"), Condition("partition", "=", 0), Condition("timestamp", "<", end)
    )
    assert [row["offset"] for row in rows] == list(range(480))
    sizes = logs_of(large.fs, "orders-0")
    assert {path: watched.bytes_of(path) for path in sizes} == sizes


@pytest.mark.parametrize("covers_all", [True, False])
def test_of_other_keys_no_more_is_read_than_the_key_indexes_leave_open(covers_all: bool) -> None:
    writer, orders = Writer(config=LARGE), TopicPartition("orders", 0)
    for number in range(100):
        first = [Record(0, OLD_MS, b"rare" if number % 40 == 7 else b"other", b"v" * 100)]
        writer.append(orders, first + batch_records(number * BATCH)[1:])
    log = LogView(f"{ROOT}/{orders}", fs=writer.fs)
    for segment in log.segments:
        index = build(segment, new_secret(), 1 << 30)
        assert index is not None
        write_index(writer.fs, segment.directory, index)
    if not covers_all:
        writer.append(orders, [Record(0, OLD_MS, b"rare", b"v")])
    writer.manager.shutdown()
    rare = Condition("key", "=", b"rare")
    _, rows, counts = read_watched(writer, rare)
    offsets = [at * BATCH for at in (7, 47, 87, 100) if covers_all <= (at < 100)]
    assert [row["offset"] for row in rows] == offsets
    sizes = logs_of(writer.fs, str(orders))
    assert counts.batches == len(rows)
    assert (counts.segments, counts.segments_skipped) == (len(rows), len(sizes) - len(rows))
    assert counts.bytes_skipped >= sum(sizes.values()) - len(rows) * 2 * BATCH_BYTES
    # A filter skips no data without a valid index.
    _, again, counts = read_watched(writer, rare, useIndexes="false")
    assert again == rows
    assert counts.batches_skipped == counts.segments_skipped == 0


def test_values_of_other_keys_are_not_copied_where_no_index_has_keys(large: Writer) -> None:
    watched, rows, counts = read_watched(
        large, Condition("topic", "=", "orders"), Condition("partition", "=", 0), Condition("key", "in", (b"07", b"08"))
    )
    assert [row["offset"] for row in rows] == [at for at in range(5000) if at % 100 in (7, 8)]
    sizes = logs_of(large.fs, "orders-0")
    assert {path: watched.bytes_of(path) for path in sizes} == sizes
    assert (counts.records, counts.records_skipped) == (100, 4900)


def test_each_byte_is_read_about_once_however_a_partition_is_cut(large: Writer) -> None:
    sizes = logs_of(large.fs, "orders-0")
    whole = sum(sizes.values())
    for most in (SEGMENT // 3, 2 * SEGMENT, 64 << 20):
        watched, rows, counts = read_watched(large, assign='{"orders":[0]}', maxBytesPerPartition=str(most))
        assert len(rows) == 5000
        read = sum(stop - start for reads in watched.reads.values() for start, stop in reads)
        slices = whole // most + len(sizes)
        # For each cut a look at the batches before and behind it, and one again when it is used.
        assert whole <= read <= whole + slices * 3 * LOOK + 2 * PIECE, (most, read, whole)
        assert counts.batches_skipped == 0


# ---- conditions ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_decided_here_is_left_to_spark() -> None:
    left = [
        Condition("key", ">", b"a"),
        Condition("value", "=", b"a"),
        Condition("timestampType", "=", 0),
        Condition("headers", NULL),
        Condition("topic", "=", None),
        Condition("key", "in", (b"a", None)),
        Condition("timestamp", ">", datetime(2020, 1, 1)),
    ]
    assert not [one for one in left if is_decided(one)]


def test_times_are_compared_to_the_microsecond() -> None:
    assert microseconds(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=365_000, microseconds=1)) == (
        365_000 * 86_400_000_000 + 1
    )
    assert oldest_ms([Condition("timestamp", ">", 5_999)]) == 6
    assert oldest_ms([Condition("timestamp", ">=", 5_999)]) == 5
    assert oldest_ms([Condition("timestamp", ">=", -1)]) == -1
    assert oldest_ms([Condition("timestamp", "<", 5_999), Condition("offset", ">", 3)]) is None


def test_contradicting_conditions_leave_an_empty_range() -> None:
    assert offset_range([Condition("offset", ">", 5), Condition("offset", "<", 3)]) == (6, 6)
    assert offset_range([Condition("offset", "in", ())])[0] == offset_range([Condition("offset", "in", ())])[1]
    assert offset_range([Condition("offset", "=", 4, negated=True)]) == (0, 2**63 - 1)


def test_a_partition_is_chosen_by_its_topic_and_number() -> None:
    name = TopicPartition("orders", 3)
    assert selects([Condition("topic", "starts with", "ord"), Condition("partition", ">", 2)], name)
    assert not selects([Condition("topic", NULL)], name)
    assert selects([Condition("topic", NULL, negated=True), Condition("offset", "=", 1)], name)
    assert not selects([Condition("topic", "ends with", "rs", negated=True)], name)
