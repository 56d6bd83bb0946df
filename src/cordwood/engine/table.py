"""The last value of each key of a log of any size: the stages of a clean, of which nothing is written.

    headers   a segment      batches of transactions; where runs begin; where the log ends          → SegmentHeaders
    scan      a run          superseded within each chunk; survivors of the chunks, by hash range → rows
    merge     a hash range   what newer chunks of any run supersede                                  → rows
    newest    a run          decoded once more, but for what is superseded                           → columns

A table is of the offsets [start, end) of a log. Within them counts what a consumer with `read_committed` gets: no
control records and no aborted transactions; the end is not above the last stable offset, so that the fate of all
transactions before it is known. Records without a key are no part of a table. Unlike a clean, a table takes the active
segment with it, and knows no lag.

Of two records with one key the one further behind in the log counts, as in a replay. Rows are those of `engine.rows`:
whatever sorts them by their fields can bring them from task to task.

    stage MERGE     target: hash range     section (run, chunk, range)   hashes, ordinals, starts of a chunk
    stage REWRITE   target: run            section (run, -1, -1)         outcomes of the run
                                           section (run, chunk, range)   what the merge found superseded
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np

from cordwood.cleaning.key_table import BoolArray, Int64Array
from cordwood.cleaning.superseded import NEVER, Chunk, RunScan, SegmentOutcomes, merge, window_keys
from cordwood.engine import sections
from cordwood.engine.exchange import MANY_RANGES, RANGES
from cordwood.engine.progress import Counters
from cordwood.engine.readahead import records_of, segment_windows_from
from cordwood.engine.rows import Row, RowReader, Stage, rows_of
from cordwood.errors import NotFoundError
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.record.headers import is_control, is_transactional_data
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.source import LogSource
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.windows import Checks, Gap, GapKind, compute_crcs, read_headers
from cordwood.types import NONE

#: Records of a chunk; its arrays take less than 60 MB.
CHUNK_RECORDS = 1 << 20
#: A log below the first size is merged in one range, one above the second in many.
_ONE_RANGE_BYTES, _MANY_RANGES_BYTES = 64 << 20, 4 << 30
#: Producer to (first offset, marker's offset) of its aborted transactions; see `Transactions`.
Aborted = Mapping[int, Sequence[tuple[int, int]]]


# ---- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadersTask:
    """Reads the headers of a segment.

    Attributes:
        source: the log.
        base_offset: of the segment.
        is_last: it is the active one.
        run_bytes: how large a run should be.
        since_ms: the time to look for; None: none.
        counters: count what is read.
    """

    source: LogSource
    base_offset: int
    is_last: bool
    run_bytes: int
    since_ms: int | None = None
    counters: Counters | None = None


@dataclass(frozen=True, slots=True)
class SegmentHeaders:
    """What the headers of a segment say.

    Attributes:
        base_offset: of the segment.
        transactional: BATCH_ROW[batches], markers and transactional data.
        starts: of the first batch of each run the position, and the offset behind the batch before it.
        end: position behind the last batch.
        next_offset: behind the last batch; that of the segment if it is empty.
        time_offset: an offset behind which lies the first record of `since_ms` or later; None: there is none.
    """

    base_offset: int
    transactional: BatchRows
    starts: tuple[tuple[int, int], ...]
    end: int
    next_offset: int
    time_offset: int | None


def read_segment_headers(task: HeadersTask) -> SegmentHeaders:
    """Read the headers of a segment.

    Raises:
        CorruptBatchError: something that is no batch lies between batches.
        NotFoundError: the segment is gone.
    """
    segment = _segment(task.source, task.base_offset, task.counters)
    transactional = [np.empty(0, BATCH_ROW)]
    starts: list[tuple[int, int]] = []
    end, next_offset, time_offset, last_number = 0, task.base_offset, None, NONE
    with segment.open() as file:
        for item in read_headers(file, base_offset=segment.base_offset, search=not task.source.live):
            if isinstance(item, Gap):
                if task.is_last and (task.source.live or item.kind is not GapKind.DAMAGE):
                    break  # what a stop leaves, or a broker has not written whole yet
                raise gap_error(segment, item)
            transactional.append(item[is_control(item) | is_transactional_data(item)])
            # A compressed message of magic 0 or 1 does not say where it starts; that is behind the one before it.
            firsts = np.append(next_offset, item["last_offset"][:-1] + 1)
            numbers = item["position"] // task.run_bytes
            for at in np.flatnonzero(np.diff(numbers, prepend=last_number)).tolist():
                starts.append((int(item["position"][at]), int(firsts[at])))
            last_number = int(numbers[-1])
            end = int(item["position"][-1] + item["size_bytes"][-1])
            next_offset = int(item["last_offset"][-1]) + 1
            if task.since_ms is not None and time_offset is None:
                late = np.flatnonzero(item["max_timestamp"] >= task.since_ms)
                time_offset = int(firsts[late[0]]) if late.size else None
    return SegmentHeaders(task.base_offset, np.concatenate(transactional), tuple(starts), end, next_offset, time_offset)


def transactions_of(headers: Iterable[SegmentHeaders]) -> Transactions:
    """The transactions of a log, of the headers of its segments in log order."""
    found = Transactions()
    for one in headers:
        found.add(one.transactional)
    return found


def _segment(source: LogSource, base_offset: int, counters: Counters | None) -> Segment:
    store = source.location.open()
    log = source.on(store if counters is None else counters.counted(store))
    found = next((one for one in log.segments if one.base_offset == base_offset), None)
    if found is None:
        raise NotFoundError(f"{source.path}: a segment is gone that was here a moment ago; run this again")
    return found


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableRun:
    """A part of a segment that one task scans, and that one task gives the values of.

    Attributes:
        number: of the run, among all.
        source: the log.
        partition: its number.
        base_offset: of the segment.
        start, end: positions of its first batch, and behind its last one.
        start_offset, end_offset: the offsets [start, end) that are of interest.
        aborted: transactions that reach into the segment.
        hash_secret: 16 bytes, the same for all runs.
        ranges: into how many the hashes are cut.
        first_range: the target of the first of them; those of the others follow.
        is_alone: no other run is of this log.
        chunk_records: records of a chunk, a multiple of 8.
        counters: count what is read.
    """

    number: int
    source: LogSource
    partition: int
    base_offset: int
    start: int
    end: int
    start_offset: int
    end_offset: int
    aborted: Aborted
    hash_secret: bytes = field(repr=False)
    ranges: int
    first_range: int
    is_alone: bool
    chunk_records: int = CHUNK_RECORDS
    counters: Counters | None = None

    @property
    def size_bytes(self) -> int:
        """What a task reads of it."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TableSlice:
    """A part of a log that goes into a table.

    Attributes:
        source: the log.
        partition: its number.
        start_offset, end_offset: the offsets [start, end).
        headers: of the segments that hold them, in log order.
        aborted: transactions.
    """

    source: LogSource
    partition: int
    start_offset: int
    end_offset: int
    headers: Sequence[SegmentHeaders]
    aborted: Aborted


def cut(
    slices: Iterable[TableSlice],
    hash_secret: bytes,
    *,
    chunk_records: int = CHUNK_RECORDS,
    ranges: int | None = None,
    counters: Counters | None = None,
) -> list[TableRun]:
    """Cut logs into runs.

    Args:
        slices: what goes into a table.
        hash_secret: 16 bytes that key the hashes of keys.
        chunk_records: see `TableRun`.
        ranges: into how many hashes are cut; None: by the size of each log.
        counters: count what is read.
    """
    runs: list[TableRun] = []
    first_range = 0
    for one in slices:
        parts = list(_parts(one))
        size_bytes = sum(end - start for _, start, end in parts)
        own = ranges or _ranges(size_bytes)
        for headers, start, end in parts:
            runs.append(
                TableRun(
                    len(runs),
                    one.source,
                    one.partition,
                    headers.base_offset,
                    start,
                    end,
                    one.start_offset,
                    one.end_offset,
                    _reaching_into(one.aborted, headers),
                    hash_secret,
                    own,
                    first_range,
                    len(parts) == 1,
                    chunk_records,
                    counters,
                )
            )
        first_range += own
    return runs


def _ranges(size_bytes: int) -> int:
    if size_bytes < _ONE_RANGE_BYTES:
        return 1
    return RANGES if size_bytes < _MANY_RANGES_BYTES else MANY_RANGES


def _parts(one: TableSlice) -> Iterator[tuple[SegmentHeaders, int, int]]:
    """The runs of a slice: segment, position of the first batch, and behind the last."""
    for headers in one.headers:
        edges = [*headers.starts, (headers.end, headers.next_offset)]
        for (start, first_offset), (end, next_offset) in pairwise(edges):
            if first_offset < one.end_offset and next_offset > one.start_offset:
                yield headers, start, end


def _reaching_into(aborted: Aborted, headers: SegmentHeaders) -> Aborted:
    """The transactions with data that may be in a segment."""
    found = {
        producer: [(first, marker) for first, marker in ranges if marker >= headers.base_offset]
        for producer, ranges in aborted.items()
    }
    return {
        producer: reaching
        for producer, ranges in found.items()
        if (reaching := [one for one in ranges if one[0] < headers.next_offset])
    }


# ---- scan ------------------------------------------------------------------------------------------------------------


def scan_rows(run: TableRun) -> Iterator[Row]:
    """Scan a run: the survivors of its chunks, for merges, and at the end its outcomes.

    Raises:
        CorruptBatchError: a batch is damaged.
    """
    closed: list[Chunk] = []
    scan = RunScan(run.chunk_records, closed.append)
    transactions = Transactions(aborted={producer: list(ranges) for producer, ranges in run.aborted.items()})
    segment = _segment(run.source, run.base_offset, run.counters)
    sender = _ChunkSender(run)
    for window in segment_windows_from(segment, run.start, Checks.DEFERRED, end=run.end):
        compute_crcs(window)
        batches = window.batches
        wanted = transactions.visible(batches, READ_COMMITTED)
        wanted &= (batches["last_offset"] >= run.start_offset) & (batches["base_offset"] < run.end_offset)

        def decoded(wanted: BoolArray, window=window) -> Iterator[RecordColumns]:  # type: ignore[no-untyped-def]
            yield from records_of(segment, window, wanted)

        since = np.where(wanted, run.start_offset, NEVER)
        keys = window_keys(batches, decoded, wanted, since, run.hash_secret, 0, end_offset=run.end_offset)
        scan.add(batches, keys)
        del window, keys  # large ones must be gone before more is read
        yield from sender.rows(closed)
    of = scan.finish().outcomes
    yield from sender.rows(closed)
    pieces = sections.encode(of.arrays)
    yield from rows_of(Stage.REWRITE, run.number, (run.number, NONE, NONE), pieces)


class _ChunkSender:
    """Makes rows of the chunks of a run; of none if it is the only one of a log, as nothing is merged then."""

    def __init__(self, run: TableRun) -> None:
        self._run = run
        self._held: list[Chunk] = []
        self._sent = 0

    def rows(self, closed: list[Chunk]) -> Iterator[Row]:
        """The rows of chunks that were closed, which are taken from the list."""
        self._held += closed
        closed.clear()
        if self._run.is_alone and self._sent + len(self._held) < 2:
            return
        for chunk in self._held:
            for number, part in enumerate(chunk.in_ranges(self._run.ranges)):
                if part.ordinals.size:
                    section = (self._run.number, self._sent, number)
                    pieces = sections.encode(part.arrays)
                    yield from rows_of(Stage.MERGE, self._run.first_range + number, section, pieces)
            self._sent += 1
        self._held = []


# ---- merge -----------------------------------------------------------------------------------------------------------


def merge_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Merge hash ranges, one after the other; rows that are for runs are passed on.

    Args:
        rows: all of each target that is among them, sorted.
    """
    for (stage, target), own in groupby(rows, key=lambda row: row[:2]):
        if stage != Stage.MERGE:
            yield from own
            continue
        found = list(_sections(own, Chunk.KINDS, f"hash range {target}"))
        superseded = merge([Chunk.of(arrays) for _, arrays in found])
        for (section, _), ordinals in zip(found, superseded, strict=True):
            if ordinals.size:
                yield from rows_of(Stage.REWRITE, section[0], section, sections.encode([ordinals]))


def _sections(
    rows: Iterable[Row], kinds: Sequence[np.typing.DTypeLike], where: str
) -> Iterator[tuple[tuple[int, int, int], list[np.ndarray]]]:
    for section, own in groupby(rows, key=lambda row: (row.run, row.chunk, row.number)):
        yield section, RowReader(own, where).get(section, *kinds)


# ---- newest ----------------------------------------------------------------------------------------------------------


def newest_records(rows: Iterable[Row], runs: Sequence[TableRun]) -> Iterator[tuple[TableRun, RecordColumns]]:
    """The last record of each key, tombstones too, in pieces, each with the run that it is from.

    Args:
        rows: for runs, all of each run that is among them, sorted.
        runs: all, by number.

    Raises:
        CorruptBatchError: the file was changed since it was scanned.
    """
    for number, own in groupby(rows, key=lambda row: row.target):
        run = runs[number]
        reader = RowReader(own, run.source.path)
        outcomes = SegmentOutcomes(*reader.get((number, NONE, NONE), *SegmentOutcomes.KINDS))
        for (_, chunk, _), (ordinals,) in _sections(own, (np.uint32,), run.source.path):
            outcomes.mark(chunk * run.chunk_records, ordinals)
        for columns in _newest_of(run, outcomes):
            yield run, columns
            del columns


def _newest_of(run: TableRun, outcomes: SegmentOutcomes) -> Iterator[RecordColumns]:
    segment = _segment(run.source, run.base_offset, run.counters)
    for window in segment_windows_from(segment, run.start, Checks.DEFERRED, end=run.end):
        known = outcomes.of(window.batches, segment.path)
        wanted = np.asarray(known.records > known.superseded)
        if not wanted.any():
            continue
        compute_crcs(window, wanted)
        ordinals = _ordinals(known.first_ordinals[wanted], known.records[wanted])
        newest = known.bits[ordinals >> 3] >> (ordinals & 7).astype(np.uint8) & 1 == 0
        position = 0
        for columns in records_of(segment, window, wanted):
            rows = columns.rows
            keep = newest[position : position + rows.size] & (rows["key_size"] >= 0)
            keep &= (rows["offset"] >= run.start_offset) & (rows["offset"] < run.end_offset)
            position += rows.size
            if keep.any():
                yield columns.select(keep)
            del columns, rows  # a large one must be gone before the next is decoded
        assert position == ordinals.size, "the same records as in the scan"
        del window


def _ordinals(firsts: Int64Array, counts: Int64Array) -> Int64Array:
    """The ordinals of all records of some batches, one after the other."""
    before = np.cumsum(counts) - counts
    return np.asarray(np.repeat(firsts - before, counts) + np.arange(int(counts.sum())))


# ---- all of it, here -------------------------------------------------------------------------------------------------


def newest_here(runs: Sequence[TableRun]) -> Iterator[tuple[TableRun, RecordColumns]]:
    """Run all stages in this process, for logs whose keys fit its memory; see `newest_records`."""
    order: Callable[[Row], tuple[int, ...]] = lambda row: row[:6]  # noqa: E731
    rows = sorted((row for run in runs for row in scan_rows(run)), key=order)
    return newest_records(sorted(merge_rows(rows), key=order), runs)
