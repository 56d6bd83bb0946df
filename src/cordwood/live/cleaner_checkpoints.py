"""The first dirty offset of each live log, in the file `cleaner-offset-checkpoint` of its log directory.

Source: Kafka LogCleanerManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from cordwood.common.errors import CorruptFileError, KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.failures import LogDirFailureChannel, io_error_of
from cordwood.live.log import Log
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file

_log = logging.getLogger(__name__)


class CleanerCheckpoints:
    """The checkpoint files; a missing file is created empty.

    Args:
        lock: guards the files; the caller may hold it already.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Iterable[str],
        logs: Callable[[], Mapping[TopicPartition, Log]],
        failures: LogDirFailureChannel,
        lock: AbstractContextManager[object],
    ) -> None:
        self._fs = fs
        self._logs = logs
        self._failures = failures
        self._lock = lock
        self._files = {
            fs.absolute_path(path): f"{fs.absolute_path(path)}/{filenames.CLEANER_OFFSETS}" for path in log_dirs
        }
        #: The bytes of each file and its decoded entries.
        self._decoded: dict[str, tuple[bytes, dict[TopicPartition, int]]] = {}
        for path in self._files.values():
            if not fs.exists(path):
                fs.create(path).close()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return tuple(self._files)

    def all_cleaner_checkpoints(self) -> dict[TopicPartition, int]:
        """Return the first dirty offset of each log that was ever cleaned.

        If the files of two directories have an entry for a partition, use the entry in the directory of its log; if
        there is no such entry, use the smaller offset.
        """
        with self._lock:
            read: dict[str, dict[TopicPartition, int]] = {}
            for path in self._files:
                try:
                    read[path] = self._read(path)
                except KafkaStorageError:
                    _log.exception("Failed to access checkpoint file in dir %s", path)
            found: dict[TopicPartition, int] = {}
            twice: set[TopicPartition] = set()
            for offsets in read.values():
                both = found.keys() & offsets.keys()
                found |= offsets | {one: min(offsets[one], found[one]) for one in both}
                twice |= both
            for one in twice:
                log = self._logs().get(one)
                own = {} if log is None else read.get(log.parent_directory, {})
                found[one] = own.get(one, found[one])
            return found

    def update_checkpoints(
        self,
        log_dir: str,
        *,
        add: tuple[TopicPartition, int] | None = None,
        remove: TopicPartition | None = None,
    ) -> None:
        """Change a directory's file and drop entries of partitions without a log. A storage error is only logged."""
        self.replace(log_dir, {} if add is None else dict([add]), remove)

    def replace(self, log_dir: str, added: Mapping[TopicPartition, int], removed: TopicPartition | None = None) -> None:
        """Set the offsets of some partitions and remove one partition's entry; see `update_checkpoints`."""
        with self._lock:
            path = self._fs.absolute_path(log_dir)
            if path not in self._files:
                return
            known = self._logs()
            try:
                kept = {one: offset for one, offset in self._read(path).items() if one in known and one != removed}
                self._write(path, {**kept, **added})
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", path)

    def maybe_truncate_checkpoint(self, log_dir: str, partition: TopicPartition, offset: int) -> None:
        """Lower the entry of a truncated log to an offset, because later offsets are not clean any more.

        Raises:
            KafkaStorageError: the disk failed.
        """
        with self._lock:
            path = self._fs.absolute_path(log_dir)
            log = self._logs().get(partition)
            if path not in self._files or log is None or not log.config.compact:
                return
            known = self._read(path)
            if known.get(partition, 0) > offset:
                self._write(path, known | {partition: offset})

    def move(self, partition: TopicPartition, source: str, target: str) -> None:
        """Move the entry of a log that has moved to another directory. A storage error is only logged."""
        with self._lock:
            try:
                offset = self._read(source).get(partition) if source in self._files else None
                if offset is not None:
                    self.update_checkpoints(source, remove=partition)
                    self.update_checkpoints(target, add=(partition, offset))
            except KafkaStorageError:
                _log.exception("Failed to access checkpoint file in dir %s", source)

    def forget(self, log_dir: str) -> None:
        """Ignore the file of a failed directory from now on."""
        with self._lock:
            self._files.pop(self._fs.absolute_path(log_dir), None)

    def _read(self, path: str) -> dict[TopicPartition, int]:
        file = self._files[path]
        with self._failures.guarded(path, f"reading {filenames.CLEANER_OFFSETS}", "the log directory"):
            data = read_file(self._fs, file)
            if path in self._decoded and self._decoded[path][0] == data:
                return self._decoded[path][1]
            try:
                self._decoded[path] = data, checkpoints.decode(data, file)
                return self._decoded[path][1]
            except CorruptFileError as error:
                known = io_error_of(error)
                if isinstance(known, OSError):
                    raise known from error
                # A bad number ends Kafka's cleaner thread. Here the file is ignored: without an offset, a clean only
                # reads more.
                _log.error("%s does not count, its logs are cleaned from their starts: %s", file, error)
                return {}

    def _write(self, path: str, offsets: Mapping[TopicPartition, int]) -> None:
        file = self._files[path]
        with self._failures.guarded(path, f"writing {filenames.CLEANER_OFFSETS}", "the log directory"):
            self._fs.put(file, checkpoints.encode(offsets), beside=f"{file}.tmp")
