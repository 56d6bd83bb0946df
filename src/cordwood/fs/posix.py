"""The machine's file system, through the system calls that Kafka's storage layer uses.

Every read and write passes its position (pread, pwrite), so several readers can share an open file. Directories are not
trusted: the type of every opened file is checked, so that a FIFO or device under a segment's name can neither block a
reader nor be read, and a read never allocates more than the file holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from cordwood.common.types import override
from cordwood.fs.base import (
    COPY_BUFFER_BYTES,
    Bytes,
    CachedReads,
    File,
    FileInfo,
    LocalFileSystem,
    LockHolder,
    ReadableFile,
    Target,
    copy_bytes,
    refuse_lock_file,
    view_of,
)
from cordwood.fs.direct import DIRECT_BYTES_MIN, PastCache, copy_direct, is_in_memory
from cordwood.fs.location import Location
from cordwood.fs.locks import RecordLock, lock_holder, network_file_system, record_lock
from cordwood.fs.temporary import make_held, release, remove_abandoned
from cordwood.fs.workspace import Workspace

#: Linux only. Unlike fsync it does not commit the journal, so other writers need not wait.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2
#: Linux only.
_fadvise = getattr(os, "posix_fadvise", None)
#: Address of the C function that can read from the page cache only; 0 on systems other than Linux.
_preadv2 = getattr(ctypes.CDLL(None), "preadv2", None)
_PREADV2 = 0 if _preadv2 is None else ctypes.cast(_preadv2, ctypes.c_void_p).value or 0
#: Linux ioctls that make a file share all blocks of another, or those of a range (XFS, btrfs, NFS 4.2 …). Unlike
#: copy_file_range they fail if that is not supported: then a write from memory is as fast.
_FICLONE, _FICLONERANGE = 0x40049409, 0x4020940D
#: The source's descriptor and position, the size, and the position in the target.
_RANGE = struct.Struct("@qQQQ")
#: Shared ranges begin and end at multiples of this; file systems that share blocks use blocks of this size or smaller.
_BLOCK_BYTES = 4_096
#: Smaller ranges are copied, as an ioctl does not pay off.
_SHARED_BYTES_MIN = 64 << 10
#: Maximum number of bytes that the kernel copies in one call.
_PIECE_BYTES = 1 << 30
#: Errors from a file system or kernel that cannot clone a file, or cannot copy between two files.
_CANNOT_COPY = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
#: Errors of a file that was deleted a moment ago, and of a link without a target. `list` leaves them out.
_NO_TARGET = {errno.ENOENT, errno.ELOOP}
#: Operations on small files mostly wait for fsync, so several run concurrently.
_CONCURRENCY = 8
_SMALL_BYTES = 64 << 10
#: Unit of `st_blocks`, independent of the file system's block size.
_STATUS_BLOCK_BYTES = 512


class PosixFile(File):
    """A regular file, open under one descriptor until `close`."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._past_cache = PastCache(descriptor)

    def fileno(self) -> int:
        """Return the descriptor, for system calls that use two files."""
        return self._open_descriptor()

    @override
    def size(self) -> int:
        descriptor = self._open_descriptor()
        try:
            return os.fstat(descriptor).st_size
        except OSError as error:  # like `_named`, whose overhead exceeds the call; a log may have 1,000s of small files
            error.filename = self.path
            raise

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        descriptor, rest = self._open_descriptor(), target.cast("B")
        try:
            while rest and (count := os.preadv(descriptor, [rest], position)):
                rest = rest[count:]
                position += count
        except OSError as error:  # as in `size`
            error.filename = self.path
            raise
        return target.nbytes - rest.nbytes

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        descriptor = self._open_descriptor()
        # pread allocates the requested size in advance, and a large one may come from a damaged file.
        missing = size_bytes if size_bytes <= _SMALL_BYTES else min(size_bytes, max(0, self.size() - position))
        parts = []
        try:
            while missing and (part := os.pread(descriptor, missing, position)):
                parts.append(part)
                missing -= len(part)
                position += len(part)
        except OSError as error:  # as in `size`
            error.filename = self.path
            raise
        return b"".join(parts)

    @override
    def read_direct_into(self, position: int, target: memoryview) -> int:
        descriptor, whole, done = self._open_descriptor(), target.cast("B"), 0
        if not is_in_memory(descriptor, position):
            with self._named():
                done = self._past_cache.read_into(position, whole)
        # The rest is behind the end of the file, or cannot be read directly.
        return done + self.read_into(position + done, whole[done:]) if done < whole.nbytes else done

    @override
    def expect_random_reads(self) -> None:
        if _fadvise is not None:
            _fadvise(self._open_descriptor(), 0, 0, os.POSIX_FADV_RANDOM)

    @override
    def cached_reads(self) -> CachedReads | None:
        return CachedReads(_PREADV2, self._open_descriptor(), os.RWF_NOWAIT) if _PREADV2 else None

    @override
    def write(self, position: int, data: Bytes) -> None:
        descriptor = self._open_descriptor()
        rest = data if isinstance(data, bytearray | bytes) else view_of(data)
        try:
            while (count := os.pwrite(descriptor, rest, position)) < len(rest):
                rest = memoryview(rest)[count:]
                position += count
        except OSError as error:  # as in `size`: a live log makes many small writes
            error.filename = self.path
            raise

    @override
    def write_direct(self, position: int, data: Bytes) -> None:
        self._open_descriptor()
        view = view_of(data)
        with self._named():
            done = self._past_cache.write(position, view)
        if done < view.nbytes:
            self.write(position + done, view[done:])

    @override
    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        view = view_of(data)
        before = -position % _BLOCK_BYTES
        size = (len(view) - before) // _BLOCK_BYTES * _BLOCK_BYTES
        if (position - source_position) % _BLOCK_BYTES or size < _SHARED_BYTES_MIN or not isinstance(source, PosixFile):
            self.write(position, view)
            return
        self.write(position, view[:before])
        asked = _RANGE.pack(source.fileno(), source_position + before, size, position + before)
        end = before + size if _share(self._open_descriptor(), asked) else before
        self.write(position + end, view[end:])

    @override
    def truncate(self, size_bytes: int) -> None:
        with self._named():
            os.ftruncate(self._open_descriptor(), size_bytes)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        descriptor = self._open_descriptor()
        if _sync_file_range is not None:
            _sync_file_range(descriptor, position, size_bytes, _SYNC_FILE_RANGE_WRITE)

    @override
    def sync(self) -> None:
        with self._named():
            _sync(self._open_descriptor())

    @override
    def close(self) -> None:
        # Clear the number first: after close, even a failing one, it may belong to another file.
        descriptor, self._descriptor = self._descriptor, None
        self._past_cache.close()
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        # Readers share a file, so no reader can detect that it is the last one.
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        return self._descriptor

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Add the path to errors, as operations on a descriptor do not name the file."""
        try:
            yield
        except OSError as error:
            error.filename = self.path
            raise


@dataclass(frozen=True, slots=True)
class PosixLocation:
    """The file system of the machine that opens the location."""

    @property
    def in_this_process(self) -> bool:
        """False: every process on the machine sees the same files."""
        return False

    def open(self) -> PosixFileSystem:
        """Open the file system."""
        return PosixFileSystem()


class PosixFileSystem(LocalFileSystem):
    """Files and directories of this machine."""

    @property
    @override
    def concurrency(self) -> int:
        return _CONCURRENCY

    @override
    def location(self) -> Location[LocalFileSystem]:
        # PosixLocation opens a plain PosixFileSystem, which lacks a subclass's additions.
        return PosixLocation() if type(self) is PosixFileSystem else super().location()

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    found.append(_info(entry.name, entry.stat()))
                except OSError as error:
                    if error.errno not in _NO_TARGET:
                        raise
        found.sort(key=attrgetter("name"))
        return found

    @override
    def names_in(self, path: str) -> Mapping[str, bool]:
        with os.scandir(path) as entries:
            found = {entry.name: entry.is_dir() for entry in entries if not entry.is_symlink() or _has_target(entry)}
        return {name: found[name] for name in sorted(found)}

    @override
    def stat(self, path: str) -> FileInfo:
        return _info(os.path.basename(path.rstrip("/")), os.stat(path))

    @override
    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    @override
    def open(self, path: str) -> PosixFile:
        return _open(path, os.O_RDONLY)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> PosixFile:
        return _open(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC), mode)

    @override
    def open_for_update(self, path: str) -> PosixFile:
        return _open(path, os.O_RDWR)

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        os.mkdir(path, mode)

    @override
    def make_temporary_directory(self, prefix: str) -> str:
        remove_abandoned(prefix)
        return make_held(prefix)

    @override
    def remove_directory(self, path: str) -> None:
        os.rmdir(path)
        release(path)

    @override
    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    @override
    def link(self, source: str, target: str) -> None:
        # link() on a symlink would link the symlink itself.
        os.link(os.path.realpath(source, strict=True) if os.path.islink(source) else source, target)

    @override
    def symlink(self, source: str, target: str) -> None:
        os.symlink(source, target)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        with self.open(source) as original, self.create(target, mode=mode) as copied:
            try:
                size = original.size()
                if size and _clone(original, copied):
                    return
                if size <= _SMALL_BYTES:  # too small for holes to matter
                    copied.write(0, original.read(0, size))
                elif not _copy_around_holes(original, copied):
                    # On a network file system, copy_file_range lets the server copy, so do not copy directly.
                    is_direct = size >= DIRECT_BYTES_MIN and not network_file_system(target)
                    done = copy_direct(original, copied) if is_direct else 0
                    copy_bytes(original, copied, _copy_in_kernel(original, copied, done))
            except OSError as error:
                error.filename = target  # the error does not name either file
                raise

    @override
    def shares_blocks(self, path: str) -> bool:
        names = [f"{path}/shares-blocks-{number}" for number in range(2)]
        try:
            with self.create(names[0]) as source, self.create(names[1]) as target:
                source.write(0, b"x" * 4096)
                return _clone(source, target)
        except OSError:
            return False
        finally:
            for name in names:
                if self.exists(name):
                    self.unlink(name)

    @override
    def free_bytes(self, path: str) -> int | None:
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    @override
    def disk_size(self, path: str) -> int | None:
        disk = os.statvfs(path)
        return disk.f_blocks * disk.f_frsize or None

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        return Workspace(self, path, sources)

    @override
    def path_on_disk(self, path: str) -> str:
        return path

    @override
    def unlink(self, path: str) -> None:
        os.unlink(path)

    @override
    def sync_file(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    @override
    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    @override
    def lock_directory(self, path: str) -> RecordLock:
        return record_lock(path)

    @override
    def lock_holder(self, path: str) -> LockHolder | None:
        return lock_holder(path)

    @override
    def absolute_path(self, path: str) -> str:
        return os.path.abspath(path)

    @override
    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    @override
    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    @override
    def dead_links(self, path: str) -> Sequence[str]:
        with os.scandir(path) as entries:
            return sorted(one.name for one in entries if one.is_symlink() and not os.path.exists(one.path))

    @override
    def network_kind(self, path: str) -> str | None:
        return network_file_system(path)

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))

    @override
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        os.chown(path, uid, gid)

    @override
    def set_mode(self, path: str, mode: int) -> None:
        os.chmod(path, mode)


def _open(path: str, flags: int, mode: int = 0o666) -> PosixFile:
    refuse_lock_file(path)
    try:
        # O_NONBLOCK: opening a FIFO would otherwise block until its other end is open. Regular files ignore it.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):  # a socket, or a missing device
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


def _clone(source: File, target: File) -> bool:
    """Make an empty file share all blocks of another; return False if that is not supported."""
    if not (isinstance(source, PosixFile) and isinstance(target, PosixFile)):
        return False
    import fcntl

    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
        return False
    return True


def _share(target: int, asked: bytes) -> bool:
    """Make a file share a range of another; return False if that is not supported."""
    import fcntl

    try:
        fcntl.ioctl(target, _FICLONERANGE, asked)
    except OSError as error:
        if error.errno not in _CANNOT_COPY:
            raise
        return False
    return True


def _copy_around_holes(source: ReadableFile, target: File) -> bool:
    """Copy a file with holes, which stay holes; return False if it has none, or if that is not supported.

    A preallocated index of 10 MiB, which takes no blocks, would otherwise take 10 MiB in each copy.
    """
    if not (isinstance(source, PosixFile) and isinstance(target, PosixFile) and hasattr(os, "SEEK_DATA")):
        return False
    descriptor, size, position = source.fileno(), source.size(), 0
    try:
        if not size or os.lseek(descriptor, 0, os.SEEK_HOLE) >= size:
            return False
        while position < size:
            start = _next_data(descriptor, position, size)
            position = min(size, os.lseek(descriptor, start, os.SEEK_HOLE)) if start < size else size
            for at in range(start, position, COPY_BUFFER_BYTES):
                target.write(at, source.read(at, min(COPY_BUFFER_BYTES, position - at)))
    except OSError as error:
        if position or error.errno not in _CANNOT_COPY:
            raise
        return False
    target.truncate(size)
    return True


def _next_data(descriptor: int, position: int, size: int) -> int:
    """Return the position of the next bytes outside holes; `size` if only a hole follows."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def _copy_in_kernel(source: File, target: File, position: int) -> int:
    """Copy in the kernel from a position on, as far as supported; return the position behind the copied bytes."""
    if not (isinstance(source, PosixFile) and isinstance(target, PosixFile) and hasattr(os, "copy_file_range")):
        return position
    size = source.size()
    while position < size:
        try:
            count = os.copy_file_range(
                source.fileno(), target.fileno(), min(_PIECE_BYTES, size - position), position, position
            )
        except OSError as error:
            if error.errno not in _CANNOT_COPY:
                raise
            return position
        if not count:
            return position
        position += count
    return position


def _not_regular(path: str) -> OSError:
    return OSError(errno.EINVAL, "Not a regular file but a FIFO, socket or device", path)


def _has_target(link: os.DirEntry[str]) -> bool:
    try:
        link.stat()
    except OSError as error:
        if error.errno not in _NO_TARGET:
            raise
        return False
    return True


def _info(name: str, status: os.stat_result) -> FileInfo:
    # Without names of the fields: a listing of 10,000s of files takes a quarter less.
    return FileInfo(
        name,
        status.st_size,
        status.st_mtime_ns,
        stat.S_ISDIR(status.st_mode),
        status.st_dev,
        status.st_ino,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        _STATUS_BLOCK_BYTES * status.st_blocks,
        not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode),
        status.st_ctime_ns,
        status.st_nlink,
    )


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # fsync on macOS does not flush the drive's cache. Network file systems support only fsync.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):
                raise
    os.fsync(descriptor)
