"""Adds logs to a manager: loads them from a directory at the start, or creates them on request.

Source: Kafka LogManager.loadLog, LogManager.getOrCreateLog.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from cordwood.common.arguments import check_number
from cordwood.common.config import INT_MAX
from cordwood.common.errors import IllegalStateError, InconsistentTopicIdError, KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.live.environment import Checkpointed, LogEnvironment, ProducerLimits
from cordwood.live.log import Log, load_log
from cordwood.live.pool import LogPool
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState


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
        environment = LogEnvironment(*shared, limits, pool.stats, pool.random)
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
                        f"Found inconsistent topic id for topic partition {partition}: it is {log.topic_id}, and "
                        f"{topic_id} was asked for"
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
