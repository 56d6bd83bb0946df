"""The log directories of a manager: locks them, and returns the live, offline and cordoned ones.

Source: the part of Kafka's LogManager that is about log directories.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from cordwood.common.config import BrokerConfig
from cordwood.common.errors import IllegalStateError, KafkaStorageError, LogDirNotFoundError
from cordwood.fs.base import LocalFileSystem
from cordwood.live.failures import LogDirFailureChannel
from cordwood.live.log_directory import LiveDirectory, broker_epoch_at_shutdown

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
        epochs = {broker_epoch_at_shutdown(self._fs, path) for path in self.paths}
        return epochs.pop() if len(epochs) == 1 else None
