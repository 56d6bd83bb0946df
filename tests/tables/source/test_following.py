"""A stream reads each record once, up to the last stable offset, for all changes to the log meanwhile."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from cordwood.common.errors import CorruptBatchError, NotFoundError, RequestError
from cordwood.common.types import Isolation, TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.properties import PartitionMetadata, encode_partition_metadata
from cordwood.storage.log.files import write_file
from cordwood.storage.log.tail import PATIENCE_SECONDS
from cordwood.storage.log.view import LogView
from cordwood.tables.source.following import Follower, count_between, within
from cordwood.tables.source.offsets import EARLIEST, LATEST, ByPartition, Everywhere, Marks, Offsets, SinceTime
from cordwood.tables.source.options import parse
from cordwood.tables.source.schema import column_names
from cordwood.testing.memory import MemoryFileSystem
from tests.knobs import SEED
from tests.tables.source.random_logs import NOW_MS, PARTITIONS, ROOT, Row, Writer, as_a_brokers, read_plan

pytestmark = pytest.mark.more

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)
SEGMENTS = ("internal.segment.bytes=1000", "index.interval.bytes=100", "log.cleaner.enable=false")


class Query:
    """A query of a stream, without Spark: its checkpoint, and its output."""

    def __init__(self, fs: LocalFileSystem, **options: str) -> None:
        self.fs = fs
        self.options = parse({"path": ROOT, **{name.replace("_", "."): text for name, text in options.items()}})
        self.names = column_names(self.options)
        self.now = 0.0
        self.rows: list[Row] = []
        self.restart()
        self.at = self.follower.starts(Everywhere(EARLIEST))
        self.marks: Marks = self.follower.marks(self.at)

    def restart(self) -> None:
        """Lose all but the checkpoint."""
        self.follower = Follower(self.options, self.fs, self.names, clock=lambda: self.now, sleep=self.pass_time)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def ends(self) -> Offsets:
        """The exclusive ends of permitted reads."""
        self.now += 1
        return self.follower.ends()

    def batch(self, end: Offsets | None = None, limit: int | None = None) -> int:
        """Read a batch; return its number of rows."""
        end = self.ends() if end is None else end
        if limit is not None:
            end = within(limit, self.at, end, self.follower.earliest)
        end_marks = self.follower.marks(end)
        plan = self.follower.plan(self.at, end, self.marks, end_marks)
        rows, self.counts = read_plan(self.fs, plan, self.options, self.names)  # type: ignore[arg-type]
        self.rows += rows
        self.at, self.marks = end, end_marks
        self.follower.forget_below(end)
        return len(rows)


def records(count: int = 3, size: int = 20) -> list[Record]:
    return [Record(at, NOW_MS, b"k%d" % at, b"v" * size) for at in range(count)]


def committed(fs: LocalFileSystem) -> list[tuple[str, int, int]]:
    return [
        (one.topic, one.partition, record.offset)
        for one in PARTITIONS
        if fs.exists(f"{ROOT}/{one}")
        for record in LogView(f"{ROOT}/{one}", fs=fs).records(isolation=Isolation.READ_COMMITTED)
    ]


def places(rows: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


@pytest.mark.parametrize("seed", range(6))
def test_each_committed_record_is_read_once_while_a_log_grows(seed: int) -> None:
    source = random.Random(SEED + seed)
    writer = Writer(config=(*SEGMENTS[:2], "log.cleaner.enable=false"))
    for partition in PARTITIONS[:2]:
        writer.append(partition, records())
    options = {"kafka_isolation_level": "read_committed"}
    options |= source.choice([{}, {"maxBytesPerPartition": "500"}, {"minPartitions": "4"}, {"useIndexes": "false"}])
    query = Query(writer.fs, **options)
    sequences = {(partition, producer): 0 for partition in PARTITIONS for producer in (1, 2)}
    open_: set[tuple[TopicPartition, int]] = set()
    for _ in range(120):
        partition, producer = source.choice(PARTITIONS[: source.choice([2, 3])]), source.choice([0, 0, 1, 2])
        what = source.random()
        if what < 0.5:
            batch: dict[str, Any] = {}
            some = records(source.randrange(1, 5), source.randrange(60))
            if producer:
                batch = {
                    "producer_id": producer,
                    "base_sequence": sequences[partition, producer],
                    "transactional": True,
                }
                sequences[partition, producer] += len(some)
                open_.add((partition, producer))
            writer.append(partition, some, **batch)
        elif what < 0.65 and (partition, producer) in open_:
            writer.end(partition, producer, committed=source.random() < 0.6)
            open_.remove((partition, producer))
        elif what < 0.7:
            writer.log(partition).roll()
        elif what < 0.95:
            query.batch(limit=source.choice([None, 1, 5, 20]))
        else:
            query.restart()
    for partition, producer in sorted(open_):
        writer.end(partition, producer, committed=source.random() < 0.5)
    writer.manager.shutdown()
    while query.at != query.ends():
        query.batch(limit=source.choice([None, 7]))
    assert places(query.rows) == committed(writer.fs)


def test_a_batch_that_was_planned_before_a_restart_is_read_again_as_it_was() -> None:
    writer = Writer(config=SEGMENTS)
    for _ in range(20):
        writer.append(ONE, records())
    query = Query(writer.fs)
    start = query.at
    query.batch()
    end, rows = query.at, query.rows
    for _ in range(10):
        writer.append(ONE, records())
    query.restart()
    query.at, query.rows = start, []
    query.batch(end)
    assert query.rows == rows
    assert query.batch() == 30


def test_a_look_at_an_idle_log_reads_next_to_nothing() -> None:
    writer = Writer(config=("internal.segment.bytes=1000000", "log.cleaner.enable=false"))
    for _ in range(400):
        writer.append(ONE, records(5, 100))
    query = Query(writer.fs, kafka_isolation_level="read_committed")
    query.batch()
    before = query.follower._fs.bytes_read
    for _ in range(20):
        query.ends()
    assert query.follower._fs.bytes_read == before
    writer.append(ONE, records())
    assert query.batch() == 3
    assert query.counts.bytes_read < 50_000


def test_looks_are_not_taken_all_the_time() -> None:
    writer = Writer(config=SEGMENTS)
    writer.append(ONE, records())
    query = Query(writer.fs)
    assert query.ends() == {ONE: 3}
    writer.append(ONE, records())
    assert query.follower.ends() == {ONE: 3}
    assert query.follower.ends(now=True) == {ONE: 6}


# ---- where a query begins --------------------------------------------------------------------------------------------


def test_a_query_begins_where_it_is_told() -> None:
    writer = Writer(config=SEGMENTS)
    for number in range(4):
        writer.append(ONE, [Record(at, NOW_MS + 10 * number, b"k", b"v") for at in range(2)])
    query = Query(writer.fs)
    starts = query.follower.starts
    assert starts(Everywhere(EARLIEST)) == {ONE: 0}
    assert starts(Everywhere(LATEST)) == {ONE: 8}
    assert starts(ByPartition({ONE: 5})) == {ONE: 5}
    assert starts(ByPartition({ONE: LATEST})) == {ONE: 8}
    assert starts(SinceTime(NOW_MS + 11)) == {ONE: 4}
    with pytest.raises(RequestError, match="no record of orders-0 is as new as"):
        starts(SinceTime(NOW_MS + 10**9))
    with pytest.raises(RequestError, match="startingOffsets must name all partitions"):
        starts(ByPartition({ONE: 0, TWO: 0}))
    late = Query(writer.fs, startingTimestamp=str(NOW_MS + 10**9))
    with pytest.raises(RequestError, match="startingTimestamp: no record of orders-0 is as new as"):
        late.follower.starts(late.options.stream_start())


def test_an_assigned_partition_that_is_not_there_ends_a_query() -> None:
    writer = Writer(config=SEGMENTS)
    writer.append(ONE, records())
    with pytest.raises(NotFoundError, match=r"There is no partition orders-1 in /logs\. To read the other partitions"):
        Query(writer.fs, assign='{"orders":[0,1]}')
    query = Query(writer.fs, assign='{"orders":[0,1]}', failOnDataLoss="false")
    assert query.batch() == 3


# ---- limits ----------------------------------------------------------------------------------------------------------


# Numbers by Spark's KafkaMicroBatchStream.rateLimit.
@pytest.mark.parametrize(
    ("limit", "start", "end", "expected"),
    [
        (10, {ONE: 0, TWO: 0}, {ONE: 100, TWO: 100}, {ONE: 5, TWO: 5}),
        (10, {ONE: 0, TWO: 90}, {ONE: 100, TWO: 100}, {ONE: 9, TWO: 91}),
        (10, {ONE: 0, TWO: 99}, {ONE: 1000, TWO: 100}, {ONE: 9, TWO: 100}),
        (10, {ONE: 7, TWO: 7}, {ONE: 7, TWO: 7}, {ONE: 7, TWO: 7}),
        (1000, {ONE: 0, TWO: 0}, {ONE: 3, TWO: 0}, {ONE: 3, TWO: 0}),
        (10, {ONE: 0}, {ONE: 100, TWO: 150}, {ONE: 5, TWO: 55}),
    ],
)
def test_each_partition_has_its_share_of_a_batch(limit: int, start: Offsets, end: Offsets, expected: Offsets) -> None:
    assert within(limit, start, end, lambda _: 50) == expected


def test_a_batch_has_at_most_the_limit_and_small_partitions_take_turns() -> None:
    end = {TopicPartition("orders", number): 4 for number in range(10)} | {TopicPartition("orders", 10): 10_000}
    at: Offsets = dict.fromkeys(end, 0)
    for _ in range(30):
        before, at = at, within(3, at, end, lambda _: 0)
        assert sum(at.values()) - sum(before.values()) == 3
    assert min(at.values()) > 0


def test_what_a_batch_would_have_is_counted() -> None:
    assert count_between({ONE: 5}, {ONE: 8, TWO: 4}) == 7


# ---- lost offsets ----------------------------------------------------------------------------------------------------


def retention(writer: Writer) -> None:
    log = writer.log(ONE)
    log.delete_records(50)
    log.delete_old_segments()
    writer.manager.checkpoint_log_start_offsets()


def deletion(writer: Writer) -> None:
    writer.manager.async_delete(ONE)


def creation_anew(writer: Writer) -> None:
    writer.manager.async_delete(ONE)
    writer.append(ONE, records())


def late_beginning(writer: Writer) -> None:
    for _ in range(10):
        writer.append(TWO, records())
    log = writer.log(TWO)
    log.delete_records(20)
    log.delete_old_segments()
    writer.manager.checkpoint_log_start_offsets()


@pytest.mark.parametrize(
    ("happens", "words", "lost"),
    [
        (retention, r"Offsets 6 to 49 of orders-0 are deleted: its log now starts at 50; retention was faster", 44),
        (deletion, "orders-0 are deleted. Their unread records are lost to this query", 0),
        (creation_anew, "orders-0 ended at offset 6, and now at 3: it was truncated, or recreated", 0),
        (late_beginning, "orders-1 is new, and begins at offset 20: older records are deleted", 20),
    ],
)
def test_offsets_that_are_gone_end_a_query_or_are_passed_over(happens: Any, words: str, lost: int) -> None:
    for fail in ("true", "false"):
        writer = Writer(config=SEGMENTS)
        writer.append(TopicPartition("orders", 2), records())
        for _ in range(30):
            writer.append(ONE, records())
        query = Query(writer.fs, failOnDataLoss=fail)
        query.batch({ONE: 6, TopicPartition("orders", 2): 3})
        happens(writer)
        if fail == "true":
            with pytest.raises(RequestError, match=words + r".* set failOnDataLoss to false"):
                query.batch()
        else:
            query.batch()
            assert query.counts.offsets_lost == lost
            found = [row["offset"] for row in query.rows if (row["topic"], row["partition"]) == ("orders", 0)]
            assert len(found) == len(set(found))


def test_a_partition_that_is_made_anew_has_none_of_its_old_transactions() -> None:
    writer = Writer(config=SEGMENTS)
    for number in range(3):
        writer.append(ONE, records(), producer_id=1, base_sequence=3 * number, transactional=True)
    writer.end(ONE, 1, committed=False)
    query = Query(writer.fs, kafka_isolation_level="read_committed", failOnDataLoss="false")
    query.batch()
    assert query.at == {ONE: 10} and not query.rows
    writer.manager.async_delete(ONE)
    for number in range(5):
        writer.append(ONE, records(), producer_id=1, base_sequence=3 * number, transactional=True)
    writer.end(ONE, 1, committed=True)
    query.batch()
    assert [row["offset"] for row in query.rows] == [10, 11, 12, 13, 14]


def identify(writer: Writer, topic_id: int) -> None:
    """Give the topic of the first partition an id."""
    path = f"{ROOT}/{ONE}/{FileKind.PARTITION_METADATA}"
    write_file(writer.fs, path, encode_partition_metadata(PartitionMetadata(uuid.UUID(int=topic_id))))


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("count", [7, 8, 20])
def test_a_topic_made_anew_between_two_runs_is_noticed(has_ids: bool, count: int) -> None:
    for fail in ("true", "false"):
        writer = Writer(config=SEGMENTS)
        for _ in range(8):
            writer.append(ONE, records())
        if has_ids:
            identify(writer, 1)
        query = Query(writer.fs, failOnDataLoss=fail)
        query.batch()
        assert query.at == {ONE: 24} and query.marks
        writer.manager.async_delete(ONE)
        for number in range(count):
            writer.append(ONE, [Record(at, NOW_MS + 1 + number, b"new", b"") for at in range(3)])
        if has_ids:
            identify(writer, 2)
        query.restart()
        query.rows.clear()
        if count == 7 and not has_ids:  # it ends below: all that is known is that it was truncated
            with (
                pytest.raises(RequestError, match="it was truncated, or recreated") if fail == "true" else nullcontext()
            ):
                query.batch()
        elif fail == "true":
            with pytest.raises(RequestError, match=r"orders-0 was deleted and recreated.* set failOnDataLoss to false"):
                query.batch()
        else:
            query.batch()
            assert [row["offset"] for row in query.rows] == list(range(3 * count))
            assert query.batch() == 0


def test_the_batch_of_a_topic_that_is_made_anew_before_it_is_read_is_not_read() -> None:
    writer = Writer(config=SEGMENTS)
    writer.append(ONE, records())
    identify(writer, 1)
    query = Query(writer.fs, failOnDataLoss="false")
    end = query.ends()
    end_marks = query.follower.marks(end)
    writer.manager.async_delete(ONE)
    for _ in range(2):
        writer.append(ONE, records())
    identify(writer, 2)
    query.restart()
    assert query.follower.plan(query.at, end, query.marks, end_marks).tasks == []


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("end", [5, 6, 12])
def test_a_log_that_was_truncated_and_grew_again_is_noticed(end: int, fail: str) -> None:
    fs, path = MemoryFileSystem(lambda: 0), f"{ROOT}/{ONE}/{0:020}.log"
    fs.make_directory(ROOT)
    fs.make_directory(f"{ROOT}/{ONE}")

    def batch(offset: int, leader_epoch: int) -> bytes:
        return encode_batch([Record(offset, NOW_MS, b"k", b"%d" % leader_epoch)], leader_epoch=leader_epoch)

    write_file(fs, path, b"".join(batch(offset, 1) for offset in range(6)))
    query = Query(fs, failOnDataLoss=fail)
    assert query.batch() == 6
    write_file(fs, path, b"".join(batch(offset, 1 if offset < 4 else 3) for offset in range(end)))
    if query.ends() == query.at:  # no batch begins without new offsets
        end += 1
        write_file(fs, path, b"".join(batch(offset, 1 if offset < 4 else 3) for offset in range(end)))
    if fail == "true":
        with pytest.raises(RequestError, match="orders-0 was read up to offset 6, then truncated to 4"):
            query.batch()
    else:
        query.batch()
        assert [row["offset"] for row in query.rows] == [*range(6), *range(4, end)]
        assert query.batch() == 0


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_log_that_is_compacted_between_two_runs_is_the_same(has_ids: bool) -> None:
    writer = Writer(config=("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", SEGMENTS[0]))
    for number in range(30):
        writer.append(ONE, [Record(at, NOW_MS + number, b"k%d" % at, b"v" * 20) for at in range(3)])
    if has_ids:
        identify(writer, 1)
    query = Query(writer.fs)
    query.batch({ONE: 14})
    assert writer.manager.cleaner is not None and writer.manager.cleaner.clean_filthiest_log()
    query.restart()
    query.batch()
    assert query.at == {ONE: 90}


def test_retention_between_planning_and_reading_is_noticed_by_the_task() -> None:
    writer = Writer(config=SEGMENTS)
    for _ in range(30):
        writer.append(ONE, records())
    query = Query(writer.fs)
    plan = query.follower.plan(query.at, query.ends())
    log = writer.log(ONE)
    log.delete_records(50)
    log.delete_old_segments()
    writer.now_ms += 10**6
    for segment in list(writer.fs.list(log.directory)):
        if segment.name.endswith(".deleted"):
            writer.fs.unlink(f"{log.directory}/{segment.name}")
    with pytest.raises(RequestError, match=r"Offsets 0 to \d+ of orders-0 are not in"):
        read_plan(writer.fs, plan, query.options, query.names)  # type: ignore[arg-type]


# ---- damage, high watermarks, moves ----------------------------------------------------------------------------------


def test_bytes_that_stay_no_batch_end_a_query_or_are_passed_over() -> None:
    for fail in ("true", "false"):
        writer = Writer(config=("index.interval.bytes=100000", "log.cleaner.enable=false"))
        writer.append(ONE, records())
        path = f"{ROOT}/{ONE}/{0:020}.log"
        with writer.fs.open(path) as file:
            end = file.size()
        writer.append(ONE, records())
        writer.append(ONE, records())
        with writer.fs.open_for_update(path) as file:
            file.write(end + 8, b"\0\0\0\1")
        query = Query(writer.fs, failOnDamage=fail)
        assert query.batch() == 3
        if fail == "true":
            # A query that does not look again waits for as long.
            with pytest.raises(CorruptBatchError, match=f"in {path} at position {end}"):
                Query(writer.fs, failOnDamage=fail).follower.final_ends()
        else:
            final = Query(writer.fs, failOnDamage=fail)
            assert final.follower.final_ends() == {ONE: 9} and final.now >= PATIENCE_SECONDS
        query.now += PATIENCE_SECONDS
        if fail == "true":
            with pytest.raises(CorruptBatchError, match=f"in {path} at position {end}"):
                query.batch()
        else:
            assert query.batch() == 3
            assert query.counts.damaged == 1
            assert [row["offset"] for row in query.rows] == [0, 1, 2, 6, 7, 8]


def test_in_a_brokers_directory_a_stream_reads_up_to_the_high_watermark() -> None:
    writer = Writer(config=SEGMENTS)
    for _ in range(10):
        writer.append(ONE, records())
    fs = writer.fs
    as_a_brokers(fs, {ONE: 12})
    query = Query(fs)
    assert query.batch() == 12
    write_file(fs, f"{ROOT}/replication-offset-checkpoint", checkpoints.encode({ONE: 21}))
    assert query.batch() == 9
    # A partition that is new has no entry yet.
    writer.append(TWO, records())
    assert query.ends() == {ONE: 21, TWO: 0}
    assert query.batch() == 0


def test_without_an_entry_and_without_a_broker_a_stream_is_refused() -> None:
    writer = Writer(config=SEGMENTS)
    writer.append(ONE, records())
    writer.manager.shutdown()
    as_a_brokers(writer.fs, None)
    with pytest.raises(RequestError, match="has no entry for orders-0"):
        Query(writer.fs)


def test_a_partition_that_moves_to_another_disk_is_followed_there() -> None:
    writer = Writer(config=SEGMENTS)
    fs = writer.fs
    for _ in range(10):
        writer.append(ONE, records())
    writer.manager.shutdown()
    for disk in ("a", "b"):
        fs.make_directory(f"{ROOT}/{disk}")
        write_file(fs, f"{ROOT}/{disk}/recovery-point-offset-checkpoint", b"0\n0\n")
    for info in list(fs.list(ROOT)):
        if not info.is_directory:
            fs.unlink(f"{ROOT}/{info.name}")
    fs.rename(f"{ROOT}/{ONE}", f"{ROOT}/a/{ONE}")
    query = Query(fs)
    query.batch({ONE: 12})
    fs.rename(f"{ROOT}/a/{ONE}", f"{ROOT}/b/{ONE}")
    query.batch()
    assert [row["offset"] for row in query.rows] == list(range(30))


def test_a_log_that_is_compacted_meanwhile_is_read_on() -> None:
    config = (*SEGMENTS[:2], "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0", "min.compaction.lag.ms=0")
    writer = Writer(config=config)
    query = None
    last: Mapping[bytes, int] = {}
    for number in range(60):
        first = writer.append(ONE, records(3, 30 + number % 7))
        last = {**last, **{b"k%d" % at: first + at for at in range(3)}}
        query = query or Query(writer.fs, kafka_isolation_level="read_committed")
        if number % 4 == 3:
            query.batch(limit=9)
        if number % 10 == 9:
            assert writer.manager.cleaner is not None
            writer.manager.cleaner.clean_filthiest_log()
            writer.now_ms += 120_000
    assert query is not None
    while query.batch():
        pass
    found = [row["offset"] for row in query.rows]
    assert found == sorted(set(found))
    assert set(last.values()) <= set(found)
