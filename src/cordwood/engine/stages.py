"""A clean of one partition by many tasks: any size, any number of keys, in a set amount of memory.

    headers   a segment       batches that belong to transactions; only if the partition has some
    scan      a run           superseded within each chunk; what is left of the chunks, by hash range    → a blob
    merge     hash ranges     what newer chunks of any run supersede                                      → a blob
    rewrite   a group         the bits of its runs; the same code as for a partition that is one task     → new segments

What is in between is the driver's: `prepare` cuts the partition and follows its transactions over the headers, so that
every run and group gets the trackers at its start; `combine` makes one output of those of the groups. Tasks hand each
other blobs (`engine.blobs`). All stages work on plain values, for any scheduler.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from uuid import uuid4

import numpy as np

from cordwood.cleaning.rewrite import Counts
from cordwood.cleaning.superseded import NEVER, Chunk, ScannedKeys, SegmentOutcomes, Span, joined, merge
from cordwood.cleaning.transactions import AbortTracker
from cordwood.engine.blobs import Blob, BlobReader, BlobWriter
from cordwood.engine.facts import segment_facts
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

#: Into so many ranges the hashes are cut in blobs; a merge takes some of them, one after the other.
RANGES = 64
#: The same for a partition of more records than that, so that what is left of all chunks in one range stays small.
MANY_RANGES, MANY_RECORDS = BUCKETS, 500_000_000
#: A run is no smaller than this, but at the end of a segment; so it is worth a task.
RUN_BYTES_MIN = 64 << 20
#: A merge of fewer entries is not worth a task.
_MERGE_ENTRIES = 1 << 20


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
        folder: where the blob is written.
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
    folder: str


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
    folder: str,
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
        folder: where blobs go.
    """
    facts = [segment_facts(segment) for segment in log.segments]
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
            some = (run.superseding, run.rewritten, now, hash_secret, at_once, ranges, now_ms, folder)
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
    with segment.open() as file:
        for wanted in range(run_bytes, segment.size_bytes - run_bytes // 2, run_bytes):
            at = min(int(np.searchsorted(index.positions, wanted)), index.entries - 1)
            # It looks at the batch there, too.
            position = segment.position_of(file, int(index.offsets[at]))
            if found[-1] < position < segment.size_bytes:
                found.append(position)
    return found


# ---- scan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScannedBlob:
    """What the scan of a run left.

    Attributes:
        blob: per chunk c and range r the sections hashes.c.r and ordinals.c.r, starts.c; and those of the outcomes.
        chunks: how many there are.
        ranges: into how many the hashes are cut.
        chunk_records: records of each, but the last.
        entries: of all chunks.
        span: the offsets of the records.
    """

    blob: Blob
    chunks: int
    ranges: int
    chunk_records: int
    entries: int
    span: Span


_OUTCOMES = {
    "positions": np.uint32,
    "crcs": np.uint32,
    "first_ordinals": np.int64,
    "counts": np.int32,
    "flags": np.uint8,
    "bits": np.uint8,
}


def scan_task(task: RunTask) -> ScannedBlob:
    """Scan a run into a blob.

    Raises:
        CorruptBatchError: a batch is damaged; or the run does not begin or end where a batch does.
    """
    fs = task.place.location.open()
    segment = task.place.segment(task.base_offset, fs)
    run = Run(segment, task.start, task.end, task.superseding, task.rewritten)
    chunks = entries = 0
    with closing(BlobWriter(fs, f"{task.folder}/{uuid4().hex}.scan")) as writer:

        def keep(chunk: Chunk) -> None:
            nonlocal chunks, entries
            width = BUCKETS // task.ranges
            for number in range(task.ranges):
                part = slice(*(int(chunk.starts[at * width]) for at in (number, number + 1)))
                writer.add(f"hashes.{chunks}.{number}", chunk.hashes[part].reshape(-1))
                writer.add(f"ordinals.{chunks}.{number}", chunk.ordinals[part])
            writer.add(f"starts.{chunks}", chunk.starts)
            chunks, entries = chunks + 1, entries + chunk.ordinals.size

        found = scan_run(run, copy.deepcopy(task.trackers), task.hash_secret, task.now_ms, task.chunk_records, keep)
        if task.rewritten:
            for name in _OUTCOMES:
                writer.add(name, getattr(found.outcomes, name))
        blob = writer.finish()
    return ScannedBlob(blob, chunks, task.ranges, task.chunk_records, entries, found.span)


# ---- merge -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges some ranges of hashes.

    Attributes:
        location: of the file system.
        runs: all, in log order.
        low, high: the ranges [low, high).
        folder: where the blob is written.
    """

    location: Location[LocalFileSystem]
    runs: tuple[ScannedBlob, ...]
    low: int
    high: int
    folder: str


@dataclass(frozen=True, slots=True)
class MergedBlob:
    """What a merge found: the section run.chunk.range of its blob has the superseded ordinals of that chunk."""

    blob: Blob


def merge_task(task: MergeTask) -> MergedBlob:
    """Merge ranges, one after the other: memory holds the entries of one range of all runs."""
    fs = task.location.open()
    places = [(run, chunk) for run, one in enumerate(task.runs) for chunk in range(one.chunks)]
    with ExitStack() as files:
        readers = [files.enter_context(closing(BlobReader(fs, run.blob))) for run in task.runs]
        starts = [readers[run].get(f"starts.{chunk}", np.int64) for run, chunk in places]
        writer = files.enter_context(closing(BlobWriter(fs, f"{task.folder}/{uuid4().hex}.merge")))
        for number in range(task.low, task.high):
            chunks = []
            for (run, chunk), start in zip(places, starts, strict=True):
                hashes = readers[run].get(f"hashes.{chunk}.{number}", np.uint64).reshape(-1, 2)
                ordinals = readers[run].get(f"ordinals.{chunk}.{number}", np.uint32)
                width = BUCKETS // task.runs[run].ranges
                own = start[number * width : (number + 1) * width + 1]
                chunks.append(Chunk(hashes, ordinals, own - own[0]))
            for (run, chunk), superseded in zip(places, merge(chunks), strict=True):
                writer.add(f"{run}.{chunk}.{number}", superseded)
        return MergedBlob(writer.finish())


def merge_tasks(
    location: Location[LocalFileSystem], runs: Sequence[ScannedBlob], cores: int, folder: str
) -> list[MergeTask]:
    """How the ranges are divided; none if there is only one chunk."""
    if sum(run.chunks for run in runs) <= 1:
        return []
    ranges = runs[0].ranges
    count = max(1, min(2 * cores, ranges, sum(run.entries for run in runs) // _MERGE_ENTRIES))
    edges = [ranges * at // count for at in range(count + 1)]
    return [MergeTask(location, tuple(runs), low, high, folder) for low, high in itertools.pairwise(edges)]


# ---- rewrite ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the rewrite of a group reads instead of scanning.

    Attributes:
        latest_offset: the last offset of the dirty section.
        runs: by base offset of the segment: number of each run among all, and what its scan left.
        merged: what all merges found.
    """

    latest_offset: int
    runs: Mapping[int, tuple[tuple[int, ScannedBlob], ...]]
    merged: tuple[MergedBlob, ...]

    def load(self, fs: LocalFileSystem) -> ScannedKeys:
        """Read what concerns these runs.

        Raises:
            LostBlobError: a blob is gone or damaged.
        """
        outcomes: dict[int, SegmentOutcomes] = {}
        with ExitStack() as files:
            merged = [files.enter_context(closing(BlobReader(fs, one.blob))) for one in self.merged]
            for base, runs in self.runs.items():
                outcomes[base] = joined([_load(fs, number, run, merged) for number, run in runs])
        return ScannedKeys(self.latest_offset, outcomes)


def _load(fs: LocalFileSystem, number: int, run: ScannedBlob, merged: Iterable[BlobReader]) -> SegmentOutcomes:
    with closing(BlobReader(fs, run.blob)) as reader:
        found = SegmentOutcomes(**{name: reader.get(name, kind) for name, kind in _OUTCOMES.items()})
    for other in merged:
        for chunk, at in itertools.product(range(run.chunks), range(run.ranges)):
            found.mark(chunk * run.chunk_records, other.get(f"{number}.{chunk}.{at}", np.uint32))
    return found


def ascends(prepared: Prepared, runs: Sequence[ScannedBlob]) -> bool:
    """Whether offsets ascend over all runs, as they do in a sound log."""
    return ascending([run.span for run in runs], prepared.latest_offset)


def group_parts(
    prepared: Prepared, runs: Sequence[ScannedBlob], merged: Sequence[MergedBlob], end: int
) -> list[tuple[GroupRange, Scanned]]:
    """For each group, what its rewrite is told.

    Args:
        prepared: the partition.
        runs: what the scans left, in the order of `prepared.runs`.
        merged: what the merges found.
        end: where the last group ends.
    """
    by_base: dict[int, list[tuple[int, ScannedBlob]]] = {}
    for number, (task, run) in enumerate(zip(prepared.runs, runs, strict=True)):
        by_base.setdefault(task.base_offset, []).append((number, run))
    ends = [*(group[0] for group in prepared.groups), end][1:]
    return [
        (
            GroupRange((group,), behind, state),
            Scanned(prepared.latest_offset, {base: tuple(by_base[base]) for base in group}, tuple(merged)),
        )
        for group, behind, state in zip(prepared.groups, ends, prepared.states, strict=True)
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
