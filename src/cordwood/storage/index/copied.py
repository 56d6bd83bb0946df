"""The key indexes of a copy of a partition: new ones from the clean, and copies of the source's indexes."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Sequence

from cordwood.common.errors import CorruptFileError
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
    """Give an unpublished copy the key indexes of its segments.

    Args:
        source: the partition that was copied. Only its valid indexes are copied.
        target: the copy's directory, with all its segments.
        made: paths of indexes that were built from segments as they are now.
        replaced: base offsets of the source's segments that are not in the copy.
        bytes_max: size limit for all indexes; the newest segments get none beyond it. None for no limit.
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
    """Return the index of a segment if it is valid and covers no more than the copied segment has, else None."""
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
    """Write an index; on a full disk remove it and return False, as the copy does not need it."""
    try:
        create_index(fs, path, index)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(path)
        return False
    return True
