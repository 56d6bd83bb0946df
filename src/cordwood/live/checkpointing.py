"""Writes the checkpoint files of a manager's log directories.

Source: the checkpoint tasks of Kafka's LogManager and ReplicaManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from cordwood.common.errors import KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.log_directory import LiveDirectory
from cordwood.storage.formats import filenames

_log = logging.getLogger(__name__)


def _start_offset(log: Log) -> int | None:
    """Return the log start offset, or None if the first segment begins there."""
    return log.log_start_offset if log.log_start_offset > log.log_segments[0].base_offset else None


#: For each file, a function that returns a log's offset; if it returns None, the file gets no entry for the log.
_OFFSETS: Mapping[str, Callable[[Log], int | None]] = {
    filenames.RECOVERY_POINTS: lambda log: log.recovery_point,
    filenames.LOG_START_OFFSETS: _start_offset,
    filenames.HIGH_WATERMARKS: lambda log: log.high_watermark,
}


class Checkpoints:
    """The checkpoint files of the live directories. A storage error takes its directory offline, and is only logged."""

    def __init__(
        self, directories: Mapping[str, LiveDirectory], logs: Callable[[], Mapping[TopicPartition, Log]]
    ) -> None:
        """Keep references to both mappings, which may change later."""
        self._directories = directories
        self._logs = logs
        #: Held while a file is written, so that older offsets never replace newer ones.
        self._lock = threading.Lock()

    def write(self, paths: Iterable[str], *names: str) -> None:
        """Write these files of the directories; skip directories that are no longer live."""
        for path in paths:
            directory = self._directories.get(path)
            if directory is not None:
                for name in names:
                    self._write(directory, name)

    def write_offsets(self, *paths: str) -> None:
        """Write the recovery points and start offsets of directories."""
        self.write(paths, filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)

    def _write(self, directory: LiveDirectory, name: str) -> None:
        offset_of = _OFFSETS[name]
        with self._lock:
            found = {}
            for partition, log in self._logs().items():
                offset = offset_of(log) if log.parent_directory == directory.path else None
                if offset is not None:
                    found[partition] = offset
            try:
                directory.write_offsets(name, found)
            except KafkaStorageError:
                _log.exception("Disk error while writing %s in directory %s", name, directory.path)
