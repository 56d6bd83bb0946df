"""The logs of a manager by partition, and the state that its parts share.

Three locks, acquired in this order: `creation`, held while a log is created, moved or deleted, even during a wait for a
clean to stop; the log's own lock; and `lock`, which guards the maps of logs and is never held during a wait.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from cordwood.common.arguments import check_whole, shown
from cordwood.common.errors import IllegalStateError, KafkaStorageError
from cordwood.common.types import Clock, TopicPartition
from cordwood.fs.pooled import PooledFileSystem
from cordwood.live.directories import LogDirectories
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.manager_configs import Configs
from cordwood.live.metrics import LogStats
from cordwood.live.scheduler import Scheduler
from cordwood.storage.formats import log_configs
from cordwood.storage.formats.filenames import FileKind

_log = logging.getLogger(__name__)


def check_partition(partition: object) -> None:
    """Raise TypeError unless this is a topic and a whole number; `True` would be the partition 1."""
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"a partition is a TopicPartition, not {shown(partition)}")
    check_whole("the number of a partition", partition.partition)


@dataclass
class LogPool:
    """The logs, and the objects that they share.

    Attributes:
        fs: limits the number of open files, as there may be many logs.
        cleaner: cleans the compacted logs while the manager runs; None if `log.cleaner.enable` is false.
        current, future: the logs by partition; a future log will replace the current one.
        remembers_configs: keep the explicit configs of a log in a file beside it.
        has_tier: tiered logs have their closed segments in a tier.
    """

    fs: PooledFileSystem
    directories: LogDirectories
    configs: Configs
    clock: Clock
    scheduler: Scheduler
    stats: LogStats
    random: Random
    cleaner: LogCleaner | None = None
    current: dict[TopicPartition, Log] = field(default_factory=dict)
    future: dict[TopicPartition, Log] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    creation: threading.RLock = field(default_factory=threading.RLock)
    remembers_configs: bool = True
    has_tier: bool = False

    def of(self, *, is_future: bool) -> dict[TopicPartition, Log]:
        """Return the map of current or of future logs."""
        return self.future if is_future else self.current

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> Log | None:
        """Return the log of a partition, or None."""
        check_partition(partition)
        with self.lock:
            return self.of(is_future=is_future).get(partition)

    def add(self, partition: TopicPartition, log: Log, *, is_future: bool) -> None:
        """Add a loaded log, and update it to the current configs of its topic.

        Raises:
            IllegalStateError: the partition has a log already.
        """
        with self.lock:
            logs = self.of(is_future=is_future)
            if partition in logs:
                raise IllegalStateError(
                    f"Duplicate log directories for {partition} are found in both {logs[partition].directory} and "
                    f"{log.directory}. It is likely because log directory failure happened while broker was replacing "
                    "current replica with future replica. Recover broker from this failure by manually deleting one "
                    "of the two directories for this partition. It is recommended to delete the partition in the log "
                    "directory that is known to have failed recently."
                )
            # The configs may have changed while the log was loaded. No other thread has the log yet, or its lock.
            log.update_config(self.configs.topic(partition.topic))
            log.before_truncation = functools.partial(self._truncate_future, partition, log)
            logs[partition] = log

    def _truncate_future(self, partition: TopicPartition, log: Log, offset: int) -> None:
        """Truncate the future log, too, so that truncated records do not reappear when it becomes current."""
        future = self.get(partition, is_future=True)
        if future is not None and future is not log:
            with contextlib.suppress(KafkaStorageError):  # its directory failed, so there is no future log
                future.truncate_to(offset)

    def recall_configs(self, directory: str, topic: str) -> None:
        """Read the configs remembered beside a log before it is loaded."""
        if self.remembers_configs:
            self.configs.recall(self.fs, directory, topic)

    def remember_configs(self, topic: str, log: Log) -> None:
        """Write the explicit configs of a topic beside one of its logs.

        Raises:
            KafkaStorageError: the write failed, and took the log directory offline.
        """
        if not self.remembers_configs:
            return
        with self.creation, self.directories.failures.guarded(log.parent_directory, "remembering configs of", log.name):
            found = self.configs.to_remember(self.fs, log.directory, topic, self.clock())
            if found is not None:
                path = f"{log.directory}/{FileKind.LOG_CONFIGS}"
                try:
                    self.fs.put(path, log_configs.encode(found), beside=f"{path}.tmp")
                except IsADirectoryError as error:
                    # A directory under that name is not a failure of the disk, which would take all logs offline.
                    _log.error("the configs of %s are not remembered: %s", log.name, error)

    def pop_all_in(self, path: str) -> list[Log]:
        """Remove and return the logs in a directory."""
        with self.lock:
            maps = (self.current, self.future)
            found = [(logs, name) for logs in maps for name, log in logs.items() if log.parent_directory == path]
            return [logs.pop(name) for logs, name in found]

    @property
    def all(self) -> tuple[Log, ...]:
        """Current and future logs."""
        with self.lock:
            return (*self.current.values(), *self.future.values())

    def items(self) -> list[tuple[TopicPartition, Log]]:
        """Current and future logs, with their partitions."""
        with self.lock:
            return [*self.current.items(), *self.future.items()]

    def current_logs(self) -> Mapping[TopicPartition, Log]:
        """Return a copy of the map of current logs."""
        with self.lock:
            return dict(self.current)

    @contextlib.contextmanager
    def paused(self, partition: TopicPartition) -> Iterator[LogCleaner | None]:
        """Prevent cleans of this partition during the block; yield the cleaner, or None if there is no cleaner."""
        cleaner = self.cleaner
        if cleaner is None:
            yield None
            return
        cleaner.abort_and_pause_cleaning(partition)
        try:
            yield cleaner
        finally:
            cleaner.resume_cleaning([partition])
