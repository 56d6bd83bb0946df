"""The log directories of a manager: their locks, identities, checkpoint files and clean-shutdown marks, and failures.

The first I/O error in a directory takes it offline with all its logs. `LogDirectories` returns the live, offline and
cordoned ones.

Source: the part of Kafka's LogManager that is about log directories; LogDirFailureChannel.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from cordwood.common.config import BrokerConfig
from cordwood.common.errors import (
    CorruptFileError,
    DataError,
    IllegalStateError,
    KafkaStorageError,
    LogDirNotFoundError,
    NotFoundError,
    RequestError,
    TextProblem,
)
from cordwood.common.types import TopicPartition
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, PartitionDirectory
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.node.directory import LogDirectory, Partition, PathKind, look

# ---- failures --------------------------------------------------------------------------------------------------------


def io_error_of(error: CorruptFileError) -> Exception:
    """Return the error that Kafka's reader of a text file raises: an I/O error if the file is not in its format."""
    return OSError(errno.EIO, str(error)) if error.kind is TextProblem.MALFORMED else error


@dataclass(frozen=True, slots=True)
class LogDirFailure:
    """The error that took a log directory offline."""

    directory: str
    message: str
    error: OSError


class LogDirFailureChannel:
    """The log directories that have failed; any thread reports a failure.

    Source: Kafka LogDirFailureChannel.
    """

    def __init__(self, on_failure: Callable[[LogDirFailure], None] = lambda _: None) -> None:
        """Begin without failures.

        Args:
            on_failure: called with the first failure of each directory, by the failing thread, which may hold any lock.
        """
        self._offline: dict[str, LogDirFailure] = {}
        self._on_failure = on_failure

    def is_offline(self, directory: str) -> bool:
        """Return whether a log directory has failed."""
        return directory in self._offline

    @property
    def failures(self) -> tuple[LogDirFailure, ...]:
        """The failure of each directory, in the order of the failures."""
        return tuple(self._offline.values())

    def maybe_add_offline_log_dir(self, directory: str, message: str, error: OSError) -> None:
        """Report an error; all errors of a directory after its first one are ignored."""
        failure = LogDirFailure(directory, message, error)
        if self._offline.setdefault(directory, failure) is failure:
            self._on_failure(failure)

    def guarded(self, directory: str, doing: str, name: str) -> Guard:
        """Convert an I/O error of a `with` block into a failure of the directory.

        Raises:
            KafkaStorageError: the directory has failed, before or now; the error has a cause only in the second case.
        """
        return Guard(self, directory, doing, name)


class Guard:
    """See `LogDirFailureChannel.guarded`. A class, because every append makes one and a generator costs more."""

    __slots__ = ("_channel", "_directory", "_doing", "_name")

    def __init__(self, channel: LogDirFailureChannel, directory: str, doing: str, name: str) -> None:
        self._channel = channel
        self._directory = directory
        self._doing = doing
        self._name = name

    def __enter__(self) -> None:
        if self._channel.is_offline(self._directory):
            raise KafkaStorageError(f"The log dir {self._directory} is already offline due to a previous IO exception.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            if error.errno == errno.EBADF:  # no disk raises this
                raise KafkaStorageError(f"The log of {self._name} is closed, deleted or moved") from error
            message = f"Error while {self._doing}, for {self._name} in dir {self._directory}"
            self._channel.maybe_add_offline_log_dir(self._directory, message, error)
            raise KafkaStorageError(f"{message}: {error}") from error


# ---- one directory ---------------------------------------------------------------------------------------------------

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


def _broker_epoch_at_shutdown(fs: LocalFileSystem, path: str) -> int | None:
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


#: The value of `cordoned.log.dirs` for all directories.
_ALL = "*"


class LogDirectories:
    """The directories by path.

    Attributes:
        locked: directories that are locked and not dropped.
    """

    def __init__(self, fs: LocalFileSystem, paths: Sequence[str], failures: LogDirFailureChannel) -> None:
        self.paths = [fs.absolute_path(path) for path in paths]
        self.locked: dict[str, LiveDirectory] = {}
        self.failures = failures
        self._fs = fs

    def lock_all(self) -> None:
        """Lock all directories; take a directory offline if it cannot be created or read."""
        for path in self.paths:
            if self.paths.count(path) > 1:
                raise IllegalStateError(f"Duplicate log directory {path}")
            try:
                directory = LiveDirectory(self._fs, path, self.failures)
            except OSError as error:
                self.fail(path, "Failed to create or validate the data directory", error)
                continue
            if directory.path in self.locked:
                directory.release()
                raise IllegalStateError(f"Duplicate log directory {directory.path}")
            self.locked[directory.path] = directory

    def check_running(self) -> None:
        """Raise IllegalStateError if no start has locked the directories yet, or after a shutdown."""
        if not self.locked and not self.failures.failures:
            raise IllegalStateError(
                "This LogManager does not run: call startup() first, or use it in a `with` block; after a shutdown, "
                "make a new one"
            )

    def drop(self, path: str) -> None:
        """Release the lock of a failed directory and forget it."""
        directory = self.locked.pop(path, None)
        if directory is not None:
            directory.release()

    def release_all(self) -> None:
        """Release all locks."""
        for path in list(self.locked):
            self.drop(path)

    def fail(self, path: str, message: str, error: OSError) -> None:
        """Take a directory offline."""
        self.failures.maybe_add_offline_log_dir(path, message, error)

    def check_some_left(self) -> None:
        """Raise KafkaStorageError if all directories have failed."""
        if not self.locked:
            causes = "; ".join(f"{one.directory}: {one.message}: {one.error}" for one in self.failures.failures)
            raise KafkaStorageError(f"No log directory is left: all of them failed. {causes}")

    # ---- live, offline, cordoned -------------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[str, ...]:
        """Directories that have not failed."""
        return tuple(path for path in list(self.locked) if not self.failures.is_offline(path))

    @property
    def offline(self) -> list[str]:
        """Directories that have failed."""
        live = self.live
        return [path for path in self.paths if path not in live]

    def cordoned(self, config: BrokerConfig) -> frozenset[str]:
        """Return the directories that get no new logs: `cordoned.log.dirs`."""
        value = config["cordoned.log.dirs"].value
        assert isinstance(value, tuple)
        return frozenset(self.paths if value == (_ALL,) else map(self._fs.absolute_path, value))

    def is_live(self, directory: str) -> bool:
        """Return whether a directory works.

        Raises:
            LogDirNotFoundError: the manager has no such directory.
        """
        path = self._fs.absolute_path(directory)
        if path not in self.paths:
            raise LogDirNotFoundError(f"Log dir {directory} is not found in the config.")
        return path in self.live

    def directory_id(self, directory: str) -> uuid.UUID | None:
        """Return the id of a locked directory; None if it is not locked, or its `meta.properties` has no id."""
        found = self.locked.get(self._fs.absolute_path(directory))
        return None if found is None else found.directory_id

    def broker_epoch(self) -> int | None:
        """Return the broker epoch at which all directories were shut down; None if epochs differ or are missing."""
        epochs = {_broker_epoch_at_shutdown(self._fs, path) for path in self.paths}
        return epochs.pop() if len(epochs) == 1 else None
