"""A log directory of a live manager: its lock, identity and checkpoint files, and whether its last shutdown was clean.

Source: the part of Kafka's LogManager that handles one directory.
"""

from __future__ import annotations

import logging
import posixpath
import uuid
from collections.abc import Mapping

from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.live.failures import LogDirFailureChannel, io_error_of
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, PartitionDirectory
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.node.directory import LogDirectory, Partition, PathKind, look

_log = logging.getLogger(__name__)
_CHECKPOINTS = (filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)


class LiveDirectory:
    """One locked log directory.

    Attributes:
        directory_id: id in its `meta.properties`; None without an id.
        is_brokers: it has a `meta.properties`, so a broker owns it, and its logs may have other replicas.
        was_clean: its last manager, or broker, shut it down properly.
    """

    def __init__(self, fs: LocalFileSystem, path: str, failures: LogDirFailureChannel) -> None:
        """Lock a directory; create it if it is missing.

        Raises:
            LockedError: a broker or another manager has locked it.
            RequestError: it cannot be locked, or is the directory of a partition.
            OSError: it cannot be created or read, or its `meta.properties` is not valid.
        """
        self.path = fs.absolute_path(path)
        self.was_clean = self.is_loaded = False
        self._fs = fs
        self._failures = failures
        if not fs.exists(self.path):
            fs.make_directory(self.path)
            fs.sync_directory(posixpath.dirname(self.path))
        elif _is_partition(fs, self.path):
            raise RequestError(
                f"{self.path} is a partition's directory. Give the log directory that it is in: "
                f"{posixpath.dirname(self.path)}"
            )
        self._lock: DirectoryLock = fs.lock_directory(self.path)
        try:
            self.is_brokers = fs.exists(self._file(filenames.META_PROPERTIES))
            self.directory_id = self._read_directory_id()
            for name in _CHECKPOINTS:
                if not fs.exists(self._file(name)):
                    fs.create(self._file(name)).close()
        except BaseException:
            self._lock.release()
            raise

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _read_directory_id(self) -> uuid.UUID | None:
        path = self._file(filenames.META_PROPERTIES)
        if not self._fs.exists(path):
            return None
        try:
            found = properties.decode_properties(read_file(self._fs, path), path)
            return properties.meta_properties(found, path).directory_id
        except DataError as error:
            raise OSError(str(error)) from error

    def take_clean_shutdown(self) -> None:
        """Note whether the last shutdown was proper, and remove its mark, so that a later crash is noticed."""
        self.was_clean = self._fs.exists(self._file(filenames.CLEAN_SHUTDOWN))
        if self.was_clean:
            self._fs.unlink(self._file(filenames.CLEAN_SHUTDOWN))
            self._fs.sync_directory(self.path)

    def partitions(self) -> list[Partition]:
        """Return the directories of partitions, except the cluster metadata log.

        Raises:
            BadNameError: a directory name is not a partition's.
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
        """Return the entries of a checkpoint file; empty if the file is missing or cannot be read.

        An I/O error, or a file that is not in its format, takes the directory offline.
        """
        try:
            if not self._fs.exists(self._file(name)):
                return {}
            return checkpoints.decode(read_file(self._fs, self._file(name)), self._file(name))
        except (CorruptFileError, OSError) as error:
            known = io_error_of(error) if isinstance(error, CorruptFileError) else error
            _log.warning("%s of directory %s cannot be read, and does not count: %s", name, self.path, known)
            if isinstance(known, OSError):
                self._failures.maybe_add_offline_log_dir(self.path, f"Error while reading {name}", known)
            return {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file."""
        with self._failures.guarded(self.path, f"writing {name}", "the log directory"):
            path = self._file(name)
            self._fs.put(path, checkpoints.encode(offsets), beside=f"{path}.tmp")

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Mark the directory as shut down properly."""
        write_file(self._fs, self._file(filenames.CLEAN_SHUTDOWN), properties.encode_clean_shutdown(broker_epoch))

    def place_for(self, partition: TopicPartition, state: DirectoryState) -> str:
        """Return a path for the directory of a partition; for a deleted, future or stray log, a new path each time."""
        uniq = "" if state is DirectoryState.CURRENT else uuid.uuid4().hex
        return self._file(PartitionDirectory(partition, state, uniq).name)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


def broker_epoch_at_shutdown(fs: LocalFileSystem, path: str) -> int | None:
    """Return the broker epoch in a directory's mark of a proper shutdown; None without a mark.

    Source: Kafka CleanShutdownFileHandler.read.
    """
    try:
        return properties.decode_clean_shutdown(read_file(fs, f"{path}/{filenames.CLEAN_SHUTDOWN}"))
    except OSError:
        return None


def _is_partition(fs: LocalFileSystem, path: str) -> bool:
    try:
        found = look(fs, path)
        return found.kind is PathKind.PARTITION and not found.by_name
    except NotFoundError:
        return False  # empty, or no file is Kafka's
