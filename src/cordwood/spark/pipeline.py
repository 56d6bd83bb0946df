"""A clean, from top to bottom: what becomes of log directories, told in the order in which it happens.

    lay out   where the copy of each directory goes; someone who holds one stops us here
    load      a directory whose broker crashed is recovered into its copy, and taken from there
    plan      which partitions are cleaned, from where to where
    run       partitions packed into Spark tasks; each returns what it wrote, or why it could not
    check     another process looks at what a task wrote
    build     what was not cleaned is copied, what was cleaned moves in, checkpoints are written
    retain    with --retention, old segments of the copy go
    publish   the copy gets its name

Until the last step nothing has happened that anybody could see. A partition that fails is a value among the others: it
is copied as it was, and the result says where it is damaged.

`plan_exact` goes the same way up to the tasks, which then count what they would write; nothing is checked or built.
"""

from __future__ import annotations

import contextlib
import posixpath
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from cordwood.cleaning.plan import PartitionPlan, Plan
from cordwood.errors import DataError, NoSpaceError
from cordwood.fs.base import FileSystem, is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.sharing import Link, hard_link, symbolic_link
from cordwood.spark import planning
from cordwood.spark.jobs import Jobs, stop_if_full
from cordwood.spark.partitioning import Failure, FailureKind, Output, tasks_of
from cordwood.spark.planning import PlanOptions, asked_for, load_settings, make_plan, open_node, settled
from cordwood.spark.progress import OnProgress
from cordwood.spark.results import CleanResult, ExactPlan, PartitionResult, result_of
from cordwood.spark.session import LOCAL_MASTER
from cordwood.storage import copying
from cordwood.storage.copying import DirectoryCopy, Replacement, Workspace, in_parallel
from cordwood.storage.filenames import DirectoryState, FileKind
from cordwood.storage.log import Log, lock_holder_in
from cordwood.storage.node import Node, Place
from cordwood.storage.restoring import Restored, restore_indexes, restore_partition, start_anew

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def clean(
    *paths: str,
    output: str,
    spark: SparkSession | None = None,
    master: str = LOCAL_MASTER,
    link: bool = False,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: FileSystem | None = None,
    **options: Unpack[PlanOptions],
) -> CleanResult:
    """Write a cleaned copy of one broker's directories, on which a broker can start.

    Args:
        paths: log directories, folders of several, or partitions' directories; they are only read.
        output: the new directory; of several log directories, the folder with a copy of each. New or empty.
        spark: a session to use; it is left running. Default: one of our own.
        master: where a session of our own runs.
        link: closed segments that stay as they are get a second name instead of a copy, where the disk is the same.
        on_plan: called with the plan and the bytes that will be read.
        on_progress: called with the bytes read so far.
        fs: default: the machine's.
        options: see `make_plan`. Partitions that are not asked for are copied. Retention goes by the sizes and times
            after the clean.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        LockedError: someone holds one of the directories.
        RequestError: the output is not new or empty; and see `make_plan`.
        NoSpaceError: the disk is too small, or full.
        OSError: the disk fails. As with every error: nothing is left of the output.
    """
    started = time.monotonic()
    fs = fs or PosixFileSystem()
    options, now_ms = settled(options)
    sources = [posixpath.abspath(path) for path in paths]
    node = open_node(fs, sources, options)
    read_only = [*sources, *(one.path for one in node.directories if one.is_brokers)]
    asked_for(node, sources, options)  # or refuse it before a directory is recovered for it
    linked = hard_link if link else None
    with _full_said(fs, output), Workspace(fs, output, read_only) as work:
        copies = copying.lay_out(node, sources, work.data)
        copying.check_space(fs, work.path, copies, link=linked)
        restored = _load_crashed(node, copies, work, now_ms, link=linked)
        plan = _plan(fs, node, copies, restored, options)
        with Jobs(fs, work.progress, spark, master, on_progress) as jobs:
            outcomes = _run(jobs, plan, dict(_not_loaded(copies, restored)), work.outputs, on_plan)
        if options.get("retention"):
            plan = _with_retention(node, copies, restored, plan, outcomes)

        built = _build(copies, plan, outcomes, restored, node, now_ms, link=linked)
        _retain(fs, built)
        results = [_measured(fs, one) for one in built]
        for directory in node.directories:
            copying.check_unchanged(directory)
        work.publish()
    notes = [f"{path} is no partition, and was not copied" for copy in copies for path in copy.left_out]
    notes += [
        f"{copy.source.path} was not shut down in good order; the copy is recovered, as at a broker's next start"
        for copy in copies
        if copy.clean_shutdown
    ]
    notes += [_left_by_another_run(path) for path in copying.leftovers(fs, output)]
    return CleanResult(
        target=work.target,
        now_ms=now_ms,
        partitions=tuple(results),
        seconds=time.monotonic() - started,
        clean_seconds=jobs.seconds,
        notes=tuple(notes),
    )


def plan_exact(
    *paths: str,
    spark: SparkSession | None = None,
    master: str = LOCAL_MASTER,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: FileSystem | None = None,
    **options: Unpack[PlanOptions],
) -> ExactPlan:
    """Plan a clean, and run it without writing, for figures instead of bounds: those that `clean` would report.

    The directories are only read; a broker may run on them. One whose broker crashed is recovered first, as `clean`
    does, into the temporary folder: that takes room for its unflushed segments.

    Args:
        paths: log directories, folders of several, or partitions' directories.
        spark: a session to use; it is left running. Default: one of our own.
        master: where a session of our own runs.
        on_plan: called with the plan and the bytes that will be read.
        on_progress: called with the bytes read so far.
        fs: default: the machine's.
        options: see `make_plan`. Retention goes by the sizes and times after the clean.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        RequestError: see `make_plan`.
        NoSpaceError: the temporary folder has no room for a directory to recover.
    """
    started = time.monotonic()
    fs = fs or PosixFileSystem()
    options, now_ms = settled(options)
    sources = [posixpath.abspath(path) for path in paths]
    node = open_node(fs, sources, options)
    asked = asked_for(node, sources, options)
    # What is recovered there is nobody else's business: no other user can read this folder.
    with tempfile.TemporaryDirectory(prefix="cordwood-plan-") as folder, _planned_in(fs, folder) as work:
        copies = copying.lay_out(node, sources, work.data, locked_too=True)
        for copy in copies:
            copy.places = [one for one in copy.places if one in asked]
        to_load = [copy for copy in copies if _is_to_load(copy)]
        advice = "Make room, or name another temporary folder with TMPDIR"
        copying.check_space(fs, work.path, to_load, link=symbolic_link, advice=advice)
        restored = _load_crashed(node, copies, work, now_ms, link=symbolic_link)
        plan = _plan(fs, node, copies, restored, options)
        with Jobs(fs, work.progress, spark, master, on_progress) as jobs:
            outcomes = _run(jobs, plan, dict(_not_loaded(copies, restored)), work.outputs, on_plan, discard=True)
        if options.get("retention"):
            plan = _with_retention(node, copies, restored, plan, outcomes)
        results = tuple(_foretell(copies, plan, outcomes, restored))
    return ExactPlan(
        _of_sources(plan, copies),
        CleanResult(
            target="",
            now_ms=now_ms,
            partitions=results,
            seconds=time.monotonic() - started,
            clean_seconds=jobs.seconds,
        ),
    )


def _plan(
    fs: FileSystem,
    node: Node,
    copies: Sequence[DirectoryCopy],
    restored: Mapping[str, object],
    options: PlanOptions,
) -> Plan:
    """The plan of a clean; what retention takes is found out after it."""
    known: PlanOptions = {**options, "metadata": options.get("metadata") or node.metadata_path, "retention": False}
    return make_plan(*_loaded_paths(copies, restored), fs=fs, **known)


@contextlib.contextmanager
def _full_said(fs: FileSystem, output: str) -> Iterator[None]:
    """Say of a disk that is full what came of that, and what else may take its room."""
    try:
        yield
    except (NoSpaceError, OSError) as error:
        if isinstance(error, NoSpaceError):
            what = str(error)
        elif is_full(error):
            what = f"{error.strerror or error}: {error.filename or output}"
            what += ". Nothing was changed, and nothing is left of what was written"
        else:
            raise
        others = map(_left_by_another_run, copying.leftovers(fs, output))
        raise NoSpaceError(". ".join([what, *others])) from error


def _left_by_another_run(path: str) -> str:
    return f"{path} was left by a run that was killed; remove it, unless another run is making the same directory now"


@contextlib.contextmanager
def _planned_in(fs: FileSystem, folder: str) -> Iterator[Workspace]:
    """A work folder in a temporary one."""
    with _full_said(fs, folder), Workspace(fs, f"{folder}/plan", ()) as work:
        yield work


# ---- load ------------------------------------------------------------------------------------------------------------


def _is_to_load(copy: DirectoryCopy) -> bool:
    return copy.source.crashed and lock_holder_in(copy.source.fs, copy.source.path) is None


def _load_crashed(
    node: Node, copies: Sequence[DirectoryCopy], work: Workspace, now_ms: int, *, link: Link | None
) -> dict[str, dict[str, Restored]]:
    """Recover what needs it into its copy. Returns what came of the partitions, by the path of the copy."""
    for copy in copies:
        if copy.path != work.data:
            node.fs.make_directory(copy.path, mode=copying.mode_of(node.fs, copy.source.path))
    return {copy.path: _load(node, copy, now_ms, link=link) for copy in copies if _is_to_load(copy)}


def _load(node: Node, copy: DirectoryCopy, now_ms: int, *, link: Link | None) -> dict[str, Restored]:
    """Make the copy of a directory as the next start of a broker would leave the directory.

    Returns:
        what came of the partitions that were recovered, by the path of their source.
    """
    fs = copy.source.fs

    def one(place: Place) -> Restored | None:
        target = copy.target_of(place)
        fs.make_directory(target, mode=copying.mode_of(fs, place.path))
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
                settings=load_settings(node, place.topic),
                link=link,
            )
        except DataError as error:
            copying.remove_tree(fs, target)
            fs.make_directory(target, mode=copying.mode_of(fs, place.path))
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


def _run(
    jobs: Jobs,
    plan: Plan,
    failed: Mapping[str, Failure],
    outputs: str,
    on_plan: Callable[[Plan, int], None] | None,
    *,
    discard: bool = False,
) -> dict[str, Output | Failure]:
    """What came of each partition that was to be cleaned, by its path.

    Args:
        jobs: what runs it.
        plan: what to do.
        failed: partitions that cannot be cleaned, whatever the plan says; they are among the outcomes.
        outputs: where tasks write to.
        on_plan: told before they begin.
        discard: count what would be written instead of writing it.

    Raises:
        NoSpaceError: the disk is full.
    """
    tasks = [task for task in tasks_of(plan) if task.path not in failed]
    if on_plan is not None:
        on_plan(plan, sum(task.size_bytes for task in tasks))
    outcomes = jobs.clean(tasks, outputs, discard=discard)
    stop_if_full(outcomes, "Nothing was changed, and nothing is left of what was written")
    return {**failed, **{task.path: outcome for task, outcome in zip(tasks, outcomes, strict=True)}}


# ---- build -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Built:
    """A partition in the copy."""

    copy: DirectoryCopy
    place: Place
    plan: PartitionPlan | None
    result: PartitionResult
    bytes_before: int

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
    link: Link | None,
) -> list[_Built]:
    """Complete the copies."""
    plans = {one.path: one for one in plan.partitions}
    work = [(copy, place) for copy in copies for place in copy.places]

    def one(item: tuple[DirectoryCopy, Place]) -> _Built:
        copy, place = item
        loaded = restored.get(copy.path)
        path = place.path if loaded is None else copy.target_of(place)
        outcome = outcomes.get(path)
        replacement = None if not isinstance(outcome, Output) else outcome.replacement
        log = place.log()
        if loaded is not None:
            if replacement is not None:
                copying.replace_segments(copy.source.fs, path, replacement)
        else:
            _copy(node, copy, place, log, replacement, now_ms, link=link)
        came = None if loaded is None else loaded.get(place.path)
        result = result_of(place, plans.get(path), outcome, () if came is None else came.notes)
        # What was recovered was read in the copy; people know its source.
        result = replace(result, why=_of_source(result.why, copy))
        return _Built(copy, place, plans.get(path), result, log.size_bytes)

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


def _copy(
    node: Node,
    copy: DirectoryCopy,
    place: Place,
    log: Log,
    replacement: Replacement | None,
    now_ms: int,
    *,
    link: Link | None,
) -> None:
    fs, target = copy.source.fs, copy.target_of(place)
    fs.make_directory(target, mode=copying.mode_of(fs, place.path))
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not current or not copying.is_loaded(place.name):
        copying.copy_as_it_is(fs, place.path, target)
        return
    copying.copy_partition(log, target, replacement, link=link)
    assert place.name is not None and place.topic is not None, "a partition that is loaded has a name"
    if log.ends_below_start:
        start = start_anew(log, target, clean_shutdown=True).next_offset
        copy.recovery_points[place.name.topic_partition] = start
        fs.sync_directory(target)
        return
    mine = Log(target, fs=fs, log_start_offset=log.log_start_offset)
    restore_indexes(mine, now_ms=now_ms, settings=load_settings(node, place.topic))


# ---- retain ----------------------------------------------------------------------------------------------------------


def _with_retention(
    node: Node,
    copies: Sequence[DirectoryCopy],
    restored: Mapping[str, Mapping[str, Restored]],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
) -> Plan:
    """The plan with what retention takes, by the sizes and times after the clean."""
    places = {path: (place, log) for _, place, path, log in _loaded(copies, restored)}

    def one(found: PartitionPlan) -> PartitionPlan:
        outcome = outcomes.get(found.path)
        if isinstance(outcome, Failure):
            return found
        place, log = places[found.path]
        replaced, segments = ((), ()) if outcome is None else (outcome.cleaned.replaced, outcome.segments)
        bases = {base for group in replaced for base in group}
        return planning.retain_after(node, place, log, found, bases, segments, plan.now_ms)

    return replace(plan, partitions=tuple(map(one, plan.partitions)), choices=replace(plan.choices, retention=True))


def _loaded(
    copies: Sequence[DirectoryCopy], restored: Mapping[str, Mapping[str, Restored]]
) -> Iterator[tuple[DirectoryCopy, Place, str, Log]]:
    """Every partition with its path and log as it is loaded: its source, or a recovered copy."""
    for copy in copies:
        for place in copy.places:
            if copy.path in restored:
                path = copy.target_of(place)
                start = place.log().log_start_offset
                yield copy, place, path, Log(path, fs=copy.source.fs, log_start_offset=start)
            else:
                yield copy, place, place.path, place.log()


def _retain(fs: FileSystem, built: Sequence[_Built]) -> None:
    """Remove from the copy what retention takes."""
    for one in built:
        found = one.plan
        if found is not None and found.retention:
            copying.drop_segments(fs, one.target, found.retained_away, found.log_end_offset)


def _measured(fs: FileSystem, built: _Built) -> PartitionResult:
    after = sum(info.size_bytes for info in fs.list(built.target) if info.name.endswith(".log"))
    found = built.plan
    return replace(
        built.result,
        bytes_before=built.bytes_before,
        bytes_after=after,
        segments_retained_away=0 if found is None else len(found.retained_away),
        bytes_retained_away=0 if found is None else found.bytes_retained_away,
    )


# ---- foretell --------------------------------------------------------------------------------------------------------


def _foretell(
    copies: Sequence[DirectoryCopy],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
    restored: Mapping[str, Mapping[str, Restored]],
) -> Iterator[PartitionResult]:
    """What a clean would have said of each partition that was asked for."""
    plans = {one.path: one for one in plan.partitions}
    for copy, place, path, log in _loaded(copies, restored):
        found, outcome = plans.get(path), outcomes.get(path)
        came = restored.get(copy.path, {}).get(place.path)
        result = result_of(place, found, outcome, () if came is None else came.notes)
        after = _log_bytes(copy, place, log, copied=copy.path in restored)
        if isinstance(outcome, Output):
            replaced = {base for group in outcome.cleaned.replaced for base in group}
            after -= sum(segment.size_bytes for segment in log.segments if segment.base_offset in replaced)
            after += sum(size for name, size in outcome.files if name.endswith(FileKind.LOG))
        size = 0 if found is None else found.bytes_retained_away
        yield replace(
            result,
            why=_of_source(result.why, copy),
            bytes_before=place.log().size_bytes,
            bytes_after=after - size,
            segments_retained_away=0 if found is None else len(found.retained_away),
            bytes_retained_away=size,
        )


def _log_bytes(copy: DirectoryCopy, place: Place, log: Log, *, copied: bool) -> int:
    """Bytes of logs that a copy of a partition has, before anything is done to it."""
    names = {info.name: info.size_bytes for info in log.entries if not info.is_directory}
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not copied and current and copying.is_loaded(place.name):
        names = {then: names[now] for now, then, _ in copying.files_when_loaded(log)}
    return sum(size for name, size in names.items() if name.endswith(FileKind.LOG))


def _of_sources(plan: Plan, copies: Sequence[DirectoryCopy]) -> Plan:
    """A plan that was made on recovered copies, with the names that people know."""

    def one(found: PartitionPlan) -> PartitionPlan:
        for copy in copies:
            if found.path.startswith(f"{copy.path}/"):
                reason = replace(found.reason, what=_of_source(found.reason.what, copy))
                notes = tuple(_of_source(note, copy) for note in found.notes)
                return replace(found, path=_of_source(found.path, copy), reason=reason, notes=notes)
        return found

    return replace(plan, partitions=tuple(map(one, plan.partitions)))


def _of_source(text: str, copy: DirectoryCopy) -> str:
    return text.replace(f"{copy.path}/", f"{copy.source.path}/")
