"""`undo`: restore the files that a clean in place replaced."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import Any

from cordwood.common.arguments import AnyPath
from cordwood.common.text import Cells, Column, bytes_text, cells_of, number, printable, register, table
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


# ---- the result as text and JSON -------------------------------------------------------------------------------------


def _document(result: UndoResult) -> dict[str, Any]:
    return {
        "folder": printable(result.folder),
        "done": result.done,
        "removed": result.removed,
        "partitions": [
            {
                "path": printable(one.path),
                "segments": one.segments,
                "size_bytes": one.size_bytes,
                "removed_segments": one.removed_segments,
                "removed_bytes": one.removed_bytes,
            }
            for one in result.partitions
        ],
        "checkpoints": [printable(path) for path in result.checkpoints],
        "changes": [{"path": printable(one.path), "what": one.what} for one in result.changes],
    }


_COLUMNS: Cells = (
    (Column("PARTITION"), lambda one: posixpath.basename(one.path)),
    (Column("SEGMENTS", True), lambda one: f"{one.segments:,}"),
    (Column("RESTORED", True), lambda one: bytes_text(one.size_bytes)),
    (Column("REMOVED", True), lambda one: bytes_text(one.removed_bytes)),
)


def _lines(result: UndoResult) -> Iterator[str]:
    if result.changes:
        yield "changed since the clean:"
        yield from (f"  {one.path}: {one.what}" for one in result.changes)
        yield ""
        yield f"Nothing was restored, as these changes would be lost. The old files are still in {result.folder}"
        return
    if result.partitions:
        yield from table(*cells_of(_COLUMNS, result.partitions))
        yield ""
    for path in result.checkpoints:
        yield f"restored: {path}"
    segments = sum(one.segments for one in result.partitions)
    yield f"{number(len(result.partitions), 'partition')}: {number(segments, 'segment')} restored"
    yield f"{result.folder} is " + (
        "no longer needed, and was removed" if result.removed else "kept, as it holds other files"
    )


register(UndoResult, lines=lambda result: map(printable, _lines(result)), document=_document)
