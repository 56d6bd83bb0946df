"""Temporary folders of this machine. Each is locked while in use, so that folders left by killed processes are found.

    cordwood-proof-k3f9x2.held/      `flock` on the folder itself; the kernel releases it when its process is killed

A process that is killed leaves its folder, which may hold gigabytes. When the next process of the same user makes a
folder with the same prefix, it removes folders without a lock. The suffix marks folders that are always
locked while in use: folders without it, of other programs or of an older version, are never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile

from cordwood.common.errors import NotFoundError
from cordwood.fs.locks import network_file_system

_ENDING = ".held"
#: Descriptors of the folders that this process has locked, by path.
_held: dict[str, int] = {}


def temporary_root() -> str:
    """Return the folder for temporary files: `TMPDIR`, or the first usual one that is writable.

    Raises:
        NotFoundError: no such folder exists.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise NotFoundError(f"{error.strerror}. Free some of that disk, or name another folder with TMPDIR") from None


def make_held(prefix: str) -> str:
    """Make a folder that only this user can read, and keep it locked until `release` or the end of this process."""
    while True:
        path = tempfile.mkdtemp(_ENDING, prefix)
        try:
            descriptor = _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process locked it first because it looked abandoned, and removes it
        except OSError:
            return path  # the disk does not support locks, so no process removes the folder
        if _leads_to(path, descriptor):
            _held[path] = descriptor
            return path
        os.close(descriptor)


def release(path: str) -> None:
    """Unlock a folder, if this process has locked it."""
    if (descriptor := _held.pop(path, None)) is not None:
        os.close(descriptor)


def remove_abandoned(prefix: str) -> None:
    """Remove folders of this user whose processes were killed; ignore errors.

    As in `make_held`, the prefix may begin with the path of a folder other than the usual one. On a network disk,
    nothing is removed: locks there may not be visible to other machines.
    """
    root, prefix = os.path.split(prefix)
    root = root or temporary_root()
    with contextlib.suppress(OSError):
        if network_file_system(root) is None:
            for name in os.listdir(root):
                if name.startswith(prefix) and name.endswith(_ENDING):
                    _remove_if_abandoned(f"{root}/{name}")


def _remove_if_abandoned(path: str) -> None:
    try:
        descriptor = _lock(path)
    except OSError:
        return
    try:
        # Keep the lock while removing: a maker that has not locked its new folder yet then makes another one.
        if os.fstat(descriptor).st_uid == os.geteuid() and _leads_to(path, descriptor):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(path: str) -> int:
    """Open and lock a folder.

    Raises:
        BlockingIOError: a process holds it.
        OSError: it cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _leads_to(path: str, descriptor: int) -> bool:
    """Return whether a path still refers to an open folder."""
    mine = os.fstat(descriptor)
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
