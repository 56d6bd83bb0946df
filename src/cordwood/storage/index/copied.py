"""The key indexes of a copy of a partition: those that a clean has just made, and those that its source has."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Sequence

from cordwood.errors import CorruptFileError
from cordwood.fs.base import TargetStore
from cordwood.storage.formats.filenames import FileKind, index_folder, key_index_name, parse_file, parse_key_index
from cordwood.storage.formats.key_index import KeyIndex
from cordwood.storage.index.files import create_index, indexes_in, read_index
from cordwood.storage.log.files import make_work_folder
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView


def bring_indexes(
    fs: TargetStore,
    source: LogView,
    target: str,
    made: Sequence[str] = (),
    replaced: Collection[int] = (),
    bytes_max: int | None = None,
) -> None:
    """Give a copy that has not got its final name yet the key indexes of its segments.

    Args:
        source: the partition that it is a copy of. Only its indexes that are believed are copied.
        target: the copy's directory, with all its segments.
        made: paths of indexes that were made of segments as they are now.
        replaced: base offsets of segments of the source that are not in the copy.
        bytes_max: that indexes may take; those of the newest segments are left out. None: there is no limit.
    """
    sizes = {
        file.offset: info.size_bytes
        for info in fs.list(target)
        if (file := parse_file(info.name)) is not None and file.kind is FileKind.LOG
    }
    paths = {parse_key_index(posixpath.basename(path)): path for path in made}
    has_some = {base_offset for base_offset, _ in indexes_in(source.fs, source.path, source.index_root)} - set(replaced)
    segments = {segment.base_offset: segment for segment in source.segments if segment.base_offset in has_some}
    taken = 0
    for base_offset, size_bytes in sorted(sizes.items()):
        new = f"{index_folder(target)}/{key_index_name(base_offset)}"
        index = None
        if base_offset in paths:
            taken += fs.stat(paths[base_offset]).size_bytes
        elif base_offset in segments:
            index = _believed(segments[base_offset], size_bytes)
            taken += 0 if index is None else index.header.file_bytes
        if bytes_max is not None and taken > bytes_max:
            return
        if base_offset in paths or index is not None:
            _make_folder(fs, target)
        if base_offset in paths:
            fs.rename(paths[base_offset], new)
        elif index is not None and not _is_created(fs, new, index):
            return


def _believed(segment: Segment, size_bytes: int) -> KeyIndex | None:
    """The index of a segment, if it is believed, and covers no more than the copy of the segment has."""
    try:
        index = read_index(segment)
    except (OSError, CorruptFileError):
        return None
    return index if index.header.covered_bytes <= size_bytes else None


def _make_folder(fs: TargetStore, target: str) -> None:
    folder = index_folder(target)
    if not fs.exists(folder):
        make_work_folder(fs, target)
        fs.make_directory(folder)


def _is_created(fs: TargetStore, path: str, index: KeyIndex) -> bool:
    """Write an index; False, and nothing is left of it, where the disk is full: the copy does without."""
    try:
        create_index(fs, path, index)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(path)
        return False
    return True
