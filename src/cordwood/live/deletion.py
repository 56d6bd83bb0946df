"""Removes logs from a manager, in two steps.

The directory of a deleted log is renamed at once; its files are removed after `log.segment.delete.delay.ms`, or after
the next start.

Source: Kafka LogManager.asyncDelete, LogManager.deleteLogs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cordwood.common.errors import KafkaStorageError, LogError
from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.manager_tasks import Checkpoints
from cordwood.live.pool import LogPool, check_partition
from cordwood.storage.formats.filenames import DirectoryState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted log whose directory is not removed yet; `since_ms` is on the scheduler's clock."""

    log: Log
    since_ms: int


class Deletion:
    """Removes logs.

    Attributes:
        stray: directories that a broker has set aside as stray; they are not loaded, and stay.
        waiting: logs whose directories are not removed yet, the oldest first.
        on_deleted: called with a partition whose log was removed, and whose directory is renamed.
    """

    def __init__(self, pool: LogPool, checkpoints: Checkpoints) -> None:
        self.stray: dict[TopicPartition, str] = {}
        self.waiting: deque[Deleted] = deque()
        self.on_deleted: Callable[[TopicPartition], None] = lambda _: None
        self._pool = pool
        self._checkpoints = checkpoints

    def async_delete(
        self, partition: TopicPartition, *, is_future: bool = False, checkpoint: bool = True
    ) -> Log | None:
        """Remove a log, and delete its files later; return it, or None if it is not here.

        Args:
            is_future: remove the log that was to replace the current one.

        Raises:
            KafkaStorageError: the disk failed, or an offline directory may have the log.
            IllegalStateError: another thread waits until a clean of the log has stopped, so the log stays; or the
                manager does not run.
        """
        check_partition(partition)
        pool, cleaner = self._pool, self._pool.cleaner
        pool.directories.check_running()
        with pool.creation:
            with pool.lock:
                log = pool.of(is_future=is_future).pop(partition, None)
            if log is None:
                if pool.directories.offline:
                    raise KafkaStorageError(f"Failed to delete log for {partition} because it may be in an offline dir")
                return None
            if cleaner is not None and not is_future:
                try:
                    cleaner.abort_cleaning(partition)
                except LogError:  # another thread waits for an abort
                    with pool.lock:
                        pool.of(is_future=is_future)[partition] = log
                    raise
                cleaner.manager.update_checkpoints(log.parent_directory, remove=partition)
                # A later log of the same name is a different log, so forget that this one could not be cleaned.
                cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
            self.delete_later(partition, log)
            if not is_future:
                self.on_deleted(partition)
            if partition.topic not in {one.topic for one, _ in pool.items()}:
                pool.configs.forget(partition.topic)  # a later topic of the same name is a different topic
        if checkpoint:
            self._checkpoints.write_offsets(log.parent_directory)
        return log

    def async_delete_all(
        self,
        partitions: Iterable[TopicPartition],
        *,
        on_error: Callable[[TopicPartition, Exception], None],
    ) -> None:
        """Remove many logs and their future logs; write each directory's checkpoints once.

        Args:
            partitions: partitions to remove; unknown ones are skipped.
            on_error: called with each failure; the other partitions are still removed.
        """
        touched: set[str] = set()
        for partition in partitions:
            for is_future in (False, True):
                if self._pool.get(partition, is_future=is_future) is None:
                    continue
                try:
                    log = self.async_delete(partition, is_future=is_future, checkpoint=False)
                    touched |= set() if log is None else {log.parent_directory}
                except LogError as error:
                    on_error(partition, error)
        self._checkpoints.write_offsets(*touched)

    def delete_later(self, partition: TopicPartition, log: Log, *, successor: Log | None = None) -> None:
        """Rename the directory of a removed log, which takes no more appends; its files are deleted later.

        Args:
            successor: the log in another directory that replaces it.
        """
        directory = log.directory
        log.refuse_changes()
        log.rename_directory(
            self._pool.directories.locked[log.parent_directory].place_for(partition, DirectoryState.DELETED)
        )
        if successor is None:
            log.note_deleted()
        else:
            _log.info("%s has moved to %s; the files in %s go later", partition, successor.directory, directory)
        self.wait(log)

    def wait(self, log: Log) -> None:
        """Let `delete_logs` remove a log whose directory is already renamed, after the delay."""
        self.waiting.append(Deleted(log, self._pool.scheduler.clock()))

    def forget_all_in(self, path: str) -> None:
        """Forget the logs whose removal waits in a failed directory."""
        self.waiting = deque(one for one in self.waiting if one.log.parent_directory != path)

    def delete_logs(self) -> None:
        """Remove the logs that were deleted long enough ago, and schedule the next run."""
        scheduler = self._pool.scheduler
        delay_ms = self._pool.configs.broker.integer("log.segment.delete.delay.ms")
        while self.waiting and scheduler.clock() - self.waiting[0].since_ms >= delay_ms:
            deleted = self.waiting.popleft()
            try:
                deleted.log.delete()
            except Exception:  # one failure must not prevent the removal of other logs
                _log.exception("Exception while deleting %s", deleted.log.name)
        left_ms = delay_ms - (scheduler.clock() - self.waiting[0].since_ms) if self.waiting else delay_ms
        scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=max(left_ms, 1))
