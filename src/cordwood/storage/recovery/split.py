"""Split a closed segment at an offset: two segments with the same batches, byte for byte.

Replicas roll their segments at different offsets, but a joint clean needs a boundary at the end of the common range.
Kafka, too, splits a segment by swapping two for it, when offsets do not fit one.

    write      batches below the offset to one segment, all others to another, each with its indexes
    compare    read both again, against the bytes of the source
    swap       replace the source; see `storage.changes.swap`
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from cordwood.common.errors import RequestError
from cordwood.fs.base import OWNER_WRITES, LocalFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.record.columns import crc_error, is_valid
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import Keep, swap_in
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import make_work_folder
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, WindowReader
from cordwood.storage.recovery.rebuild import pieces_of

#: Folder within the work folder for the new files, until they are renamed.
_FOLDER = "split"
_COMPARED_BYTES = 1 << 20


def split_segment(
    fs: LocalFileSystem, log: LogView, offset: int, limits: IndexLimits, *, keep: Keep | None = None
) -> bool:
    """Make an offset the base offset of a segment; durable on return. Return False if it already was.

    Args:
        log: a loaded log that no other process uses; the value is out of date afterwards.
        offset: above the first base offset, and below the active segment.
        keep: called before files are deleted.

    Raises:
        CorruptBatchError: the segment is damaged.
        RequestError: a batch has offsets on both sides.
    """
    segment = next(one for one in reversed(log.segments) if one.base_offset <= offset)
    if segment.base_offset == offset:
        return False
    assert segment is not log.segments[-1], "the active segment is never split"
    folder = f"{make_work_folder(fs, log.path)}/{_FOLDER}"
    if fs.exists(folder):
        remove_tree(fs, folder)
    fs.make_directory(folder, mode=0o700)
    mode = segment.files.log.mode | OWNER_WRITES
    with (
        closing(SegmentWriter(fs, folder, segment.base_offset, limits, mode=mode)) as below,
        closing(SegmentWriter(fs, folder, offset, limits, mode=mode)) as above,
    ):
        _write(segment, below, above)
        paths = [path for writer in (below, above) for path in writer.finish(mtime_ns=segment.files.log.mtime_ns)]
        _check_bytes(fs, segment, [below.path(FileKind.LOG), above.path(FileKind.LOG)])
        end = max(below.next_offset, above.next_offset)
    names = tuple(path.rpartition("/")[2] for path in paths)
    bases = frozenset({segment.base_offset})
    swap_in(fs, log.path, Replacement(folder, names, bases, bases | {offset}, end), keep=keep)
    remove_tree(fs, folder)
    return True


def _write(segment: Segment, below: SegmentWriter, above: SegmentWriter) -> None:
    """Write the batches, and the aborted transactions by their markers."""
    offset = above.base_offset
    with segment.open() as file:
        for item in WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset):
            if isinstance(item, Gap):
                raise gap_error(segment, item)
            rows = item.batches
            valid = is_valid(rows)
            if not valid.all():
                raise crc_error(rows[np.argmin(valid)]).at(segment.path)
            count = int(np.count_nonzero(rows["last_offset"] < offset))
            if count < rows.size and rows["base_offset"][count] < offset and rows["magic"][count] == 2:
                raise RequestError(
                    f"{segment.path}: the batch of offsets {rows['base_offset'][count]} to "
                    f"{rows['last_offset'][count]} is on both sides of offset {offset}"
                )
            for writer, start, part in ((below, 0, rows[:count]), (above, count, rows[count:])):
                if part.size:
                    written = writer.append(list(pieces_of(item, rows, start, part)), part)
                    if written < part.size:
                        raise RequestError(f"{segment.path}: an index has no room for all of its batches")
    index = segment.transaction_index()
    for one in () if index is None else index.transactions():
        (below if one.last_offset < offset else above).add_aborted([one])


def _check_bytes(fs: LocalFileSystem, segment: Segment, paths: list[str]) -> None:
    """Compare the outputs, one after the other, with the source."""
    with segment.open() as source:
        position = 0
        for path in paths:
            with fs.open(path) as file:
                size = file.size()
                for at in range(0, size, _COMPARED_BYTES):
                    piece = file.read(at, min(_COMPARED_BYTES, size - at))
                    assert piece == source.read(position + at, len(piece)), "a copy is the same"
                position += size
        assert position == source.size(), "no batch is lost by a split"
