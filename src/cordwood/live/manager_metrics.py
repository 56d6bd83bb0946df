"""The metrics of a manager's logs and directories, under Kafka's names; and the bytes removed from logs, by reason.

Source: the metrics of Kafka's UnifiedLog and LogManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.metrics import MetricName, Total

_GROUP = "kafka.log"


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
            yield MetricName(_GROUP, "Log", name, tags), value
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
        yield MetricName(_GROUP, "LogManager", name), count
    for path in paths:
        tags = (("logDirectory", path),)
        yield MetricName(_GROUP, "LogManager", "LogDirectoryOffline", tags), int(path not in live)
        yield MetricName(_GROUP, "LogManager", "LogDirectoryCordoned", tags), int(path in cordoned)
