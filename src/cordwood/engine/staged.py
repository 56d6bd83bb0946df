"""Runs the stages of large partitions, whoever runs tasks: what comes after what, and what is done again.

What a task misses, because it was lost on its way or damaged, is made again, and then the task runs again, too. A run
that does not end where a batch does (an index pointed into the middle of one) is scanned again with its whole segment.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from uuid import uuid4

from cordwood.cleaning.superseded import ENTRY_BYTES
from cordwood.engine.division import run_bytes
from cordwood.engine.exchange import Each, Exchange, StagedPartition
from cordwood.engine.partition import Cleaned
from cordwood.engine.stages import (
    MANY_RANGES,
    MANY_RECORDS,
    RANGES,
    HeadersTask,
    LogPlace,
    ascends,
    combine,
    group_ranges,
    prepare,
    transactional_batches,
)
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.errors import CordwoodError
from cordwood.fs.base import LocalFileSystem
from cordwood.kernels.layout import BatchRows
from cordwood.storage.log.files import remove_tree
from cordwood.storage.log.view import LogView

#: How often a task is run that misses something.
_ATTEMPTS = 3


def clean_staged(
    fs: LocalFileSystem,
    tasks: Sequence[PartitionTask],
    outputs: str | None,
    progress: str,
    each: Each,
    exchange: Exchange,
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
        exchange: scans and rewrites; it is closed at the end.
        cores: tasks that run at once.
        discard: nothing is written but what tasks hand each other.

    Returns:
        the outcome of each; None where offsets do not ascend: then one task has to clean the partition.
    """
    with closing(exchange):
        partitions = [_open(fs, task, cores) for task in tasks]
        _read_headers(partitions, progress, each)
        for one in partitions:
            _prepare(one, progress)
        for _ in range(_ATTEMPTS):
            _scan(partitions, progress, exchange)
            _rewrite(partitions, exchange)
        for one in partitions:
            if one.outcome is None and not one.unordered:
                one.outcome = _combined(fs, one, outputs, discard=discard)
    return [one.outcome for one in partitions]


def _open(fs: LocalFileSystem, task: PartitionTask, cores: int) -> StagedPartition:
    log = LogView(task.path, fs=fs, log_start_offset=task.log_start_offset)
    return StagedPartition(task, log, run_bytes(task.size_bytes, cores))


def _place(one: StagedPartition, progress: str) -> LogPlace:
    return LogPlace(one.task.location, one.task.path, one.task.log_start_offset, one.task.progress(progress))


def _waiting(partitions: Sequence[StagedPartition]) -> list[StagedPartition]:
    return [one for one in partitions if one.outcome is None and not one.unordered]


def _read_headers(partitions: Sequence[StagedPartition], progress: str, each: Each) -> None:
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


def _prepare(one: StagedPartition, progress: str) -> None:
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
        )
    except (CordwoodError, OSError) as error:
        one.outcome = failure_of(error, task.path)


def _scan(partitions: Sequence[StagedPartition], progress: str, exchange: Exchange) -> None:
    """Scan the runs that are not scanned."""
    misaligned = _scan_runs(partitions, exchange)
    for one in misaligned:
        one.run_bytes, one.runs, one.groups = 1 << 62, {}, {}
        _prepare(one, progress)
    if misaligned:
        _scan_runs(misaligned, exchange)
    for one in _waiting(partitions):
        one.unordered = not ascends(one.cut, one.summaries)


def _scan_runs(partitions: Sequence[StagedPartition], exchange: Exchange) -> list[StagedPartition]:
    """Scan; return the partitions whose runs may not begin and end where batches do."""
    places = [
        (one, number)
        for one in _waiting(partitions)
        if one.prepared is not None
        for number in range(len(one.prepared.runs))
        if number not in one.runs
    ]
    misaligned: list[StagedPartition] = []
    for (one, number), found in zip(places, exchange.scan(places), strict=True):
        run = one.cut.runs[number]
        if not isinstance(found, Failure):
            one.runs[number] = found
        elif found.kind is FailureKind.DAMAGE and (run.start or run.end is not None):
            misaligned.append(one)
        elif one.outcome is None:
            one.outcome = found
    return list(dict.fromkeys(one for one in misaligned if one.outcome is None))


def _rewrite(partitions: Sequence[StagedPartition], exchange: Exchange) -> None:
    """Rewrite the groups that are not rewritten."""
    places: list[tuple[StagedPartition, int, PartitionTask]] = []
    for one in _waiting(partitions):
        for number, part in enumerate(group_ranges(one.cut, one.task.end)):
            if number not in one.groups:
                task = replace(one.task, part=part, size_bytes=one.group_bytes(number))
                places.append((one, number, task))
    for (one, number, _), found in zip(places, exchange.rewrite(places), strict=True):
        if not isinstance(found, Failure):
            one.groups[number] = found
        elif found.kind is FailureKind.LOST:
            for lost in exchange.lost_runs(one, found):
                one.runs.pop(lost, None)
        elif one.outcome is None:
            one.outcome = found


def _combined(fs: LocalFileSystem, one: StagedPartition, outputs: str | None, *, discard: bool) -> Output | Failure:
    """One output of those of all groups, in one folder."""
    prepared, task = one.prepared, one.task
    if prepared is None or len(one.groups) < len(prepared.groups):
        what = f"{task.path}: what its tasks wrote for each other was lost {_ATTEMPTS} times"
        return Failure(FailureKind.LOST, what)
    parts = [one.groups[number] for number in range(len(prepared.groups))]
    folder = f"{task.folder(outputs)}/{uuid4().hex}"
    try:
        cleaned: Cleaned = combine(one.log, prepared, [part.cleaned for part in parts], task.end)
        cleaned = replace(cleaned, key_bytes=ENTRY_BYTES * sum(run.entries for run in one.summaries))
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
