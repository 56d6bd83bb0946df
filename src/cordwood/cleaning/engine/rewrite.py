"""Pass 2: write the survivors of each window to the segments of its group."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.facts import aborted_transactions
from cordwood.cleaning.engine.indexing import IndexedBatches, IndexMaker, was_found_by_index
from cordwood.cleaning.engine.readahead import (
    Staying,
    TrackedWindow,
    decode_batches,
    read_ahead,
    reading_threads,
    records_of,
    staying,
    tracked_windows,
    with_upper_bounds,
)
from cordwood.cleaning.rules.key_table import Int64Array, NewestOffsets
from cordwood.cleaning.rules.rewrite import (
    CountRows,
    Counts,
    CountsByPart,
    Rewritten,
    Rules,
    needs_no_decoding,
    rewrite,
)
from cordwood.cleaning.rules.superseded import ScannedKeys, confirmed
from cordwood.cleaning.rules.thinning import thin
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.fs.base import OWNER_WRITES, ReadableFile, TargetStore
from cordwood.kernels.layout import BatchRows
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.key_index import Identity
from cordwood.storage.index.identity import OutputComparison, is_same_output, look
from cordwood.storage.log.segment import JoinedSegment, Segment, part_numbers, parts_of
from cordwood.storage.log.segment_writer import IndexLimits, Origin, SegmentWriter
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, compute_crcs, read_headers

#: Below this size, finding out whether the disk can share blocks takes longer than writing.
_SHARED_BYTES_MIN = 256 << 10


@dataclass(frozen=True, slots=True)
class Outputs:
    """Location and limits of the outputs.

    Attributes:
        is_strict: whether a full index is an error, as in Kafka; otherwise a further segment is started.
        indexes: makes the key indexes of the outputs and kept segments; None for no indexes.
    """

    fs: TargetStore
    folder: str
    limits: IndexLimits
    suffix: str
    is_strict: bool
    indexes: IndexMaker | None = None


class GroupWriter:
    """The outputs of one group: one segment, or several if an index is full or offsets are too far above the base."""

    def __init__(self, outputs: Outputs, log: LogView, base_offset: int, mode: int) -> None:
        self._outputs, self._log, self._mode = outputs, log, mode
        self._done: list[SegmentWriter] = []
        self._written = [IndexedBatches()]
        self._writer = self._open(base_offset)

    def _open(self, base_offset: int) -> SegmentWriter:
        outputs, mode = self._outputs, self._mode | OWNER_WRITES
        return SegmentWriter(outputs.fs, outputs.folder, base_offset, outputs.limits, suffix=outputs.suffix, mode=mode)

    def append(self, rewritten: Rewritten, tracked: TrackedWindow, origin: Origin | None) -> None:
        """Write the survivors of a window, and the aborted transactions whose markers are in it."""
        pieces, batches, aborted = rewritten.pieces, rewritten.batches, tracked.kept
        self._check_offsets(batches)
        while (done := self._append(pieces, batches, tracked.segment, origin)) < batches.size:
            # If offsets are too far above the base offset, Kafka, too, starts a new segment.
            if self._outputs.is_strict and done < self._writer.fitting(batches):
                raise RequestError(_index_full(self._log.path, self._writer.base_offset, self._outputs.limits))
            pieces, batches = _behind(pieces, int(batches["size_bytes"][:done].sum())), batches[done:]
            base_offset = int(batches["base_offset"][0])
            # Kafka treats an index entry that ends before its segment begins as corrupt.
            self._writer.add_aborted([one for one in aborted if one.last_offset < base_offset])
            aborted = [one for one in aborted if one.last_offset >= base_offset]
            self._writer.flush()
            self._done.append(self._writer)
            self._writer = self._open(base_offset)
            self._written.append(IndexedBatches())
        self._writer.add_aborted(aborted)

    def _append(self, pieces: Sequence[np.ndarray], batches: BatchRows, segment: Segment, origin: Origin | None) -> int:
        done = self._writer.append(pieces, batches, origin)
        if self._outputs.indexes is not None:
            self._written[-1].add(segment, batches[:done])
        return done

    def _check_offsets(self, batches: BatchRows) -> None:
        below = np.flatnonzero(batches["last_offset"] < self._writer.base_offset)
        if below.size:
            what = f"offsets go back to {batches['last_offset'][below[0]]} behind {self._writer.base_offset}"
            raise CorruptBatchError(what, path=self._log.path, offset=int(batches["base_offset"][below[0]]))

    def finish(self, mtime_ns: int, newest: NewestOffsets) -> tuple[int, ...]:
        """Complete and sync all files; return the base offsets of the written segments.

        Args:
            mtime_ns: modification time of the files.
            newest: result of pass 1.
        """
        writers = [*self._done, self._writer]
        for writer, written in zip(writers, self._written, strict=True):
            writer.finish(mtime_ns=mtime_ns)
            if self._outputs.indexes is not None:
                outputs, base_offset = self._outputs, writer.base_offset
                identity = look(outputs.fs, outputs.folder, base_offset, outputs.limits, in_place=False)
                self._outputs.indexes.of_output(writer.path(FileKind.LOG), base_offset, written, newest, identity)
        return tuple(writer.base_offset for writer in writers)

    def close(self) -> None:
        """Close the files. After a failure they stay unfinished."""
        for writer in (*self._done, self._writer):
            writer.close()


def _index_full(path: str, base_offset: int, limits: IndexLimits) -> str:
    return (
        f"{path}: an index of the cleaned segment {base_offset} would need more than segment.index.bytes="
        f"{limits.size_bytes}. Kafka's cleaner fails here every time; without --strict-kafka a further segment is begun"
    )


def _behind(pieces: Sequence[np.ndarray], skip: int) -> list[np.ndarray]:
    left = []
    for piece in pieces:
        part = piece[min(skip, piece.size) :]
        skip -= piece.size - part.size
        if part.size:
            left.append(part)
    return left


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """A group of segments that was rewritten.

    Attributes:
        replaced: base offsets of the segments that were read.
        outputs: base offsets of the segments that replace them.
        counts: record counts per source segment.
        kept: whether nothing was written, as the output would be the same as the only source segment.
        identity: of a kept segment whose files were read, as they were before; None if offsets do not ascend.
    """

    replaced: tuple[int, ...]
    outputs: tuple[int, ...]
    counts: tuple[Counts, ...]
    kept: bool = False
    identity: Identity | None = None


def _kept_group(group: Sequence[Segment], newest: NewestOffsets, limits: IndexLimits) -> WrittenGroup | None:
    """Return the result for a group whose output would equal its only segment, indexes included; None for others."""
    segment = group[0]
    found = None if len(group) > 1 else newest.unchanged(segment.base_offset)
    if found is None or segment.read_index(FileKind.TRANSACTION_INDEX) is not None:
        return None
    identity = None
    if not (was_found_by_index(newest, segment) and is_same_output(segment, limits)):
        before = look(segment.fs, segment.directory, segment.base_offset, limits)
        compared = OutputComparison(segment, limits)
        with segment.open() as file:
            for item in read_headers(file, base_offset=segment.base_offset):
                if isinstance(item, Gap) or not compared.add(item):
                    return None
        if not compared.is_same():
            return None
        identity = before if compared.ascends else None
    (batches, records), size = found, segment.size_bytes
    counts = Counts(
        bytes_read=size,
        bytes_written=size,
        batches_read=batches,
        batches_verbatim=batches,
        records_read=records,
        records_kept=records,
    )
    base = (segment.base_offset,)
    return WrittenGroup(base, base, (counts,), kept=True, identity=identity)


def rewrite_groups(
    log: LogView,
    groups: Sequence[Sequence[Segment]],
    outputs: Outputs,
    newest: NewestOffsets,
    rules: Rules,
    tracker: AbortTracker,
    old_horizon_ms: int,
) -> list[WrittenGroup]:
    """Write the survivors of each group, all windows of all groups as one stream.

    Args:
        log: the partition's log; it is only read.
        newest: the result of pass 1 for the dirty section.
        tracker: tracker of transactions, at the first group; on return it is at the end of the last one.
        old_horizon_ms: see `CleanState`.
    """
    written = []
    kept = {group[0].base_offset: _kept_group(group, newest, outputs.limits) for group in groups}
    changed = [group for group in groups if kept[group[0].base_offset] is None]
    with (
        reading_threads(list(itertools.chain.from_iterable(changed))) as threads,
        closing(_Sources(outputs)) as sources,
    ):
        reading = _Reading(log, groups, {base for base, one in kept.items() if one is not None}, newest, rules)
        copied = reading.windows(tracker)
        windows = _rewritten(threads, copied, rules, old_horizon_ms, newest)
        coming = next(windows, None)
        for group in groups:
            same = kept[group[0].base_offset]
            if same is not None:
                written.append(same)
                if outputs.indexes is not None:
                    outputs.indexes.of_kept(group[0], newest, same.identity)
                continue
            counts = _GroupCounts(group)
            # An output has the modification time of the newest segment of its group, and the mode of the first.
            first, last = group[0], group[-1]
            mode = first.files.log.mode
            with closing(GroupWriter(outputs, log, first.base_offset, mode)) as writer:
                while coming is not None and coming[0].segment.base_offset <= last.base_offset:
                    window, rewritten = coming
                    counts.add(window.segment, window.window.batches["position"], rewritten.counts)
                    writer.append(rewritten, window, sources.origin_of(window))
                    del coming, window, rewritten  # free large ones before reading more
                    coming = next(windows, None)
                bases = writer.finish(last.files.log.mtime_ns, newest)
            for segment, positions, left_out in reading.left_out(group):
                counts.add(segment, positions, left_out)
            written.append(WrittenGroup(counts.bases, bases, counts.of_each()))
    return written


class _Sources:
    """The source files, opened once more if outputs can share their blocks."""

    def __init__(self, outputs: Outputs) -> None:
        self._fs, self._target = outputs.fs, outputs.folder
        self._can_share: bool | None = None
        self._path = ""
        self._file: ReadableFile | None = None

    def origin_of(self, tracked: TrackedWindow) -> Origin | None:
        """Return the source of a window's bytes; None if no blocks, or too few, can be shared."""
        if tracked.window.data.size < _SHARED_BYTES_MIN or isinstance(tracked.segment, JoinedSegment):
            return None
        if self._can_share is None:
            self._can_share = self._fs.shares_blocks(self._target)
        if not self._can_share:
            return None
        if self._path != tracked.segment.path:
            self.close()
            try:
                self._file = self._fs.open(tracked.segment.path)
            except FileNotFoundError:  # the source is on another file system
                self._can_share = False
                return None
            self._path = tracked.segment.path
        assert self._file is not None, "just opened"
        return Origin(self._file, tracked.window.position, tracked.window.data)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class _Reading:
    """Reads the batches that may stay, from segments that are not kept unchanged."""

    def __init__(
        self,
        log: LogView,
        groups: Sequence[Sequence[Segment]],
        kept: Set[int],
        newest: NewestOffsets,
        rules: Rules,
    ) -> None:
        self._log, self._groups, self._newest, self._rules = log, groups, newest, rules
        self._kept = kept
        self._held = newest.windows if isinstance(newest, ScannedKeys) else {}
        self._left_out: dict[int, Staying] = {}

    def windows(self, tracker: AbortTracker) -> Iterator[TrackedWindow]:
        """Yield the windows, in log order."""
        bases = [segment.base_offset for segment in itertools.chain(*self._groups)]
        ends = dict(itertools.pairwise([*bases, self._rules.first_uncleanable_offset]))
        # Skipped batches belong to no transaction, so the tracker misses nothing.
        for segment, upper in itertools.chain(*map(with_upper_bounds, self._groups)):
            base = segment.base_offset
            tracker.add(aborted_transactions(self._log, base, upper))
            if base in self._kept:
                continue
            if (held := self._held.get(base)) is not None:
                for window in held:
                    yield TrackedWindow(segment, window, *tracker.discard(window.batches), is_checked=True)
                continue
            some = staying(segment, ends[base], self._newest, self._rules)
            if some is None:
                yield from tracked_windows(segment, 0, tracker)
                continue
            self._left_out[base] = some
            for window in some.windows():
                yield TrackedWindow(segment, window, *tracker.discard(window.batches))
                del window  # free a large one before reading the next

    def left_out(self, group: Sequence[Segment]) -> Iterator[tuple[Segment, Int64Array, CountRows]]:
        """Yield the positions and counts of skipped batches, once all windows of a group were yielded."""
        for segment in group:
            some = self._left_out.get(segment.base_offset)
            if some is not None:
                yield segment, some.edges[:-1][~some.is_read], some.left_out


class _GroupCounts:
    """The counts of each segment of a group, including joined ones."""

    def __init__(self, group: Sequence[Segment]) -> None:
        parts = [parts_of(segment) for segment in group]
        firsts = itertools.accumulate(map(len, parts), initial=0)
        self._first = dict(zip((segment.base_offset for segment in group), firsts, strict=False))
        #: Base offsets of the segments.
        self.bases = tuple(part.base_offset for some in parts for part in some)
        self._counts = CountsByPart(len(self.bases))

    def add(self, segment: Segment, positions: Int64Array, counts: CountRows) -> None:
        """Add the counts of batches at some positions of a segment."""
        self._counts.add(self._first[segment.base_offset] + part_numbers(segment, positions), counts)

    def of_each(self) -> tuple[Counts, ...]:
        """Return the counts of each segment."""
        return tuple(self._counts.counts())


def _rewritten(
    threads: Executor | None,
    windows: Iterator[TrackedWindow],
    rules: Rules,
    old_horizon_ms: int,
    newest: NewestOffsets,
) -> Iterator[tuple[TrackedWindow, Rewritten]]:
    scanned = newest if isinstance(newest, ScannedKeys) else None
    table = None if scanned is None else scanned.table
    none = np.empty(0, np.uint32)

    def rewrite_window(tracked: TrackedWindow) -> tuple[Rewritten, npt.NDArray[np.uint32]]:
        """Return the survivors, and the ordinals of records that were marked by mistake."""
        segment, window, batches = tracked.segment, tracked.window, tracked.window.batches
        known = newest.known_outcomes(segment.base_offset, batches, segment.path)
        decided = needs_no_decoding(batches, tracked.discard, known)
        # The scan has checked the CRC of all batches that it read; the check of the outputs does so again.
        refuted = none
        unchecked = np.zeros(batches.size, np.bool_) if tracked.is_checked else ~(decided & known.known & ~known.unread)
        if table is not None:
            compute_crcs(window, unchecked & known.unconfirmed)
            known, refuted = confirmed(batches, functools.partial(records_of, segment, window), known, table)
            decided = needs_no_decoding(batches, tracked.discard, known)
        thinned = thin(window, decided | tracked.discard, known)
        done = decided if thinned is None else decided | thinned.done
        compute_crcs(window, unchecked if thinned is None else unchecked & ~thinned.done)
        decoded = list(decode_batches(segment, window, ~done))
        elision = rules.elision.in_segment(is_old=segment.mtime_ms <= old_horizon_ms)
        own = replace(rules, elision=elision)
        return rewrite(window.data, batches, decoded, tracked.discard, known, own, newest, thinned), refuted

    for tracked, (rewritten, refuted) in read_ahead(threads, windows, rewrite_window):
        if scanned is not None and refuted.size:
            scanned.refute(tracked.segment.base_offset, refuted)
        yield tracked, rewritten
        del tracked, rewritten  # free large ones before reading more
