"""The key indexes of a live log: those that its cleans leave, and those of segments that change or go.

Before a segment is replaced or truncated, and once it is removed, its index is removed. So whatever happens then, no
segment has the index of another one. Appends touch no index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from cordwood.fs.base import LocalFileSystem
from cordwood.storage.index import files


def forget(fs: LocalFileSystem, directory: str, segments: Collection[int]) -> None:
    """Remove the indexes of segments that are about to change, or are gone, as far as the disk allows it.

    One that stays is not believed, as it is of another segment; see `storage.index.files`.
    """
    with contextlib.suppress(OSError):
        files.forget_indexes(fs, directory, segments)


def take_over(fs: LocalFileSystem, directory: str, made: Sequence[str], segments: Collection[int]) -> None:
    """Put the indexes that a clean has made into their place.

    Args:
        made: their paths.
        segments: that the log has now; other indexes are removed.
    """
    with contextlib.suppress(OSError):
        files.take_over_indexes(fs, directory, made)
        files.remove_indexes(fs, directory, segments)
