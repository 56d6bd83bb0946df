"""Copies that cost less than their bytes, where a file system offers them.

    clone        the copy shares the original's blocks until one of them is written to (btrfs, XFS, bcachefs, NFS 4.2)
    hard link    a second name of the same file
    symlink      a file that says where the original is; on any disk, and not even the original's link count changes

Elsewhere the kernel copies, without a detour through this process; and where it can't do that either, we do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from cordwood.fs.base import File, FileSystem
from cordwood.fs.posix import PosixFile, PosixFileSystem

#: Linux' ioctl that makes one file share all blocks of another.
_FICLONE = 0x40049409
_PIECE_BYTES = 1 << 30
_BUFFER_BYTES = 1 << 20
#: What a file system or kernel answers that knows no such copy.
_UNABLE = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
#: `hard_link` or `symbolic_link`: (source, target) to whether it could be done.
Link = Callable[[str, str], bool]
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


def copy_bytes(source: File, target: File) -> None:
    """Copy all bytes of a file to another, an empty one, in the cheapest way there is."""
    size, position = source.size(), 0
    if isinstance(source, PosixFile) and isinstance(target, PosixFile) and size:
        try:
            if _clone(source, target):
                return
            position = _copy_in_kernel(source, target, size)
        except OSError as error:
            error.filename = target.path  # the system names no file of two
            raise
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, size - position)))
    while position < size and (count := source.read_into(position, buffer)):
        target.write(position, buffer[:count])
        position += count


def _clone(source: PosixFile, target: PosixFile) -> bool:
    import fcntl

    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        return False
    return True


def _copy_in_kernel(source: PosixFile, target: PosixFile, size: int) -> int:
    """How many bytes the kernel copied."""
    position = 0
    if not hasattr(os, "copy_file_range"):
        return 0
    while position < size:
        try:
            count = os.copy_file_range(
                source.fileno(), target.fileno(), min(_PIECE_BYTES, size - position), position, position
            )
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
            return position
        if not count:
            return position
        position += count
    return position


def hard_link(source: str, target: str) -> bool:
    """Give a file a second name. False where that can't be: on another file system, say."""
    try:
        PosixFileSystem().link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def symbolic_link(source: str, target: str) -> bool:
    """Make a file that stands for another. False where the file system has no such thing."""
    try:
        os.symlink(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def can_share_blocks(fs: FileSystem, folder: str) -> bool:
    """Whether copies within a folder's disk cost no space; two small files are made in it and removed."""
    names = [f"{folder}/shares-blocks-{number}" for number in range(2)]
    try:
        with fs.create(names[0]) as source, fs.create(names[1]) as target:
            source.write(0, b"x" * 4096)
            return isinstance(source, PosixFile) and isinstance(target, PosixFile) and _clone(source, target)
    except OSError:
        return False
    finally:
        for name in names:
            if fs.exists(name):
                fs.unlink(name)


def free_bytes(fs: FileSystem, path: str) -> int | None:
    """How much this process may still write to the disk of a path; None where nobody knows."""
    if not isinstance(fs, PosixFileSystem):
        return None
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
