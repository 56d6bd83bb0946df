"""Runs the stages of large partitions, whoever runs tasks: what comes after what, and what is done again.

A blob that is lost or damaged is made again by the task that made it; the task that missed it runs again, too. A run
that does not end where a batch does (an index pointed into the middle of one) is scanned again with its whole segment.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from cordwood.cleaning.superseded import CHUNK_RECORD_BYTES, ENTRY_BYTES
from cordwood.engine.partition import Cleaned
from cordwood.engine.scan import chunk_records
from cordwood.engine.stages import (
    MANY_RANGES,
    MANY_RECORDS,
    RANGES,
    RUN_BYTES_MIN,
    HeadersTask,
    LogPlace,
    MergedBlob,
    MergeTask,
    Prepared,
    RunTask,
    ScannedBlob,
    ascends,
    combine,
    group_parts,
    merge_task,
    merge_tasks,
    prepare,
    scan_task,
    transactional_batches,
)
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.errors import CordwoodError
from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.layout import BatchRows
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.storage.log.files import remove_tree
from cordwood.storage.log.view import LogView

T = TypeVar("T")

#: How often a task is run that misses a blob.
_ATTEMPTS = 3
#: A partition below this is one task, however many cores wait.
STAGED_BYTES_MIN = 64 << 20
#: Runs of a partition per core: few, as what is left of each has to be merged; more than one, to keep cores busy.
_RUNS_PER_CORE = 2


class Each(Protocol):
    """Runs a function on each of some items, as tasks; the results come in the order of the items.

    Items are run in the order of their sizes, and their function and values are pickled.
    """

    def __call__(self, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
        """Run them."""
        ...


#: Cleans, and has checked what was written, as `Jobs.clean` does.
CleanEach = Callable[[Sequence[PartitionTask]], list[Output | Failure]]


def is_staged(task: PartitionTask, total_bytes: int, cores: int) -> bool:
    """Whether a partition is cleaned by many tasks.

    It is if other cores would wait for it, or if what a single task has to keep takes more than its memory. Kafka's
    offset map needs one task, as it is filled in log order.

    Args:
        task: of the partition.
        total_bytes: of all partitions together.
        cores: tasks that run at once.
    """
    settings = task.settings
    if settings.offset_map_slots is not None:
        return False
    if settings.memory is not None and task.records is not None:
        left = min(task.records, task.first_uncleanable - task.first_dirty)
        if ENTRY_BYTES * left + CHUNK_RECORD_BYTES * chunk_records(settings.memory) > settings.memory.size_bytes:
            return True
    return cores > 1 and task.size_bytes > max(STAGED_BYTES_MIN, total_bytes // (2 * cores))


@dataclass(slots=True)
class _Partition:
    """How far a partition is.

    Attributes:
        task: what is to be done.
        folder: of its blobs.
        log: of the partition.
        run_bytes: how large runs should be; None: a run is a segment.
        headers: see `prepare`.
        prepared: runs and groups.
        runs: what is scanned, by number of the run.
        merged: what is merged, by the ranges.
        groups: what is rewritten, by number of the group.
        outcome: what became of it, once that is known.
        unordered: offsets do not ascend, so that one task has to clean it with a table.
    """

    task: PartitionTask
    folder: str
    log: LogView
    run_bytes: int
    headers: Mapping[int, BatchRows] = field(default_factory=dict)
    prepared: Prepared | None = None
    runs: dict[int, ScannedBlob] = field(default_factory=dict)
    merged: dict[tuple[int, int], MergedBlob] = field(default_factory=dict)
    groups: dict[int, Output] = field(default_factory=dict)
    outcome: Output | Failure | None = None
    unordered: bool = False

    def forget(self, blob: str) -> None:
        """A blob is lost: whoever made it has to do that again."""
        self.runs = {number: run for number, run in self.runs.items() if run.blob.path != blob}
        self.merged = {ranges: one for ranges, one in self.merged.items() if one.blob.path != blob}


def clean_staged(
    fs: LocalFileSystem,
    tasks: Sequence[PartitionTask],
    outputs: str | None,
    progress: str,
    each: Each,
    clean_each: CleanEach,
    cores: int,
    *,
    discard: bool = False,
) -> list[Output | Failure | None]:
    """Clean partitions by stages, all of them stage by stage.

    Args:
        fs: where they are.
        tasks: the partitions.
        outputs: where folders for outputs are made; None: in the work folder of each partition.
        progress: folder in which tasks say how much they read.
        each: runs functions as tasks.
        clean_each: rewrites groups.
        cores: tasks that run at once.
        discard: nothing is written but blobs.

    Returns:
        the outcome of each; None where offsets do not ascend: then one task has to clean the partition.
    """
    partitions = [_open(fs, task, outputs, cores) for task in tasks]
    try:
        _read_headers(partitions, progress, each)
        for one in partitions:
            _prepare(one, progress)
        for _ in range(_ATTEMPTS):
            _scan(partitions, progress, each)
            _merge(partitions, each, cores)
            _rewrite(partitions, clean_each)
        for one in partitions:
            if one.outcome is None and not one.unordered:
                one.outcome = _combined(fs, one, outputs, discard=discard)
        return [one.outcome for one in partitions]
    finally:
        for one in partitions:
            remove_tree(fs, one.folder)


def _open(fs: LocalFileSystem, task: PartitionTask, outputs: str | None, cores: int) -> _Partition:
    folder = f"{outputs or f'{task.path}/{WORK_FOLDER}'}/{uuid4().hex}.blobs"
    fs.make_directory(folder)
    run_bytes = max(RUN_BYTES_MIN, task.size_bytes // 2 // (_RUNS_PER_CORE * cores))
    return _Partition(task, folder, LogView(task.path, fs=fs, log_start_offset=task.log_start_offset), run_bytes)


def _place(one: _Partition, progress: str) -> LogPlace:
    return LogPlace(one.task.location, one.task.path, one.task.log_start_offset, progress)


def _waiting(partitions: Sequence[_Partition]) -> list[_Partition]:
    return [one for one in partitions if one.outcome is None and not one.unordered]


def _read_headers(partitions: Sequence[_Partition], progress: str, each: Each) -> None:
    places = [
        (one, segment)
        for one in partitions
        if one.task.transactional
        for segment in one.log.segments
        if segment.base_offset < one.task.first_uncleanable
    ]
    tasks = [HeadersTask(_place(one, progress), segment.base_offset) for one, segment in places]
    sizes = [segment.size_bytes for _, segment in places]
    for (one, segment), found in zip(places, each(_headers_of, tasks, sizes), strict=True):
        if isinstance(found, Failure):
            one.outcome = one.outcome or found
        else:
            one.headers = {**one.headers, segment.base_offset: found}


def _prepare(one: _Partition, progress: str) -> None:
    task = one.task
    try:
        one.prepared = prepare(
            one.log,
            _place(one, progress),
            first_dirty=task.first_dirty,
            first_uncleanable=task.first_uncleanable,
            part=task.part,
            settings=task.settings,
            headers=one.headers,
            run_bytes=one.run_bytes,
            ranges=MANY_RANGES if (task.records or 0) > MANY_RECORDS else RANGES,
            hash_secret=secrets.token_bytes(16),
            now_ms=task.now_ms,
            folder=one.folder,
        )
    except (CordwoodError, OSError) as error:
        one.outcome = failure_of(error, task.path)


def _scan(partitions: Sequence[_Partition], progress: str, each: Each) -> None:
    """Scan the runs that are not scanned."""
    misaligned = _scan_runs(partitions, each)
    for one in misaligned:
        one.run_bytes, one.runs, one.merged, one.groups = 1 << 62, {}, {}, {}
        _prepare(one, progress)
    if misaligned:
        _scan_runs(misaligned, each)
    for one in _waiting(partitions):
        assert one.prepared is not None, "it was cut"
        one.unordered = not ascends(one.prepared, [one.runs[number] for number in range(len(one.prepared.runs))])


def _scan_runs(partitions: Sequence[_Partition], each: Each) -> list[_Partition]:
    """Scan; return the partitions whose runs may not begin and end where batches do."""
    places = [
        (one, number, run)
        for one in _waiting(partitions)
        if one.prepared is not None
        for number, run in enumerate(one.prepared.runs)
        if number not in one.runs
    ]
    misaligned: dict[int, _Partition] = {}
    found = each(_scanned, [run for _, _, run in places], [_run_bytes(one, run) for one, _, run in places])
    for (one, number, run), result in zip(places, found, strict=True):
        if not isinstance(result, Failure):
            one.runs[number] = result
        elif result.kind is FailureKind.DAMAGE and (run.start or run.end is not None):
            misaligned[id(one)] = one
        elif one.outcome is None:
            one.outcome = result
    return [one for one in misaligned.values() if one.outcome is None]


def _run_bytes(one: _Partition, run: RunTask) -> int:
    if run.end is not None:
        return run.end - run.start
    return (
        next(segment.size_bytes for segment in one.log.segments if segment.base_offset == run.base_offset) - run.start
    )


def _merge(partitions: Sequence[_Partition], each: Each, cores: int) -> None:
    """Merge the ranges that are not merged."""
    places = [
        (one, task)
        for one in _waiting(partitions)
        for task in merge_tasks(one.task.location, _all_runs(one), cores, one.folder)
        if (task.low, task.high) not in one.merged
    ]
    sizes = [sum(run.entries for run in task.runs) * (task.high - task.low) for _, task in places]
    for (one, task), result in zip(places, each(_merged, [task for _, task in places], sizes), strict=True):
        _take(one, one.merged, (task.low, task.high), result)


def _all_runs(one: _Partition) -> list[ScannedBlob]:
    assert one.prepared is not None, "it was cut"
    return [one.runs[number] for number in range(len(one.prepared.runs))]


def _rewrite(partitions: Sequence[_Partition], clean_each: CleanEach) -> None:
    """Rewrite the groups that are not rewritten, of partitions of which all is merged."""
    places: list[tuple[_Partition, int, PartitionTask]] = []
    for one in _waiting(partitions):
        if one.prepared is None or len(one.runs) < len(one.prepared.runs):
            continue
        parts = group_parts(one.prepared, _all_runs(one), list(one.merged.values()), one.task.end)
        for number, (part, scanned) in enumerate(parts):
            if number not in one.groups:
                size = sum(s.size_bytes for s in one.log.segments if s.base_offset in part.groups[0])
                places.append((one, number, replace(one.task, part=part, scanned=scanned, size_bytes=size)))
    for (one, number, _), result in zip(places, clean_each([task for _, _, task in places]), strict=True):
        _take(one, one.groups, number, result)


def _take(one: _Partition, done: dict[Any, Any], key: object, result: Any) -> None:
    """Note a result; a lost blob is forgotten, so that it is made again."""
    if not isinstance(result, Failure):
        done[key] = result
    elif result.kind is FailureKind.LOST:
        one.forget(result.lost)
    elif one.outcome is None:
        one.outcome = result


def _combined(fs: LocalFileSystem, one: _Partition, outputs: str | None, *, discard: bool) -> Output | Failure:
    """One output of those of all groups, in one folder."""
    prepared, task = one.prepared, one.task
    if prepared is None or len(one.groups) < len(prepared.groups):
        what = f"{task.path}: what its tasks wrote for each other was lost {_ATTEMPTS} times"
        return Failure(FailureKind.LOST, what)
    parts = [one.groups[number] for number in range(len(prepared.groups))]
    folder = f"{outputs or f'{task.path}/{WORK_FOLDER}'}/{uuid4().hex}"
    try:
        cleaned: Cleaned = combine(one.log, prepared, [part.cleaned for part in parts], task.end)
        if not discard:
            fs.make_directory(folder)
            for part in parts:
                for name, _ in part.files:
                    fs.rename(f"{part.folder}/{name}", f"{folder}/{name}")
                remove_tree(fs, part.folder)
    except (CordwoodError, OSError) as error:
        return failure_of(error, task.path)
    files = tuple(sorted(file for part in parts for file in part.files))
    return Output(cleaned, folder, files, tuple(segment for part in parts for segment in part.segments))


# ---- functions of tasks ----------------------------------------------------------------------------------------------


def _headers_of(task: HeadersTask) -> BatchRows | Failure:
    try:
        return transactional_batches(task)
    except Exception as error:
        return failure_of(error, task.place.path)


def _scanned(task: RunTask) -> ScannedBlob | Failure:
    try:
        return scan_task(task)
    except Exception as error:
        return failure_of(error, task.place.path)


def _merged(task: MergeTask) -> MergedBlob | Failure:
    try:
        return merge_task(task)
    except Exception as error:
        return failure_of(error, task.folder)
