"""The stages of one partition's clean, besides the scans and merges of `engine.exchange`.

    headers   a segment       batches that belong to transactions; only if the partition has some
    collect   dirty section   the newest offset of each key, as a table; only if little is dirty             → a blob
    scan      a run           see `engine.exchange`
    merge     hash ranges     see there; not if records were looked up in a table of the dirty keys
    rewrite   a group         the bits of its runs; the same code as for a partition that is one task     → new segments

The driver works between the stages: `cut_partition` cuts the partition and follows its transactions over the headers,
so that every run and group gets the trackers at its start; `combine` joins the outputs of the groups. All stages
process plain values, for any scheduler; `engine.staged` runs them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.blobs import Blob
from cordwood.cleaning.engine.exchange import BlobFolder, RunOutcomes, RunTask
from cordwood.cleaning.engine.facts import cleanable_facts
from cordwood.cleaning.engine.keys import NOTHING_DIRTY
from cordwood.cleaning.engine.partition import (
    Cleaned,
    CleanRequest,
    CleanState,
    GroupRange,
    check_bases,
    collect_dirty,
    dirty_section,
    planned_groups,
    state_at_start,
)
from cordwood.cleaning.engine.progress import CountedLog
from cordwood.cleaning.engine.scan import (
    KeyScan,
    Run,
    Superseding,
    Trackers,
    ascending,
    runs_of,
    scan_run,
)
from cordwood.cleaning.rules.key_table import chunk_records
from cordwood.cleaning.rules.latest import DirtyTable
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.cleaning.rules.superseded import (
    NEVER,
    UNCONFIRMED,
    Chunk,
    OffsetSpan,
    ScannedKeys,
    ScannedRun,
    first_bits,
    joined,
)
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import DataError
from cordwood.common.types import override
from cordwood.kernels.layout import BATCH_ROW, BatchRows, concerns_transactions
from cordwood.storage.index.files import has_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView

# ---- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionsTask:
    """Reads the transactional batches of a segment."""

    log: CountedLog
    base_offset: int

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path


def transactional_batches(task: TransactionsTask) -> BatchRows:
    """BATCH_ROW[batches]: the markers and the transactional data of a segment, all that a tracker needs."""
    segment = task.log.segment(task.base_offset)
    found = (batches[concerns_transactions(batches)] for batches in segment.headers(ordered=True))
    return np.concatenate([np.empty(0, BATCH_ROW), *found])


# ---- collect ---------------------------------------------------------------------------------------------------------

#: The section of a blob with the table of the dirty keys.
_TABLE = "table"


@dataclass(frozen=True, slots=True)
class DirtyTask:
    """Collects the keys of the dirty section."""

    log: CountedLog
    folder: BlobFolder
    request: CleanRequest
    hash_secret: bytes = field(repr=False)

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path


@dataclass(frozen=True, slots=True)
class DirtyBlob:
    """Location of the table of the dirty keys. A value that can be pickled.

    Attributes:
        next_tracker: tracker of pass 1 where the following groups begin; None if pass 1 did not reach them.
        size_bytes: memory of the table.
    """

    folder: BlobFolder
    blob: Blob
    hash_secret: bytes = field(repr=False)
    index_secret: bytes | None = field(repr=False)
    next_tracker: AbortTracker | None
    size_bytes: int

    def load(self) -> DirtyTable:
        """Read the table.

        Raises:
            LostSectionError: the blob is missing or damaged.
        """
        with closing(self.folder.open(self.blob)) as reader:
            return DirtyTable.of(self.hash_secret, self.index_secret, reader.get(_TABLE, *DirtyTable.KINDS))


def collect_into_blob(task: DirtyTask) -> DirtyBlob | None:
    """Write the table to a new blob; None if records cannot be looked up, see `collect_dirty`."""
    log, request = task.log.open(), task.request
    facts = cleanable_facts(log, request.first_uncleanable, request.now_ms)
    dirty = dirty_section(log, facts, request, state_at_start(facts, request))
    collected = collect_dirty(dirty, request, task.hash_secret)
    if collected is None:
        return None
    keys, table = collected
    with closing(task.folder.create("keys")) as writer:
        writer.add(_TABLE, *table.arrays)
        blob, own = writer.finish(), task.hash_secret
        return DirtyBlob(task.folder, blob, own, request.index_secret, keys.next_tracker, keys.size_bytes)


# ---- cut -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun(RunTask):
    """A run of a partition that is cleaned.

    Attributes:
        superseding: see `Run`.
        dirty: table in which the records are looked up; None if they are compared in chunks.
    """

    superseding: Superseding | None
    trackers: Trackers
    dirty: DirtyBlob | None = None

    @property
    def is_part(self) -> bool:
        """Whether it is less than a whole segment."""
        return bool(self.start) or self.end is not None

    @override
    def scan(self, keep: Callable[[Chunk], None]) -> ScannedRun:
        run = Run(self.log.segment(self.base_offset), self.start, self.end, self.superseding, rewritten=True)
        trackers = copy.deepcopy(self.trackers)
        if self.dirty is None:
            return scan_run(run, trackers, self.how, keep)
        return scan_run(run, trackers, replace(self.how, table=self.dirty.load()), None)


@dataclass(frozen=True, slots=True)
class CutPartition:
    """A partition that is cut into tasks.

    Attributes:
        groups: base offsets of the segments of each group.
        states: for each group the state of the clean at its start.
        next_tracker: tracker of pass 1 where the following groups begin; None without any.
        latest_offset: the last offset of the dirty section.
    """

    runs: tuple[CleanRun, ...]
    groups: tuple[tuple[int, ...], ...]
    states: tuple[CleanState, ...]
    next_tracker: AbortTracker | None
    latest_offset: int


def cut_partition(
    log: LogView,
    source: CountedLog,
    request: CleanRequest,
    headers: Mapping[int, BatchRows],
    run_bytes: int,
    ranges: int,
    hash_secret: bytes,
) -> CutPartition:
    """Cut a partition into runs and groups.

    Args:
        headers: by base offset, the `transactional_batches` of each segment that has any.
        run_bytes: intended size of a run.
        ranges: number of hash ranges.
        hash_secret: secret of the keys' hashes.
    """
    facts = cleanable_facts(log, request.first_uncleanable, request.now_ms)
    state = state_at_start(facts, request)
    dirty = dirty_section(log, facts, request, state)
    groups = planned_groups(log, facts, dirty.latest_offset + 1, request)
    read = NOTHING_DIRTY if request.probing else dirty
    firsts = {group[0].base_offset for group in groups}
    runs: list[CleanRun] = []
    states: list[CleanState] = []
    next_tracker: AbortTracker | None = None
    settings = request.settings
    how = KeyScan(hash_secret, chunk_records(settings.memory), request.now_ms, precedence=settings.precedence)
    for run, trackers in runs_of(log, groups, read, copy.deepcopy(state.tracker)):
        base = run.segment.base_offset
        if base in firsts:
            assert trackers.copying is not None, "a group is rewritten"
            states.append(replace(state, tracker=copy.deepcopy(trackers.copying)))
        if base == read.next_start and run.segment is not read.segments[0]:
            next_tracker = copy.deepcopy(trackers.keys)
        rows = headers.get(base, np.empty(0, BATCH_ROW))
        is_whole = request.probing and has_index(run.segment, request.index_secret)
        starts = [0] if is_whole else cut_positions(run.segment, run_bytes)
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            size_bytes = (run.segment.size_bytes if end is None else end) - start
            now = copy.deepcopy(trackers)
            part = CleanRun(
                log=source,
                base_offset=base,
                start=start,
                end=end,
                size_bytes=size_bytes,
                how=how,
                ranges=ranges,
                superseding=run.superseding,
                trackers=now,
            )
            runs.append(part)
            behind = NEVER if end is None else end
            follow(rows[(rows["position"] >= start) & (rows["position"] < behind)], run.superseding, trackers)
    bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
    return CutPartition(tuple(runs), bases, tuple(states), next_tracker, dirty.latest_offset)


def follow(rows: BatchRows, superseding: Superseding | None, trackers: Trackers) -> None:
    """Pass the transactional batches of a run to the trackers."""
    if trackers.keys is not None and superseding is not None:
        trackers.keys.discard(rows[rows["position"] >= superseding.position])
    if trackers.copying is not None:
        trackers.copying.discard(rows)


def cut_positions(segment: Segment, run_bytes: int) -> list[int]:
    """Return positions at which runs of a segment begin: 0, and batches in its index, about `run_bytes` apart."""
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
            # Not `index.positions`: this also checks that a batch is there.
            position = segment.position_of(file, offset)
            if found[-1] < position < segment.size_bytes:
                found.append(position)
    return found


# ---- rewrite ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The results of scans and merges for the rewrite of a group; see `KeySource`.

    Attributes:
        latest_offset: the last offset of the dirty section.
        segments: the numbers of their runs, by the base offset of the segment.
        hash_secret: secret of the keys' hashes.
        dirty: table in which records were looked up; None if they were compared in chunks.
    """

    latest_offset: int
    segments: Mapping[int, Sequence[int]]
    outcomes: RunOutcomes
    hash_secret: bytes = field(repr=False)
    dirty: DirtyBlob | None

    def load(self) -> ScannedKeys:
        """See `KeySource`."""
        found = self.outcomes.load()
        segments = {base: joined([found[number] for number in runs]) for base, runs in self.segments.items()}
        if self.dirty is not None:
            is_unconfirmed = any((one.flags & UNCONFIRMED).any() for one in segments.values())
            return ScannedKeys(self.latest_offset, segments, table=self.dirty.load() if is_unconfirmed else None)
        survivors = {
            base: functools.partial(self._survivors, runs, first_bits([found[number] for number in runs]))
            for base, runs in self.segments.items()
        }
        return ScannedKeys(self.latest_offset, segments, survivors, self.hash_secret)

    def _survivors(
        self, runs: Sequence[int], firsts: Sequence[int]
    ) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]]:
        for number, first in zip(runs, firsts, strict=True):
            yield from self.outcomes.survivors(number, first)


def runs_by_segment(cut: CutPartition, group: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the runs of each segment of a group."""
    found: dict[int, list[int]] = {base: [] for base in group}
    for number, run in enumerate(cut.runs):
        if run.base_offset in found:
            found[run.base_offset].append(number)
    return found


def ascends(cut: CutPartition, spans: Sequence[OffsetSpan]) -> bool:
    """Whether offsets ascend over all runs, as they do in a sound log; `spans`: spans of the runs."""
    return ascending(spans, cut.latest_offset)


def group_ranges(cut: CutPartition, end: int) -> list[GroupRange]:
    """Return the groups one by one, each with the state at its start; `end`: end of the last group."""
    ends = [*(group[0] for group in cut.groups), end][1:]
    parts = zip(cut.groups, ends, cut.states, strict=True)
    return [GroupRange((group,), behind, state) for group, behind, state in parts]


def combine(log: LogView, cut: CutPartition, parts: Sequence[Cleaned], end: int) -> Cleaned:
    """Combine the results of a partition's groups."""
    counts = Counts()
    for part in parts:
        counts.add(part.counts)
    counts.check()
    last = parts[-1].carried if parts else None
    outputs = tuple(output for part in parts for output in part.outputs)
    behind = [one.base_offset for one in log.segments if one.base_offset >= end]
    check_bases(log, [*(base for group in outputs for base in group), *behind])
    return Cleaned(
        cut.latest_offset + 1,
        tuple(group for part in parts for group in part.replaced),
        outputs,
        counts,
        tuple(segment for part in parts for segment in part.segments),
        kept=frozenset(base for part in parts for base in part.kept),
        carried=None if last is None else replace(last, key_pass_tracker=cut.next_tracker),
    )
