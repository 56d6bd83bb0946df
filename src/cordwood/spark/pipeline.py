"""A clean, from top to bottom: what becomes of log directories, told in the order in which it happens.

    lay out   where the copy of each directory goes; someone who holds one stops us here
    load      a directory whose broker crashed is recovered into its copy, and taken from there
    plan      which partitions are cleaned, from where to where
    run       partitions packed into Spark tasks; each returns what it wrote, or why it could not
    build     what was not cleaned is copied, what was cleaned moves in, checkpoints are written
    retain    with --retention, old segments of the copy go
    publish   the copy gets its name

Until the last step nothing has happened that anybody could see. A partition that fails is a value among the others: it
is copied as it was, and the result says where it is damaged.
"""

from __future__ import annotations

import os
import pickle
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from cordwood.cleaning.plan import Decision, PartitionPlan, Plan
from cordwood.errors import ConfigError, DataError, NoSpaceError
from cordwood.fs.base import FileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark import partitioning, progress
from cordwood.spark.partitioning import Failure, FailureKind, Output, PartitionTask, tasks_of
from cordwood.spark.planning import make_plan
from cordwood.spark.progress import OnProgress
from cordwood.spark.results import CleanResult, Fate, PartitionResult
from cordwood.spark.session import LOCAL_MASTER, session
from cordwood.storage import copying
from cordwood.storage.copying import DirectoryCopy, Replacement, Workspace, in_parallel
from cordwood.storage.filenames import DirectoryState
from cordwood.storage.log import Log
from cordwood.storage.node import Node, Place
from cordwood.storage.restoring import LoadSettings, Restored, restore_indexes, restore_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean(
    *paths: str,
    output: str,
    spark: SparkSession | None = None,
    master: str = LOCAL_MASTER,
    link: bool = False,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    now_ms: int | None = None,
    overrides: Iterable[str] = (),
    server_properties: str | None = None,
    metadata: str | None = None,
    ignore_ratio: bool = False,
    first_dirty: int | None = None,
    high_watermark: int | Literal["end"] | None = None,
    retention: bool = False,
    single_copy: bool = False,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: FileSystem | None = None,
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, on which a broker can start.

    Args:
        paths: log directories, folders of several, or partitions' directories; they are only read.
        output: the new directory; of several log directories, the folder with a copy of each. New or empty.
        spark: a session to use; it is left running. Default: one of our own.
        master: where a session of our own runs.
        link: closed segments that stay as they are get a second name instead of a copy, where the disk is the same.
        topics, partitions: only these are cleaned; all are copied. And what else decides: see `make_plan`.
        now_ms, overrides, server_properties, metadata: see `make_plan`.
        ignore_ratio, first_dirty, high_watermark, retention, single_copy: see `make_plan`.
        on_plan: called with the plan and the bytes that will be read.
        on_progress: called with the bytes read so far.
        fs: default: the machine's.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        LockedError: someone holds one of the directories.
        RequestError: the output is not new or empty; and see `make_plan`.
        OSError: the disk is full, or fails. As with every error: nothing is left of the output.
    """
    started = time.monotonic()
    fs = fs or PosixFileSystem()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    overrides = tuple(overrides)
    sources = [posixpath.abspath(path) for path in paths]

    def plan_of(directories: Iterable[str], *, retention: bool) -> Plan:
        return make_plan(
            *directories,
            topics=topics,
            partitions=partitions,
            now_ms=now_ms,
            overrides=overrides,
            server_properties=server_properties,
            metadata=metadata or node.metadata_path,
            ignore_ratio=ignore_ratio,
            first_dirty=first_dirty,
            high_watermark=high_watermark,
            retention=retention,
            single_copy=single_copy,
            fs=fs,
        )

    node = Node.open(fs, sources, metadata, server_properties, overrides)
    read_only = [*sources, *(one.path for one in node.directories if one.is_brokers)]
    with Workspace(fs, output, read_only) as work:
        copies = copying.lay_out(node, sources, work.data)
        for copy in copies:
            if copy.path != work.data:
                fs.make_directory(copy.path)
        restored = {copy.path: _load(node, copy, now_ms, link=link) for copy in copies if copy.crashed}

        plan = plan_of(_loaded_paths(copies, restored), retention=False)
        outcomes: dict[str, Output | Failure] = dict(_not_loaded(copies, restored))
        tasks = [task for task in tasks_of(plan) if task.path not in outcomes]
        if on_plan is not None:
            on_plan(plan, sum(task.size_bytes for task in tasks))

        clean_seconds = 0.0
        if tasks:
            with session(spark, master=master) as running, progress.Watch(fs, work.progress, on_progress):
                ran = time.monotonic()
                outcomes |= _run(running, tasks, work)
                clean_seconds = time.monotonic() - ran
        _stop_if_full(outcomes)

        built = _build(copies, plan, outcomes, restored, node, now_ms, link=link)
        if retention:
            after = plan_of([copy.path for copy in copies], retention=True)
            built = _retain(fs, built, after)
        results = [_measured(fs, one) for one in built]
        for directory in node.directories:
            copying.check_unlocked(directory)
        work.publish()
    notes = [f"{path} is no partition, and was not copied" for copy in copies for path in copy.left_out]
    return CleanResult(
        target=work.target,
        now_ms=now_ms,
        partitions=tuple(results),
        seconds=time.monotonic() - started,
        clean_seconds=clean_seconds,
        notes=tuple(notes),
    )


# ---- load ------------------------------------------------------------------------------------------------------------


def _load(node: Node, copy: DirectoryCopy, now_ms: int, *, link: bool) -> dict[str, Restored]:
    """Make the copy of a directory as the next start of a broker would leave the directory.

    Returns:
        what came of the partitions that were recovered, by the path of their source.
    """
    fs = copy.source.fs

    def one(place: Place) -> Restored | None:
        target = copy.target_of(place)
        fs.make_directory(target)
        if not copying.is_loaded(place.name):
            copying.copy_as_it_is(fs, place.path, target)
            return None
        assert place.name is not None and place.topic is not None, "or it would not be loaded"
        try:
            return restore_partition(
                place.log(),
                target,
                recovery_point=copy.source.recovery_points.get(place.name.topic_partition, 0),
                now_ms=now_ms,
                settings=_load_settings(node, place.topic),
                link=link,
            )
        except DataError as error:
            copying.remove_tree(fs, target)
            fs.make_directory(target)
            copying.copy_as_it_is(fs, place.path, target)
            return Restored(0, (f"it cannot be recovered: {error}",), complete=False)

    restored: dict[str, Restored] = {}
    for place, came in zip(copy.places, in_parallel(one, copy.places), strict=True):
        if came is None or place.name is None:
            continue
        restored[place.path] = came
        if came.complete and place.name.state is DirectoryState.CURRENT:
            name = place.name.topic_partition
            copy.recovery_points[name] = came.next_offset
            mark = copy.high_watermarks.get(name, copy.source.high_watermarks.get(name, 0))
            if mark > came.next_offset:
                copy.high_watermarks[name] = came.next_offset
    copy.clean_shutdown = all(came.complete for came in restored.values())
    copy.copy_files()
    copy.write_checkpoints()
    return restored


def _load_settings(node: Node, topic: str) -> LoadSettings:
    try:
        return LoadSettings(index_interval_bytes=node.config_of(topic).integer("index.interval.bytes"))
    except ConfigError:
        return LoadSettings()  # the plan says what is wrong with its configs


def _not_loaded(
    copies: Sequence[DirectoryCopy], restored: Mapping[str, Mapping[str, Restored]]
) -> Iterator[tuple[str, Failure]]:
    """The partitions that could not be recovered, by the path of their copy; they are not cleaned, either."""
    for copy in copies:
        for place in copy.places:
            came = restored.get(copy.path, {}).get(place.path)
            if came is not None and not came.complete:
                yield copy.target_of(place), Failure(FailureKind.DAMAGE, came.notes[0])


def _loaded_paths(copies: Sequence[DirectoryCopy], restored: Mapping[str, object]) -> list[str]:
    """What to plan on: the sources, but the copies of those that had to be recovered."""
    paths = []
    for copy in copies:
        if copy.path in restored:
            paths += [copy.path] if copy.whole else [copy.target_of(place) for place in copy.places]
        else:
            paths += [copy.source.path] if copy.whole else [place.path for place in copy.places]
    return paths


# ---- run -------------------------------------------------------------------------------------------------------------


def _run(spark: SparkSession, tasks: Sequence[PartitionTask], work: Workspace) -> dict[str, Output | Failure]:
    """Run the tasks; what came of each partition, by its path."""
    packs = [[(at, tasks[at]) for at in one] for one in partitioning.pack(tasks, _cores(spark))]
    run = partitioning.worker(packs, work.outputs, work.progress)
    rows = spark.range(0, len(packs), 1, len(packs)).mapInArrow(run, partitioning.RESULT_SCHEMA).collect()
    outcomes = {tasks[row["at"]].path: pickle.loads(row["outcome"]) for row in rows}
    assert len(outcomes) == len(tasks), "every task answers"
    return outcomes


def _cores(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect does not say
        return os.cpu_count() or 1


def _stop_if_full(outcomes: Mapping[str, Output | Failure]) -> None:
    for outcome in outcomes.values():
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.FULL:
            raise NoSpaceError(f"{outcome.what}. Nothing was changed, and nothing is left of the copy")


# ---- build -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Built:
    """A partition in the copy."""

    copy: DirectoryCopy
    place: Place
    result: PartitionResult
    bytes_before: int
    retained: tuple[int, int] = (0, 0)

    @property
    def target(self) -> str:
        return self.copy.target_of(self.place)


def _build(
    copies: Sequence[DirectoryCopy],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
    restored: Mapping[str, Mapping[str, Restored]],
    node: Node,
    now_ms: int,
    *,
    link: bool,
) -> list[_Built]:
    """Complete the copies."""
    plans = {one.path: one for one in plan.partitions}
    work = [(copy, place) for copy in copies for place in copy.places]

    def one(item: tuple[DirectoryCopy, Place]) -> _Built:
        copy, place = item
        loaded = restored.get(copy.path)
        path = place.path if loaded is None else copy.target_of(place)
        outcome = outcomes.get(path)
        replacement = None if not isinstance(outcome, Output) else _replacement(outcome)
        log = place.log()
        if loaded is not None:
            if replacement is not None:
                copying.replace_segments(copy.source.fs, path, replacement)
        else:
            _copy(node, copy, place, log, replacement, now_ms, link=link)
        came = None if loaded is None else loaded.get(place.path)
        result = _result(place, plans.get(path), outcome, () if came is None else came.notes)
        # What was recovered was read in the copy; people know its source.
        why = result.why.replace(f"{copy.path}/", f"{copy.source.path}/")
        return _Built(copy, place, replace(result, why=why), log.size_bytes)

    built = in_parallel(one, work)
    for partition in built:
        name, end = partition.result.topic_partition, partition.result.end_offset
        if name is not None and end is not None:
            partition.copy.cleaner_offsets[name] = end
    for copy in copies:
        if copy.path not in restored:
            copy.copy_files()
        copy.write_checkpoints()
    return built


def _replacement(output: Output) -> Replacement:
    """What a task wrote, as it goes into its partition."""
    cleaned = output.cleaned
    return Replacement(
        output.folder,
        tuple(name for name, _ in output.files),
        frozenset(base for group in cleaned.replaced for base in group),
        frozenset(base for group in cleaned.outputs for base in group),
        cleaned.end_offset,
    )


def _copy(
    node: Node,
    copy: DirectoryCopy,
    place: Place,
    log: Log,
    replacement: Replacement | None,
    now_ms: int,
    *,
    link: bool,
) -> None:
    fs, target = copy.source.fs, copy.target_of(place)
    fs.make_directory(target)
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not current or not copying.is_loaded(place.name):
        copying.copy_as_it_is(fs, place.path, target)
        return
    copying.copy_partition(log, target, replacement, link=link)
    assert place.topic is not None, "a partition that is loaded has a name"
    mine = Log(target, fs=fs, log_start_offset=log.log_start_offset)
    restore_indexes(mine, now_ms=now_ms, settings=_load_settings(node, place.topic))


def _result(
    place: Place, plan: PartitionPlan | None, outcome: Output | Failure | None, notes: tuple[str, ...]
) -> PartitionResult:
    name = None if place.name is None else place.name.topic_partition
    if isinstance(outcome, Output):
        cleaned = outcome.cleaned
        return PartitionResult(
            place.path, name, Fate.CLEANED, str(plan.reason) if plan else "",
            counts=cleaned.counts, end_offset=cleaned.end_offset, notes=notes,
        )  # fmt: skip
    if isinstance(outcome, Failure):
        return PartitionResult(place.path, name, Fate.FAILED, outcome.what, notes=notes, failure=outcome)
    if plan is None:
        return PartitionResult(place.path, name, Fate.COPIED, "not asked for", notes=notes)
    if plan.decision is Decision.REFUSE:
        failure = Failure(FailureKind.DAMAGE, str(plan.reason))
        return PartitionResult(place.path, name, Fate.FAILED, str(plan.reason), notes=notes, failure=failure)
    hints = (plan.hint,) if plan.hint else ()
    return PartitionResult(place.path, name, Fate.COPIED, str(plan.reason), notes=(*notes, *hints))


# ---- retain ----------------------------------------------------------------------------------------------------------


def _retain(fs: FileSystem, built: Sequence[_Built], plan: Plan) -> list[_Built]:
    """Remove from the copy what retention takes, by the sizes and times after the clean."""
    plans = {one.path: one for one in plan.partitions}
    for one in built:
        found = plans.get(one.target)
        if found is None or not found.retention or one.result.fate is Fate.FAILED:
            continue
        bases = [base for taken in found.retention for base in taken.base_offsets]
        copying.drop_segments(fs, one.target, bases, found.log_end_offset)
        one.retained = (len(bases), sum(taken.size_bytes for taken in found.retention))
    return list(built)


def _measured(fs: FileSystem, built: _Built) -> PartitionResult:
    after = sum(info.size_bytes for info in fs.list(built.target) if info.name.endswith(".log"))
    segments, size = built.retained
    return replace(
        built.result,
        bytes_before=built.bytes_before,
        bytes_after=after,
        segments_retained_away=segments,
        bytes_retained_away=size,
    )
