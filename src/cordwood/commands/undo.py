"""`undo`: restores the files that a clean in place replaced."""

from __future__ import annotations

import os

import cordwood.commands.report.undo  # noqa: F401 - so that a result can show itself
from cordwood.common.arguments import AnyPath
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.by_url import local_path
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.undo import UndoResult, put_back


def undo(path: AnyPath, *, fs: LocalFileSystem | None = None) -> UndoResult:
    """Restore the files that a clean in place replaced and kept.

    Everything is examined first: if a cleaned log was written to, cleaned again or deleted from since, the result lists
    the changes, and nothing is restored. Starting and stopping a broker does not prevent it. An undo that was
    interrupted continues when it is called again.

    Raises:
        NotFoundError: no clean kept old files in the folder.
        CorruptFileError: its manifest, or a checkpoint, cannot be read.
        RequestError: kept files no longer have the inode numbers that they were kept with.
        LockedError: a broker or another program holds one of the log directories.
    """
    return put_back(fs or PosixFileSystem(), local_path(os.fspath(path)))
