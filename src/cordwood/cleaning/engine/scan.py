"""Pass 1 without Kafka's offset map: read each segment once, and find its superseded records.

    run ──► windows ──► decoded, keys hashed (threads) ──► chunks ──► `ScannedRun`     rules.superseded
                                                             └─ merge ──► `ScannedKeys` for pass 2

This module scans all runs one after another, and keeps the survivors of their chunks in memory. `engine.stages` does
the same with many tasks. If little is dirty, there are no chunks: `engine.keys` has collected the dirty keys before,
and each record is looked up in their table (`probe_keys`). If a segment has a key index, only records that may have a
dirty key are looked up.

With an index:

    dirty keys ──► index: candidates ──► their batches, and all that the index does not cover
                                            └─ read, decoded, looked up in the table of the dirty keys
    headers of all batches ──► compared with the index, followed by the trackers ──► same result as `scan_part`

If the segment is the same file as when its index was made (`storage.index.identity`), the headers are not read: the
index has the places of all batches, and its flags show that no tracker or clock has to decide about any of them.

The index only limits the search. Whether a record is superseded is decided by the hash of its key under the secret of
this clean, as without an index. One superseded record proves that the segment is rewritten; the others are looked up in
pass 2, which reads and decodes the segment anyway (`rules.superseded.confirmed`). The segment is scanned instead if
its index is missing or torn, has another secret, was made from other batches than the ones in the file, or covers
batches of magic 0 and 1, which have no exact counts, or records without a key.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.facts import aborted_transactions
from cordwood.cleaning.engine.keys import NOTHING_DIRTY, DirtyKeys, DirtySection
from cordwood.cleaning.engine.readahead import (
    Staying,
    TrackedWindow,
    bodies_of,
    read_ahead,
    read_through_gaps,
    reading_threads,
    segment_windows_from,
    start_position,
    with_upper_bounds,
)
from cordwood.cleaning.rules.key_table import CHUNK_RECORD_BYTES, ENTRY_BYTES, BoolArray, Int64Array, MemoryShare
from cordwood.cleaning.rules.latest import DirtyTable
from cordwood.cleaning.rules.precedence import NEWEST_OFFSET, Precedence
from cordwood.cleaning.rules.superseded import (
    NEVER,
    UNCONFIRMED,
    UNREAD,
    Chunk,
    OffsetSpan,
    RunScan,
    ScannedKeys,
    ScannedRun,
    SegmentOutcomes,
    UInt8Array,
    WindowKeys,
    flags_of,
    merge,
    window_keys,
)
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptFileError
from cordwood.kernels.layout import BATCH_ROW, DELETE_HORIZON, BatchRows, has_flag, is_control
from cordwood.kernels.superseded import HAS_TOMBSTONE, SUPERSEDED, set_bits
from cordwood.record.columns import BatchWindow
from cordwood.storage.formats.key_index import NO_HORIZON, Flag, KeyIndex
from cordwood.storage.index.identity import is_same_log
from cordwood.storage.index.search import SparseIndex
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, compute_crcs, headers_in_order, read_headers

#: If the segments of all groups are at most this large, they are read once, and stay in memory for pass 2.
HELD_BYTES = 1 << 20


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
        precedence: the keep rule; newest offset if records are looked up.
        held_bytes: keep all windows for pass 2, if the segments of all groups are at most this large.
    """

    hash_secret: bytes = field(repr=False)
    chunk_records: int
    now_ms: int = 0
    end_offset: int = NEVER
    table: DirtyTable | None = None
    keeps_survivors: bool = False
    precedence: Precedence = NEWEST_OFFSET
    held_bytes: int = 0


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
    size_bytes = sum(segment.size_bytes for group in groups for segment in group)
    held: dict[int, list[BatchWindow]] | None = {} if size_bytes <= how.held_bytes else None
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
        windows = None if held is None or not run.rewritten else held.setdefault(run.segment.base_offset, [])
        found = scan_run(run, trackers, how, keep, windows)
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
    keys = ScannedKeys(dirty.latest_offset, outcomes, survivors, how.hash_secret, windows=held or {})
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


def scan_run(
    run: Run,
    trackers: Trackers,
    how: KeyScan,
    keep: Callable[[Chunk], None] | None,
    windows: list[BatchWindow] | None = None,
) -> ScannedRun:
    """Scan a run of a log that is cleaned; see `scan_part`.

    Args:
        trackers: trackers of transactions, at its start; moved to its end.
        keep, windows: see `scan_part`.
    """

    def mark(batches: BatchRows) -> tuple[BoolArray, Int64Array]:
        return _mark(batches, run.superseding, trackers)

    if how.table is not None and (run.start, run.end) == (0, None):
        found = scan_by_index(run.segment, mark, how.table, how.now_ms, how.chunk_records)
        if found is not None:
            return found
    return scan_part(run.segment, (run.start, run.end), mark, how, keep, windows)


def scan_part(
    segment: Segment,
    between: tuple[int, int | None],
    mark: Mark,
    how: KeyScan,
    keep: Callable[[Chunk], None] | None,
    held: list[BatchWindow] | None = None,
) -> ScannedRun:
    """Scan a part of a segment.

    Args:
        between: position of the first batch, and end of the last one; None for the segment's end.
        mark: returns which batches are decoded and from where they supersede; called in log order.
        keep: receives the survivors of each chunk, in log order; None if records are looked up, without chunks.
        held: receives all windows; None to free each after its scan.

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
            ranks=how.precedence.ranks,
        )

    with reading_threads([segment]) as threads:
        for tracked, keys in read_ahead(threads, windows(), hashed):
            scan.add(tracked.window.batches, keys)
            if held is not None:
                held.append(tracked.window)
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


# ---- by index --------------------------------------------------------------------------------------------------------

#: Number of batches that are looked up first. In a segment that loses records, one of them nearly always does.
_FIRST_CANDIDATES = 16
#: Called with the batches of a run, window after window. Returns which of them are decoded, and for each the first
#: offset whose record supersedes others (see `window_keys`).
Mark: TypeAlias = Callable[[BatchRows], tuple[BoolArray, Int64Array]]


def scan_by_index(
    segment: Segment, mark: Mark, table: DirtyTable, now_ms: int, chunk_records: int
) -> ScannedRun | None:
    """Find the superseded records of a segment by its key index. Without a usable index, return None and do not call
    `mark`.

    Args:
        mark: called once, with the batches of the whole segment.
        table: the dirty keys, in which candidates are looked up.
        now_ms: the time of the clean.
        chunk_records: see `ScannedRun`; there are no chunks.

    Raises:
        CorruptBatchError: a batch that is read is damaged.
    """
    searched = _searched(segment, table)
    if searched is None:
        return None
    index, found = searched
    batches = _batches_of_index(index) if _is_enough(index, segment, now_ms) else _batches(segment, index)
    if batches is None:
        return None
    wanted, _ = mark(batches)
    counts = np.where(wanted, batches["record_count"], 0).astype(np.int32)
    firsts = np.cumsum(counts, dtype=np.int64) - counts
    bits = np.zeros(-(-int(counts.sum(dtype=np.int64)) // 8), np.uint8)
    looked_up, found_flags = np.zeros(batches.size, np.bool_), np.zeros(batches.size, np.uint8)
    # Batches ascend: `_batches` has checked it, or the writer of the index.
    span = OffsetSpan(int(batches["base_offset"][0]), int(batches["last_offset"][-1]))
    at, ordinals = _candidates(index, found, wanted, firsts)
    covered = np.arange(batches.size) < index.lengths.size
    candidates, first_few = (np.zeros(batches.size, np.bool_) for _ in range(2))
    candidates[at], first_few[np.unique(at)[:_FIRST_CANDIDATES]] = True, True
    with reading_threads([segment]) as threads:
        steps = ((wanted & ~covered, threads), (first_few, None), (candidates & ~first_few, threads))
        for number, (chosen, own) in enumerate(steps):
            for places, keys, superseded in _looked_up(own, segment, batches, chosen, table, now_ms):
                looked_up[places] = True
                found_flags[places] |= keys.flags
                span.ascending = span.ascending and keys.span.ascending
                # Decoding has compared the count of a batch of magic 2 with its header.
                shifts = firsts[places] - np.cumsum(keys.counts) + keys.counts
                numbers = np.repeat(shifts, keys.counts) + np.arange(superseded.size)
                set_bits(numbers[superseded].astype(np.uint32), bits)
                if number and bits.any():
                    break
            if bits.any():
                # The segment will be rewritten; pass 2 looks up the other candidates.
                break
    unconfirmed = candidates & ~looked_up
    set_bits(ordinals[unconfirmed[at]].astype(np.uint32), bits)
    flags = _flags(batches, wanted, looked_up, index, now_ms) | found_flags
    flags[unconfirmed] |= UNCONFIRMED
    outcomes = SegmentOutcomes(
        batches["position"].astype(np.uint32), batches["crc"].astype(np.uint32), firsts, counts, flags, bits
    )
    return ScannedRun(outcomes, chunk_records, span)


def _searched(segment: Segment, table: DirtyTable) -> tuple[KeyIndex, Int64Array] | None:
    """Return the key index of a segment, and the ordinals of records that may have a dirty key; None if it is unusable.

    Of the index's keys, only the blocks that the search needs are read.
    """
    if table.index_secret is None:
        return None
    try:
        with SparseIndex(segment) as opened:
            header = opened.index.header
            if header.secret != table.index_secret or header.flags & (Flag.OLD_MAGIC | Flag.KEYLESS):
                return None
            return opened.index, opened.find(table.index_hashes).ordinals
    except (OSError, CorruptFileError):
        return None


def _is_enough(index: KeyIndex, segment: Segment, now_ms: int) -> bool:
    """Return whether a segment is the file of its index, whose batches change only if their records are superseded."""
    header = index.header
    is_plain = not header.flags and header.delete_horizon_ms > now_ms
    is_covered = header.covered_bytes == segment.size_bytes
    return is_plain and is_covered and is_same_log(index.identity, segment, in_order=True)


def _batches_of_index(index: KeyIndex) -> BatchRows:
    """BATCH_ROW[batches]: the batches of a segment for which its index is enough, without reading them.

    If any batch has a delete horizon, all get the earliest. That is in the future, so none changes because of it.
    """
    header, sizes = index.header, index.lengths.astype(np.int64)
    batches = np.zeros(header.batches, BATCH_ROW)
    batches["position"], batches["size_bytes"] = np.cumsum(sizes) - sizes, sizes
    batches["record_count"], batches["crc"], batches["magic"] = index.counts, index.crcs, 2
    batches["base_offset"], batches["last_offset"] = header.base_offset, header.next_offset - 1
    if header.delete_horizon_ms != NO_HORIZON:
        batches["attributes"], batches["base_timestamp"] = DELETE_HORIZON, header.delete_horizon_ms
    return batches


def _batches(segment: Segment, index: KeyIndex) -> BatchRows | None:
    """BATCH_ROW[batches]: all of a segment; None if the index was made from other batches."""
    found = [np.empty(0, BATCH_ROW)]
    with segment.open() as file:
        for item in headers_in_order(read_headers(file, base_offset=segment.base_offset), segment.order()):
            if isinstance(item, Gap):
                return None
            found.append(item)
    batches = np.concatenate(found)
    covered, lasts = batches[: index.lengths.size], batches["last_offset"]
    if (batches["magic"] < 2).any() or (batches["base_offset"][1:] <= lasts[:-1]).any():
        return None
    same = all(
        np.array_equal(covered[name], numbers)
        for name, numbers in (("size_bytes", index.lengths), ("record_count", index.counts), ("crc", index.crcs))
    )
    return batches if same else None


def _candidates(
    index: KeyIndex, found: Int64Array, wanted: BoolArray, firsts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the records in wanted batches that may have a dirty key: their batches and their ordinals.

    Args:
        found: int64[records], ordinals of the records in the segment.
        wanted: bool[batches].
        firsts: int64[batches], ordinal of each batch's first record.
    """
    ends = np.cumsum(index.counts, dtype=np.int64)
    at = np.searchsorted(ends, found, side="right")
    ordinals = firsts[at] + found - (ends - index.counts)[at]
    return at[wanted[at]], ordinals[wanted[at]]


def _flags(batches: BatchRows, wanted: BoolArray, looked_up: BoolArray, index: KeyIndex, now_ms: int) -> UInt8Array:
    """uint8[batches]: flags. The index covers tombstones only in batches without a delete horizon, so a batch with a
    horizon that was not looked up is flagged, too.
    """
    flags = flags_of(batches, wanted, now_ms)
    may_have = has_flag(batches, DELETE_HORIZON) | bool(index.header.flags & Flag.TOMBSTONES)
    flags[wanted & ~looked_up] |= UNREAD
    flags[wanted & ~looked_up & may_have] |= HAS_TOMBSTONE
    return flags


def _looked_up(
    threads: Executor | None,
    segment: Segment,
    batches: BatchRows,
    looked_up: BoolArray,
    table: DirtyTable,
    now_ms: int,
) -> Iterator[tuple[Int64Array, WindowKeys, BoolArray]]:
    """Yield, per window, the indexes of the looked-up batches, their keys, and a mask of their superseded records."""
    if not looked_up.any():
        return
    edges = np.append(batches["position"], batches["position"][-1] + batches["size_bytes"][-1]).astype(np.int64)
    is_read = looked_up.copy()
    read_through_gaps(segment, edges, is_read)

    def windows() -> Iterator[TrackedWindow]:
        for window in Staying(segment, edges, is_read).windows():
            # The trackers have already followed the headers.
            yield TrackedWindow(segment, window, np.zeros(window.batches.size, np.bool_), [])
            del window

    def hashed(tracked: TrackedWindow) -> tuple[Int64Array, WindowKeys, BoolArray]:
        read = tracked.window
        at = np.searchsorted(batches["position"], read.batches["position"])
        mine = looked_up[at]
        window = BatchWindow(read.position, read.data, read.batches[mine], read.read)
        compute_crcs(window)

        bodies = functools.partial(bodies_of, segment, window)
        every = np.ones(window.batches.size, np.bool_)
        never = np.full(window.batches.size, NEVER, np.int64)
        keys = window_keys(window.batches, bodies, every, never, table.hash_secret, now_ms, table=table)
        superseded = [piece.kinds == SUPERSEDED for piece in keys.pieces]
        return at[mine], keys, np.concatenate([np.empty(0, np.bool_), *superseded])

    for _, found in read_ahead(threads, windows(), hashed):
        yield found
