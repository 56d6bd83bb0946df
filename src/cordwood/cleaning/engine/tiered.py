"""What the outputs of a clean become in a tier: pieces of the log, and the new segments that have their bytes."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence

from cordwood.cleaning.engine.facts import load_producers
from cordwood.cleaning.engine.task import Output
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import FileKind, offset_name, parse_file
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.exchange import NewSegment, largest_timestamp, stage
from cordwood.storage.tier.remote_log import Answer
from cordwood.storage.tier.replacing import SegmentPiece, epochs_of, lineage_at_end, pieces_of
from cordwood.storage.tier.segments import CopyState, RemoteSegment
from cordwood.storage.tier.store import TierStore


def pieces_of_output(log: LogView, output: Output) -> list[SegmentPiece]:
    """Return the pieces of a cleaned range.

    Args:
        log: the log before the clean.
    """
    segments, cleaned = log.segments, output.cleaned
    last_offsets = {one.base_offset: following.base_offset - 1 for one, following in itertools.pairwise(segments)}
    sizes = {one.base_offset: one.size_bytes for one in segments}
    sizes |= {at: size for name, size in output.files if (at := _log_offset(name)) is not None}
    return pieces_of(zip(cleaned.replaced, cleaned.outputs, strict=True), cleaned.kept, last_offsets, sizes)


def new_segment(
    fs: LocalFileSystem,
    store: TierStore,
    log: LogView,
    piece: SegmentPiece,
    sources: Sequence[Answer],
    lineage: Sequence[EpochEntry],
    written: str,
    folder: str,
    *,
    broker: int | None,
    now_ms: int,
) -> NewSegment:
    """Put the files of a piece together, and describe the segment that they become.

    Args:
        store: shows the log before the clean, with its tier.
        sources: the answers that it replaces, at least one.
        lineage: leader epochs of the log.
        written: the folder with the outputs of the clean.
        folder: path of a new folder, for files that are not among the outputs.
        broker: id of the node; None for that of the segment that it replaces.

    Raises:
        CorruptFileError: an object of the tier is damaged.
    """
    fs.make_directory(folder)
    epochs, like = epochs_of(piece, sources, lineage), sources[-1].segment
    snapshot = producers_at(log, piece.last_offset + 1)
    files = stage(store, log.path, piece, lineage_at_end(piece, epochs, lineage), snapshot, written, folder)
    segment = RemoteSegment(
        topic=like.topic,
        topic_id=like.topic_id,
        partition=like.partition,
        id=encode_id(uuid.uuid4()),
        start_offset=piece.first_offset,
        end_offset=piece.last_offset,
        size_bytes=store.stat(files[FileKind.LOG]).size_bytes,
        max_timestamp_ms=largest_timestamp(store, files, piece, like.max_timestamp_ms),
        event_time_ms=now_ms,
        broker=like.broker if broker is None else broker,
        epochs=epochs,
        custom_metadata=None,
        state=CopyState.COPY_STARTED,
        transaction_index_empty=FileKind.TRANSACTION_INDEX not in files,
    )
    return NewSegment(segment, files, like)


def replaced_bytes(log: LogView, pieces: Sequence[SegmentPiece]) -> int:
    """Return the size of the `.log` files of a log that pieces replace."""
    sizes: Mapping[int, int] = {one.base_offset: one.size_bytes for one in log.segments}
    bases = {base for piece in pieces for base in sizes if piece.first_offset <= base <= piece.last_offset}
    return sum(sizes[base] for base in bases)


def producers_at(log: LogView, offset: int) -> bytes:
    """Return the producers at an offset, as in a `.snapshot`. A segment with a hidden end has no such file."""
    name = f"{log.path}/{offset_name(offset, FileKind.PRODUCER_SNAPSHOT)}"
    if log.fs.exists(name):
        return read_file(log.fs, name)
    below = log.with_segments([one for one in log.segments if one.base_offset < offset])
    return producer_state.encode_rows(load_producers(below, now_ms=0, end=offset).rows())


def _log_offset(name: str) -> int | None:
    """Return the base offset in the name of a `.log`; None for another name."""
    file = parse_file(name)
    return file.offset if file is not None and file.kind is FileKind.LOG else None
