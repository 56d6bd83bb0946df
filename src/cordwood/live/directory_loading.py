"""Loads the logs of a log directory, in threads, and reports progress.

Source: the part of Kafka's LogManager.loadLogs that is about one directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cordwood.common.errors import KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.live.environment import Checkpointed
from cordwood.live.failures import LogDirFailureChannel
from cordwood.live.log_directory import LiveDirectory
from cordwood.live.metrics import MetricName
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.node.directory import Partition

#: Called with a directory, the number of its loaded logs, and the number of all its logs.
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """The inputs for loading the log of one partition.

    Attributes:
        high_watermark: the checkpointed value; None if the checkpoint has no entry.
        on_recovered: callback for the number of segments that are still to be recovered.
    """

    directory: LiveDirectory
    partition: Partition
    checkpointed: Checkpointed
    high_watermark: int | None
    on_recovered: Callable[[int], None]


class DirectoryLoads:
    """Loads the directories of a manager and counts the remaining logs and segments."""

    def __init__(self, failures: LogDirFailureChannel) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._logs: dict[str, int] = {}
        self._segments: dict[tuple[str, int], int] = {}

    def load(
        self,
        directory: LiveDirectory,
        threads: int,
        load_one: Callable[[LoadedFrom], None],
        on_progress: OnProgress | None,
    ) -> None:
        """Load all logs of a directory. An I/O error takes it offline, but the remaining logs are still loaded.

        Args:
            load_one: loads one log and adds it to the manager.

        Raises:
            CordwoodError: a log cannot be loaded although its disk works; the other logs are loaded.
        """
        try:
            directory.take_clean_shutdown()
            partitions = directory.partitions()
        except OSError as error:
            self._failures.maybe_add_offline_log_dir(directory.path, "Error while loading log dir", error)
            return
        offsets = {name: directory.offsets(name) for name in _OFFSETS}
        numbers: dict[int, int] = {}
        self._logs[directory.path] = len(partitions)

        def load(partition: Partition) -> None:
            with self._lock:
                at = directory.path, numbers.setdefault(threading.get_ident(), len(numbers))
            try:
                load_one(_before(directory, partition, offsets, lambda left: self._segments.update({at: left})))
            except (OSError, KafkaStorageError) as error:
                cause = error if isinstance(error, OSError) else error.__cause__
                message = f"Error while loading {partition.path}"
                self._failures.maybe_add_offline_log_dir(
                    directory.path, message, cause if isinstance(cause, OSError) else OSError(str(error))
                )
            with self._lock:
                self._logs[directory.path] -= 1
                done = len(partitions) - self._logs[directory.path]
                if on_progress is not None:
                    on_progress(directory.path, done, len(partitions))

        with ThreadPoolExecutor(threads, f"log-recovery-{directory.path}") as pool:
            _results(pool, load, partitions)
        directory.is_loaded = not self._failures.is_offline(directory.path)

    def end(self) -> None:
        """End loading and remove its gauges."""
        self._logs.clear()
        self._segments.clear()

    def metrics(self) -> Iterator[tuple[MetricName, int]]:
        """Yield the number of logs to load for each directory, and of segments for each directory and thread."""
        for path, count in list(self._logs.items()):
            yield MetricName("kafka.log", "LogManager", "remainingLogsToRecover", (("dir", path),)), count
        for (path, thread), count in list(self._segments.items()):
            tags = (("dir", path), ("threadNum", str(thread)))
            yield MetricName("kafka.log", "LogManager", "remainingSegmentsToRecover", tags), count


_OFFSETS = (filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS, filenames.HIGH_WATERMARKS)


def _results(pool: ThreadPoolExecutor, load: Callable[[Partition], None], partitions: Sequence[Partition]) -> None:
    for loaded in [pool.submit(load, partition) for partition in partitions]:
        loaded.result()


def _before(
    directory: LiveDirectory,
    partition: Partition,
    offsets: Mapping[str, Mapping[TopicPartition, int]],
    on_recovered: Callable[[int], None],
) -> LoadedFrom:
    name, is_deleted = partition.name.topic_partition, partition.name.state is DirectoryState.DELETED
    recovery_points, starts, high_watermarks = (offsets[file] for file in _OFFSETS)
    known = Checkpointed(starts.get(name, 0), recovery_points.get(name, 0), directory.was_clean)
    return LoadedFrom(
        directory,
        partition,
        Checkpointed() if is_deleted else known,
        high_watermark=high_watermarks.get(name),
        on_recovered=on_recovered,
    )
