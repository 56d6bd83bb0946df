"""Pass 1 without Kafka's offset map: read each segment once, and find its superseded records.

    run ──► windows ──► decoded, keys hashed (threads) ──► chunks ──► `ScannedRun`     rules.superseded
                                                             └─ merge ──► `ScannedKeys` for pass 2

This module scans all runs one after another, and keeps the survivors of their chunks in memory. `engine.stages` does
the same with many tasks. If little is dirty, there are no chunks: `engine.keys` has collected the dirty keys before,
and each record is looked up in their table (`probe_keys`). If a segment has a key index, only records that may have a
dirty key are looked up (`engine.by_index`).
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.by_index import Mark, scan_by_index
from cordwood.cleaning.engine.facts import aborted_transactions
from cordwood.cleaning.engine.keys import NOTHING_DIRTY, DirtyKeys, DirtySection
from cordwood.cleaning.engine.readahead import (
    TrackedWindow,
    bodies_of,
    read_ahead,
    reading_threads,
    segment_windows_from,
    start_position,
    with_upper_bounds,
)
from cordwood.cleaning.rules.key_table import CHUNK_RECORD_BYTES, ENTRY_BYTES, BoolArray, Int64Array, MemoryShare
from cordwood.cleaning.rules.latest import DirtyTable
from cordwood.cleaning.rules.superseded import (
    NEVER,
    Chunk,
    OffsetSpan,
    RunScan,
    ScannedKeys,
    ScannedRun,
    WindowKeys,
    merge,
    window_keys,
)
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.kernels.layout import BatchRows
from cordwood.record.headers import is_control
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, compute_crcs


@dataclass(frozen=True, slots=True)
class Superseding:
    """The superseding records: records with a key from the offset `start` on. They are in batches from `position` on,
    the position of the index entry for `start`.
    """

    start: int
    position: int


@dataclass(slots=True)
class Trackers:
    """The trackers of both passes at one place of the log; None for a tracker that does not follow the log.

    Attributes:
        keys: tracker of the dirty section, for its keys.
        copying: tracker of all rewritten segments.
    """

    keys: AbortTracker | None
    copying: AbortTracker | None


@dataclass(frozen=True, slots=True)
class KeyScan:
    """How the keys of a log are scanned; the same for all of its runs.

    Attributes:
        hash_secret: 16 bytes that key the hashes.
        chunk_records: records per chunk, a multiple of 8.
        now_ms: the time of the clean; unused if the log is read as a table (`tables`).
        end_offset: records from here on are ignored.
        table: table in which records are looked up; None to compare them in chunks.
        keeps_survivors: keep the survivors of chunks for pass 2.
    """

    hash_secret: bytes = field(repr=False)
    chunk_records: int
    now_ms: int = 0
    end_offset: int = NEVER
    table: DirtyTable | None = None
    keeps_survivors: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a segment that is scanned in one go, or all of it.

    Attributes:
        start: position of its first batch.
        end: position of the batch after it; None for the segment's end.
        superseding: its superseding records; None if none of its records supersedes others.
        rewritten: whether its segment is in a group, so that its superseded records matter.
    """

    segment: Segment
    start: int
    end: int | None
    superseding: Superseding | None
    rewritten: bool


def runs_of(
    log: LogView, groups: Sequence[Sequence[Segment]], dirty: DirtySection, copying: AbortTracker
) -> Iterator[tuple[Run, Trackers]]:
    """Yield the segments to scan as runs, in log order, each with the trackers at its start.

    The caller moves the trackers to the end of the segment before it takes the next one.

    Args:
        groups: the segments that are to be rewritten, in log order.
        dirty: the range whose records supersede.
        copying: the tracker of pass 2 at the first group.
    """
    upper_bounds = {one.base_offset: upper for group in groups for one, upper in with_upper_bounds(group)}
    segments = {segment.base_offset: segment for segment in [*itertools.chain(*groups), *dirty.segments]}
    first_dirty = dirty.segments[0].base_offset if dirty.segments else None
    trackers = Trackers(None, copying)
    for base, segment in sorted(segments.items()):
        if base in upper_bounds:
            copying.add(aborted_transactions(log, base, upper_bounds[base]))
        else:
            trackers.copying = None
        position = 0
        if base == first_dirty:
            trackers.keys = copy.deepcopy(dirty.tracker)
            position = start_position(segment, dirty.start)
        superseding = None if trackers.keys is None else Superseding(dirty.start, position)
        yield Run(segment, 0, None, superseding, base in upper_bounds), trackers


def scan_keys(
    log: LogView,
    groups: Sequence[Sequence[Segment]],
    dirty: DirtySection,
    copying: AbortTracker,
    memory: MemoryShare | None,
    how: KeyScan,
) -> DirtyKeys | None:
    """Find the superseded records of the groups; return None if offsets do not ascend, as they do in a sound log.

    Args:
        log, groups, dirty, copying: see `runs_of`.
        memory: memory for the keys; None for no limit.

    Raises:
        TooLittleMemoryError: the survivors need more memory than allowed.
    """
    chunks: list[Chunk] = []
    scanned: list[tuple[Run, ScannedRun, list[Chunk]]] = []
    next_tracker: AbortTracker | None = None
    left = 0

    def keep(chunk: Chunk) -> None:
        nonlocal left
        chunks.append(chunk)
        left += chunk.ordinals.size
        if memory is not None:
            memory.check(ENTRY_BYTES * left + CHUNK_RECORD_BYTES * how.chunk_records, left)

    for run, trackers in runs_of(log, groups, dirty, copying):
        if run.segment.base_offset == dirty.next_start and run.segment is not dirty.segments[0]:
            next_tracker = copy.deepcopy(trackers.keys)
        found = scan_run(run, trackers, how, keep)
        scanned.append((run, found, chunks[:]))
        chunks.clear()
    if not ascending([found.span for _, found, _ in scanned], dirty.latest_offset):
        return None
    survivors = {
        run.segment.base_offset: functools.partial(_survivors, tuple(own), how.chunk_records)
        for run, _, own in scanned
        if run.rewritten and how.keeps_survivors
    }
    merge_chunks([(found, _to_merge(own, how)) for _, found, own in scanned])
    outcomes = {run.segment.base_offset: found.outcomes for run, found, _ in scanned if run.rewritten}
    keys = ScannedKeys(dirty.latest_offset, outcomes, survivors, how.hash_secret)
    return DirtyKeys(keys, next_tracker, ENTRY_BYTES * left)


def _survivors(
    chunks: Sequence[Chunk], chunk_records: int
) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]:
    for number, chunk in enumerate(chunks):
        yield chunk.survivors(number * chunk_records)


def _to_merge(chunks: Sequence[Chunk], how: KeyScan) -> Sequence[Chunk]:
    """Return chunks whose ordinals a merge may change."""
    return [replace(one, ordinals=one.ordinals.copy()) for one in chunks] if how.keeps_survivors else chunks


def probe_keys(
    log: LogView,
    groups: Sequence[Sequence[Segment]],
    collected: DirtyKeys,
    copying: AbortTracker,
    how: KeyScan,
) -> DirtyKeys:
    """Find the superseded records of the groups by looking them up in the table of the dirty keys.

    Args:
        log, groups, copying: see `runs_of`.
        collected: the dirty keys.

    Returns:
        the result of the scan; or `collected`, if offsets do not ascend.
    """
    scanned: dict[int, ScannedRun] = {}
    for run, trackers in runs_of(log, groups, NOTHING_DIRTY, copying):
        scanned[run.segment.base_offset] = scan_run(run, trackers, how, None)
    latest_offset = collected.newest.latest_offset
    if not ascending([found.span for found in scanned.values()], latest_offset):
        return collected
    outcomes = {base: found.outcomes for base, found in scanned.items()}
    return replace(collected, newest=ScannedKeys(latest_offset, outcomes, table=how.table))


def merge_chunks(scanned: Sequence[tuple[ScannedRun, Sequence[Chunk]]]) -> None:
    """Mark the records that newer chunks supersede, in all runs of a log and their chunks, in log order."""
    chunks = [(found, at, chunk) for found, own in scanned for at, chunk in enumerate(own)]
    if len(chunks) > 1:
        for (found, at, _), ordinals in zip(chunks, merge([chunk for _, _, chunk in chunks]), strict=True):
            found.mark(at, ordinals)


def ascending(spans: Sequence[OffsetSpan], latest_offset: int) -> bool:
    """Whether the records of runs in log order ascend, and none is above the last offset whose key was read."""
    whole = OffsetSpan()
    for span in spans:
        whole.add(span)
    return whole.ascending and whole.last <= latest_offset


def scan_run(run: Run, trackers: Trackers, how: KeyScan, keep: Callable[[Chunk], None] | None) -> ScannedRun:
    """Scan a run of a log that is cleaned; see `scan_part`.

    Args:
        trackers: trackers of transactions, at its start; moved to its end.
        keep: see `scan_part`.
    """

    def mark(batches: BatchRows) -> tuple[BoolArray, Int64Array]:
        return _mark(batches, run.superseding, trackers)

    if how.table is not None and (run.start, run.end) == (0, None):
        found = scan_by_index(run.segment, mark, how.table, how.now_ms, how.chunk_records)
        if found is not None:
            return found
    return scan_part(run.segment, (run.start, run.end), mark, how, keep)


def scan_part(
    segment: Segment, between: tuple[int, int | None], mark: Mark, how: KeyScan, keep: Callable[[Chunk], None] | None
) -> ScannedRun:
    """Scan a part of a segment.

    Args:
        between: position of the first batch, and end of the last one; None for the segment's end.
        mark: returns which batches are decoded and from where they supersede; called in log order.
        keep: receives the survivors of each chunk, in log order; None if records are looked up, without chunks.

    Raises:
        CorruptBatchError: a batch is damaged.
    """
    scan = RunScan(how.chunk_records, keep)
    marks: dict[int, tuple[BoolArray, Int64Array]] = {}
    start, end = between

    def windows() -> Iterator[TrackedWindow]:
        for window in segment_windows_from(segment, start, Checks.DEFERRED, end=end):
            marks[window.position] = mark(window.batches)
            yield TrackedWindow(segment, window, np.empty(0, np.bool_), [])
            del window

    def hashed(tracked: TrackedWindow) -> WindowKeys:
        window = tracked.window
        wanted, superseding_from = marks.pop(window.position)
        compute_crcs(window)

        return window_keys(
            window.batches,
            functools.partial(bodies_of, segment, window),
            wanted,
            superseding_from,
            how.hash_secret,
            how.now_ms,
            end_offset=how.end_offset,
            table=how.table,
        )

    with reading_threads([segment]) as threads:
        for tracked, keys in read_ahead(threads, windows(), hashed):
            scan.add(tracked.window.batches, keys)
            del tracked, keys  # free large ones before reading more
    return scan.finish()


def _mark(batches: BatchRows, superseding: Superseding | None, trackers: Trackers) -> tuple[BoolArray, Int64Array]:
    """Pass batches to both trackers; return the arguments `wanted` and `superseding_from` of `window_keys`."""
    superseding_from = np.full(batches.size, NEVER, np.int64)
    if superseding is not None and trackers.keys is not None:
        some = batches["position"] >= superseding.position
        aborted = np.zeros(batches.size, np.bool_)
        aborted[some], _ = trackers.keys.discard(batches[some])
        superseding_from[some & ~aborted] = superseding.start
    nowhere = np.ones(batches.size, np.bool_)
    discarded = nowhere if trackers.copying is None else trackers.copying.discard(batches)[0]
    # An aborted record supersedes nothing, and is dropped whatever its key; so its key is not hashed.
    wanted = ~is_control(batches) & (~discarded | (superseding_from != NEVER))
    return np.asarray(wanted), superseding_from
