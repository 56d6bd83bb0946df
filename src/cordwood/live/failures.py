"""Log directories that failed: the first I/O error in a directory takes it offline with all its logs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from cordwood.common.errors import CorruptFileError, KafkaStorageError, TextProblem


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
