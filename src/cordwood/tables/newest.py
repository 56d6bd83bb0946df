"""The last record of each key of some logs, found by many tasks or in this process.

    headers   a segment      transactional batches; possible starts of runs; the log's end
    scan      a run          see `engine.exchange`
    merge     hash ranges    see `engine.exchange`
    newest    a run          decoded once more, without superseded records                      → columns

A table covers the offsets [start, end) of a log. It has the records that a consumer with `read_committed` gets there:
no control records and no records of aborted transactions. The end is never above the last stable offset, so all
transactions below it are decided. Records without a key are not part of a table. Unlike a clean, a table includes the
active segment and applies no compaction lag.

Of two records with the same key, the one that the keep rule chooses wins (`rules.precedence`), as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cordwood.cleaning.engine.blobs import LostSectionError
from cordwood.cleaning.engine.exchange import (
    MANY_RANGES,
    RANGES,
    BlobFolder,
    LogScan,
    RunOutcomes,
    RunTask,
    merge_missing,
    scan_missing,
)
from cordwood.cleaning.engine.progress import CountedLog
from cordwood.cleaning.engine.readahead import records_of, segment_windows_from
from cordwood.cleaning.engine.scan import KeyScan, Mark, merge_chunks, scan_part
from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array
from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.cleaning.rules.superseded import NEVER, Chunk, ScannedRun, SegmentOutcomes
from cordwood.common.threads import Each
from cordwood.common.types import NONE, override
from cordwood.kernels.layout import BATCH_ROW, BatchRows, concerns_transactions
from cordwood.record.columns import RecordColumns
from cordwood.storage.log.segment import gap_error
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.windows import Checks, Gap, compute_crcs

# ---- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A task that reads the headers of a segment.

    Attributes:
        run_bytes: approximate size of a run in bytes.
    """

    log: CountedLog
    base_offset: int
    is_last: bool
    run_bytes: int

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path


@dataclass(frozen=True, slots=True)
class SegmentHeaders:
    """The needed facts from the headers of a segment.

    Attributes:
        transactional: BATCH_ROW[batches], markers and transactional data.
        starts: for each run, the position of its first batch, and the offset behind the batch before it.
        end: position behind the last batch.
        next_offset: offset behind the last batch; the segment's base offset if it is empty.
    """

    base_offset: int
    transactional: BatchRows
    starts: tuple[tuple[int, int], ...]
    end: int
    next_offset: int


def read_segment_headers(task: SegmentTask) -> SegmentHeaders:
    """Read the headers of a segment.

    Raises:
        CorruptBatchError: bytes between batches do not form a batch, or a batch is out of order.
        NotFoundError: the segment was deleted.
    """
    segment = task.log.segment(task.base_offset)
    transactional = [np.empty(0, BATCH_ROW)]
    starts: list[tuple[int, int]] = []
    end, next_offset, last_number = 0, task.base_offset, NONE
    for item in segment.headers_and_gaps(search=not task.log.source.live, ordered=True):
        if isinstance(item, Gap):
            if task.is_last and item.may_end_log(live=task.log.source.live):
                break  # an incomplete write after a crash, or one that a broker has not finished
            raise gap_error(segment, item)
        transactional.append(item[concerns_transactions(item)])
        # A compressed message of magic 0 or 1 has no base offset; it is the offset behind the batch before.
        firsts = np.append(next_offset, item["last_offset"][:-1] + 1)
        numbers = item["position"] // task.run_bytes
        for at in np.flatnonzero(np.diff(numbers, prepend=last_number)).tolist():
            starts.append((int(item["position"][at]), int(firsts[at])))
        last_number = int(numbers[-1])
        end = int(item["position"][-1] + item["size_bytes"][-1])
        next_offset = int(item["last_offset"][-1]) + 1
    return SegmentHeaders(task.base_offset, np.concatenate(transactional), tuple(starts), end, next_offset)


def transactions_of(headers: Iterable[SegmentHeaders]) -> Transactions:
    """Collect the transactions of a log from the headers of its segments, in log order."""
    found = Transactions()
    for one in headers:
        found.add(one.transactional)
    return found


# ---- runs ------------------------------------------------------------------------------------------------------------

#: Records of a chunk, whose arrays need less than 60 MB.
CHUNK_RECORDS = 1 << 20
#: Logs below the first size are merged in one hash range, logs above the second in many.
_ONE_RANGE_BYTES, _MANY_RANGES_BYTES = 64 << 20, 4 << 30
#: For each producer, (first offset, marker's offset) of its aborted transactions; see `Transactions`.
Aborted = Mapping[int, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class TableSlice:
    """The offsets [start_offset, end_offset) of a log, as input of a table.

    Attributes:
        headers: headers of the segments that hold these offsets, in log order.
    """

    log: CountedLog
    partition: int
    start_offset: int
    end_offset: int
    headers: Sequence[SegmentHeaders]
    aborted: Aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun(RunTask):
    """A part of a segment; one task scans it, and one task reads its newest records.

    Attributes:
        start_offset, end_offset: the offsets [start, end) that the table covers.
        aborted: transactions that reach into the segment.
    """

    partition: int
    start_offset: int
    end_offset: int
    aborted: Aborted

    @override
    def scan(self, keep: Callable[[Chunk], None]) -> ScannedRun:
        return scan_part(self.log.segment(self.base_offset), (self.start, self.end), self.marking(), self.how, keep)

    def marking(self) -> Mark:
        """Return a function that marks the table's batches in the run's segment, with the first offset that counts."""
        transactions = Transactions(aborted={producer: list(ranges) for producer, ranges in self.aborted.items()})

        def mark(batches: BatchRows) -> tuple[BoolArray, Int64Array]:
            wanted = transactions.visible(batches, READ_COMMITTED)
            wanted &= (batches["last_offset"] >= self.start_offset) & (batches["base_offset"] < self.end_offset)
            return wanted, np.where(wanted, self.start_offset, NEVER)

        return mark


def cut(
    slices: Iterable[TableSlice],
    hash_secret: bytes,
    *,
    chunk_records: int = CHUNK_RECORDS,
    ranges: int | None = None,
) -> list[list[TableRun]]:
    """Cut logs into runs; return the runs of each log, in log order.

    Args:
        hash_secret: 16-byte secret for hashing keys.
        chunk_records: records of a chunk, a multiple of 8.
        ranges: number of hash ranges; None to choose it by the size of each log.
    """
    found = []
    for part in slices:
        places = list(_parts(part))
        how = KeyScan(hash_secret, chunk_records, end_offset=part.end_offset, precedence=KEEP_RULE)
        ranges_of_log = ranges or _ranges(sum(end - start for _, start, end in places))
        found.append(
            [
                TableRun(
                    log=part.log,
                    partition=part.partition,
                    base_offset=headers.base_offset,
                    start=start,
                    end=end,
                    size_bytes=end - start,
                    start_offset=part.start_offset,
                    end_offset=part.end_offset,
                    aborted=_reaching_into(part.aborted, headers),
                    how=how,
                    ranges=ranges_of_log,
                )
                for headers, start, end in places
            ]
        )
    return found


def _ranges(size_bytes: int) -> int:
    if size_bytes < _ONE_RANGE_BYTES:
        return 1
    return RANGES if size_bytes < _MANY_RANGES_BYTES else MANY_RANGES


def _parts(part: TableSlice) -> Iterator[tuple[SegmentHeaders, int, int]]:
    """Yield the runs of a slice: segment, position of the first batch, position behind the last."""
    for headers in part.headers:
        edges = [*headers.starts, (headers.end, headers.next_offset)]
        for (start, first_offset), (end, next_offset) in pairwise(edges):
            if first_offset < part.end_offset and next_offset > part.start_offset:
                yield headers, start, end


def _reaching_into(aborted: Aborted, headers: SegmentHeaders) -> Aborted:
    """Return the transactions that may have data in a segment."""
    found = {
        producer: [(first, marker) for first, marker in ranges if marker >= headers.base_offset]
        for producer, ranges in aborted.items()
    }
    return {
        producer: reaching
        for producer, ranges in found.items()
        if (reaching := [(first, marker) for first, marker in ranges if first < headers.next_offset])
    }


#: Attempts to run the tasks, if blobs from other tasks are lost.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class NewestTask:
    """A task that returns the last record of each key in a run. A value that can be pickled.

    Attributes:
        outcomes: outcomes of the run, or where to read them.
    """

    run: TableRun
    outcomes: SegmentOutcomes | RunOutcomes

    def records(self) -> Iterator[RecordColumns]:
        """See `_newest_records`.

        Raises:
            LostSectionError: blobs from other tasks are missing or damaged.
        """
        outcomes = self.outcomes
        if isinstance(outcomes, RunOutcomes):
            (outcomes,) = outcomes.load().values()
        return _newest_records(self.run, outcomes)


def scan_by_tasks(each: Each, logs: Sequence[Sequence[TableRun]], folder: BlobFolder, cores: int) -> list[NewestTask]:
    """Scan and merge logs by many tasks that exchange blobs in a folder; return the tasks that read the newest records.

    Raises:
        DataError, OSError: a task raised it.
    """
    scans = [LogScan(folder, runs) for runs in logs if runs]
    for _ in range(_ATTEMPTS):
        _handle([failure for _, _, failure in scan_missing(each, scans)], scans)
        _handle(merge_missing(each, scans, cores).values(), scans)
        if all(scan.is_merged for scan in scans):
            break
    else:
        raise LostSectionError(folder.path, f"what tasks wrote for each other was lost {_ATTEMPTS} times")
    runs = [run for runs in logs for run in runs]
    outcomes = [scan.outcomes([number]) for scan in scans for number in range(len(scan.tasks))]
    return list(map(NewestTask, runs, outcomes))


def _handle(failures: Iterable[Failure], scans: Sequence[LogScan]) -> None:
    """Raise errors of tasks; forget lost blobs, so that they are made again."""
    for failure in failures:
        if failure.kind is not FailureKind.LOST:
            raise failure.exception()
        for scan in scans:
            scan.forget(failure.lost)


def scan_here(logs: Sequence[Sequence[TableRun]]) -> list[NewestTask]:
    """Scan and merge logs whose keys fit this process's memory; return the tasks that read the newest records."""
    tasks = []
    for runs in logs:
        scanned = []
        for run in runs:
            chunks: list[Chunk] = []
            scanned.append((run.scan(chunks.append), chunks))
        merge_chunks(scanned)
        tasks += [NewestTask(run, found.outcomes) for run, (found, _) in zip(runs, scanned, strict=True)]
    return tasks


def _newest_records(run: TableRun, outcomes: SegmentOutcomes) -> Iterator[RecordColumns]:
    """Yield the records of a run that are the last of their keys, including tombstones, in pieces.

    Raises:
        CorruptBatchError: the file changed since the scan.
    """
    segment = run.log.segment(run.base_offset)
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
            del columns, rows  # free a large record before decoding the next
        assert position == ordinals.size, "the same records as in the scan"
        del window


def _ordinals(firsts: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the ordinals of all records of some batches, concatenated."""
    before = np.cumsum(counts) - counts
    return np.asarray(np.repeat(firsts - before, counts) + np.arange(int(counts.sum())))
