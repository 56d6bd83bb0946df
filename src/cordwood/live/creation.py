"""Adds logs to a manager: loads them from a directory at the start, in threads, or creates them on request.

Source: Kafka LogManager.loadLogs (for one directory), LogManager.loadLog, LogManager.getOrCreateLog.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cordwood.common.arguments import check_number
from cordwood.common.config import INT_MAX
from cordwood.common.errors import IllegalStateError, InconsistentTopicIdError, KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.live.directories import LiveDirectory, LogDirFailureChannel
from cordwood.live.environment import Checkpointed, LogEnvironment, ProducerLimits
from cordwood.live.log import Log, load_log
from cordwood.live.metrics import MetricName
from cordwood.live.pool import LogPool
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.node.directory import Partition

# ---- the logs of a directory -----------------------------------------------------------------------------------------

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


class Creation:
    """Loads and creates logs."""

    def __init__(self, pool: LogPool) -> None:
        self._pool = pool
        #: Preferred directory for a partition's new log.
        self._preferred: dict[TopicPartition, str] = {}

    def open(
        self,
        path: str,
        topic: str,
        checkpointed: Checkpointed = Checkpointed(),  # noqa: B008 - frozen
        *,
        topic_id: uuid.UUID | None = None,
        on_recovered: Callable[[int], None] = lambda _: None,
    ) -> Log:
        """Load the log in a partition's directory, or create one there; see `load_log`."""
        pool, config = self._pool, self._pool.configs.broker
        limits = ProducerLimits(
            config.integer("producer.id.expiration.ms"),
            config.integer("producer.id.expiration.check.interval.ms"),
            config.integer("transaction.max.timeout.ms"),
            config.flag("transaction.partition.verification.enable"),
        )
        shared = (pool.fs, pool.clock, pool.scheduler, pool.directories.failures)
        environment = LogEnvironment(*shared, limits, pool.stats, pool.random, pool.has_tier)
        return load_log(
            path, pool.configs.topic(topic), environment, checkpointed, topic_id=topic_id, on_recovered=on_recovered
        )

    def maybe_update_preferred_log_dir(self, partition: TopicPartition, directory: str) -> None:
        """Set the directory for a partition's next new log, unless the directory has such a log already."""
        path = self._pool.fs.absolute_path(directory)
        with self._pool.creation:
            known = (self._pool.get(partition), self._pool.get(partition, is_future=True))
            if not any(log is not None and log.parent_directory == path for log in known):
                self._preferred[partition] = path

    def get_or_create_log(
        self,
        partition: TopicPartition,
        *,
        is_new: bool = False,
        is_future: bool = False,
        topic_id: uuid.UUID | None = None,
        target_directory_id: uuid.UUID | None = None,
    ) -> Log:
        """Return the log of a partition; create it if it is missing.

        A new log is created in the assigned directory, else in the preferred one, else in the live directory with the
        fewest logs that is not cordoned.

        Args:
            is_new: no directory ever had the log. If this is false, an offline directory may have it.
            is_future: a log that will replace the current one; it needs a preferred directory.
            target_directory_id: id of the assigned directory; ignored if no directory here has it.

        Raises:
            KafkaStorageError: no directory is usable, or an offline directory may have the log.
            IllegalStateError: a future log without a preferred directory, or in the directory of the current log; or
                the manager does not run.
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            BadNameError: the name is not valid for a Kafka topic.
            TypeError, ValueError: the partition is not valid.
        """
        with self._pool.creation:
            log = self._pool.get(partition, is_future=is_future)
            if log is None:
                self._pool.directories.check_running()
                filenames.check_topic(partition.topic)
                check_number("the number of a partition", partition.partition, 0, INT_MAX)
                offline = self._pool.directories.offline
                if not is_new and offline:
                    raise KafkaStorageError(
                        f"Can not create log for {partition} because log directories {', '.join(offline)} are offline"
                    )
                return self._create(
                    partition, self._places(partition, is_future, target_directory_id), is_future, topic_id
                )
            if topic_id is not None:
                if log.topic_id is not None and log.topic_id != topic_id:
                    raise InconsistentTopicIdError(
                        f"Found inconsistent topic id for topic partition {partition}: it is {log.topic_id}, not the "
                        f"requested {topic_id}"
                    )
                log.assign_topic_id(topic_id)
            return log

    def _create(
        self, partition: TopicPartition, paths: Sequence[str], is_future: bool, topic_id: uuid.UUID | None
    ) -> Log:
        """Create a log in the first directory that works."""
        pool, problems = self._pool, []
        for path in paths:
            directory = pool.directories.locked.get(path)
            if directory is None or path not in pool.directories.live:
                problems.append(f"{path} is offline")
                continue
            place = directory.place_for(partition, DirectoryState.FUTURE if is_future else DirectoryState.CURRENT)
            try:
                log = self.open(place, partition.topic, topic_id=topic_id)
            except OSError as error:
                pool.directories.fail(path, f"Error while creating log for {partition}", error)
                problems.append(f"{path}: {error}")
                continue
            pool.add(partition, log, is_future=is_future)
            pool.remember_configs(partition.topic, log)
            self._preferred.pop(partition, None)
            return log
        raise KafkaStorageError(f"No log directory is left to create {partition} in. {'; '.join(problems)}".strip())

    def _places(
        self, partition: TopicPartition, is_future: bool, target_directory_id: uuid.UUID | None
    ) -> Sequence[str]:
        """Return the directories for a new log, the best one first."""
        pool = self._pool
        assigned = [
            path
            for path, directory in pool.directories.locked.items()
            if target_directory_id is not None and directory.directory_id == target_directory_id
        ]
        preferred = assigned[0] if assigned else self._preferred.get(partition)
        if is_future:
            current = pool.get(partition)
            if preferred is None:
                raise IllegalStateError(
                    f"Can not create the future log for {partition} without having a preferred log directory"
                )
            if current is not None and current.parent_directory == preferred:
                raise IllegalStateError(
                    f"Can not create the future log for {partition} in the current log directory of this partition"
                )
        if preferred is not None:
            return [preferred]
        cordoned, live = pool.directories.cordoned(pool.configs.broker), pool.directories.live
        # If all are cordoned, Kafka uses the first directory.
        free = [path for path in live if path not in cordoned] or list(live[:1])
        logs = pool.all
        return sorted(free, key=lambda path: sum(log.parent_directory == path for log in logs))
