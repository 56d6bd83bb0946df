"""Put back what a clean in place replaced."""

from __future__ import annotations

from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.undo import UndoResult, put_back


def undo(path: str, *, fs: LocalFileSystem | None = None) -> UndoResult:
    """Put back the files that a clean in place replaced or deleted, and kept.

    Everything is checked before anything is changed: if a log was written to, cleaned again or deleted from since, the
    result says so, and nothing was done. A broker that was only started and stopped does not matter. An undo that was
    interrupted continues when it is called again.

    Args:
        path: of the folder.
        fs: default: the machine's.

    Raises:
        NotFoundError: the folder is no backup of a clean.
        CorruptFileError: its manifest, or a checkpoint, cannot be read.
        LockedError: another process holds one of the log directories.
    """
    return put_back(fs or PosixFileSystem(), path)
