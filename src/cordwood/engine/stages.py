"""A clean of one partition by many tasks: any size, any number of keys, in a set amount of memory.

    headers   a segment       batches that belong to transactions; only if the partition has some
    scan      a run           superseded within each chunk; what is left of the chunks, by hash range    → sections
    merge     hash ranges     what newer chunks of any run supersede                                      → sections
    rewrite   a group         the bits of its runs; the same code as for a partition that is one task     → new segments

What is in between is the driver's: `prepare` cuts the partition and follows its transactions over the headers, so that
every run and group gets the trackers at its start; `combine` makes one output of those of the groups. How sections get
from task to task is an exchange (`engine.exchange`). All stages work on plain values, for any scheduler.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rewrite import Counts
from cordwood.cleaning.superseded import NEVER, Chunk, ScannedKeys, SegmentOutcomes, Span, joined, merge
from cordwood.cleaning.transactions import AbortTracker
from cordwood.engine.blobs import Blob, BlobWriter
from cordwood.engine.facts import cleanable_facts
from cordwood.engine.partition import (
    Cleaned,
    CleanState,
    GroupRange,
    check_bases,
    dirty_section,
    planned_groups,
    state_at_start,
)
from cordwood.engine.progress import Counted
from cordwood.engine.scan import Run, Superseding, Trackers, ascending, chunk_records, runs_of, scan_run
from cordwood.engine.settings import CleanSettings
from cordwood.errors import DataError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.location import Location
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.kernels.superseded import BUCKETS
from cordwood.record.headers import is_control, is_transactional_data
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers

#: Into so many ranges the hashes are cut; a merge takes some of them, one after the other.
RANGES = 64
#: The same for a partition of more records than that, so that what is left of all chunks in one range stays small.
MANY_RANGES, MANY_RECORDS = BUCKETS, 500_000_000


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a log is, for a task that opens it.

    Attributes:
        location: of the file system.
        path: of the partition's directory.
        log_start_offset: of the log.
        progress: a folder in which tasks say how much they read.
    """

    location: Location[LocalFileSystem]
    path: str
    log_start_offset: int
    progress: str

    def segment(self, base_offset: int, fs: LocalFileSystem) -> Segment:
        """A segment of it, whose reading is counted."""
        counted = Counted(fs, fs, f"{self.progress}/{uuid4().hex}")
        log = LogView(self.path, fs=counted, log_start_offset=self.log_start_offset)
        return next(one for one in log.segments if one.base_offset == base_offset)


# ---- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeadersTask:
    """Reads the headers of a segment."""

    place: LogPlace
    base_offset: int


def transactional_batches(task: HeadersTask) -> BatchRows:
    """BATCH_ROW[batches]: the markers and the transactional data of a segment, all that a tracker looks at."""
    segment = task.place.segment(task.base_offset, task.place.location.open())
    found = [np.empty(0, BATCH_ROW)]
    with segment.open() as file:
        for item in read_headers(file, base_offset=segment.base_offset):
            if isinstance(item, Gap):
                raise gap_error(segment, item)
            found.append(item[is_control(item) | is_transactional_data(item)])
    return np.concatenate(found)


# ---- prepare ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunTask:
    """Scans a run.

    Attributes:
        place: of the log.
        base_offset: of the run's segment.
        start, end: see `Run`.
        superseding, rewritten: see `Run`.
        trackers: at its start.
        hash_secret: 16 bytes, the same for all runs.
        chunk_records: records of a chunk.
        ranges: of hashes.
        now_ms: the time of the clean.
    """

    place: LogPlace
    base_offset: int
    start: int
    end: int | None
    superseding: Superseding | None
    rewritten: bool
    trackers: Trackers
    hash_secret: bytes = field(repr=False)
    chunk_records: int
    ranges: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A partition that is cut into tasks.

    Attributes:
        runs: in log order.
        groups: base offsets of the segments of each group.
        states: for each group the state of the clean at its start.
        next_tracker: of pass 1, where the groups behind begin; None: there are none.
        latest_offset: the last offset of the dirty section.
    """

    runs: tuple[RunTask, ...]
    groups: tuple[tuple[int, ...], ...]
    states: tuple[CleanState, ...]
    next_tracker: AbortTracker | None
    latest_offset: int


def prepare(
    log: LogView,
    place: LogPlace,
    *,
    first_dirty: int,
    first_uncleanable: int,
    part: GroupRange | None,
    settings: CleanSettings,
    headers: Mapping[int, BatchRows],
    run_bytes: int,
    ranges: int,
    hash_secret: bytes,
    now_ms: int,
) -> Prepared:
    """Cut a partition into runs and groups.

    Args:
        log: of the partition.
        place: of the same, for tasks.
        first_dirty, first_uncleanable, part, settings: see `clean_partition`.
        headers: by base offset, what `transactional_batches` found of a segment; of those that have any.
        run_bytes: how large a run should be.
        ranges: into how many the hashes are cut.
        hash_secret: for the hashes of keys.
        now_ms: the time of the clean.
    """
    facts = cleanable_facts(log, first_uncleanable)
    state = state_at_start(facts, first_dirty, settings, part)
    dirty = dirty_section(log, facts, first_dirty, first_uncleanable, part, state)
    groups = planned_groups(log, facts, dirty.latest_offset + 1, first_uncleanable, part, settings)
    firsts = {group[0].base_offset for group in groups}
    runs: list[RunTask] = []
    states: list[CleanState] = []
    next_tracker: AbortTracker | None = None
    at_once = chunk_records(settings.memory)
    for run, trackers in runs_of(log, groups, dirty, copy.deepcopy(state.tracker)):
        base = run.segment.base_offset
        if base in firsts:
            assert trackers.copying is not None, "a group is rewritten"
            states.append(replace(state, tracker=copy.deepcopy(trackers.copying)))
        if base == dirty.next_start and run.segment is not dirty.segments[0]:
            next_tracker = copy.deepcopy(trackers.keys)
        rows = headers.get(base, np.empty(0, BATCH_ROW))
        starts = cut_positions(run.segment, run_bytes)
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            now = copy.deepcopy(trackers)
            some = (run.superseding, run.rewritten, now, hash_secret, at_once, ranges, now_ms)
            runs.append(RunTask(place, base, start, end, *some))
            behind = NEVER if end is None else end
            follow(rows[(rows["position"] >= start) & (rows["position"] < behind)], run.superseding, trackers)
    bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
    return Prepared(tuple(runs), bases, tuple(states), next_tracker, dirty.latest_offset)


def follow(rows: BatchRows, superseding: Superseding | None, trackers: Trackers) -> None:
    """Let the trackers see the batches of transactions in a run."""
    if trackers.keys is not None and superseding is not None:
        trackers.keys.discard(rows[rows["position"] >= superseding.position])
    if trackers.copying is not None:
        trackers.copying.discard(rows)


def cut_positions(segment: Segment, run_bytes: int) -> list[int]:
    """Positions at which runs of a segment begin: 0, and batches that its index points to, about `run_bytes` apart."""
    found = [0]
    try:
        index = segment.offset_index() if segment.size_bytes > run_bytes else None
    except (OSError, DataError):
        return found
    if index is None or not index.entries:
        return found
    wanted = np.arange(run_bytes, segment.size_bytes - run_bytes // 2, run_bytes)
    chosen = np.unique(np.minimum(np.searchsorted(index.positions, wanted), index.entries - 1))
    with segment.open() as file:
        for offset in index.offsets[chosen].tolist():
            # It looks at the batch there, too.
            position = segment.position_of(file, offset)
            if found[-1] < position < segment.size_bytes:
                found.append(position)
    return found


# ---- scan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What the scan of a run left, without its arrays.

    Attributes:
        chunks: how many there are.
        ranges: into how many the hashes are cut.
        chunk_records: records of each chunk, but the last.
        entries: of all chunks.
        span: the offsets of the records.
    """

    chunks: int
    ranges: int
    chunk_records: int
    entries: int
    span: Span


#: The section of a blob with the outcomes of a run.
OUTCOMES = "outcomes"
#: Types of the arrays of `SegmentOutcomes`, and of `Chunk`.
OUTCOME_KINDS = (np.uint32, np.uint32, np.int64, np.int32, np.uint8, np.uint8)
CHUNK_KINDS = (np.uint64, np.uint32, np.int64)


def part_name(chunk: int, number: int) -> str:
    """The section of a blob with what is left of a chunk in a range of hashes."""
    return f"{chunk}.{number}"


def scan_into_blob(task: RunTask, fs: LocalFileSystem, path: str) -> tuple[Blob, RunSummary]:
    """Scan a run into a new blob: a section for each range of each chunk, and one for the outcomes.

    Raises:
        CorruptBatchError: a batch is damaged; or the run does not begin or end where a batch does.
    """
    segment = task.place.segment(task.base_offset, fs)
    run = Run(segment, task.start, task.end, task.superseding, task.rewritten)
    chunks = entries = 0
    with closing(BlobWriter(fs, path)) as writer:

        def keep(chunk: Chunk) -> None:
            nonlocal chunks, entries
            for number, part in enumerate(chunk.in_ranges(task.ranges)):
                writer.add(part_name(chunks, number), part.hashes, part.ordinals, part.starts)
            chunks, entries = chunks + 1, entries + chunk.ordinals.size

        found = scan_run(run, copy.deepcopy(task.trackers), task.hash_secret, task.now_ms, task.chunk_records, keep)
        if task.rewritten:
            of = found.outcomes
            writer.add(OUTCOMES, of.positions, of.crcs, of.first_ordinals, of.counts, of.flags, of.bits)
        return writer.finish(), RunSummary(chunks, task.ranges, task.chunk_records, entries, found.span)


# ---- merge -----------------------------------------------------------------------------------------------------------


def chunks_of(runs: Sequence[RunSummary]) -> list[tuple[int, int]]:
    """(run, chunk) of all chunks of a partition, in log order; none if there is only one, as nothing is merged then."""
    found = [(run, chunk) for run, one in enumerate(runs) for chunk in range(one.chunks)]
    return found if len(found) > 1 else []


def merge_range(parts: Iterable[Sequence[npt.NDArray[Any]]]) -> list[npt.NDArray[np.uint32]]:
    """Merge one range of hashes of all chunks, in log order; for each the superseded ordinals (see `merge`)."""
    return merge([Chunk(hashes.reshape(-1, 2), ordinals, starts) for hashes, ordinals, starts in parts])


# ---- rewrite ---------------------------------------------------------------------------------------------------------


class GroupSections(Protocol):
    """What scans and merges left for the rewrite of a group. Arrays are asked for run by run, in the order below."""

    def outcomes(self, run: int) -> Sequence[npt.NDArray[Any]]:
        """What the scan of a run found, of `OUTCOME_KINDS`."""
        ...

    def superseded(self, run: int, chunk: int, number: int) -> npt.NDArray[np.uint32]:
        """What the merge of a range found of a chunk: ordinals."""
        ...


class KeySource(Protocol):
    """Where the rewrite of a group gets what scans and merges found; a value that can be pickled."""

    def load(self, fs: LocalFileSystem) -> ScannedKeys:
        """Read it.

        Raises:
            LostSectionError: some of it is gone or damaged.
        """
        ...


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """The runs of a group.

    Attributes:
        latest_offset: the last offset of the dirty section.
        runs: by base offset of the segment: number of each run among all, and what its scan left.
        merged: whether there was anything to merge in this partition.
    """

    latest_offset: int
    runs: Mapping[int, tuple[tuple[int, RunSummary], ...]]
    merged: bool

    def keys(self, sections: GroupSections) -> ScannedKeys:
        """Put together what is superseded.

        Raises:
            LostSectionError: some of it is gone or damaged.
        """
        found = {
            base: joined([self._of_run(number, run, sections) for number, run in runs])
            for base, runs in self.runs.items()
        }
        return ScannedKeys(self.latest_offset, found)

    def _of_run(self, number: int, run: RunSummary, sections: GroupSections) -> SegmentOutcomes:
        found = SegmentOutcomes(*sections.outcomes(number))
        if self.merged:
            for chunk, at in itertools.product(range(run.chunks), range(run.ranges)):
                found.mark(chunk * run.chunk_records, sections.superseded(number, chunk, at))
        return found


def ascends(prepared: Prepared, runs: Sequence[RunSummary]) -> bool:
    """Whether offsets ascend over all runs, as they do in a sound log."""
    return ascending([run.span for run in runs], prepared.latest_offset)


def group_ranges(prepared: Prepared, end: int) -> list[GroupRange]:
    """The groups one by one, each with the state at its start; `end`: where the last one ends."""
    ends = [*(group[0] for group in prepared.groups), end][1:]
    parts = zip(prepared.groups, ends, prepared.states, strict=True)
    return [GroupRange((group,), behind, state) for group, behind, state in parts]


def group_runs(prepared: Prepared, runs: Sequence[RunSummary]) -> list[GroupRuns]:
    """The runs of each group; `runs`: what the scans left, in the order of `prepared.runs`."""
    by_base: dict[int, list[tuple[int, RunSummary]]] = {}
    for number, (task, run) in enumerate(zip(prepared.runs, runs, strict=True)):
        by_base.setdefault(task.base_offset, []).append((number, run))
    merged = bool(chunks_of(runs))
    return [
        GroupRuns(prepared.latest_offset, {base: tuple(by_base[base]) for base in group}, merged)
        for group in prepared.groups
    ]


def combine(log: LogView, prepared: Prepared, parts: Sequence[Cleaned], end: int) -> Cleaned:
    """What was done with a partition, of what was done with its groups."""
    counts = Counts()
    for part in parts:
        counts.add(part.counts)
    counts.check()
    last = parts[-1].carried if parts else None
    outputs = tuple(output for part in parts for output in part.outputs)
    behind = [one.base_offset for one in log.segments if one.base_offset >= end]
    check_bases(log, [*(base for group in outputs for base in group), *behind])
    return Cleaned(
        prepared.latest_offset + 1,
        tuple(group for part in parts for group in part.replaced),
        outputs,
        counts,
        tuple(segment for part in parts for segment in part.segments),
        kept=frozenset(base for part in parts for base in part.kept),
        carried=None if last is None else replace(last, key_pass_tracker=prepared.next_tracker),
    )
