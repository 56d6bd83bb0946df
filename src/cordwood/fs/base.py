"""The file system operations that Cordwood needs. No module outside this folder opens a file.

There are three protocols; each extends the promises of its predecessor:

    Store             reads files at positions, and writes and deletes whole files
    TargetStore       makes new directories, each complete or absent: files are created and renamed within one target,
                      which stays invisible to others until it is published
    LocalFileSystem   changes files and directories in place, with atomic renames, links and locks, and durably in the
                      order that the caller chooses

An object store is a `TargetStore`. A function requires the least protocol that it needs: a reader a `Store`, a function
that makes a copy a `TargetStore`, and a function that changes files in place a `LocalFileSystem`, so that the type
checker rejects passing it a bucket.

Paths are plain strings with `/`. Errors are Python's own: FileNotFoundError, FileExistsError, IsADirectoryError,
NotADirectoryError, otherwise OSError with POSIX's errno. A verb that a file system does not support fails with an error
for which `is_unsupported` is true; `copy`, `shares_blocks` and `free_bytes` have a result for that case instead.

Every implementation derives from its protocol, so a missing verb is an error when the object is created.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import RequestError
from cordwood.common.types import override
from cordwood.fs.location import Location, location_in_this_process

#: Permissions that the owner of a copy gets, even if the original is read-only.
OWNER_WRITES = 0o600
#: All permissions that a file other than a program can have.
ALL_READ_AND_WRITE = 0o666
#: Direct I/O requires positions, sizes and addresses that are multiples of this.
DIRECT_BLOCK_BYTES = 4_096
#: Buffer size for copying through this process.
COPY_BUFFER_BYTES = 1 << 20

Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


# Not frozen: a frozen dataclass takes three times as long to make, and a log may have 10,000s of files.
@dataclass(slots=True, unsafe_hash=True)
class FileInfo:
    """Attributes of a file or directory, from `list` and `stat`. Times are in nanoseconds since the epoch.

    A value: no code changes it. A store without devices, inodes, owners or permissions leaves those fields 0.

    Attributes:
        allocated_bytes: size of its blocks on disk, as counted by `du`; None if the store has no blocks.
        is_special: a FIFO, socket or device; brokers ignore it.
        ctime_ns: time of the last change of bytes or attributes, which no program can set; 0 in a store without it. A
            negative number, instead, is an object that never changes; no other object of that name has the same.
        links: number of names (hard links) of a file; 0 in a store without it.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    is_directory: bool
    device: int = 0
    inode: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    allocated_bytes: int | None = field(default=None, compare=False)
    is_special: bool = False
    ctime_ns: int = field(default=0, compare=False)
    links: int = field(default=0, compare=False)

    @property
    def disk_bytes(self) -> int:
        """Bytes used on disk. A sparse index uses less than its size, a small file a whole block."""
        return self.size_bytes if self.allocated_bytes is None else self.allocated_bytes


class PutMode(Enum):
    """Whether `Store.put` may replace a file."""

    CREATE = "create"  #: the name must be free, else FileExistsError
    REPLACE = "replace"  #: an existing file is replaced


@dataclass(frozen=True, slots=True)
class CachedReads:
    """Arguments for a kernel that reads bytes of an open file directly from the page cache.

    Attributes:
        function: address of the C function preadv2.
        descriptor: its first argument.
        flags: its last argument; it makes a read of uncached bytes fail.
    """

    function: int
    descriptor: int
    flags: int


def view_of(data: Bytes) -> memoryview:
    """Return a flat view of the bytes of `data`, without a copy."""
    return (data.data if isinstance(data, np.ndarray) else memoryview(data)).cast("B")


def refuse_lock_file(path: str) -> None:
    """Raise RequestError for a `.lock`: every function that opens a file calls this first.

    Its lock is a POSIX record lock, which the process loses as soon as it closes *any* descriptor of that file.
    """
    if path.endswith(".lock") and posixpath.basename(path) == ".lock":
        raise RequestError(f"{path} is never opened as a file: closing it would drop this process's lock on it")


class ReadableFile(Protocol):
    """A file that is open for reading. Every read passes its position; there is no cursor.

    An open file stays the same file when its name is replaced or removed. A `with` block closes it.
    """

    path: str

    @abstractmethod
    def size(self) -> int:
        """Return the current length in bytes."""

    @abstractmethod
    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target` from `position`; return the number of bytes read (fewer only at the end of the file)."""

    @abstractmethod
    def read(self, position: int, size_bytes: int) -> bytes:
        """Return up to `size_bytes` from `position`; fewer only at the end of the file."""

    def read_direct_into(self, position: int, target: memoryview) -> int:
        """Like `read_into`, but may bypass the page cache for uncached bytes that no one needs again soon.

        Position, size and address are multiples of DIRECT_BLOCK_BYTES; see `fs.direct`.
        """
        return self.read_into(position, target)

    def expect_random_reads(self) -> None:
        """Announce small reads at distant positions, so that the system does not read ahead."""
        return

    def cached_reads(self) -> CachedReads | None:
        """Return how a kernel can read the file, which must stay open meanwhile; None if it cannot."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release the file. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class File(ReadableFile, Protocol):
    """An open file of a local file system. It stays the same file when it is renamed."""

    @abstractmethod
    def write(self, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`, extending the file where needed."""

    def write_direct(self, position: int, data: Bytes) -> None:
        """Like `write`, but may bypass the page cache, for bytes that no one reads again soon.

        Position, size and address are multiples of DIRECT_BLOCK_BYTES; see `fs.direct`. Only `sync` makes them durable.
        """
        self.write(position, data)

    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        """Write bytes that `source` contains at `source_position`, sharing its blocks on disk if supported.

        The default is a plain `write`.
        """
        self.write(position, data)

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Shorten the file, or extend it with zeros."""

    @abstractmethod
    def write_back(self, position: int, size_bytes: int) -> None:
        """Start writing bytes to the disk, so that `sync` waits for less. They are not durable before `sync`."""

    @abstractmethod
    def sync(self) -> None:
        """Make the file's bytes, length, times, owner and permissions durable (fsync).

        After an error the state of the bytes on disk is unknown: another call may succeed although data is lost.
        """


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock.

    Attributes:
        pid: 0 or less if the process is not visible, for example because it runs in another container.
    """

    pid: int
    program: str

    @property
    def is_broker(self) -> bool:
        """Whether it is, or may be, a Kafka broker: a Java process, or one whose program is unknown."""
        return self.program in ("java", "")

    def __str__(self) -> str:
        return f"{self.program or 'a process'} ({f'pid {self.pid}' if self.pid > 0 else 'not visible from here'})"


class DirectoryLock(Protocol):
    """The lock of a log directory, held until `release`. A `with` block releases it."""

    @abstractmethod
    def confirm(self) -> None:
        """Make sure that the lock still excludes other processes; call it before every change.

        Raises:
            LockedError: another process holds the lock now.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the lock. Releasing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Store(Protocol):
    """Files that are read at positions, and written and deleted as a whole.

    Symlinks are followed. Opening anything but a regular file or a directory, such as a FIFO, fails with EINVAL.
    """

    @property
    def concurrency(self) -> int:
        """Number of concurrent operations that suit this store; with 1, callers run them one at a time, in order."""
        return 1

    def location(self) -> Location[Store]:
        """Return a small picklable value that opens this store again in the process that runs a task.

        The default can be opened only in this process, and returns this object.
        """
        return location_in_this_process(self)

    @abstractmethod
    def list(self, path: str) -> Sequence[FileInfo]:
        """Return the entries of a directory, sorted by name, without entries that are deleted during the listing.

        Raises:
            FileNotFoundError: the path does not exist. A store without directories may return an empty list instead.
            NotADirectoryError: the path is a file.
        """

    def names_in(self, path: str) -> Mapping[str, bool]:
        """Return the names that `list` returns, in the same order, each with whether it is a directory.

        On this machine's disks this takes a tenth of the time of `list`, which stats every file.
        """
        return {info.name: info.is_directory for info in self.list(path)}

    @abstractmethod
    def stat(self, path: str) -> FileInfo:
        """Return the size, times and other attributes of a file or directory, without opening it.

        Raises:
            FileNotFoundError: the path does not exist.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether `stat` would succeed."""

    @abstractmethod
    def open(self, path: str) -> ReadableFile:
        """Open a file for reading.

        Raises:
            FileNotFoundError: the path does not exist.
            IsADirectoryError: the path is a directory.
        """

    @abstractmethod
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        """Write a whole file atomically: readers see the old file or the new one. On return the file is durable.

        Raises:
            FileExistsError: the name is in use, and `mode` is CREATE.
            FileNotFoundError: the directory does not exist, in a store that has directories.
            IsADirectoryError: the path is a directory.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file; on return the removal is durable.

        Raises:
            FileNotFoundError: the path does not exist.
            IsADirectoryError: the path is a directory.
        """

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove files, those that exist; on return the removals are durable. Some may be removed before an error."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.delete(path)

    def absolute_path(self, path: str) -> str:
        """Return the path by which every process finds the same file; the default returns `path` unchanged."""
        return path

    def real_path(self, path: str) -> str:
        """Return the absolute path without symlinks, `.` and `..`. Components that do not exist are kept."""
        return self.absolute_path(path)

    def is_link(self, path: str) -> bool:
        """Return whether a path itself is a symlink: other verbs follow it, `unlink` removes it."""
        return False

    def dead_links(self, path: str) -> Sequence[str]:
        """Return the names of symlinks in a directory whose targets are missing; `list` omits them."""
        return ()

    def path_on_disk(self, path: str) -> str | None:
        """Return the path by which other programs on this machine find the file; None if it is not on a local disk."""
        return None

    def reads_by_request(self, path: str) -> bool:
        """Return whether each read is a request to a server, so that few reads matter more than few bytes."""
        return False

    def disk_size(self, path: str) -> int | None:
        """Return the total size in bytes of the disk of a path; None if it is unknown or unlimited."""
        return None

    def lock_holder(self, path: str) -> LockHolder | None:
        """Return the process that holds the lock of a log directory; None if it is free, or the holder is unknown.

        The directory's `.lock` is not opened. A store on which no broker can run has no locks.
        """
        return None


class Link(Enum):
    """Kinds of links: another name for a file, which needs no space for its bytes."""

    HARD = "hard"  #: a second name of the same file, on the same disk; the original's link count changes
    SYMBOLIC = "symbolic"  #: a file that contains the path of another, on any disk; the original does not change


class Target(Protocol):
    """A new directory under construction. It appears complete or not at all.

    Used as a `with` block, which removes the directory at its end unless it was published.

    Attributes:
        target: final path of the new directory.
        path: the folder that contains the whole directory until it is published.
        data: the folder in which the files of the new directory are created.
        outputs: the folder in which tasks write files, which are then renamed into `data`.
    """

    target: str
    path: str
    data: str
    outputs: str
    progress: str

    @abstractmethod
    def publish(self) -> None:
        """Give the new directory its name, once all of its content is durable. Its files must be synced already.

        Raises:
            OSError: it did not get its name, so the output is not used.
            LockedError: another run makes the same directory.
        """

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TargetStore(Store, Protocol):
    """A `Store` in which new directories can be made.

    The verbs below are for files of one target, and for temporary files, which no other process reads yet. So they need
    not be atomic, and names need not be durable before the target is published.
    """

    @override
    def location(self) -> Location[TargetStore]:
        return location_in_this_process(self)

    @abstractmethod
    def target(self, path: str, sources: Sequence[str]) -> Target:
        """Begin a new directory.

        Args:
            path: the directory; must be absent or empty.
            sources: directories that are only read; the new one may not be within one of them.

        Raises:
            RequestError: the directory cannot be made at this path.
        """

    @abstractmethod
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        """Create a file and open it for reading and writing, with the permissions `mode` less the process's umask.

        With `exclusive`, an existing name is an error (FileExistsError); otherwise an existing file is truncated to 0.
        """

    def open_for_update(self, path: str) -> File:
        """Open an existing file for reading and writing. Unsupported by default: an object is written once."""
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)

    @abstractmethod
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """Make one directory, with the permissions `mode` less the process's umask; its parent must exist.

        A store without directories does nothing.
        """

    def make_temporary_directory(self, prefix: str) -> str:
        """Make a directory for temporary files that no other user can read; return its path.

        On this machine's disks, remove directories with the same prefix whose processes were killed; see
        `fs.temporary`. Unsupported by default: an object store does not hold temporary files.
        """
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), prefix)

    @abstractmethod
    def remove_directory(self, path: str) -> None:
        """Remove an empty directory (else ENOTEMPTY)."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file within a target, replacing a file of the new name."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Remove one name of a file. Its other names stay, and processes that have it open can still use it."""

    @abstractmethod
    def sync_file(self, path: str) -> None:
        """Make the bytes and times of a file durable. No process may have it open for writing."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable. A store without directories does nothing."""
        return

    @abstractmethod
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set a file's modification time; durable after its `sync`, or once its target is published."""

    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        """Copy a file's bytes to a new name in the cheapest way available, sharing blocks where that is supported.

        The copy gets the permissions `mode` less the process's umask. It is durable after a `sync` of the copy.

        Raises:
            FileExistsError: the name is in use.
        """
        with self.open(source) as original, self.create(target, mode=mode) as copied:
            copy_bytes(original, copied)

    def try_link(self, link: Link, source: str, target: str) -> bool:
        """Make a link instead of a copy; return False if that is not supported for these paths."""
        return False

    def shares_blocks(self, path: str) -> bool:
        """Return whether copies on this directory's disk share blocks. May create and remove small files there."""
        return False

    def network_kind(self, path: str) -> str | None:
        """Return the kind of network file system (`nfs4`, `cifs`) of a path; None for a local disk, or if unknown.

        Locks on a network file system do not keep out brokers on other hosts.
        """
        return None

    def free_bytes(self, path: str) -> int | None:
        """Return the bytes that this process may still write to the disk of a path; None if unknown."""
        return None


class LocalFileSystem(TargetStore, Protocol):
    """A `TargetStore` whose files and directories are changed in place, durably in the order that the caller chooses.

    Bytes are durable after `sync` of the file. Names (creation, rename, unlink) are durable after `sync_directory` of
    their directory; a rename between two directories needs it for both.
    """

    @override
    def location(self) -> Location[LocalFileSystem]:
        return location_in_this_process(self)

    @override
    @abstractmethod
    def open(self, path: str) -> File:
        """Open a file for reading. Writing fails with EBADF; `sync` makes other processes' writes durable."""

    @override
    @abstractmethod
    def open_for_update(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    @override
    @abstractmethod
    def make_temporary_directory(self, prefix: str) -> str: ...

    @override
    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename atomically. A file replaces an existing file; a directory replaces an empty directory."""

    @abstractmethod
    def link(self, source: str, target: str) -> None:
        """Add a hard link to a file; all its names are equal. The file's data does not change.

        The name must be free (FileExistsError). Unsupported between file systems, and on some file systems.
        """

    @abstractmethod
    def symlink(self, source: str, target: str) -> None:
        """Make `target` a symlink to `source`, which may be on another file system.

        The name must be free (FileExistsError). Some file systems do not support it.
        """

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        try:
            (self.link if link is Link.HARD else self.symlink)(source, target)
        except OSError as error:
            if not is_unsupported(error):
                raise
            return False
        return True

    @override
    def sync_file(self, path: str) -> None:
        with self.open(path) as file:
            file.sync()

    @override
    @abstractmethod
    def sync_directory(self, path: str) -> None: ...

    @abstractmethod
    def lock_directory(self, path: str) -> DirectoryLock:
        """Lock a log directory, so that neither a broker nor another clean starts on it.

        The lock of a partition is the lock of its log directory (`cordwood.fs.locks.directories_to_lock`).

        Raises:
            LockedError: the lock is held already; the message names the holder if it is known.
            RequestError: locking failed: the directory is read-only, or belongs to another user.
        """

    @override
    @abstractmethod
    def absolute_path(self, path: str) -> str:
        """Return the path from the root, without `.` and `..`. Symlinks are not resolved."""

    @override
    @abstractmethod
    def real_path(self, path: str) -> str: ...

    @abstractmethod
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """Set the user and group of a file or directory; durable after its `sync`, or `sync_directory`."""

    @abstractmethod
    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file or directory; durable after its `sync`, or `sync_directory`."""

    def put(
        self,
        path: str,
        data: Bytes,
        mode: PutMode = PutMode.REPLACE,
        *,
        like: FileInfo | None = None,
        beside: str | None = None,
    ) -> None:
        """Write a whole file under a temporary name, and rename it once its bytes are durable; see `Store.put`.

        Args:
            mode: whether a file may be replaced.
            like: copy owner, group and permissions of this file; None for the defaults of a new file.
            beside: the temporary path. A file that an interrupted run left there is overwritten, so two writers must
                not use it at once. None: a random path; a file left there by an interrupted run is never removed.
        """
        is_new = beside is None
        beside = beside or f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            with self.create(beside, exclusive=is_new) as file:
                file.write(0, data)
                if like is not None:
                    self.set_owner(beside, like.uid, like.gid)
                    self.set_mode(beside, like.mode)
                file.sync()
            if mode is PutMode.CREATE:
                self.link(beside, path)
                self.unlink(beside)
            else:
                self.rename(beside, path)
        except OSError:
            if self.exists(beside):
                self.unlink(beside)
            raise
        self.sync_directory(posixpath.dirname(path) or ".")

    def delete(self, path: str) -> None:
        """Unlink a file, and sync its directory; see `Store.delete`."""
        self.unlink(path)
        self.sync_directory(posixpath.dirname(path) or ".")


def waits_for_each_read(store: TargetStore, path: str) -> bool:
    """Return whether reads of a path wait for a server, so that several threads should read at once.

    On a local disk threads only take turns: small files are in the page cache, or are there after the first read.
    """
    try:
        return store.reads_by_request(path) or store.network_kind(path) is not None
    except OSError:
        return False  # reading it will fail at once


def copy_bytes(source: ReadableFile, target: File, position: int = 0) -> None:
    """Copy a file's bytes, from a position on, to the same position of another file, through this process."""
    size = source.size()
    buffer = memoryview(bytearray(min(COPY_BUFFER_BYTES, max(0, size - position))))
    while position < size and (count := source.read_into(position, buffer)):
        target.write(position, buffer[:count])
        position += count


def is_full(error: OSError) -> bool:
    """Return whether the disk is full, a quota is used up, or a file reached the maximum size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_UNSUPPORTED = frozenset([errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS])


def is_unsupported(error: OSError) -> bool:
    """Return whether `link` or `symlink` failed because the file system does not support it for these two paths."""
    return error.errno in _UNSUPPORTED
