"""A clean of log directories into a copy; the steps in their order:

    lay out   choose the location of each directory's copy; refuse locked directories
    load      recover each directory after a broker crash into its copy, which is then the source
    plan      choose the partitions to clean, and their ranges
    run       pack partitions into Spark tasks; each returns its outputs, or the reason for its failure
    check     another process checks the files that a task wrote
    build     copy the other partitions, move the cleaned ones in, write checkpoints
    retain    with --retention, delete old segments of the copy
    index     put key indexes beside the segments, both new ones and those of the source
    publish   give the copy its name

No step before the last is visible. A failed partition does not stop the others: it is copied unchanged, and the result
reports its damage.

`plan_exact` takes the same steps up to the tasks, which only count their output; it checks and builds no files.
"""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cordwood.commands.report.clean  # noqa: F401 - so that results can show themselves
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.results import CleanResult, PartitionResult, result_of
from cordwood.cleaning.engine.task import Failure, Indexes, Output
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.commands.copies import (
    explain_full_disk,
    left_by_another_run,
    left_out_bytes,
    name_source,
    not_recovered,
    plan_recovered,
    recover_crashed,
    run_tasks,
    with_retention,
)
from cordwood.commands.opening import open_node, recovery_settings, select_partitions
from cordwood.commands.options import CopyOptions, IndexOptions, PlanOptions, TaskOptions
from cordwood.common.clock import Clock, system_clock
from cordwood.common.threads import in_parallel
from cordwood.fs.base import Link, Target, TargetStore
from cordwood.fs.by_url import file_system_for
from cordwood.fs.folders import mode_of
from cordwood.fs.throttled import Limit, throttled
from cordwood.fs.workspace import leftovers
from cordwood.storage.changes.copy import (
    DirectoryCopy,
    Replacement,
    check_space,
    check_unchanged,
    copy_partition,
    copy_unchanged,
    has_room_beside,
    lay_out,
    remove_segments,
    replace_segments,
)
from cordwood.storage.check.warnings import text, warnings
from cordwood.storage.formats.filenames import LOG_START_OFFSETS, DirectoryState
from cordwood.storage.index.build import SEGMENT_SHARE
from cordwood.storage.index.copied import bring_indexes
from cordwood.storage.log.recovered import broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import check_outside_logs
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.into_copy import Recovered, complete_indexes, start_anew

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean(
    paths: Sequence[str],
    output: str,
    options: PlanOptions,
    copy: CopyOptions,
    tasks: TaskOptions,
    *,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    on_forecast: Callable[[Sequence[str]], None] | None = None,
    clock: Clock = system_clock,
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, on which a broker can start.

    Partitions that are not selected are copied. Retention is computed from the sizes and times after the clean.

    Args:
        paths: log directories, folders of several, or partition directories; they are only read.
        output: the new directory, which must not exist or be empty; for several log directories, the folder of their
            copies.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        LockedError: a broker or another program holds one of the directories.
        RequestError: the output exists and is not empty; see also `plan`.
        NoSpaceError: the disk is too small, or full.
        OSError: the disk fails. After any error, nothing is left of the output.
    """
    started = time.monotonic()
    fs = fs or file_system_for([*paths, output, *options.paths])
    options, now_ms = options.at(clock)
    sources = [fs.absolute_path(path) for path in paths]
    node = open_node(fs, sources, options.selection)
    read_only = [*sources, *(one.path for one in node.directories if one.is_brokers)]
    select_partitions(node.places, sources, options.selection)  # or raise before a directory is recovered in vain
    foretold = warnings(node)
    if on_forecast is not None:
        on_forecast([text(one) for one in foretold])
    root = options.index_place.root(fs, [place.path for place in node.places])
    linked = Link.HARD if copy.link else None
    work = fs.target(output, read_only)
    if fs.path_on_disk(output) is not None:
        check_outside_logs(fs, output)
    copies = lay_out(fs, node, sources, work.data)
    with explain_full_disk(fs, output), _with_space(fs, copies, work, link=linked):
        fs = throttled(fs, Limit.of(tasks.rate, fs, work.progress))
        restored = recover_crashed(fs, node, copies, work.data, now_ms, link=linked)
        plan = plan_recovered(fs, node, copies, restored, options)
        made = _indexes_to_make(fs, copies, work, copy.indexes, link=linked)
        with tasks.jobs(fs, _progress_folder(fs, work, tasks, spark), spark, on_progress) as jobs:
            failed = dict(not_recovered(copies, restored))
            outcomes = run_tasks(jobs, plan, failed, work.outputs, on_plan, indexes=made, index_root=root)
        if options.choices.retention:
            plan = with_retention(fs, node, copies, restored, plan, outcomes)

        built = _build(fs, copies, plan, outcomes, restored, node, now_ms, link=linked)
        _retain(fs, built)
        if made is not Indexes.NONE:
            _bring_indexes(fs, built, root, copy.indexes.index_max)
        results = [_measured(fs, one) for one in built]
        for directory in node.directories:
            check_unchanged(directory)
        work.publish()
    notes = [f"{path} is not a partition and was not copied" for copy in copies for path in copy.left_out]
    notes += [
        f"{copy.source.path} had no clean shutdown; the copy was recovered, as a broker does at its next start"
        for copy in copies
        if copy.clean_shutdown
    ]
    notes += [f"{one.path}: {one.what}. In the source as in the copy, {one.meaning}" for one in foretold]
    notes += [left_by_another_run(path) for path in leftovers(fs, output)]
    return CleanResult(
        target=work.target,
        now_ms=now_ms,
        partitions=tuple(results),
        seconds=time.monotonic() - started,
        clean_seconds=jobs.seconds,
        notes=tuple(notes),
    )


def _progress_folder(fs: TargetStore, work: Target, tasks: TaskOptions, spark: SparkSession | None) -> str:
    """Return the folder for progress counters: one that all tasks can reach.

    Executors of a cluster need not share a disk with this machine, only the bucket. But a rate limit needs a shared
    disk, as tasks read and write its counters many times per second.
    """
    if fs.path_on_disk(work.outputs) is not None or tasks.rate is not None or tasks.where(spark).is_on_this_machine:
        return work.progress
    return f"{work.outputs}/progress"


@contextlib.contextmanager
def _with_space(fs: TargetStore, copies: Sequence[DirectoryCopy], work: Target, *, link: Link | None) -> Iterator[None]:
    """Make the work folder, if the disk has room for it and for the copies."""
    parent = posixpath.dirname(work.path)
    check_space(fs, parent, copies, link=link)
    with work:
        check_space(fs, parent, copies, link=link, work_folder=work.path)
        yield


def _indexes_to_make(
    fs: TargetStore, copies: Sequence[DirectoryCopy], work: Target, indexes: IndexOptions, *, link: Link | None
) -> Indexes:
    """Decide which partitions get key indexes; none if the indexes could take the room of the copies."""
    sizes = [room.logs // SEGMENT_SHARE for copy in copies for room in copy.rooms]
    most = sum(size if indexes.index_max is None else min(size, indexes.index_max) for size in sizes)
    if not has_room_beside(fs, posixpath.dirname(work.path), copies, most, link=link):
        return Indexes.NONE
    return Indexes.ALL if indexes.index else Indexes.KEPT_UP


# ---- build -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Built:
    """A partition in the copy.

    Attributes:
        log: its source, listed after the tasks. `check_unchanged` finds out whether a broker changes it from then on.
    """

    copy: DirectoryCopy
    place: LocatedPartition
    plan: PartitionPlan | None
    result: PartitionResult
    log: LogView
    output: Output | None

    @property
    def target(self) -> str:
        return self.copy.target_of(self.place)


def _build(
    fs: TargetStore,
    copies: Sequence[DirectoryCopy],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
    restored: Mapping[str, Mapping[str, Recovered]],
    node: Node,
    now_ms: int,
    *,
    link: Link | None,
) -> list[_Built]:
    """Copy the other partitions, move the cleaned ones in, and write the checkpoints; return all partitions."""
    plans = {one.path: one for one in plan.partitions}
    work = [(copy, place) for copy in copies for place in copy.places]

    def one(item: tuple[DirectoryCopy, LocatedPartition]) -> _Built:
        copy, place = item
        loaded = restored.get(copy.path)
        path = place.path if loaded is None else copy.target_of(place)
        outcome = outcomes.get(path)
        output = outcome if isinstance(outcome, Output) else None
        replacement = None if output is None else output.replacement
        log = place.log()
        if loaded is not None:
            if replacement is not None:
                replace_segments(fs, path, replacement)
        else:
            _copy(fs, node, copy, place, log, replacement, now_ms, link=link)
        came = None if loaded is None else loaded.get(place.path)
        result = result_of(place, plans.get(path), outcome, () if came is None else came.notes)
        why = name_source(result.why, copy, place)
        result = replace(result, why=why, left_out_bytes=left_out_bytes(place, log, came))
        if log.ends_below_start and broker_would_load(place.name):
            result = replace(result, notes=(*result.notes, _emptied(log)))
        return _Built(copy, place, plans.get(path), result, log, output)

    built = in_parallel(fs.concurrency, one, work)
    for partition in built:
        name, end = partition.result.topic_partition, partition.result.end_offset
        if name is not None and end is not None:
            partition.copy.cleaner_offsets[name] = end
    for copy in copies:
        if copy.path not in restored:
            copy.copy_files(fs)
        copy.write_checkpoints(fs)
    return built


def _copy(
    fs: TargetStore,
    node: Node,
    copy: DirectoryCopy,
    place: LocatedPartition,
    log: LogView,
    replacement: Replacement | None,
    now_ms: int,
    *,
    link: Link | None,
) -> None:
    target = copy.target_of(place)
    fs.make_directory(target, mode=mode_of(fs, place.path))
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not current or not broker_would_load(place.name):
        copy_unchanged(fs, place.path, target)
        return
    copy_partition(fs, log, target, replacement, link=link)
    assert place.name is not None and place.topic is not None, "a partition that is loaded has a name"
    if log.ends_below_start:
        start = start_anew(fs, log, target, clean_shutdown=True).next_offset
        copy.recovery_points[place.name.topic_partition] = start
        return
    mine = LogView(target, fs=fs, log_start_offset=log.log_start_offset)
    complete_indexes(fs, mine, now_ms=now_ms, settings=recovery_settings(node, place.topic))


def _emptied(log: LogView) -> str:
    return (
        f"no record of it is in the copy: it ends at offset {log.next_offset}, below its log start offset "
        f"{log.log_start_offset}, and a broker that loads it empties it. If that is wrong, correct the entry in "
        f"{LOG_START_OFFSETS}, and clean again"
    )


def _retain(fs: TargetStore, built: Sequence[_Built]) -> None:
    """Delete old segments from the copy, as retention requires."""
    for one in built:
        found = one.plan
        if found is not None and found.retention:
            remove_segments(fs, one.target, found.retained_away, found.log_end_offset)


def _bring_indexes(fs: TargetStore, built: Sequence[_Built], root: str | None, bytes_max: int | None) -> None:
    """Give the partitions of the copy their key indexes."""

    def one(partition: _Built) -> None:
        if not broker_would_load(partition.place.name):
            return
        output, log = partition.output, partition.log.with_indexes_in(root)
        if output is None:
            bring_indexes(fs, log, partition.target, bytes_max=bytes_max)
        else:
            bring_indexes(fs, log, partition.target, output.indexes, output.replacement.replaced, bytes_max)

    in_parallel(fs.concurrency, one, built)


def _measured(fs: TargetStore, built: _Built) -> PartitionResult:
    after = sum(info.size_bytes for info in fs.list(built.target) if info.name.endswith(".log"))
    found = built.plan
    return replace(
        built.result,
        bytes_before=built.log.size_bytes,
        bytes_after=after,
        segments_retained_away=0 if found is None else len(found.retained_away),
        bytes_retained_away=0 if found is None else found.bytes_retained_away,
    )
