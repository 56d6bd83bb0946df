"""The last record of each key of some logs, found by many tasks or in this process.

headers   a segment      transactional batches; possible starts of runs; the log's end      `tables.headers`
scan      a run          see `engine.exchange`
merge     hash ranges    see `engine.exchange`
newest    a run          decoded once more, without superseded records                      → columns
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cordwood.cleaning.engine.exchange import BlobFolder, LogScan, RunOutcomes, merge_missing, scan_missing
from cordwood.cleaning.engine.readahead import records_of, segment_windows_from
from cordwood.cleaning.engine.scan import merge_chunks
from cordwood.cleaning.engine.sections import LostSectionError
from cordwood.cleaning.engine.task import Failure, FailureKind
from cordwood.cleaning.rules.key_table import Int64Array
from cordwood.cleaning.rules.superseded import Chunk, SegmentOutcomes
from cordwood.common.threads import Each
from cordwood.record.columns import RecordColumns
from cordwood.storage.log.windows import Checks, compute_crcs
from cordwood.tables.runs import TableRun

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
        """See `newest_records`.

        Raises:
            LostSectionError: blobs from other tasks are missing or damaged.
        """
        outcomes = self.outcomes
        if isinstance(outcomes, RunOutcomes):
            (outcomes,) = outcomes.load().values()
        return newest_records(self.run, outcomes)


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


def newest_records(run: TableRun, outcomes: SegmentOutcomes) -> Iterator[RecordColumns]:
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
