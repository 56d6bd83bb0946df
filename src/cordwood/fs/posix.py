"""The machine's own file system, through the system calls that Kafka's storage layer amounts to.

Every read and write names its position (pread, pwrite), so one open file serves many readers. Directories come from
strangers: whatever is opened is looked at before it is used, so that a FIFO or a device under a segment's name cannot
hang or feed us, and a read never allocates more than the file holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from cordwood.fs.base import Bytes, FileInfo, refuse_lock_file, view_of
from cordwood.fs.locks import RecordLock, record_lock

#: Linux' own; unlike fsync it commits no journal, so that other writers need not wait.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2


class PosixFile:
    """A regular file, open under one descriptor until `close`."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def fileno(self) -> int:
        """The descriptor, for system calls that take two files."""
        return self._open_descriptor()

    def size(self) -> int:
        """Length in bytes, now."""
        with self._named():
            return os.fstat(self._open_descriptor()).st_size

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target` from `position`; return how many bytes there were (fewer only at the end of the file)."""
        descriptor, rest = self._open_descriptor(), target.cast("B")
        with self._named():
            while rest and (count := os.preadv(descriptor, [rest], position)):
                rest = rest[count:]
                position += count
        return target.nbytes - rest.nbytes

    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` from `position`; shorter only at the end of the file."""
        descriptor = self._open_descriptor()
        # pread allocates what it is asked for, and what we are asked for may be a length read from a damaged file.
        missing = min(size_bytes, max(0, self.size() - position))
        parts = []
        with self._named():
            while missing and (part := os.pread(descriptor, missing, position)):
                parts.append(part)
                missing -= len(part)
                position += len(part)
        return b"".join(parts)

    def write(self, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`, extending the file where needed."""
        descriptor, rest = self._open_descriptor(), view_of(data)
        with self._named():
            while rest:
                count = os.pwrite(descriptor, rest, position)
                rest = rest[count:]
                position += count

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or lengthen it with zeros."""
        with self._named():
            os.ftruncate(self._open_descriptor(), size_bytes)

    def write_back(self, position: int, size_bytes: int) -> None:
        """Begin to bring written bytes to the disk, where the system can be asked to; what fails `sync` will say."""
        descriptor = self._open_descriptor()
        if _sync_file_range is not None:
            _sync_file_range(descriptor, position, size_bytes, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Make the file's bytes and length durable. After an error nothing is known about them: don't just retry."""
        with self._named():
            _sync(self._open_descriptor())

    def close(self) -> None:
        """Give the descriptor back. Closing again does nothing."""
        # The number goes first: once closed it may belong to another file, even when close reports an error.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._descriptor

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """The system does not say which file an error of a descriptor is about."""
        try:
            yield
        except OSError as error:
            error.filename = self.path
            raise


class PosixFileSystem:
    """Files and directories of this machine; see `cordwood.fs.base.FileSystem` for what each verb promises."""

    def list(self, path: str) -> Sequence[FileInfo]:
        """The entries by name, sorted. One that vanishes meanwhile, or a symlink to nowhere, is left out."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    found.append(_info(entry.name, entry.stat()))
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ELOOP):
                        raise
        return sorted(found, key=lambda info: info.name)

    def stat(self, path: str) -> FileInfo:
        """What is known about a file or directory without opening it."""
        return _info(os.path.basename(path.rstrip("/")), os.stat(path))

    def exists(self, path: str) -> bool:
        """Whether the path leads to anything."""
        return os.path.exists(path)

    def open(self, path: str) -> PosixFile:
        """Open a regular file for reading."""
        return _open(path, os.O_RDONLY)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> PosixFile:
        """Create and open for reading and writing; without `exclusive` an existing file is cut to nothing."""
        return _open(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC), mode)

    def open_for_update(self, path: str) -> PosixFile:
        """Open an existing regular file for reading and writing."""
        return _open(path, os.O_RDWR)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """Make one directory; its parent must exist."""
        os.mkdir(path, mode)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces an existing file, or an empty directory by a directory."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file one more name, on the same file system."""
        # Of a symlink, link() would make a second symlink.
        os.link(os.path.realpath(source, strict=True) if os.path.islink(source) else source, target)

    def unlink(self, path: str) -> None:
        """Remove a file's name; whoever has the file open keeps it."""
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def lock_directory(self, path: str) -> RecordLock:
        """Hold the lock of a log directory, as a broker does."""
        return record_lock(path)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Set when the file counts as last modified; its time of last access stays."""
        os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """Give a file or directory to a user and a group."""
        os.chown(path, uid, gid)

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of a file or directory."""
        os.chmod(path, mode)


def _open(path: str, flags: int, mode: int = 0o666) -> PosixFile:
    refuse_lock_file(path)
    try:
        # O_NONBLOCK: a FIFO would otherwise wait for its other end. Regular files don't know it.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):  # a socket, a device that isn't there
            raise _not_regular(path) from error
        raise
    try:
        file_type = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(file_type):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(file_type):
            raise _not_regular(path)
    except BaseException:
        os.close(descriptor)
        raise
    return PosixFile(path, descriptor)


def _not_regular(path: str) -> OSError:
    return OSError(errno.EINVAL, "Not a regular file but a FIFO, socket or device", path)


def _info(name: str, status: os.stat_result) -> FileInfo:
    return FileInfo(
        name=name,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        is_directory=stat.S_ISDIR(status.st_mode),
        device=status.st_dev,
        inode=status.st_ino,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
    )


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # fsync there stops at the drive's cache. Network file systems know only fsync.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):
                raise
    os.fsync(descriptor)
