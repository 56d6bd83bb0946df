"""Rebuild a segment from its batches: the `.log`, indexes, aborted transactions and leader epochs.

Recovery reads a segment batch by batch and keeps the complete batches before the first damaged one. If their offsets
span too much for one segment, it writes several segments.

Source: Kafka LogSegment.recover, UnifiedLog.splitOverflowedSegment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from cordwood.common.errors import CorruptBatchError, DataError, IllegalArgumentError, LogSegmentOffsetOverflowError
from cordwood.common.types import NONE
from cordwood.kernels.layout import BatchRows, U8Array, is_control
from cordwood.record.batch import coordinator_epoch
from cordwood.record.columns import BatchWindow, decode
from cordwood.storage.formats.leader_epochs import EpochEntry, LeaderEpochs
from cordwood.storage.log.loaded import undamaged
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import SegmentIndexes, SegmentWriter
from cordwood.storage.log.windows import MAX_OFFSETS, Checks, Gap, WindowReader
from cordwood.storage.recovery.replay import Producers


def rewrite_segment(
    segment: Segment,
    begin: Callable[[int], SegmentWriter],
    producers: Producers,
    epochs: LeaderEpochs,
    *,
    taken: Collection[int],
) -> tuple[list[SegmentWriter], LeaderEpochs, int]:
    """Write the complete batches of a segment, as several segments if its offsets span too much.

    Args:
        segment: is only read.
        begin: returns a new writer for a base offset.
        producers: state at the segment's start; updated to its end.
        taken: base offsets of other segments.

    Returns:
        (writers, leader epochs after the segment, number of bytes cut off)
    """
    writers = [begin(segment.base_offset)]

    def begin_another(batches: BatchRows) -> SegmentWriter:
        row = batches[0]
        if row["base_offset"] <= segment.base_offset or row["base_offset"] in taken:
            raise _misplaced(segment, row)
        return begin(int(row["base_offset"]))

    with segment.open() as file:
        windows = WindowReader(file, Checks.WHOLE, base_offset=segment.base_offset, search=False)
        for window, batches in undamaged(windows):
            for part in write_split(writers, begin_another, window, batches):
                wrong = np.flatnonzero(part["last_offset"] < writers[-1].base_offset)
                if wrong.size:
                    raise _misplaced(segment, part[wrong[0]])
                writers[-1].add_aborted(producers.replay(part, coordinator_epochs(window, part)))
                for entry in begun_epochs(part, epochs.latest.epoch if epochs.latest else NONE):
                    epochs = epochs.assigned(entry.epoch, entry.start_offset)
        return writers, epochs, file.size() - sum(writer.size_bytes for writer in writers)


def index_segment(
    windows: Iterable[BatchWindow | Gap], base_offset: int, indexes: SegmentIndexes, name: str
) -> Iterator[BatchRows]:
    """Add the complete batches of a segment to new indexes, for a log that stays unchanged.

    Like Kafka, add batch by batch: batches before the first failing one are added. If an index is full before the
    first offset that does not fit, IllegalArgumentError is raised.

    Yields:
        added batches, at least one at a time.

    Raises:
        IllegalArgumentError: an index is full.
        LogSegmentOffsetOverflowError: offsets do not fit the base offset; `write_split` splits such a segment.
    """
    for _, batches in undamaged(windows):
        offsets = batches["last_offset"] - np.int64(base_offset)
        belongs = (offsets >= 0) & (offsets < MAX_OFFSETS)
        fits = int(batches.size) if belongs.all() else int(np.argmin(belongs))
        indexed = indexes.add(batches[:fits])
        if indexed:
            yield batches[:indexed]
        if indexed < fits:
            raise IllegalArgumentError(f"Attempt to append to a full index of {name}")
        if fits < batches.size:
            raise LogSegmentOffsetOverflowError(
                f"Detected offset overflow in segment {name}: its batches do not fit its base offset"
            )


def begun_epochs(batches: BatchRows, latest: int) -> Iterator[EpochEntry]:
    """Yield the leader epochs that begin in these batches: each is higher than `latest` and all epochs before it."""
    known = batches[(batches["magic"] == 2) & (batches["leader_epoch"] >= 0)]
    highest = np.maximum.accumulate(known["leader_epoch"]) if known.size else known["leader_epoch"]
    for at in np.flatnonzero(np.diff(highest, prepend=latest) > 0).tolist():
        if highest[at] > latest:
            latest = int(highest[at])
            yield EpochEntry(latest, int(known["base_offset"][at]))


def write_split(
    writers: list[SegmentWriter],
    begin: Callable[[BatchRows], SegmentWriter],
    window: BatchWindow,
    batches: BatchRows,
) -> Iterator[BatchRows]:
    """Append batches to the last writer. Begin another writer at each batch that does not fit the last one's base.

    Args:
        writers: the writers so far; new ones are appended.
        begin: returns a new writer that starts with the first of the given batches.
        batches: the first batches of the window.

    Yields:
        batches that were just appended to `writers[-1]`.
    """
    at = 0
    while at < batches.size:
        part = batches[at:]
        if not (writers and writers[-1].fitting(part)):
            writers.append(begin(part))
        part = part[: writers[-1].fitting(part)]
        written = writers[-1].append(list(pieces_of(window, batches, at, part)), part)
        assert written == part.size > 0, "the indexes have room for a whole segment"
        yield part
        at += part.size


def pieces_of(window: BatchWindow, batches: BatchRows, at: int, part: BatchRows) -> Iterable[U8Array]:
    """Return the bytes of `part`, which starts at index `at` of the window's batches."""
    start, size = int(batches["size_bytes"][:at].sum()), int(part["size_bytes"].sum())
    if start + size <= window.data.size:
        return [window.data[start : start + size]]
    return (np.frombuffer(piece, np.uint8) for piece in window.read(window.position + start, size))


def _misplaced(segment: Segment, row: np.void) -> CorruptBatchError:
    return CorruptBatchError(
        f"offset {row['last_offset']} does not belong into the segment of base offset {segment.base_offset}",
        path=segment.path,
        position=int(row["position"]),
        offset=int(row["base_offset"]),
    )


def coordinator_epochs(window: BatchWindow, batches: BatchRows) -> dict[int, int]:
    """Read the coordinator epoch of each marker among these batches; return them by offset."""
    markers = batches[is_control(batches)]
    found: dict[int, int] = {}
    if not markers.size:
        return found

    def skip(error: DataError) -> None:
        """Ignore a marker without a readable coordinator epoch."""

    for columns in decode(BatchWindow(window.position, window.data, markers, window.read), on_damage=skip):
        view = memoryview(columns.data)
        names = ("offset", "value_start", "value_size")
        for offset, start, size in zip(*(columns.rows[name].tolist() for name in names), strict=True):
            try:
                found[offset] = coordinator_epoch(view[start : start + size] if size >= 0 else None)
            except CorruptBatchError:
                found[offset] = NONE
    return found
