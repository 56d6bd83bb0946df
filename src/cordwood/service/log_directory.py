"""A log directory of a live manager: its lock, its checkpoint files, and how it was left.

Source: the part of Kafka's LogManager that is about one directory.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping

from cordwood.errors import DataError
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.service.failures import LogDirFailureChannel
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, PartitionDirectory
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.node.directory import LogDirectory, Partition
from cordwood.types import TopicPartition

_CHECKPOINTS = (filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)


class LiveDirectory:
    """One locked log directory.

    Attributes:
        path: of the directory.
        was_clean: its last manager, or broker, shut it down properly.
        is_loaded: all its logs are loaded.
    """

    def __init__(self, fs: LocalFileSystem, path: str, failures: LogDirFailureChannel) -> None:
        """Lock a directory; a missing one is made.

        Raises:
            LockedError: a broker, or another manager, has it.
            RequestError: it cannot be locked.
            OSError: it cannot be made or read.
        """
        self.path = fs.absolute_path(path)
        self.was_clean = self.is_loaded = False
        self._fs = fs
        self._failures = failures
        if not fs.exists(self.path):
            fs.make_directory(self.path)
            fs.sync_directory(posixpath.dirname(self.path))
        self._lock: DirectoryLock = fs.lock_directory(self.path)
        for name in _CHECKPOINTS:
            if not fs.exists(self._file(name)):
                fs.create(self._file(name)).close()

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def take_clean_shutdown(self) -> None:
        """Note whether it was shut down properly, and remove the mark: a crash from now on is one."""
        self.was_clean = self._fs.exists(self._file(filenames.CLEAN_SHUTDOWN))
        if self.was_clean:
            self._fs.unlink(self._file(filenames.CLEAN_SHUTDOWN))

    def partitions(self) -> list[Partition]:
        """The directories of partitions.

        Raises:
            BadNameError: a directory is not named like one.
        """
        found = []
        listed = LogDirectory.open(self._fs, self.path)
        parsed = {partition.path: partition for partition in listed.partitions}
        for info in listed.entries:
            path = self._file(info.name)
            if not info.is_directory or info.name in (filenames.REMOTE_INDEX_CACHE, filenames.WORK_FOLDER):
                continue
            partition = parsed.get(path) or Partition(path, filenames.parse_directory(info.name))
            if partition.name.topic_partition.topic != CLUSTER_METADATA_TOPIC:
                found.append(partition)
        return found

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        """The entries of a checkpoint file; none if it cannot be read. An I/O error takes the directory offline."""
        try:
            return checkpoints.decode(read_file(self._fs, self._file(name)), self._file(name))
        except DataError:
            return {}
        except OSError as error:
            self._failures.maybe_add_offline_log_dir(self.path, f"Error while reading {name}", error)
            return {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file.

        Raises:
            KafkaStorageError: the disk; the directory is offline now.
        """
        with self._failures.guarded(self.path, f"writing {name}", "the log directory"):
            path = self._file(name)
            self._fs.put(path, checkpoints.encode(offsets), beside=f"{path}.tmp")

    def write_clean_shutdown(self, broker_epoch: int = -1) -> None:
        """Mark the directory as shut down properly."""
        write_file(self._fs, self._file(filenames.CLEAN_SHUTDOWN), properties.encode_clean_shutdown(broker_epoch))

    def directory_for_deletion(self, partition: TopicPartition) -> str:
        """A new name for the directory of a partition that is to be removed."""
        name = PartitionDirectory(partition, DirectoryState.DELETED, uuid.uuid4().hex).name
        return self._file(name)

    def directory_for_future(self, partition: TopicPartition) -> str:
        """The name of the directory of a log that is to take a partition's place."""
        return self._file(PartitionDirectory(partition, DirectoryState.FUTURE, uuid.uuid4().hex).name)

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()
