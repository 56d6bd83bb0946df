"""Moves a log from one log directory to another, while it is used.

A future log in the other directory receives all records of the current log, and then replaces it. A crash before the
replacement leaves a future log, with which the next move continues. A crash during the replacement leaves a single log,
or two whole logs, and then the next start fails until the user removes one of them.

Source: Kafka LogManager.replaceCurrentWithFutureLog, ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cordwood.common.errors import IllegalStateError, KafkaStorageError, OffsetOutOfRangeError
from cordwood.common.types import TopicPartition
from cordwood.live.creation import Creation
from cordwood.live.deletion import Deletion
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.manager_tasks import Checkpoints
from cordwood.live.pool import LogPool
from cordwood.storage.formats.filenames import DirectoryState

_COPY_BYTES = 1 << 20
#: The leader epoch for appends to a future log, so that it accepts the batches of every leader.
_ANY_EPOCH = 2**31 - 1


class Moves:
    """Moves the logs of a pool."""

    def __init__(self, pool: LogPool, creation: Creation, deletion: Deletion, checkpoints: Checkpoints) -> None:
        self._pool = pool
        self._creation = creation
        self._deletion = deletion
        self._checkpoints = checkpoints
        #: Partitions that `move_partition` is moving.
        self._moving: set[TopicPartition] = set()

    def move_partition(self, partition: TopicPartition, directory: str) -> Log:
        """Move a log to another log directory, while it is used; continue a move that was interrupted.

        A future log there receives all records, then replaces the log. From then on the old `Log` refuses every call,
        and its files are removed like those of a deleted log.

        Returns:
            the log in its new directory.

        Raises:
            LogDirNotFoundError: the manager has no such directory.
            KafkaStorageError: the directory or the log is offline, or the log does not exist.
            IllegalStateError: another thread moves the log.
        """
        pool = self._pool
        path = pool.fs.absolute_path(directory)
        if not pool.directories.is_live(directory):
            raise KafkaStorageError(f"Log directory {directory} is offline")
        current = pool.get(partition)
        if current is None:
            raise KafkaStorageError(f"There is no log of {partition}, or it is in a directory that is offline")
        if current.parent_directory == path:
            return current
        with self._moving_alone(partition), pool.paused(partition):
            future = self._future_log(partition, path)
            _copy(current, future)
            with pool.creation, current.unchanged():
                _copy(current, future)
                if pool.get(partition) is not current or pool.get(partition, is_future=True) is not future:
                    raise KafkaStorageError(f"The log of {partition} was deleted or moved meanwhile")
                self._replace(partition, current, future)
                current.close_handlers()
                return future

    @contextlib.contextmanager
    def _moving_alone(self, partition: TopicPartition) -> Iterator[None]:
        """Prevent other threads from moving this partition: they would delete the future log that this thread fills."""
        with self._pool.lock:
            if partition in self._moving:
                raise IllegalStateError(f"Another thread moves {partition}")
            self._moving.add(partition)
        try:
            yield
        finally:
            with self._pool.lock:
                self._moving.discard(partition)

    def _future_log(self, partition: TopicPartition, path: str) -> Log:
        """Return the future log in this directory; delete a future log in another directory or of another topic."""
        with self._pool.creation:
            current, future = self._pool.get(partition), self._pool.get(partition, is_future=True)
            topic_id = None if current is None else current.topic_id
            if future is not None and (future.parent_directory != path or future.topic_id not in (None, topic_id)):
                self._deletion.async_delete(partition, is_future=True)
            self._creation.maybe_update_preferred_log_dir(partition, path)
            return self._creation.get_or_create_log(partition, is_new=True, is_future=True, topic_id=topic_id)

    def _replace(self, partition: TopicPartition, current: Log, future: Log) -> None:
        pool, source, target = self._pool, current.parent_directory, future.parent_directory
        # A crash between the two renames leaves two whole logs, and the next start refuses them. In the reverse order
        # it would leave no log, and the next start would create an empty one.
        future.update_high_watermark(current.high_watermark)
        directory = pool.directories.locked[target]
        future.rename_directory(directory.place_for(partition, DirectoryState.CURRENT))
        with pool.lock:
            pool.current[partition] = future
            pool.future.pop(partition, None)
        if pool.cleaner is not None:
            pool.cleaner.manager.alter_checkpoint_dir(partition, source, target)
        try:
            self._deletion.delete_later(partition, current, successor=future)
        except KafkaStorageError:
            current.close_handlers()
            raise
        self._checkpoints.write_offsets(source, target)


def _copy(current: Log, future: Log) -> None:
    """Append to a future log all records that it lacks; flushed on return."""
    if future.log_end_offset < current.log_start_offset or future.log_end_offset > current.log_end_offset:
        future.truncate_fully_and_start_at(current.log_start_offset)
    while True:
        with current.unchanged():  # waits for a truncation that is already counted but not finished
            truncations, start = current.truncations, future.log_end_offset
        if start >= (end := current.log_end_offset):
            break
        try:
            data = current.read(start, _COPY_BYTES, FetchIsolation.LOG_END)
        except OffsetOutOfRangeError:
            if current.truncations == truncations:
                raise
            continue
        with current.unchanged():
            if current.truncations != truncations:
                continue  # the records may be truncated; the future log was truncated, too
            if data.records:
                future.append_as_follower(data.records, _ANY_EPOCH)
            else:
                future.go_on_at(end)  # a clean has removed all records from there on
    future.maybe_increment_high_watermark(future.log_end_offset)
    future.maybe_increment_log_start_offset(current.log_start_offset)
    future.flush(force_active_segment=True)
