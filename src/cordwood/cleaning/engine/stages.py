"""The stages of a large partition's clean, and the driver that runs them; `engine.exchange` has the scans and merges.

    headers   a segment       batches that belong to transactions; only if the partition has some
    collect   dirty section   the newest offset of each key, as a table; only if little is dirty             → a blob
    scan      a run           see `engine.exchange`
    merge     hash ranges     see there; not if records were looked up in a table of the dirty keys
    rewrite   a group         the bits of its runs; the same code as for a partition that is one task     → new segments

The driver works between the stages: `_cut_partition` cuts the partition and follows its transactions over the headers,
so that every run and group gets the trackers at its start; `_combine` joins the outputs of the groups. All stages
process plain values, for any scheduler; `clean_staged` runs them.

If a task's input is lost or damaged, its producer runs again, then the task. If a run does not end at a batch boundary
(an index pointed into the middle of a batch), its whole segment is scanned again.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.engine.blobs import Blob
from cordwood.cleaning.engine.division import run_bytes
from cordwood.cleaning.engine.exchange import (
    MANY_RANGES,
    MANY_RECORDS,
    RANGES,
    BlobFolder,
    LogScan,
    RunOutcomes,
    RunTask,
    each_caught,
    merge_missing,
    scan_missing,
)
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
from cordwood.cleaning.engine.progress import CountedLog, Counters
from cordwood.cleaning.engine.scan import (
    KeyScan,
    Run,
    Superseding,
    Trackers,
    ascending,
    runs_of,
    scan_run,
)
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.cleaning.rules.key_table import ENTRY_BYTES, chunk_records
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
from cordwood.common.errors import CordwoodError, DataError, StoreError
from cordwood.common.threads import Each
from cordwood.common.types import override
from cordwood.fs.base import TargetStore
from cordwood.fs.workspace import remove_tree
from cordwood.kernels.layout import BATCH_ROW, BatchRows, concerns_transactions
from cordwood.storage.index.files import has_index
from cordwood.storage.index.identity import has_no_transactions
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogSource, LogView

# ---- headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionsTask:
    """Reads the transactional batches of a segment; `by_index`: not if its key index shows that it has none."""

    log: CountedLog
    base_offset: int
    by_index: bool

    @property
    def path(self) -> str:
        """The log's directory, for errors."""
        return self.log.path


def transactional_batches(task: TransactionsTask) -> BatchRows:
    """BATCH_ROW[batches]: the markers and the transactional data of a segment, all that a tracker needs."""
    segment = task.log.segment(task.base_offset)
    if task.by_index and has_no_transactions(segment):
        return np.empty(0, BATCH_ROW)
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


def _collect_into_blob(task: DirtyTask) -> DirtyBlob | None:
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


def _cut_partition(
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


def _runs_by_segment(cut: CutPartition, group: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the runs of each segment of a group."""
    found: dict[int, list[int]] = {base: [] for base in group}
    for number, run in enumerate(cut.runs):
        if run.base_offset in found:
            found[run.base_offset].append(number)
    return found


def ascends(cut: CutPartition, spans: Sequence[OffsetSpan]) -> bool:
    """Whether offsets ascend over all runs, as they do in a sound log; `spans`: spans of the runs."""
    return ascending(spans, cut.latest_offset)


def _group_ranges(cut: CutPartition, end: int) -> list[GroupRange]:
    """Return the groups one by one, each with the state at its start; `end`: end of the last group."""
    ends = [*(group[0] for group in cut.groups), end][1:]
    parts = zip(cut.groups, ends, cut.states, strict=True)
    return [GroupRange((group,), behind, state) for group, behind, state in parts]


def _combine(log: LogView, cut: CutPartition, parts: Sequence[Cleaned], end: int) -> Cleaned:
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


# ---- the driver ------------------------------------------------------------------------------------------------------

#: Maximum number of attempts at a task that lacks input.
_ATTEMPTS = 3
#: Cleans and checks the outputs, as `Jobs.clean` does.
CleanEach = Callable[[Sequence[PartitionTask]], list[Output | Failure]]


@dataclass(slots=True, eq=False)
class _Partition:
    """Progress of a partition.

    Attributes:
        task: the clean to run.
        run_bytes: intended size of runs.
        hash_secret: 16 bytes that key the hashes.
        headers: see `_cut_partition`.
        cut: its runs and groups; None before the cut.
        groups: results of rewritten groups, by number of the group.
        outcome: the partition's outcome, once it is known.
        unordered: whether offsets do not ascend, so that one task must clean it with a table.
        dirty: the dirty keys, if all records are looked up in a table of them.
    """

    task: PartitionTask
    log: LogView
    folder: BlobFolder
    source: CountedLog
    run_bytes: int
    hash_secret: bytes = field(repr=False)
    headers: Mapping[int, BatchRows] = field(default_factory=dict)
    cut: CutPartition | None = None
    scan: LogScan | None = None
    groups: dict[int, Output] = field(default_factory=dict)
    outcome: Output | Failure | None = None
    unordered: bool = False
    dirty: DirtyBlob | None = None

    @property
    def is_scanned(self) -> bool:
        """Whether all runs are scanned."""
        return self.scan is not None and len(self.scan.scanned) == len(self.scan.tasks)

    def group_bytes(self, number: int) -> int:
        """Return the size of a group."""
        bases = () if self.cut is None else self.cut.groups[number]
        return sum(segment.size_bytes for segment in self.log.segments if segment.base_offset in bases)


def clean_staged(
    fs: TargetStore,
    tasks: Sequence[PartitionTask],
    outputs: str | None,
    progress: str,
    each: Each,
    clean_each: CleanEach,
    cores: int,
    *,
    discard: bool = False,
) -> list[Output | Failure | None]:
    """Clean partitions by stages, each stage for all partitions.

    Args:
        outputs: folder for outputs and blobs; None for the work folder of each partition.
        progress: folder in which tasks report how much they read.
        cores: number of tasks that run at once.
        discard: write only the data that tasks pass to each other.

    Returns:
        the outcome of each partition; None if offsets do not ascend: then one task must clean the partition.
    """
    partitions: list[_Partition] = []
    try:
        for task in tasks:
            partitions.append(_open(fs, task, outputs, progress, cores))
        _read_headers(partitions, each)
        for partition in partitions:
            _cut(partition)
        for _ in range(_ATTEMPTS):
            _scan(partitions, each)
            _merge(partitions, each, cores)
            _rewrite(partitions, clean_each)
        for partition in _waiting(partitions):
            partition.outcome = _combined(fs, partition, outputs, discard=discard)
    finally:
        # Closing the work folder removes leftovers, and reports a failure of that.
        with contextlib.suppress(StoreError):
            for partition in partitions:
                remove_tree(fs, partition.folder.path)
    return [partition.outcome for partition in partitions]


def _open(fs: TargetStore, task: PartitionTask, outputs: str | None, progress: str, cores: int) -> _Partition:
    log = task.log(fs)
    folder = BlobFolder(task.location, f"{task.folder(outputs)}/{uuid4().hex}.blobs")
    counters = Counters(task.location, task.progress(progress))
    source = CountedLog(
        LogSource(task.location, task.path, task.log_start_offset, live=False, index_root=task.index_root), counters
    )
    fs.make_directory(folder.path)
    secret = task.fresh_secret or secrets.token_bytes(16)
    return _Partition(task, log, folder, source, run_bytes(task.size_bytes, cores), hash_secret=secret)


def _waiting(partitions: Iterable[_Partition]) -> list[_Partition]:
    return [one for one in partitions if one.outcome is None and not one.unordered]


def _read_headers(partitions: Sequence[_Partition], each: Each) -> None:
    places = [
        (partition, segment)
        for partition in partitions
        if partition.task.transactional
        for segment in partition.log.segments
        if segment.base_offset < partition.task.first_uncleanable
    ]
    tasks = [
        TransactionsTask(partition.source, segment.base_offset, partition.task.index_secret is not None)
        for partition, segment in places
    ]
    sizes = [segment.size_bytes for _, segment in places]
    for (partition, segment), found in zip(places, each_caught(each, transactional_batches, tasks, sizes), strict=True):
        if isinstance(found, Failure):
            partition.outcome = partition.outcome or found
        else:
            partition.headers = {**partition.headers, segment.base_offset: found}


def _cut(partition: _Partition) -> None:
    task = partition.task
    try:
        cut = _cut_partition(
            partition.log,
            partition.source,
            task,
            partition.headers,
            partition.run_bytes,
            MANY_RANGES if (task.records or 0) > MANY_RECORDS else RANGES,
            partition.hash_secret,
        )
    except (CordwoodError, OSError) as error:
        partition.outcome = failure_of(error, task.path)
        return
    partition.cut, partition.scan, partition.groups = cut, LogScan(partition.folder, cut.runs), {}


def _collect(partitions: Sequence[_Partition], each: Each) -> None:
    """Collect the missing dirty keys of partitions whose records are looked up."""
    chosen = [one for one in _waiting(partitions) if one.task.probing and not one.is_scanned and one.dirty is None]
    tasks = [DirtyTask(one.source, one.folder, one.task, one.hash_secret) for one in chosen]
    sizes = [one.task.first_uncleanable - one.task.first_dirty for one in chosen]
    for partition, found in zip(chosen, each_caught(each, _collect_into_blob, tasks, sizes), strict=True):
        if isinstance(found, Failure):
            partition.outcome = found
        elif found is None:
            partition.task = replace(partition.task, probing=False)
            _cut(partition)
        else:
            partition.dirty = found


def _scan(partitions: Sequence[_Partition], each: Each) -> None:
    """Scan the runs that are not scanned yet."""
    _collect(partitions, each)
    misaligned = _scan_runs(partitions, each)
    for partition in misaligned:
        partition.run_bytes = 1 << 62
        _cut(partition)
    if misaligned:
        _scan_runs(misaligned, each)
    for partition in _waiting(partitions):
        assert partition.cut is not None and partition.scan is not None, "it was cut"
        if partition.is_scanned:
            partition.unordered = not ascends(partition.cut, partition.scan.spans)


def _scan_runs(partitions: Sequence[_Partition], each: Each) -> list[_Partition]:
    """Scan; return the partitions whose runs may not begin and end at batch boundaries."""
    by_scan = {one.scan: one for one in _waiting(partitions) if one.scan is not None}
    for scan, partition in by_scan.items():
        if partition.dirty is not None and partition.cut is not None:
            scan.tasks = [replace(run, dirty=partition.dirty) for run in partition.cut.runs]
    misaligned: dict[_Partition, None] = {}
    for scan, number, failure in scan_missing(each, list(by_scan)):
        partition = by_scan[scan]
        if failure.kind is FailureKind.DAMAGE and partition.cut is not None and partition.cut.runs[number].is_part:
            misaligned[partition] = None
        else:
            _note_failure(partition, failure)
    return _waiting(misaligned)


def _merge(partitions: Sequence[_Partition], each: Each, cores: int) -> None:
    """Merge the hash ranges that are not merged yet."""
    by_scan = {one.scan: one for one in _waiting(partitions) if one.scan is not None and one.is_scanned}
    for scan, failure in merge_missing(each, list(by_scan), cores).items():
        _note_failure(by_scan[scan], failure)


def _rewrite(partitions: Sequence[_Partition], clean_each: CleanEach) -> None:
    """Rewrite the pending groups of partitions whose merge has finished."""
    places: list[tuple[_Partition, int, PartitionTask]] = []
    for partition in _waiting(partitions):
        cut, scan = partition.cut, partition.scan
        if cut is None or scan is None or not scan.is_merged:
            continue
        for number, part in enumerate(_group_ranges(cut, partition.task.end)):
            if number not in partition.groups:
                segments = _runs_by_segment(cut, cut.groups[number])
                outcomes = scan.outcomes([run for runs in segments.values() for run in runs])
                scanned = GroupKeys(cut.latest_offset, segments, outcomes, partition.hash_secret, partition.dirty)
                task = replace(partition.task, part=part, size_bytes=partition.group_bytes(number), scanned=scanned)
                places.append((partition, number, task))
    for (partition, number, _), found in zip(places, clean_each([task for _, _, task in places]), strict=True):
        if isinstance(found, Failure):
            _note_failure(partition, found)
        else:
            partition.groups[number] = found


def _note_failure(partition: _Partition, failure: Failure) -> None:
    """Forget a lost file, so that the next attempt writes it again; any other failure is the partition's outcome."""
    if failure.kind is FailureKind.LOST and partition.scan is not None:
        partition.scan.forget(failure.lost)
        if partition.dirty is not None and partition.dirty.blob.path == failure.lost:
            partition.dirty = None
    elif partition.outcome is None:
        partition.outcome = failure


def _combined(fs: TargetStore, partition: _Partition, outputs: str | None, *, discard: bool) -> Output | Failure:
    """Join the outputs of all groups in one folder."""
    cut, scan, task = partition.cut, partition.scan, partition.task
    if cut is None or scan is None or len(partition.groups) < len(cut.groups):
        what = f"{task.path}: what its tasks wrote for each other was lost {_ATTEMPTS} times"
        return Failure(FailureKind.LOST, what)
    parts = [partition.groups[number] for number in range(len(cut.groups))]
    folder = f"{task.folder(outputs)}/{uuid4().hex}"
    try:
        if partition.dirty is not None:
            cut = replace(cut, next_tracker=partition.dirty.next_tracker)
        cleaned = _combine(partition.log, cut, [part.cleaned for part in parts], task.end)
        key_bytes = ENTRY_BYTES * scan.entries if partition.dirty is None else partition.dirty.size_bytes
        cleaned = replace(cleaned, key_bytes=key_bytes, probed=partition.dirty is not None)
        if not discard:
            fs.make_directory(folder)
            for part in parts:
                for name, _ in part.files:
                    fs.rename(f"{part.folder}/{name}", f"{folder}/{name}")
                remove_tree(fs, part.folder)
    except (CordwoodError, OSError) as error:
        return failure_of(error, task.path)
    files = tuple(sorted(file for part in parts for file in part.files))
    indexes = tuple(path for part in parts for path in part.indexes)
    return Output(cleaned, folder, files, tuple(segment for part in parts for segment in part.segments), indexes)
