"""Run the stages of large partitions on any task runner: their order, and which of them run again after a loss.

If a task's input is lost or damaged, its producer runs again, then the task. If a run does not end at a batch boundary
(an index pointed into the middle of a batch), its whole segment is scanned again.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from cordwood.cleaning.engine.division import run_bytes
from cordwood.cleaning.engine.exchange import (
    MANY_RANGES,
    MANY_RECORDS,
    RANGES,
    BlobFolder,
    LogScan,
    each_caught,
    merge_missing,
    scan_missing,
)
from cordwood.cleaning.engine.progress import CountedLog, Counters
from cordwood.cleaning.engine.stages import (
    CutPartition,
    DirtyBlob,
    DirtyTask,
    GroupKeys,
    TransactionsTask,
    ascends,
    collect_into_blob,
    combine,
    cut_partition,
    group_ranges,
    runs_by_segment,
    transactional_batches,
)
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.cleaning.rules.key_table import ENTRY_BYTES
from cordwood.common.errors import CordwoodError, StoreError
from cordwood.common.threads import Each
from cordwood.fs.base import TargetStore
from cordwood.fs.workspace import remove_tree
from cordwood.kernels.layout import BatchRows
from cordwood.storage.log.view import LogSource, LogView

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
        headers: see `cut_partition`.
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
    tasks = [TransactionsTask(partition.source, segment.base_offset) for partition, segment in places]
    sizes = [segment.size_bytes for _, segment in places]
    for (partition, segment), found in zip(places, each_caught(each, transactional_batches, tasks, sizes), strict=True):
        if isinstance(found, Failure):
            partition.outcome = partition.outcome or found
        else:
            partition.headers = {**partition.headers, segment.base_offset: found}


def _cut(partition: _Partition) -> None:
    task = partition.task
    try:
        cut = cut_partition(
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
    for partition, found in zip(chosen, each_caught(each, collect_into_blob, tasks, sizes), strict=True):
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
        for number, part in enumerate(group_ranges(cut, partition.task.end)):
            if number not in partition.groups:
                segments = runs_by_segment(cut, cut.groups[number])
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
        cleaned = combine(partition.log, cut, [part.cleaned for part in parts], task.end)
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
