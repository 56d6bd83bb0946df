"""How logs leave a manager: deleted, in two steps, or set aside because they do not belong here.

The directory of a deleted log is renamed at once; its files go after `log.segment.delete.delay.ms`, or after the next
start. A stray log is closed, and its files stay.

Source: Kafka LogManager.asyncDelete, LogManager.deleteLogs.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cordwood.errors import KafkaStorageError, LogError
from cordwood.service.checkpointing import Checkpoints
from cordwood.service.log import Log
from cordwood.service.pool import LogPool, check_partition
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.text import bytes_text
from cordwood.types import TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deleted:
    """A log whose directory waits for its removal, since a time of the scheduler's clock."""

    log: Log
    since_ms: int


class Deletion:
    """Takes logs out.

    Attributes:
        stray: where the logs are that do not belong here.
        waiting: logs whose directories wait for their removal, the oldest first.
    """

    def __init__(self, pool: LogPool, checkpoints: Checkpoints) -> None:
        self.stray: dict[TopicPartition, str] = {}
        self.waiting: deque[Deleted] = deque()
        self._pool = pool
        self._checkpoints = checkpoints

    def async_delete(
        self, partition: TopicPartition, *, is_future: bool = False, is_stray: bool = False, checkpoint: bool = True
    ) -> Log | None:
        """Take a log out, and remove its files later; returns it, None if it is not here.

        Args:
            is_future: the log that was to take its place.
            is_stray: it does not belong here: its directory is set aside, and stays.

        Raises:
            KafkaStorageError: it may be in a directory that is offline; or the disk.
            IllegalStateError: another thread waits until a clean of it has stopped; the log stays. Or the manager does
                not run.
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
                # A later log of the same name is another one: that this one could not be cleaned is forgotten.
                cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
            if is_stray:
                self.set_aside(partition, log)
            else:
                self.delete_later(partition, log)
        if checkpoint:
            self._checkpoints.write_offsets(log.parent_directory)
        return log

    def async_delete_all(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_stray: bool = False,
        on_error: Callable[[TopicPartition, Exception], None],
    ) -> None:
        """Take many logs out, also the future ones; each directory's checkpoints are written once.

        Args:
            partitions: which; those that are not here are passed over.
            on_error: is given what fails; the others go on.
        """
        touched: set[str] = set()
        for partition in partitions:
            for is_future in (False, True):
                if self._pool.get(partition, is_future=is_future) is None:
                    continue
                try:
                    log = self.async_delete(partition, is_future=is_future, is_stray=is_stray, checkpoint=False)
                    touched |= set() if log is None else {log.parent_directory}
                except LogError as error:
                    on_error(partition, error)
        self._checkpoints.write_offsets(*touched)

    def set_aside(self, partition: TopicPartition, log: Log) -> None:
        """A log does not belong here: close it, and rename its directory so that no start loads it."""
        path = self._renamed(partition, log, DirectoryState.STRAY)
        _log.warning("Log of %s is stray, and set aside as %s", partition, path)
        log.close()
        with self._pool.lock:
            self.stray[partition] = path

    def delete_later(self, partition: TopicPartition, log: Log) -> None:
        """Rename the directory of a log that was taken out, and takes no appends now; its files go later."""
        log.refuse_changes()
        self._renamed(partition, log, DirectoryState.DELETED)
        offsets = f"offsets {log.log_start_offset} to {log.log_end_offset - 1}, {bytes_text(log.size_bytes)}"
        _log.info("%s was deleted, %s; its files go later", partition, offsets)
        self.wait(log)

    def wait(self, log: Log) -> None:
        """Remove a log later, whose directory is renamed already."""
        self.waiting.append(Deleted(log, self._pool.scheduler.clock()))

    def _renamed(self, partition: TopicPartition, log: Log, state: DirectoryState) -> str:
        path = self._pool.directories.locked[log.parent_directory].place_for(partition, state)
        log.rename_directory(path)
        return path

    def forget_all_in(self, path: str) -> None:
        """Forget the logs that wait in a directory that has failed."""
        self.waiting = deque(one for one in self.waiting if one.log.parent_directory != path)

    def delete_logs(self) -> None:
        """Remove the logs that were deleted long enough ago, and come back when the next one is due."""
        scheduler = self._pool.scheduler
        delay_ms = self._pool.configs.broker.integer("log.segment.delete.delay.ms")
        while self.waiting and scheduler.clock() - self.waiting[0].since_ms >= delay_ms:
            deleted = self.waiting.popleft()
            try:
                deleted.log.delete()
            except Exception:  # the others are to go, too
                _log.exception("Exception while deleting %s", deleted.log.name)
        left_ms = delay_ms - (scheduler.clock() - self.waiting[0].since_ms) if self.waiting else delay_ms
        scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=max(left_ms, 1))
