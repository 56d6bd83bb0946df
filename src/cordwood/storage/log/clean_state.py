"""Read the state that a clean with `--min-dead` leaves: its checkpoint, and the pending records of segments.

State that does not match the log as it is now is ignored; `formats.clean_checkpoint` has the conditions. If it is
ignored or missing, a clean begins at Kafka's checkpoint, which is never above the first record that superseded a
pending one.
"""

from __future__ import annotations

from dataclasses import replace

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import clean_checkpoint, pending_records
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint, CleanSegment
from cordwood.storage.formats.filenames import clean_checkpoint_path, pending_path
from cordwood.storage.formats.key_index import crc_of_header
from cordwood.storage.formats.pending_records import PendingRecords
from cordwood.storage.log.files import read_file
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView


def believed_checkpoint(log: LogView) -> CleanCheckpoint | None:
    """Return Cordwood's cleaner checkpoint of a log, or None if it is missing or invalid.

    In an object store return None without a request: logs there have no such checkpoint.
    """
    if log.fs.reads_by_request(log.path):
        return None
    try:
        return read_checkpoint(log)
    except (OSError, CorruptFileError):
        return None


def read_checkpoint(log: LogView) -> CleanCheckpoint:
    """Read Cordwood's cleaner checkpoint of a log, without entries of missing segments.

    Raises:
        OSError: it is missing or unreadable.
        CorruptFileError: it is torn, or does not match this log as it is now.
    """
    path = clean_checkpoint_path(log.path)
    checkpoint = clean_checkpoint.decode(read_file(log.fs, path), path)
    below = [segment for segment in log.segments if segment.base_offset < checkpoint.cleaned_to]
    known = checkpoint.segments[len(checkpoint.segments) - len(below) :] if below else ()
    if what := _difference(checkpoint, log, below, known):
        raise CorruptFileError(f"not the cleaner checkpoint of the log as it is now: {what}", path=path)
    return replace(checkpoint, segments=known)


def _difference(
    checkpoint: CleanCheckpoint, log: LogView, below: list[Segment], known: tuple[CleanSegment, ...]
) -> str:
    if all(segment.base_offset != checkpoint.cleaned_to for segment in log.segments):
        return f"no segment begins at offset {checkpoint.cleaned_to}"
    if [segment.base_offset for segment in below] != [one.base_offset for one in known]:
        return f"other segments are below offset {checkpoint.cleaned_to}"
    return next(filter(None, map(_difference_of, below, known)), "")


def _difference_of(segment: Segment, known: CleanSegment) -> str:
    if segment.size_bytes != known.size_bytes:
        return f"the segment at offset {known.base_offset} has {segment.size_bytes} bytes, not {known.size_bytes}"
    if known.size_bytes:
        with segment.open() as file:
            found = crc_of_header(file, known.last_position, known.size_bytes - known.last_position)
        if found != known.last_header_crc:
            return f"the last batch of the segment at offset {known.base_offset} is another"
    if known.garbage_bytes and _header_crc(segment) != known.pending_crc:
        return f"the pending records of the segment at offset {known.base_offset} are missing, or others"
    return ""


def _header_crc(segment: Segment) -> int | None:
    path = pending_path(segment.directory, segment.base_offset)
    try:
        with segment.fs.open(path) as file:
            return pending_records.decode_header(file.read(0, pending_records.HEADER.itemsize), path).header_crc
    except (OSError, CorruptFileError):
        return None


def read_pending(segment: Segment, known: CleanSegment) -> PendingRecords | None:
    """Read the pending records of a segment that a checkpoint names; None if it has none.

    The caller must check with `pending_records.crc_of_batches` that the segment still has the batches of these records.

    Raises:
        OSError: they are unreadable.
        CorruptFileError: they are torn, or differ from the checkpoint's entry.
    """
    if not known.garbage_bytes:
        return None
    path = pending_path(segment.directory, segment.base_offset)
    found = pending_records.decode(read_file(segment.fs, path), path)
    header = found.header
    named = (known.pending_crc, known.base_offset, known.size_bytes)
    if (header.header_crc, header.base_offset, header.size_bytes) != named:
        raise CorruptFileError("not the pending records that the cleaner checkpoint names", path=path)
    return found
