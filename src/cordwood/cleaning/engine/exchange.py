"""Scan and merge with many tasks, which exchange blobs: checked files in a folder that all of them see.

    scan     a run          superseded within each chunk; survivors of the chunks, by hash range  ──► a blob
    merge    hash ranges    records that newer chunks of any run of the log supersede                ──► a blob
    then     any task       reads its part of both: the outcomes of its own runs

The folder is in the work folder of a clean, or in the bucket of a new copy. The name of a blob contains the attempt
that writes it. A task returns the blob's name, length and checksum, and its readers accept nothing else. If a blob is
lost or damaged, the task that wrote it runs again; then the task that missed it does.

A clean rewrites segments by these outcomes (`engine.stages`); a table reads the surviving records (`tables`).
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.blobs import Blob, BlobReader, BlobWriter
from cordwood.cleaning.engine.progress import CountedLog
from cordwood.cleaning.engine.scan import KeyScan
from cordwood.cleaning.engine.task import Failure, failure_of
from cordwood.cleaning.rules.superseded import Chunk, OffsetSpan, ScannedRun, SegmentOutcomes, merge
from cordwood.common.threads import Each
from cordwood.fs.base import TargetStore
from cordwood.fs.location import Location
from cordwood.kernels.superseded import BUCKETS

T = TypeVar("T")

#: A merge of fewer entries is not worth a task.
MERGE_ENTRIES = 1 << 20
#: Number of ranges into which the hashes are cut; a merge processes some of them, one after another.
RANGES = 64
#: Number of ranges for logs of more than `MANY_RECORDS` records, so that one range holds few survivors of all chunks.
MANY_RANGES, MANY_RECORDS = BUCKETS, 500_000_000
#: The section of a scan's blob with the outcomes of the run.
_OUTCOMES = "outcomes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask(ABC):
    """A part of a segment that a task scans; a value that can be pickled.

    Attributes:
        start, end: position of its first batch, and end of its last one; None for the segment's end.
        size_bytes: bytes that the task reads.
        how: parameters of the scan, and `ranges`, the number of hash ranges: the same for all runs of a log.
    """

    log: CountedLog
    base_offset: int
    start: int
    end: int | None
    size_bytes: int
    how: KeyScan
    ranges: int

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path

    @abstractmethod
    def scan(self, keep: Callable[[Chunk], None]) -> ScannedRun:
        """Scan the run.

        Args:
            keep: receives the survivors of each chunk, in log order.
        """


# ---- arguments and results of tasks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlobFolder:
    """The folder in which the tasks of a log write blobs. A value that can be pickled."""

    location: Location[TargetStore]
    path: str

    def create(self, kind: str) -> BlobWriter:
        """Create a blob with a unique name."""
        return BlobWriter(self.location.open(), f"{self.path}/{uuid4().hex}.{kind}")

    def open(self, blob: Blob) -> BlobReader:
        """Open a blob that another task wrote."""
        return BlobReader(self.location.open(), blob)


@dataclass(frozen=True, slots=True)
class ScannedBlob:
    """Result of scanning a run.

    Attributes:
        blob: survivors of its chunks, and the outcomes.
        ranges: see `RunTask`.
        chunk_records: records per chunk, except the last.
        span: the offsets of the records.
    """

    blob: Blob
    chunks: int
    ranges: int
    chunk_records: int
    entries: int
    span: OffsetSpan


@dataclass(frozen=True, slots=True)
class MergedBlob:
    """Result of a merge: section run.chunk.range of its blob has the superseded ordinals of that chunk.

    Attributes:
        low, high: the ranges [low, high).
    """

    blob: Blob
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class RunOutcomes:
    """Location of the outcomes of some runs of a log. A value that can be pickled.

    Attributes:
        runs: results of the scans, by number of the run.
        merged: results of all merges of the log; empty if nothing had to be merged.
    """

    folder: BlobFolder
    runs: Mapping[int, ScannedBlob]
    merged: tuple[MergedBlob, ...]

    def load(self) -> dict[int, SegmentOutcomes]:
        """Read the outcomes by number of the run.

        Raises:
            LostSectionError: a blob is missing or damaged.
        """
        with ExitStack() as files:
            merged = {
                number: reader
                for one in self.merged
                for reader in [files.enter_context(closing(self.folder.open(one.blob)))]
                for number in range(one.low, one.high)
            }
            return {number: self._of_run(number, run, merged) for number, run in self.runs.items()}

    def survivors(self, number: int, first: int) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]:
        """Yield the survivors of the chunks of a run, with ordinals counted from `first`; see `Chunk.survivors`.

        Raises:
            LostSectionError: the blob is missing or damaged.
        """
        run = self.runs[number]
        with closing(self.folder.open(run.blob)) as reader:
            for chunk, at in itertools.product(range(run.chunks), range(run.ranges)):
                found = Chunk.of(reader.get(_part(chunk, at), *Chunk.KINDS))
                yield found.survivors(first + chunk * run.chunk_records)

    def _of_run(self, number: int, run: ScannedBlob, merged: Mapping[int, BlobReader]) -> SegmentOutcomes:
        with closing(self.folder.open(run.blob)) as reader:
            outcomes = SegmentOutcomes(*reader.get(_OUTCOMES, *SegmentOutcomes.KINDS))
        for chunk, at in itertools.product(range(run.chunks), merged):
            (superseded,) = merged[at].get(_part(number, chunk, at), np.uint32)
            outcomes.mark(chunk * run.chunk_records, superseded)
        return outcomes


def _part(*numbers: int) -> str:
    """Return the name of a section."""
    return ".".join(map(str, numbers))


# ---- state of the driver ---------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class LogScan:
    """Progress of a log's scan.

    Attributes:
        tasks: tasks that scan its runs, in log order.
        scanned: results of the scans, by number of the run.
        merged: results of the merges, by their ranges [low, high).
    """

    folder: BlobFolder
    tasks: Sequence[RunTask]
    scanned: dict[int, ScannedBlob] = field(default_factory=dict)
    merged: dict[tuple[int, int], MergedBlob] = field(default_factory=dict)

    @property
    def is_merged(self) -> bool:
        """Whether all runs are scanned and all ranges are merged. A single chunk needs no merge."""
        if len(self.scanned) < len(self.tasks):
            return False
        return self._chunks < 2 or sum(high - low for low, high in self.merged) == self.tasks[0].ranges

    @property
    def _chunks(self) -> int:
        return sum(run.chunks for run in self.scanned.values())

    @property
    def spans(self) -> list[OffsetSpan]:
        """Return the offsets of all runs, in log order."""
        return [self.scanned[number].span for number in range(len(self.tasks))]

    @property
    def entries(self) -> int:
        """Number of surviving entries of all scans."""
        return sum(run.entries for run in self.scanned.values())

    def merges(self, cores: int) -> list[MergeTask]:
        """Return the merges that are still to be done, once all runs are scanned."""
        if self.is_merged:
            return []
        runs = tuple(self.scanned[number] for number in range(len(self.tasks)))
        ranges = runs[0].ranges
        count = max(1, min(2 * cores, ranges, self.entries // MERGE_ENTRIES))
        edges = itertools.pairwise(ranges * at // count for at in range(count + 1))
        return [MergeTask(self.folder, runs, *edge) for edge in edges if edge not in self.merged]

    def outcomes(self, numbers: Iterable[int]) -> RunOutcomes:
        """Return the outcomes of some runs, once all necessary merges are done."""
        return RunOutcomes(self.folder, {at: self.scanned[at] for at in numbers}, tuple(self.merged.values()))

    def forget(self, path: str) -> None:
        """Discard the results that were in a lost blob, so that they are made again."""
        self.scanned = {at: found for at, found in self.scanned.items() if found.blob.path != path}
        self.merged = {key: found for key, found in self.merged.items() if found.blob.path != path}


def scan_missing(each: Each, logs: Sequence[LogScan]) -> list[tuple[LogScan, int, Failure]]:
    """Scan the runs that are not scanned yet; return failures, each with its log and the number of the run."""
    places = [(log, at) for log in logs for at in range(len(log.tasks)) if at not in log.scanned]
    tasks = [_ScanTask(log.tasks[at], log.folder) for log, at in places]
    failures = []
    results = each_caught(each, _scan, tasks, [task.size_bytes for task in tasks])
    for (log, at), found in zip(places, results, strict=True):
        if isinstance(found, Failure):
            failures.append((log, at, found))
        else:
            log.scanned[at] = found
    return failures


def merge_missing(each: Each, logs: Sequence[LogScan], cores: int) -> dict[LogScan, Failure]:
    """Run the missing merges of scanned logs; return the failures by log."""
    places = [(log, task) for log in logs for task in log.merges(cores)]
    tasks = [task for _, task in places]
    failures: dict[LogScan, Failure] = {}
    results = each_caught(each, merge_blobs, tasks, [task.size_bytes for task in tasks])
    for (log, task), found in zip(places, results, strict=True):
        if isinstance(found, Failure):
            failures.setdefault(log, found)
        else:
            log.merged[task.low, task.high] = found
    return failures


# ---- functions of tasks ----------------------------------------------------------------------------------------------


class _HasPath(Protocol):
    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        ...


P = TypeVar("P", bound=_HasPath)


def each_caught(each: Each, do: Callable[[P], Any], items: Sequence[P], sizes: Sequence[int]) -> list[Any]:
    """Run a function on each item; return the results, with a `Failure` in place of each error."""
    return each(functools.partial(_caught, do), items, sizes)


def _caught(do: Callable[[P], T], item: P) -> T | Failure:
    try:
        return do(item)
    except Exception as error:
        return failure_of(error, item.path)


@dataclass(frozen=True, slots=True)
class _ScanTask:
    """Scans a run into a new blob of a folder."""

    run: RunTask
    folder: BlobFolder

    @property
    def path(self) -> str:
        return self.run.path

    @property
    def size_bytes(self) -> int:
        return self.run.size_bytes


def _scan(task: _ScanTask) -> ScannedBlob:
    return scan_into_blob(task.run, task.folder)


def scan_into_blob(run: RunTask, folder: BlobFolder) -> ScannedBlob:
    """Scan a run into a new blob: a section for each range of each chunk, and one for the outcomes.

    Raises:
        CorruptBatchError: a batch is damaged, or the run does not begin or end at a batch boundary.
    """
    chunks = entries = 0
    with closing(folder.create("scan")) as writer:

        def keep(chunk: Chunk) -> None:
            nonlocal chunks, entries
            for number, part in enumerate(chunk.in_ranges(run.ranges)):
                writer.add(_part(chunks, number), *part.arrays)
            chunks, entries = chunks + 1, entries + chunk.ordinals.size

        found = run.scan(keep)
        writer.add(_OUTCOMES, *found.outcomes.arrays)
        return ScannedBlob(writer.finish(), chunks, run.ranges, found.chunk_records, entries, found.span)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges some ranges of hashes.

    Attributes:
        runs: all of the log, in log order.
        low, high: the ranges [low, high).
    """

    folder: BlobFolder
    runs: tuple[ScannedBlob, ...]
    low: int
    high: int

    @property
    def path(self) -> str:
        """The folder of the blobs, for errors."""
        return self.folder.path

    @property
    def size_bytes(self) -> int:
        """Approximate bytes that the merge reads."""
        return sum(run.entries for run in self.runs) * (self.high - self.low)


def merge_blobs(task: MergeTask) -> MergedBlob:
    """Merge ranges one after another: memory holds the entries of one range of all runs."""
    places = [(run, chunk) for run, one in enumerate(task.runs) for chunk in range(one.chunks)]
    with ExitStack() as files:
        readers = [files.enter_context(closing(task.folder.open(run.blob))) for run in task.runs]
        writer = files.enter_context(closing(task.folder.create("merge")))
        for number in range(task.low, task.high):
            found = [Chunk.of(readers[run].get(_part(chunk, number), *Chunk.KINDS)) for run, chunk in places]
            for (run, chunk), superseded in zip(places, merge(found), strict=True):
                writer.add(_part(run, chunk, number), superseded)
        return MergedBlob(writer.finish(), task.low, task.high)
