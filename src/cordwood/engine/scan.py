"""Pass 1 without a table of keys: each segment is read once, for which of its records are superseded.

    run ──► windows ──► decoded, keys hashed (threads) ──► chunks ──► `ScannedRun`     cleaning.superseded
                                                             └─ merge ──► `ScannedKeys` for pass 2

Here all runs are scanned one after the other, and the survivors of their chunks stay in memory. `engine.stages` does
the same with many tasks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.key_table import BoolArray, MemoryShare
from cordwood.cleaning.superseded import (
    CHUNK_RECORD_BYTES,
    ENTRY_BYTES,
    NEVER,
    Chunk,
    RunScan,
    ScannedKeys,
    ScannedRun,
    Span,
    WindowKeys,
    merge,
    window_keys,
)
from cordwood.cleaning.transactions import AbortTracker
from cordwood.engine.facts import aborted_transactions
from cordwood.engine.keys import DirtyKeys, DirtySection
from cordwood.engine.readahead import (
    TrackedWindow,
    read_ahead,
    reading_threads,
    records_of,
    segment_windows_from,
    start_position,
    with_upper_bounds,
)
from cordwood.engine.settings import CleanSettings
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.record.headers import is_control
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, compute_crcs

#: Records of a chunk, at most: the tables of its buckets then fit a cache.
CHUNK_RECORDS = 1 << 22
#: A chunk takes a small part of a task's memory, as the survivors of many chunks need room, too.
_CHUNK_SHARE = 4


@dataclass(frozen=True, slots=True)
class Superseding:
    """What supersedes: records with a key in [start, …), from the position on that an index gives for `start`.

    Attributes:
        start: first dirty offset.
        position: in the segment.
    """

    start: int
    position: int


@dataclass(slots=True)
class Trackers:
    """The trackers of both passes at one place of the log; None where one does not follow the log.

    Attributes:
        keys: of the dirty section, for its keys.
        copying: of all that is rewritten.
    """

    keys: AbortTracker | None
    copying: AbortTracker | None


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a segment that is scanned in one go, or all of it.

    Attributes:
        segment: it belongs to.
        start: position of its first batch.
        end: position of the batch behind it; None: the segment's end.
        superseding: None: no record of it supersedes others.
        rewritten: its segment is in a group, so that somebody asks what is superseded.
    """

    segment: Segment
    start: int
    end: int | None
    superseding: Superseding | None
    rewritten: bool


def runs_of(
    log: LogView, groups: Sequence[Sequence[Segment]], dirty: DirtySection, copying: AbortTracker
) -> Iterator[tuple[Run, Trackers]]:
    """The segments that have to be scanned as runs, in log order, each with the trackers at its start.

    The caller moves the trackers to the end of the segment before it takes the next one.

    Args:
        log: of the partition.
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
    settings: CleanSettings,
    secret: bytes,
    now_ms: int,
) -> DirtyKeys | None:
    """Find out which records of the groups are superseded; None if offsets do not ascend, as they do in a sound log.

    Args:
        log, groups, dirty, copying: see `runs_of`.
        settings: of the clean.
        secret: 16 bytes that key the hashes.
        now_ms: the time of the clean.

    Raises:
        TooLittleMemoryError: what has to be kept takes more memory than it may.
    """
    chunks: list[Chunk] = []
    scanned: list[tuple[Run, ScannedRun, list[Chunk]]] = []
    next_tracker: AbortTracker | None = None
    left = 0

    def keep(chunk: Chunk) -> None:
        nonlocal left
        chunks.append(chunk)
        left += chunk.ordinals.size
        if settings.memory is not None:
            settings.memory.check(ENTRY_BYTES * left + CHUNK_RECORD_BYTES * at_once, left)

    at_once = chunk_records(settings.memory)
    for run, trackers in runs_of(log, groups, dirty, copying):
        if run.segment.base_offset == dirty.next_start and run.segment is not dirty.segments[0]:
            next_tracker = copy.deepcopy(trackers.keys)
        found = scan_run(run, trackers, secret, now_ms, at_once, keep)
        scanned.append((run, found, chunks[:]))
        chunks.clear()
    if not ascending([found.span for _, found, _ in scanned], dirty.latest_offset):
        return None
    places = [(found, at) for _, found, own in scanned for at in range(len(own))]
    if len(places) > 1:
        superseded = merge([chunk for _, _, own in scanned for chunk in own])
        for (found, at), ordinals in zip(places, superseded, strict=True):
            found.mark(at, ordinals)
    outcomes = {run.segment.base_offset: found.outcomes for run, found, _ in scanned if run.rewritten}
    return DirtyKeys(ScannedKeys(dirty.latest_offset, outcomes), next_tracker, ENTRY_BYTES * left)


def ascending(spans: Sequence[Span], latest_offset: int) -> bool:
    """Whether all records of runs in log order ascend, and none is above the last offset that keys were read of."""
    whole = Span()
    for span in spans:
        whole.add(span)
    return whole.ascending and whole.last <= latest_offset


def chunk_records(memory: MemoryShare | None) -> int:
    """How many records a chunk has, for a task that may take so much memory."""
    if memory is None:
        return CHUNK_RECORDS
    some = memory.size_bytes // _CHUNK_SHARE // CHUNK_RECORD_BYTES
    return max(8, min(CHUNK_RECORDS, some) // 8 * 8)


def scan_run(
    run: Run, trackers: Trackers, secret: bytes, now_ms: int, records_at_once: int, keep: Callable[[Chunk], None]
) -> ScannedRun:
    """Scan a run.

    Args:
        run: to read.
        trackers: of transactions, at its start; moved to its end.
        secret, now_ms: see `window_keys`.
        records_at_once: records of a chunk.
        keep: takes the survivors of each chunk, in log order.

    Raises:
        CorruptBatchError: a batch is damaged.
    """
    scan = RunScan(records_at_once, keep)
    marks: dict[int, tuple[BoolArray, np.ndarray]] = {}
    segment = run.segment

    def windows() -> Iterator[TrackedWindow]:
        for window in segment_windows_from(segment, run.start, Checks.DEFERRED, end=run.end):
            marks[window.position] = _mark(window.batches, run.superseding, trackers)
            yield TrackedWindow(segment, window, np.empty(0, np.bool_), [])
            del window

    def hashed(tracked: TrackedWindow) -> WindowKeys:
        window = tracked.window
        wanted, superseding_from = marks.pop(window.position)
        compute_crcs(window)

        def decoded(wanted: BoolArray) -> Iterator[RecordColumns]:
            return records_of(segment, window, wanted)

        return window_keys(window.batches, decoded, wanted, superseding_from, secret, now_ms)

    with reading_threads([segment]) as threads:
        for tracked, keys in read_ahead(threads, windows(), hashed):
            scan.add(tracked.window.batches, keys)
            del tracked, keys  # large ones must be gone before more is read
    return scan.finish()


def _mark(batches: BatchRows, superseding: Superseding | None, trackers: Trackers) -> tuple[BoolArray, np.ndarray]:
    """Let both trackers see the batches; return which are decoded, and what of each supersedes (see `window_keys`)."""
    superseding_from = np.full(batches.size, NEVER, np.int64)
    if superseding is not None and trackers.keys is not None:
        some = batches["position"] >= superseding.position
        aborted = np.zeros(batches.size, np.bool_)
        aborted[some], _ = trackers.keys.discard(batches[some])
        superseding_from[some & ~aborted] = superseding.start
    nowhere = np.ones(batches.size, np.bool_)
    discarded = nowhere if trackers.copying is None else trackers.copying.discard(batches)[0]
    # An aborted record supersedes nothing, and goes whatever its key; so its key is not hashed.
    wanted = ~is_control(batches) & (~discarded | (superseding_from != NEVER))
    return np.asarray(wanted), superseding_from
