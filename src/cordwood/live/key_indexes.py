"""The key indexes of a live log: installs the indexes from cleans, removes indexes of changed and removed segments.

An index is removed before its segment is replaced or truncated, but after its segment is removed from the log. So even
after a crash, no segment has the index of another segment. Appends change no index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from cordwood.fs.base import LocalFileSystem
from cordwood.storage.index import files


def forget(fs: LocalFileSystem, directory: str, segments: Collection[int]) -> None:
    """Remove the indexes of segments that will change or are removed; ignore errors of the disk.

    A remaining index does not match its segment and is ignored; see `storage.index.files`.
    """
    with contextlib.suppress(OSError):
        files.forget_indexes(fs, directory, segments)


def take_over(fs: LocalFileSystem, directory: str, made: Sequence[str], segments: Collection[int]) -> None:
    """Move a clean's new indexes into the partition's directory; ignore errors of the disk.

    Args:
        made: paths of the new indexes.
        segments: base offsets of the log's current segments; indexes of other segments are removed.
    """
    with contextlib.suppress(OSError):
        files.take_over_indexes(fs, directory, made)
        files.remove_indexes(fs, directory, segments)
