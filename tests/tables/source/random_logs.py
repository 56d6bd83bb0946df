"""Random log directories, written by the live engine: segments, indexes, transactions, retention, compaction."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cordwood.common.config import overrides
from cordwood.common.types import NONE, Codec, TopicPartition
from cordwood.fs.base import LocalFileSystem, Store
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.producer_state import NO_GUARD, AppendOrigin
from cordwood.live.scheduler import SteppedScheduler
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints
from cordwood.storage.log.files import write_file
from cordwood.tables.source.batch import BatchPlan, plan_batch
from cordwood.tables.source.filters import Condition
from cordwood.tables.source.options import ReadOptions, parse
from cordwood.tables.source.reading import RowPlan, read_slice
from cordwood.tables.source.schema import column_names
from cordwood.tables.source.slices import ReadCounts
from cordwood.testing.memory import MemoryFileSystem

NOW_MS = 1_700_000_000_000
ROOT = "/logs"
PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("users", 0))
CONFIG = (
    *("internal.segment.bytes=1500", "index.interval.bytes=200", "log.cleaner.min.compaction.lag.ms=0"),
    *("users:cleanup.policy=compact", "users:min.cleanable.dirty.ratio=0.0"),
)


class Writer:
    """A log manager on a file system, whose clock moves only when the test moves it."""

    def __init__(self, fs: LocalFileSystem | None = None, root: str = ROOT, config: Sequence[str] = CONFIG) -> None:
        self.now_ms = NOW_MS
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000) if fs is None else fs
        self.root = root
        self.manager = LogManager(
            self.fs,
            [root],
            overrides(config),
            clock=lambda: self.now_ms,
            scheduler=SteppedScheduler(lambda: self.now_ms),
        )
        self.manager.startup()

    def log(self, partition: TopicPartition) -> Log:
        """The log of a partition, which is made if need be."""
        return self.manager.get_or_create_log(partition, is_new=True)

    def append(self, partition: TopicPartition, records: Sequence[Record], **batch: Any) -> int:
        """Append one batch; return its first offset."""
        log = self.log(partition)
        guard = NO_GUARD
        if (producer := batch.get("producer_id", NONE)) >= 0:
            batch = {"producer_epoch": 0, **batch}
            if log.asks_for_verification:
                guard = log.maybe_start_transaction_verification(
                    producer, batch["base_sequence"], 0, supports_epoch_bump=True
                )
        done = log.append_as_leader(encode_batch(records, base_offset=0, **batch), 0, guard=guard)
        log.update_high_watermark(log.log_end_offset)
        return done.first_offset

    def end(self, partition: TopicPartition, producer_id: int, *, committed: bool) -> None:
        """End a producer's transaction."""
        log = self.log(partition)
        marker = Marker(0, self.now_ms, producer_id, 0, committed)
        log.append_as_leader(encode_marker(marker), 0, AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)


def random_directory(seed: int, *, stop: bool = True) -> Writer:
    """A directory with a few partitions; the same for the same seed."""
    source = random.Random(seed)
    writer = Writer()
    for partition in PARTITIONS:
        _fill(writer, partition, source)
    if source.random() < 0.5:
        while writer.manager.cleaner is not None and writer.manager.cleaner.clean_filthiest_log():
            pass
    if source.random() < 0.4:
        log = writer.log(PARTITIONS[0])
        log.delete_records(source.randrange(log.log_end_offset + 1))
        if source.random() < 0.5:
            log.delete_old_segments()
    if stop:
        writer.manager.shutdown()
    return writer


def _fill(writer: Writer, partition: TopicPartition, source: random.Random) -> None:
    sequences = dict.fromkeys(range(1, 4), 0)
    open_: set[int] = set()
    # In some logs times only grow, in others they are in no order.
    ordered = source.random() < 0.5
    for at in range(source.randrange(1, 60)):
        writer.now_ms += source.randrange(5000)
        producer = source.randrange(4)
        if producer in open_ and source.random() < 0.3:
            writer.end(partition, producer, committed=source.random() < 0.5)
            open_.remove(producer)
            continue
        records = [_record(number, writer.now_ms, source, ordered=ordered) for number in range(source.randrange(1, 6))]
        batch: dict[str, Any] = {"codec": source.choice(list(Codec))}
        if producer:
            batch |= {"producer_id": producer, "base_sequence": sequences[producer], "transactional": True}
            sequences[producer] += len(records)
            open_.add(producer)
        writer.append(partition, records, **batch)
        if at % 10 == 9 and source.random() < 0.2:
            writer.log(partition).roll()
    for producer in sorted(open_):
        if source.random() < 0.7:
            writer.end(partition, producer, committed=source.random() < 0.5)


def _record(number: int, now_ms: int, source: random.Random, *, ordered: bool) -> Record:
    key = b"key-%d" % source.randrange(12)
    timestamp = now_ms + number if ordered else now_ms - source.randrange(200_000)
    value = None if source.random() < 0.1 else b"v" * source.randrange(60)
    headers = tuple((f"h{at}", source.choice([None, b"x"])) for at in range(source.randrange(3)))
    return Record(number, timestamp, key, value, headers)


def as_a_brokers(fs: LocalFileSystem, marks: dict[TopicPartition, int] | None) -> None:
    """Make a directory look like that of a broker in an unknown cluster."""
    write_file(
        fs, f"{ROOT}/meta.properties", b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAg\n"
    )
    if fs.exists(f"{ROOT}/replication-offset-checkpoint"):
        fs.unlink(f"{ROOT}/replication-offset-checkpoint")
    if marks is not None:
        write_file(fs, f"{ROOT}/replication-offset-checkpoint", checkpoints.encode(marks))


# ---- reading ---------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def read_rows(
    fs: Store, options: Mapping[str, str], conditions: Sequence[Condition] = (), root: str = ROOT
) -> tuple[list[Row], ReadCounts]:
    """The rows of a batch's tasks, one after the other, and their counts."""
    parsed = parse({"path": root, **options})
    names = column_names(parsed)
    plan = plan_batch(parsed, fs, names, conditions)
    return read_plan(fs, plan, parsed, names, conditions)


def read_plan(
    fs: Store, plan: BatchPlan, options: ReadOptions, names: tuple[str, ...], conditions: Sequence[Condition] = ()
) -> tuple[list[Row], ReadCounts]:
    """The rows of a plan's tasks."""
    counts = ReadCounts()
    rows: list[Row] = []
    for one in (one for task in plan.tasks for one in task):
        for batch in read_slice(RowPlan.of(options, names, conditions), one, fs, counts):
            rows += _rows(batch)
    return rows, counts + plan.counts


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    at = batch.schema.get_field_index("timestamp")
    if at >= 0:
        batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
    yield from batch.to_pylist()
