"""What a task does for one partition: read, decide, write. Plain functions of plain values.

A clean reads the log twice: the dirty section for the newest offset of its keys, and all that may be cleaned for what
stays. Each reading is a stream of windows, so memory holds a few windows, the keys of the dirty section, no more.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from cordwood.cleaning.latest import LatestOffsets, MemoryShare
from cordwood.cleaning.offset_map import OffsetMap, keys_max
from cordwood.cleaning.plan import SegmentFacts, Threshold
from cordwood.cleaning.rewrite import ActiveProducers, Counts, Rewritten, Rules, rewrite, settled
from cordwood.cleaning.selection import group_segments, values
from cordwood.cleaning.transactions import AbortTracker
from cordwood.errors import CorruptBatchError, DataError, RequestError
from cordwood.fs.base import OWNER_WRITES
from cordwood.kernels.latest import choose_keyed
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.record.layout import CODEC_MASK, BatchRows
from cordwood.storage.log import Log, Segment, gap_error
from cordwood.storage.producers import DEFAULT_EXPIRATION_MS, Producers, headers_from, newest_snapshot
from cordwood.storage.recovery import next_offset
from cordwood.storage.segment import MAX_OFFSETS, Checks, Gap, WindowReader, compute_crcs
from cordwood.storage.segment_writer import IndexLimits, SegmentWriter
from cordwood.storage.transaction_index import AbortedTransaction
from cordwood.storage.transactions import is_control
from cordwood.types import NONE

T = TypeVar("T")

#: Bytes read, decided over and written at once, at most: enough that what is done per window costs little, and not too
#: many for those that are read, decoded and written at the same time to stay in a cache of usual size.
WINDOW_BYTES = 8 << 20
#: A segment is read in some windows at least, so that there is one to read, one to decode and one to write; but not in
#: smaller ones than these.
_WINDOWS, _SMALL_WINDOW_BYTES = 8, 4 << 20
#: The same of batches that are compressed, as they grow when they are decoded.
PACKED_BYTES = 2 << 20
#: What Kafka's segments are at most; within a window, positions have no more bits.
_LARGEST_BATCH_BYTES = 2**31 - 1
#: Threads of a clean, beside the one that uses what they make of windows.
_THREADS = 3
#: Windows that are worked on at a time. Codecs take longer than all else, so as many as can be. Of others it is one, as
#: the more of them are in memory at once, the fewer stay in a cache.
_PACKED_AT_ONCE, _PLAIN_AT_ONCE = _THREADS, 1


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """The configs that a clean of one partition goes by.

    Attributes:
        delete_retention_ms: `delete.retention.ms`.
        segment_bytes: `segment.bytes`.
        index: `segment.index.bytes` and `index.interval.bytes`.
        producer_expiration_ms: `producer.id.expiration.ms`.
        deletes_for_good: see `Rules`.
        offset_map_slots: of Kafka's map, which ends a clean when it is full; None: a table that is never full.
        offset_map_load_factor: the part of the slots that is filled; `log.cleaner.io.buffer.load.factor`.
        threshold: how dirty the log must be after a clean that the map ended, for a further round.
        strict_kafka: see `Rules`; and a clean fails when an index of an output is full, as in Kafka.
        memory: what the table of keys may take; None: all there is.
    """

    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    index: IndexLimits = field(default_factory=IndexLimits)
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS
    deletes_for_good: bool = True
    offset_map_slots: int | None = None
    offset_map_load_factor: float = 0.9
    threshold: Threshold = field(default_factory=Threshold)
    strict_kafka: bool = False
    memory: MemoryShare | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """What a clean knows at the end of a group that it needs for the next, when they are not cleaned in one go.

    Attributes:
        tracker: of the transactions met while copying.
        taking: the same, where the next group begins, of those met while keys were taken; None: that begins later.
        old_horizon_ms: tombstones of magic 0 and 1 stay in segments that are newer; see `Rules.keep_old_tombstones`.
    """

    tracker: AbortTracker
    old_horizon_ms: int
    taking: AbortTracker | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a partition's groups, when not all are cleaned in one go: the outputs of those before are in place.

    What supersedes a record is in the same group or in a later one. So of the dirty records only those from the first
    of these groups on matter, and they are still what they were.

    Attributes:
        groups: their segments' base offsets, as planned before the first of all groups was cleaned.
        end: base offset of the segment behind them.
        carried: from the group before; None: there is none.
    """

    groups: tuple[tuple[int, ...], ...]
    end: int
    carried: Carried | None = None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean of one partition made.

    Attributes:
        end_offset: the new first dirty offset.
        replaced: per group the base offsets of the segments that its outputs stand for.
        outputs: per group the base offsets of what was written.
        counts: what was done.
        segments: the same per group and segment that was read; nothing of several rounds.
        rounds: how often it was done; more than once only with Kafka's offset map.
        carried: what those behind would need, if only some groups were cleaned.
    """

    end_offset: int
    replaced: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    counts: Counts
    segments: tuple[tuple[Counts, ...], ...] = ()
    rounds: int = 1
    carried: Carried | None = field(default=None, compare=False)


def segment_facts(segment: Segment) -> SegmentFacts:
    """What planning needs of a segment, from its files' sizes and its time index."""
    index, times = segment.offset_index(), segment.time_index()
    largest = times.last_entry[0] if times is not None else NONE
    return SegmentFacts(
        segment.base_offset,
        segment.size_bytes,
        8 * index.entries if index is not None else 0,
        12 * times.entries if times is not None else 0,
        segment.mtime_ms,
        largest if largest >= 0 else segment.mtime_ms,
    )


def load_producers(log: Log, *, now_ms: int, expiration_ms: int = DEFAULT_EXPIRATION_MS) -> Producers:
    """Producer state at the end of a log: its newest readable snapshot, and the batches behind it."""
    # A snapshot above the end is of batches that were truncated; a broker removes it when it loads the log.
    end = log.next_offset if log.recovery.snapshots else 0
    producers, start = newest_snapshot(log, end, now_ms=now_ms, expiration_ms=expiration_ms)
    for batches in headers_from(log, start):
        producers.replay(batches)
    return producers


def active_producers(producers: Producers) -> ActiveProducers:
    """The same as columns."""
    known = sorted(producers.by_id.items())
    return ActiveProducers(
        np.array([id for id, _ in known], np.int64),
        np.array([one.last_offset for _, one in known], np.int64),
        np.array([one.epoch for _, one in known], np.int64),
    )


def aborted_transactions(log: Log, from_offset: int, upper_bound: int | None) -> list[AbortedTransaction]:
    """What the transaction indexes know of aborted transactions that reach into [from_offset, upper_bound).

    Without an upper bound it is the end of the segment that holds `from_offset`; looking for that takes its time.
    """
    found: list[AbortedTransaction] = []
    segments = log.segments_from(from_offset)
    for segment in segments:
        index = segment.transaction_index()
        if index is not None:
            upper_bound = _end_of(segments[0]) if upper_bound is None else upper_bound
            some, complete = index.aborted(log.log_start_offset, upper_bound)
            found += some
            if complete:
                break
    return found


def clean_partition(
    log: Log,
    target: str,
    *,
    first_dirty: int,
    first_uncleanable: int,
    now_ms: int,
    settings: CleanSettings,
    producers: Producers,
    suffix: str = "",
    part: Part | None = None,
) -> Cleaned:
    """Clean [first_dirty, first_uncleanable) of a log once; the outputs are written to another directory.

    With Kafka's offset map the end offset may lie below first_uncleanable, also within a batch; and it is 0 when the
    first batch has a key that there is no room for.

    Args:
        log: of the partition; it is only read.
        target: an existing directory for the outputs.
        first_dirty: where keys are taken from.
        first_uncleanable: base offset of a segment, where the range ends.
        now_ms: the time of the clean.
        settings: the partition's configs.
        producers: as of the log's end.
        suffix: of the outputs' names.
        part: only these groups; not with Kafka's offset map, which decides itself how many there are.

    Raises:
        CorruptBatchError: a batch in the range is damaged; nothing that was written counts.
        RequestError: the keys need more memory than they may have; or, with strict_kafka, Kafka would fail here.
    """
    assert part is None or settings.offset_map_slots is None, "rounds are not cut"
    facts = [segment_facts(segment) for segment in log.segments]
    by_base = {segment.base_offset: segment for segment in log.segments}
    start = first_dirty if part is None else max(first_dirty, part.groups[0][0])
    dirty = [by_base[one.base_offset] for one in values(facts, start, first_uncleanable)]
    carried = None if part is None else copy.deepcopy(part.carried)
    taking = None if carried is None else carried.taking
    if taking is None:
        taking = AbortTracker()
        taking.add(aborted_transactions(log, start, first_uncleanable))
    next_start = None if part is None else part.end
    latest, taking_next = _latest_offsets(dirty, start, first_uncleanable, settings, taking, next_start)
    end_offset = latest.latest_offset + 1
    if carried is None:
        older = values(facts, 0, first_dirty)
        carried = Carried(AbortTracker(), older[-1].mtime_ms - settings.delete_retention_ms if older else 0)
    rules = Rules(
        now_ms,
        settings.delete_retention_ms,
        first_uncleanable,
        active_producers(producers),
        settings.deletes_for_good,
        strict_kafka=settings.strict_kafka,
    )
    if part is None:
        planned = group_segments(
            values(facts, 0, end_offset),
            first_uncleanable,
            segment_bytes=settings.segment_bytes,
            index_bytes=settings.index.size_bytes,
        )
        bases = [tuple(one.base_offset for one in group) for group in planned]
    else:
        bases = list(part.groups)
    groups = [[by_base[base] for base in group] for group in bases]
    tracker, counts = carried.tracker, Counts()
    outputs, segments = [], []
    with _threads(list(itertools.chain.from_iterable(groups))) as threads:
        copied = _copied(threads, _cleanable(log, groups, tracker), rules, carried.old_horizon_ms, latest)
        coming = next(copied, None)
        for group in groups:
            parts = {segment.base_offset: Counts() for segment in group}
            # The copy of a group is as old as its newest segment, and as private as its first.
            first, newest = group[0], group[-1]
            mode = first.files.log.mode
            with closing(_GroupWriter(log, target, first.base_offset, settings, suffix, mode)) as writer:
                while coming is not None and coming[0].segment.base_offset <= newest.base_offset:
                    shown, result = coming
                    parts[shown.segment.base_offset].add(result.counts)
                    writer.append(result.pieces, result.batches, shown.kept)
                    coming = next(copied, None)
                outputs.append(writer.finish(newest.files.log.mtime_ns))
            segments.append(tuple(parts.values()))
            for part_counts in parts.values():
                counts.add(part_counts)
    counts.check()
    left = [one.base_offset for one in facts if not bases or one.base_offset > bases[-1][-1]]
    _check_bases(log, [*(base for group in outputs for base in group), *left])
    carried = replace(carried, taking=taking_next)
    return Cleaned(end_offset, tuple(bases), tuple(outputs), counts, tuple(segments), carried=carried)


def _check_bases(log: Log, bases: Sequence[int]) -> None:
    """An output that was begun in the middle of a segment must not have the name of a later one."""
    for one, other in itertools.pairwise(bases):
        if one >= other:
            what = f"offset {one} and those behind it are in one segment, and in the one of base offset {other}, too"
            raise CorruptBatchError(what, path=log.path, offset=one)


class _GroupWriter:
    """The outputs of one group: one segment, or more where its indexes would not hold all entries."""

    def __init__(
        self, log: Log, target: str, base_offset: int, settings: CleanSettings, suffix: str, mode: int
    ) -> None:
        self._log, self._target, self._settings, self._suffix, self._mode = log, target, settings, suffix, mode
        self._done: list[SegmentWriter] = []
        self._writer = self._open(base_offset)

    def _open(self, base_offset: int) -> SegmentWriter:
        limits, mode = self._settings.index, self._mode | OWNER_WRITES
        return SegmentWriter(self._log.fs, self._target, base_offset, limits, suffix=self._suffix, mode=mode)

    def append(self, pieces: Sequence[np.ndarray], batches: BatchRows, aborted: Sequence[AbortedTransaction]) -> None:
        self._check_offsets(batches)
        while (done := self._writer.append(pieces, batches)) < batches.size:
            # Where offsets are too far above the base Kafka, too, makes several segments of one.
            if self._settings.strict_kafka and done < self._writer.fitting(batches):
                raise RequestError(_index_full(self._log.path, self._writer.base_offset, self._settings.index))
            pieces, batches = _behind(pieces, int(batches["size_bytes"][:done].sum())), batches[done:]
            base_offset = int(batches["base_offset"][0])
            # Kafka takes an index for corrupt whose entries end before its segment begins.
            self._writer.add_aborted([one for one in aborted if one.last_offset < base_offset])
            aborted = [one for one in aborted if one.last_offset >= base_offset]
            self._done.append(self._writer)
            self._writer = self._open(base_offset)
        self._writer.add_aborted(aborted)

    def _check_offsets(self, batches: BatchRows) -> None:
        below = np.flatnonzero(batches["last_offset"] < self._writer.base_offset)
        if below.size:
            what = f"offsets go back to {batches['last_offset'][below[0]]} behind {self._writer.base_offset}"
            raise CorruptBatchError(what, path=self._log.path, offset=int(batches["base_offset"][below[0]]))

    def finish(self, mtime_ns: int) -> tuple[int, ...]:
        writers = [*self._done, self._writer]
        for writer in writers:
            writer.finish(mtime_ns=mtime_ns)
        return tuple(writer.base_offset for writer in writers)

    def close(self) -> None:
        """Let go of the files; after a failure nobody finishes them."""
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


def _end_of(segment: Segment) -> int:
    """The offset behind the last batch of a segment, looked for from its last index entry on."""
    with segment.open() as file:
        start = segment.position_of(file, segment.base_offset + MAX_OFFSETS)
    return next_offset(segment.fs, segment.path, segment.base_offset, start)


def _latest_offsets(
    segments: Sequence[Segment],
    start: int,
    end: int,
    settings: CleanSettings,
    tracker: AbortTracker,
    mark: int | None,
) -> tuple[LatestOffsets | OffsetMap, AbortTracker | None]:
    """The newest offsets of keys in [start, end), and the tracker as it is at the segment `mark`, if that is passed."""
    if settings.offset_map_slots is not None:
        limit = keys_max(settings.offset_map_slots, settings.offset_map_load_factor)
        table = OffsetMap(settings.offset_map_slots, limit, settings.memory)
        return _offset_map(segments, start, end, table, tracker), None
    latest, marked = LatestOffsets(settings.memory), None

    def dirty() -> Iterator[_Shown]:
        nonlocal marked
        for segment in segments:
            if segment.base_offset == mark and segment.base_offset > start:
                marked = copy.deepcopy(tracker)
            yield from _shown(segment, start, tracker)

    def keys(shown: _Shown) -> list[tuple[RecordColumns, np.ndarray, np.ndarray]]:
        """Records of a window; which of them have a key that counts, and the keys' hashes."""
        found = []
        for columns in _decode(shown.segment, shown.window, _with_keys(shown.window.batches, shown.discard, start)):
            keyed = _keyed(columns, start)
            found.append((columns, keyed, latest.hashes(columns, keyed)))
        return found

    with _threads(segments) as threads:
        for _, found in _worked(threads, dirty(), keys):
            for columns, keyed, hashes in found:
                latest.put(columns, keyed, hashes)
    if segments:
        # Offsets that nothing holds any more count as seen.
        latest.latest_offset = end - 1
    return latest, marked


@dataclass(frozen=True, slots=True)
class _Shown:
    """A window that a tracker of transactions was shown, CRCs not computed yet.

    Attributes:
        segment: that it is of.
        window: its batches and bytes.
        discard: bool[batches], what the tracker says of them.
        kept: aborted transactions whose markers stay.
    """

    segment: Segment
    window: BatchWindow
    discard: np.ndarray
    kept: list[AbortedTransaction]


def _shown(segment: Segment, start: int, tracker: AbortTracker) -> Iterator[_Shown]:
    """The windows of a segment from the place that its index gives for `start`."""
    for window in segment_windows_from(segment, start, Checks.DEFERRED):
        yield _Shown(segment, window, *tracker.discard(window.batches))


def _threads(segments: Sequence[Segment]) -> AbstractContextManager[Executor | None]:
    """Threads to work on segments, which end with the `with` block; None where that is not worth it.

    They are nothing for a generator to hold. One that is left in the middle, as after an error, ends whenever Python
    collects it, maybe while a thread is being started; would it then wait for others to end, all could wait for ever.
    """
    small = sum(segment.size_bytes for segment in segments) <= WINDOW_BYTES
    return nullcontext() if small else ThreadPoolExecutor(_THREADS)


def _worked(
    threads: Executor | None, windows: Iterator[_Shown], work: Callable[[_Shown], T]
) -> Iterator[tuple[_Shown, T]]:
    """What `work` makes of each window, in their order.

    Reading, kernels and codecs leave Python's lock alone, so that a task has work for more than one core: a window is
    read, some are worked on, and what came of an earlier one is used.

    Args:
        threads: see `_threads`; what is under way when this is left does no harm.
        windows: one at a time is made, in any of the threads.
        work: is given windows whose CRCs are computed; some at a time.
    """

    def checked(shown: _Shown) -> T:
        compute_crcs(shown.window)
        return work(shown)

    if threads is None:
        yield from ((shown, checked(shown)) for shown in windows)
        return
    under_way: deque[tuple[_Shown, Future[T]]] = deque()
    coming, failure = next(windows, None), None
    while coming is not None:
        ahead = threads.submit(next, windows, None)
        packed = bool((coming.window.batches["attributes"] & CODEC_MASK).any())
        at_once = _PACKED_AT_ONCE if packed else _PLAIN_AT_ONCE
        done = [under_way.popleft() for _ in range(len(under_way) + 1 - at_once)]
        # The next is under way before what came of these is used.
        wait(future for _, future in done)
        under_way.append((coming, threads.submit(checked, coming)))
        yield from ((shown, future.result()) for shown, future in done)
        try:
            coming = ahead.result()
        except Exception as error:
            # What is wrong with an earlier window comes first: it may be why there are no more.
            coming, failure = None, error
    yield from ((shown, future.result()) for shown, future in under_way)
    if failure is not None:
        raise failure


def _offset_map(
    segments: Sequence[Segment], start: int, end: int, found: OffsetMap, tracker: AbortTracker
) -> OffsetMap:
    """Fill Kafka's map. When it is full it speaks for all batches before that point, and for what it took since."""
    for at, segment in enumerate(segments):
        for window in segment_windows_from(segment, start, Checks.WHOLE):
            aborted, _ = tracker.discard(window.batches)
            wanted = _with_keys(window.batches, aborted, start)
            for columns in _decode(segment, window, wanted):
                done = found.put_until_full(columns, _keyed(columns, start))
                if done < columns.rows.size:
                    within = columns.batches["position"][columns.rows["batch"][done]]
                    _speaks_for(found, window.batches[window.batches["position"] < within], start)
                    return found
            _speaks_for(found, window.batches, start)
        found.latest_offset = (segments[at + 1].base_offset if at + 1 < len(segments) else end) - 1
    return found


def _speaks_for(found: OffsetMap, batches: BatchRows, start: int) -> None:
    """Count what batches hold besides keys as seen, once all of their records were."""
    if batches.size and batches["last_offset"][-1] >= start:
        found.latest_offset = max(found.latest_offset, int(batches["last_offset"][-1]))


def _with_keys(batches: BatchRows, aborted: np.ndarray, start: int) -> np.ndarray:
    """bool[batches]: those that the newest offsets of keys may be in."""
    wanted: np.ndarray = ~(aborted | is_control(batches)) & (batches["last_offset"] >= start)
    return wanted


def _keyed(columns: RecordColumns, start: int) -> np.ndarray:
    """bool[records]: those with a key at or above an offset."""
    keyed = np.empty(columns.rows.size, np.bool_)
    choose_keyed(columns.rows, start, keyed)
    return keyed


def segment_windows_from(segment: Segment, start: int, checks: Checks) -> Iterator[BatchWindow]:
    """The windows of a segment from the place that its index gives for `start`; damage is raised."""
    window_bytes = _window_bytes(segment)
    with segment.open() as file:
        position = segment.position_of(file, start) if start > segment.base_offset else 0
        for item in WindowReader(
            file, checks, base_offset=segment.base_offset, start=position, window_bytes=window_bytes
        ):
            if isinstance(item, Gap):
                raise gap_error(segment, item)
            if item.data.size > _LARGEST_BATCH_BYTES:
                what = f"a batch of {item.data.size} bytes is larger than a segment can be"
                offset = int(item.batches["base_offset"][0])
                raise CorruptBatchError(what, path=segment.path, position=item.position, offset=offset)
            yield from _portions(item)


def _window_bytes(segment: Segment) -> int:
    return min(WINDOW_BYTES, max(_SMALL_WINDOW_BYTES, segment.size_bytes // _WINDOWS))


def _portions(window: BatchWindow) -> Iterator[BatchWindow]:
    """A window in parts that can be held decoded."""
    batches = window.batches
    if not (batches["attributes"] & CODEC_MASK).any():
        yield window
        return
    starts = batches["position"] - window.position
    edges = np.flatnonzero(np.diff(starts // PACKED_BYTES)) + 1
    bounds = [0, *edges.tolist(), batches.size]
    for first, end in itertools.pairwise(bounds):
        start = int(starts[first])
        stop = int(starts[end]) if end < batches.size else window.data.size
        yield BatchWindow(window.position + start, window.data[start:stop], batches[first:end], window.read)


def _decode(segment: Segment, window: BatchWindow, wanted: np.ndarray) -> Iterator[RecordColumns]:
    """The records of the wanted (bool[batches]) batches, each batch whole in one RecordColumns."""

    def fail(error: DataError) -> None:
        raise error.at(segment.path)

    chosen = window
    if not wanted.all():
        if not is_valid(window.batches).all():
            wanted = wanted | ~is_valid(window.batches)
        if not wanted.any():
            return
        chosen = BatchWindow(window.position, window.data, window.batches[wanted], window.read)
    held: list[RecordColumns] = []
    for columns in decode(chosen, on_damage=fail):
        if held and held[-1].batches["position"][0] != columns.batches["position"][0]:
            yield _joined(held)
            held = []
        held.append(columns)
    if held:
        yield _joined(held)


def _joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Columns of the same batches as one."""
    if len(parts) == 1:
        return parts[0]
    if all(part.data is parts[0].data for part in parts):
        return RecordColumns(parts[0].data, np.concatenate([part.rows for part in parts]), parts[0].batches)
    rows_list, shift = [], 0
    for part in parts:
        rows = part.rows.copy()
        for name in ("key_start", "value_start", "headers_start"):
            rows[name] += shift
        rows_list.append(rows)
        shift += part.data.size
    return RecordColumns(np.concatenate([part.data for part in parts]), np.concatenate(rows_list), parts[0].batches)


def _cleanable(log: Log, groups: Sequence[Sequence[Segment]], tracker: AbortTracker) -> Iterator[_Shown]:
    """The windows of the segments that are copied, given by group."""
    for group in groups:
        for segment, after in zip(group, [*group[1:], None], strict=True):
            upper = None if after is None else after.base_offset
            tracker.add(aborted_transactions(log, segment.base_offset, upper))
            yield from _shown(segment, 0, tracker)


def _copied(
    threads: Executor | None,
    windows: Iterator[_Shown],
    rules: Rules,
    old_horizon_ms: int,
    latest: LatestOffsets | OffsetMap,
) -> Iterator[tuple[_Shown, Rewritten]]:
    """What stays of each window."""

    def stays(shown: _Shown) -> Rewritten:
        segment, window, batches = shown.segment, shown.window, shown.window.batches
        verdicts = latest.verdicts(batches)
        decoded = list(_decode(segment, window, ~settled(batches, shown.discard, verdicts)))
        own = replace(rules, keep_old_tombstones=segment.mtime_ms > old_horizon_ms)
        return rewrite(window.data, batches, decoded, shown.discard, verdicts, own, latest)

    return _worked(threads, windows, stays)
