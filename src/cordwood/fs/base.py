"""What Cordwood asks of a file system. Nothing outside this folder opens a file.

Paths are plain strings with `/`. The verbs are few and mean what POSIX means, durability included: bytes are durable
after `sync` of the file, names (creation, rename, unlink) after `sync_directory` of their folder; a rename from one
folder to another after both. Errors are Python's own: FileNotFoundError, FileExistsError, IsADirectoryError,
NotADirectoryError, otherwise OSError with POSIX's errno.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from cordwood.errors import RequestError

#: Permissions that a copy's owner has, also when the original is kept read-only.
OWNER_WRITES = 0o600
#: All permissions that a file has which is no program.
ALL_READ_AND_WRITE = 0o666

Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a look at a name tells. Times are in nanoseconds since the epoch."""

    name: str
    size_bytes: int
    mtime_ns: int
    is_directory: bool
    device: int = 0
    inode: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0


def view_of(data: Bytes) -> memoryview:
    """The bytes of `data`, one after the other, without a copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def refuse_lock_file(path: str) -> None:
    """Raise RequestError for a `.lock`: every way of opening a file calls this first.

    Its lock is a POSIX record lock, which the process loses as soon as it closes *any* descriptor of that file.
    """
    if posixpath.basename(path) == ".lock":
        raise RequestError(f"{path} is never opened as a file: closing it would drop this process's lock on it")


class File(Protocol):
    """An open file. Reads and writes name their position; there is no cursor.

    It stays what it was when its name is renamed, replaced or unlinked.
    """

    path: str

    def size(self) -> int:
        """Length in bytes, now."""
        ...

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target` from `position`; return how many bytes there were (fewer only at the end of the file)."""
        ...

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` from `position`; shorter only at the end of the file."""
        ...

    def write(self, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`, extending the file where needed."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        ...

    def write_back(self, position: int, size_bytes: int) -> None:
        """Begin to bring written bytes to the disk, so that `sync` waits for less. They are not durable before it."""
        ...

    def sync(self) -> None:
        """Make the file's bytes and length durable (fsync)."""
        ...

    def close(self) -> None:
        """Give the file back. Closing again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DirectoryLock(Protocol):
    """The lock of a log directory, held until `release`."""

    def confirm(self) -> None:
        """Make sure that it still keeps others out; to be called before anything is changed.

        Raises:
            LockedError: it does not.
        """
        ...

    def release(self) -> None:
        """Let go of it. Releasing again does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FileSystem(Protocol):
    """A place for files. Symlinks are followed; what is neither a file nor a directory is not opened (EINVAL)."""

    def list(self, path: str) -> Sequence[FileInfo]:
        """The entries of a directory by name, sorted. One that vanishes during the listing is left out."""
        ...

    def stat(self, path: str) -> FileInfo:
        """What is known about a file or directory without opening it."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path leads to anything."""
        ...

    def open(self, path: str) -> File:
        """Open for reading."""
        ...

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        """Create and open for reading and writing; `exclusive` refuses a name that exists, else it is cut to nothing.

        A new file gets the permissions `mode` less the process's umask.
        """
        ...

    def open_for_update(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """Make one directory, with the permissions `mode` less the process's umask; its parent must exist."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces an existing file, or an empty directory by a directory."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file one more name (a hard link); all its names are equal.

        Nothing may have the name yet (FileExistsError), and it is on the same file system (else EXDEV).
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name; whoever has the file open keeps it, and so do its other names."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def lock_directory(self, path: str) -> DirectoryLock:
        """Hold the lock of a log directory, so that no broker starts on it, nor another clean.

        A partition's lock is that of its log directory (`cordwood.fs.locks.directories_to_lock`).

        Raises:
            LockedError: someone holds it; the message says who.
            RequestError: it cannot be had: the directory is read-only, or another user's.
        """
        ...

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set when the file counts as last modified; durable after its `sync`."""
        ...

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """Give a file or directory to a user and a group; durable after its `sync`, or `sync_directory`."""
        ...

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file or directory; durable after its `sync`, or `sync_directory`."""
        ...


def is_full(error: OSError) -> bool:
    """Whether there was no room for a file: on the disk, within a quota, or within a limit for one file."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
