"""Put back what a clean in place replaced."""

from __future__ import annotations

from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.undo import UndoResult, put_back


def undo(path: str, *, fs: LocalFileSystem | None = None) -> UndoResult:
    """Put back what a clean in place took away and kept.

    All is looked at before anything is changed: when a log was written to, cleaned again or deleted from since, the
    result says so, and nothing was done. A broker that was merely started and stopped is no reason. What was cut off
    in the middle goes on when it is called again.

    Args:
        path: of the folder.
        fs: default: the machine's.

    Raises:
        NotFoundError: the folder is none that a clean kept files in.
        CorruptFileError: its manifest, or a checkpoint, cannot be read.
        LockedError: someone holds one of the log directories.
    """
    return put_back(fs or PosixFileSystem(), path)
