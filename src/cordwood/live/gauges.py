"""Gauges, computed when they are read: of a manager's logs and directories, and of `run`'s partitions and disks.

Kafka has the first ones, except for removed bytes by reason. Kafka lacks dirty data and its age, failed cleans and free
disk space. A metrics server keeps each series for weeks, so with very many partitions there are only sums, and gauges
of the worst partitions; a gauge reports this limit.

Source: the metrics of Kafka's UnifiedLog and LogManager.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cordwood.cleaning.engine.task import FailureKind
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.cleaner_manager import MARKED
from cordwood.live.log import Log
from cordwood.live.metrics import MetricName, Total
from cordwood.live.report import PartitionStatus, worst_first

# ---- as in Kafka -----------------------------------------------------------------------------------------------------

_KAFKA_GROUP = "kafka.log"


def of_logs(logs: Iterable[tuple[TopicPartition, Log, bool]]) -> Iterator[tuple[MetricName, int]]:
    """Yield size, offsets, number of segments and removed bytes of each log.

    Args:
        logs: each log with its partition, and whether it is a future log.
    """
    for partition, log, is_future in logs:
        future = (("is-future", "true"),) if is_future else ()
        tags = (("topic", partition.topic), ("partition", str(partition.partition)), *future)
        for name, value in (
            ("NumLogSegments", len(log.log_segments)),
            ("LogStartOffset", log.log_start_offset),
            ("LogEndOffset", log.log_end_offset),
            ("Size", log.size_bytes),
            ("RetentionSizeInPercent", log.retention_size_percent),
        ):
            yield MetricName(_KAFKA_GROUP, "Log", name, tags), value
        for why, size_bytes in log.removed_bytes.items():
            yield MetricName("cordwood.log", "Log", "removed-bytes", (*tags, ("limit", str(why)))), Total(size_bytes)


def of_directories(
    paths: Sequence[str], live: Collection[str], cordoned: Collection[str]
) -> Iterator[tuple[MetricName, int]]:
    """Yield which of the configured directories are offline, and which get no new logs."""
    for name, count in (
        ("OfflineLogDirectoryCount", sum(path not in live for path in paths)),
        ("CordonedLogDirectoryCount", sum(path in cordoned for path in paths)),
    ):
        yield MetricName(_KAFKA_GROUP, "LogManager", name), count
    for path in paths:
        tags = (("logDirectory", path),)
        yield MetricName(_KAFKA_GROUP, "LogManager", "LogDirectoryOffline", tags), int(path not in live)
        yield MetricName(_KAFKA_GROUP, "LogManager", "LogDirectoryCordoned", tags), int(path in cordoned)


#: Up to this number, each partition has its own gauges, Kafka's among them.
PARTITIONS_MAX = 2_000
#: Number of worst partitions with their own gauges, if there are more than `PARTITIONS_MAX` partitions.
_WORST = 100
_GROUP = "cordwood.log"


def of_partitions(found: Sequence[PartitionStatus], longest_due_ms: int) -> Iterator[tuple[MetricName, int | float]]:
    """Yield the sums, and the gauges of each partition, or of the worst partitions.

    Args:
        longest_due_ms: the longest time that any log has been due for a clean.
    """
    shown = found if len(found) <= PARTITIONS_MAX else worst_first(found)[:_WORST]
    due = [one for one in found if one.is_due and not one.failures]
    for name, value in (
        ("count", len(found)),
        ("shown-count", len(shown)),
        ("is-limited", int(len(shown) < len(found))),
        ("size-bytes", sum(one.size_bytes for one in found)),
        ("dirty-bytes", sum(one.dirty_bytes for one in found)),
        ("due-count", len(due)),
        ("due-bytes", sum(one.dirty_bytes for one in due)),
        ("longest-due-seconds", longest_due_ms / 1_000),
    ):
        yield MetricName(_GROUP, "Partitions", name), value
    kinds = Counter(one.failure_kind for one in found if one.failures)
    for kind in (*FailureKind, MARKED):
        yield MetricName(_GROUP, "Partitions", "uncleanable-count", (("kind", str(kind)),)), kinds[kind]
    yield from _of_each(shown)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space on the disk of a log directory at the last look."""

    free_bytes: int
    size_bytes: int


def disk_spaces(fs: LocalFileSystem, log_dirs: Iterable[str]) -> dict[str, DiskSpace]:
    """Return the disk space of log directories, except where it is unknown."""
    found = {}
    for path in log_dirs:
        with contextlib.suppress(OSError):  # such a directory is about to go offline
            free, size = fs.free_bytes(path), fs.disk_size(path)
            if free is not None and size is not None:
                found[path] = DiskSpace(free, size)
    return found


def of_disks(spaces: Mapping[str, DiskSpace]) -> Iterator[tuple[MetricName, int]]:
    """Yield the gauges of the disks of log directories."""
    for path, space in spaces.items():
        tags = (("logDirectory", path),)
        yield MetricName(_GROUP, "LogDirectory", "free-bytes", tags), space.free_bytes
        yield MetricName(_GROUP, "LogDirectory", "disk-bytes", tags), space.size_bytes


def _of_each(shown: Iterable[PartitionStatus]) -> Iterator[tuple[MetricName, int | float]]:
    for one in shown:
        tags = (("topic", one.partition.topic), ("partition", str(one.partition.partition)))
        yield MetricName(_GROUP, "Partition", "size-bytes", tags), one.size_bytes
        if one.cleanable_ratio is not None:
            yield MetricName(_GROUP, "Partition", "dirty-bytes", tags), one.dirty_bytes
            yield MetricName(_GROUP, "Partition", "dirty-ratio", tags), one.cleanable_ratio
        if one.seconds_since_clean is not None:
            yield MetricName(_GROUP, "Partition", "seconds-since-clean", tags), one.seconds_since_clean
        if one.failures:
            yield MetricName(_GROUP, "Partition", "uncleanable", (*tags, ("kind", one.failure_kind))), one.failures
