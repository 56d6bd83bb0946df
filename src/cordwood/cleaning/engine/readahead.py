"""Prefetch: threads check and decode the windows of segments ahead of the consuming thread.

Pass 2 skips batches whose records are all superseded and that are not needed otherwise, but reads through small gaps:

    file      │ goes │ goes │ stays │ goes │ stays │ goes │ goes │ goes │ stays │ …
    read                    └─── small gap: read ──┘                    └───────┘

The buffer of a window holds several stretches at the same distances as in the file. Its gaps take address space, but no
memory.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, NewestOffsets
from cordwood.cleaning.rules.rewrite import COUNTS_ROW, CountRows, Rules
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.fs.base import ReadableFile
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, CODEC_MASK, BatchRows
from cordwood.record.columns import BatchWindow, Bodies, OnDamage, RecordColumns, decode, decompress_window, is_valid
from cordwood.storage.formats.transaction_index import AbortedTransaction
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.windows import Checks, Gap, WindowReader, in_order, pieces_of

T = TypeVar("T")

#: Maximum bytes that are read, judged and written at once: enough to keep the cost per window small, and few enough
#: that the windows being read, decoded and written together fit a usual cache.
WINDOW_BYTES = 8 << 20
#: Minimum number of windows per segment, so that reading, decoding and writing overlap; it applies only as long as the
#: windows are not smaller than `SMALL_WINDOW_BYTES`.
_WINDOWS = 8
SMALL_WINDOW_BYTES = 4 << 20
#: The same limit for compressed batches, which are larger in memory than on disk.
PACKED_BYTES = 2 << 20
#: The largest segment of Kafka; positions within a window have no more bits.
LARGEST_BATCH_BYTES = 2**31 - 1
#: Threads of a clean, beside the consuming thread.
_THREADS = 3
#: Number of windows that are read and processed at a time. Decompressing takes longest: as many as there are threads.
#: Fewer otherwise: the more windows are in memory, the fewer stay in a cache.
_PACKED_AT_ONCE, _PLAIN_AT_ONCE = _THREADS, 2
#: A window above this size, which is one large batch, is processed while no other is in memory.
_ALONE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class TrackedWindow:
    """A window after the tracker of transactions has followed it, and before its CRCs are computed.

    Attributes:
        window: its batches and bytes.
        discard: bool[batches], True if the tracker discards the batch.
        kept: aborted transactions whose markers stay.
        is_checked: whether the CRCs are already computed.
    """

    segment: Segment
    window: BatchWindow
    discard: np.ndarray
    kept: list[AbortedTransaction]
    is_checked: bool = False


def tracked_windows(segment: Segment, start: int, tracker: AbortTracker) -> Iterator[TrackedWindow]:
    """Yield the windows of a segment, from the position of the index entry for `start` on."""
    for window in segment_windows_from(segment, start_position(segment, start), Checks.DEFERRED):
        yield TrackedWindow(segment, window, *tracker.discard(window.batches))
        del window  # free a large one before reading the next


def reading_threads(segments: Sequence[Segment]) -> AbstractContextManager[Executor | None]:
    """Return threads to process segments, for a `with` block; None if the segments are too small for threads to pay.

    Owned by the caller, never by a generator: an abandoned generator is finalized at an arbitrary time, maybe while
    another thread is starting, and joining a pool there can deadlock.
    """
    small = sum(segment.size_bytes for segment in segments) <= WINDOW_BYTES
    return nullcontext() if small else ThreadPoolExecutor(_THREADS)


def read_ahead(
    threads: Executor | None, windows: Iterator[TrackedWindow], work: Callable[[TrackedWindow], T]
) -> Iterator[tuple[TrackedWindow, T]]:
    """Yield each window with the result of `work`, in order.

    Reading, kernels and codecs release Python's lock, so a task can use more than one core: while the caller uses the
    result of a window, threads read the next ones, one after another. Each thread processes the window that it read,
    which is still in its core's cache.

    Args:
        threads: see `reading_threads`; unfinished work does no harm after the caller quits.
        windows: produced one at a time, in any of the threads.
        work: processes one window; several threads call it at a time. It must compute the CRCs of the batches that it
            decodes.
    """
    if threads is None:
        yield from ((shown, work(shown)) for shown in windows)
        return
    alone = threading.Event()

    def step(before: threading.Event | None, own: threading.Event) -> tuple[TrackedWindow, T] | TrackedWindow | None:
        """Return one window with its result; only the window if it is to be processed alone; None at the end."""
        if before is not None:
            before.wait()
        try:
            shown = None if alone.is_set() else next(windows, None)
            if shown is not None and shown.window.data.size > _ALONE_BYTES:
                alone.set()
                return shown
        finally:
            own.set()
        return None if shown is None else (shown, work(shown))

    under_way: deque[Future[tuple[TrackedWindow, T] | TrackedWindow | None]] = deque()
    last: threading.Event | None = None

    def begin(at_once: int) -> None:
        nonlocal last
        while len(under_way) < at_once:
            before, last = last, threading.Event()
            under_way.append(threads.submit(step, before, last))

    begin(_PLAIN_AT_ONCE)
    while (found := under_way.popleft().result()) is not None:
        if isinstance(found, TrackedWindow):
            wait(under_way)  # these steps found `alone` set, so they have read nothing
            under_way.clear()
            result = work(found)
            yield found, result
            del found, result  # free it before reading more
            alone.clear()
            begin(_PLAIN_AT_ONCE)
        else:
            is_packed = bool((found[0].window.batches["attributes"] & CODEC_MASK).any())
            begin(_PACKED_AT_ONCE if is_packed else _PLAIN_AT_ONCE)
            yield found
            del found


def start_position(segment: Segment, start: int) -> int:
    """Return a position at or before the batch with an offset, by the index; 0 if the offset is below the segment."""
    if start <= segment.base_offset:
        return 0
    with segment.open() as file:
        return segment.position_of(file, start)


def with_upper_bounds(group: Sequence[Segment]) -> Iterator[tuple[Segment, int | None]]:
    """Yield each segment of a group with the base offset of the next one; None for the last."""
    return zip(group, [*(segment.base_offset for segment in group[1:]), None], strict=True)


def segment_windows_from(
    segment: Segment, position: int, checks: Checks, *, end: int | None = None
) -> Iterator[BatchWindow]:
    """Yield the windows of a segment between the positions of two batches; raise damage."""
    with segment.open() as file:
        reader = WindowReader(
            file,
            checks,
            base_offset=segment.base_offset,
            start=position,
            end=end,
            window_bytes=window_bytes(segment),
        )
        for item in in_order(iter(reader), segment.order(position)):
            if isinstance(item, Gap):
                raise gap_error(segment, item)
            if item.data.size > LARGEST_BATCH_BYTES:
                what = f"a batch of {item.data.size} bytes is larger than a segment can be"
                offset = int(item.batches["base_offset"][0])
                raise CorruptBatchError(what, path=segment.path, position=item.position, offset=offset)
            yield from _portions(item)
            del item


def window_bytes(segment: Segment) -> int:
    """Return how many bytes of a segment are read, judged and written at once."""
    return min(WINDOW_BYTES, max(SMALL_WINDOW_BYTES, segment.size_bytes // _WINDOWS))


def _portions(window: BatchWindow) -> Iterator[BatchWindow]:
    """Split a window into parts that are small enough to be decoded in memory."""
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


def records_of(
    segment: Segment, window: BatchWindow, wanted: np.ndarray, *, whole_batches: bool = False
) -> Iterator[RecordColumns]:
    """Decode the wanted (bool[batches]) batches; raise damage. See `decode` for `whole_batches`."""
    chosen = _chosen(window, wanted)
    if chosen.batches.size:
        yield from decode(chosen, on_damage=_fail(segment), whole_batches=whole_batches)


def bodies_of(segment: Segment, window: BatchWindow, wanted: np.ndarray) -> Iterator[Bodies | RecordColumns]:
    """Decompress the wanted batches, for a caller that decodes bodies of magic 2 itself; yield others as records."""
    yield from decompress_window(_chosen(window, wanted), on_damage=_fail(segment))


def _chosen(window: BatchWindow, wanted: np.ndarray) -> BatchWindow:
    """Return the window with its wanted batches, plus damaged ones, so that decoding raises the damage."""
    if wanted.all():
        return window
    chosen = wanted | ~is_valid(window.batches)
    return BatchWindow(window.position, window.data, window.batches[chosen], window.read)


def _fail(segment: Segment) -> OnDamage:
    def fail(error: DataError) -> None:
        raise error.at(segment.path)

    return fail


def decode_batches(segment: Segment, window: BatchWindow, wanted: np.ndarray) -> Iterator[RecordColumns]:
    """Decode the wanted (bool[batches]) batches; no batch is split over two RecordColumns."""
    held: list[RecordColumns] = []
    for columns in records_of(segment, window, wanted, whole_batches=True):
        if held and held[-1].batches["position"][0] != columns.batches["position"][0]:
            yield _joined(held)
            held = []
        held.append(columns)
    if held:
        yield _joined(held)


def _joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """Join columns of the same batches."""
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


# ---- gaps ------------------------------------------------------------------------------------------------------------

#: Gap size that takes about as long to read as a separate read costs: in the page cache, and in a remote store.
GAP_BYTES, REMOTE_GAP_BYTES = 128 << 10, 8 << 20


@dataclass(frozen=True, slots=True)
class Staying:
    """The batches of a segment, and which of them are read.

    Attributes:
        edges: int64[batches + 1], positions of the batches, and the end of the last one.
        is_read: bool[batches].
        left_out: COUNTS_ROW[skipped batches], their counts.
    """

    segment: Segment
    edges: Int64Array
    is_read: BoolArray
    left_out: CountRows = field(default_factory=lambda: np.empty(0, COUNTS_ROW))

    @property
    def window_bytes(self) -> int:
        """Size of a window, except for a larger batch."""
        return window_bytes(self.segment)

    def windows(self) -> Iterator[BatchWindow]:
        """Yield the windows to read.

        Raises:
            CorruptBatchError: the batches are not at their positions.
        """
        size_max = self.window_bytes
        with self.segment.open() as file:
            pieces = pieces_of(file, PACKED_BYTES)
            chosen = np.flatnonzero(self.is_read)
            at = 0
            while at < chosen.size:
                start = self.edges[chosen[at]]
                stop = max(int(np.searchsorted(self.edges[chosen + 1], start + size_max, side="right")), at + 1)
                data, batches = self._read(file, chosen[at:stop])
                yield from _portions(BatchWindow(int(start), data, batches, pieces))
                del data, batches  # free large ones before reading more
                at = stop

    def _read(self, file: ReadableFile, chosen: Int64Array) -> tuple[np.ndarray, BatchRows]:
        starts, ends = self.edges[chosen], self.edges[chosen + 1]
        first, jumps = int(starts[0]), np.flatnonzero(starts[1:] != ends[:-1]) + 1
        data, batches = np.empty(int(ends[-1]) - first, np.uint8), np.empty(chosen.size, BATCH_ROW)
        for low, high in itertools.pairwise([0, *jumps.tolist(), chosen.size]):
            start, end = int(starts[low]), int(ends[high - 1])
            part = data[start - first : end - first]
            got = file.read_into(start, memoryview(part))
            rows = batches[low:high]
            count, consumed, _ = scan.scan_batches(part.ctypes.data, got, got, start, True, rows)
            if (count, consumed) != (rows.size, part.size):
                what = "the file was changed while it was being cleaned: other batches were here a moment ago"
                raise CorruptBatchError(what, path=self.segment.path, position=start)
        return data, batches


def read_through_gaps(segment: Segment, edges: Int64Array, is_read: BoolArray) -> None:
    """Also mark batches in small gaps between batches to read; see `Staying`."""
    borders = np.flatnonzero(np.diff(is_read)) + 1
    gap_min = REMOTE_GAP_BYTES if segment.fs.reads_by_request(segment.path) else GAP_BYTES
    for low, high in itertools.pairwise([0, *borders.tolist(), is_read.size]):
        if not is_read[low] and edges[high] - edges[low] < gap_min:
            is_read[low:high] = True


def staying(segment: Segment, upper: int, newest: NewestOffsets, rules: Rules) -> Staying | None:
    """Choose the batches of a segment to read; None to read all, if no batch may be skipped or it would not pay.

    Args:
        upper: base offset of the next segment.
        newest: result of pass 1.
        rules: the last batches of active producers, and the last one of the range, stay whatever their records.
    """
    last = rules.producers.last_offsets
    if ((last >= segment.base_offset) & (last < upper)).any():
        return None
    found = newest.batches(segment.base_offset)
    if found is None or not found.gone.any():
        return None
    edges = np.append(found.positions, segment.size_bytes)
    is_read = ~found.gone
    is_read[-1] |= upper == rules.first_uncleanable_offset
    read_through_gaps(segment, edges, is_read)
    if is_read.all():
        return None
    counts = np.zeros(np.count_nonzero(~is_read), COUNTS_ROW)
    counts["bytes_read"] = np.diff(edges)[~is_read]
    counts["batches_read"] = counts["batches_dropped"] = 1
    counts["records_read"] = counts["records_superseded"] = found.records[~is_read]
    return Staying(segment, edges, is_read, counts)
