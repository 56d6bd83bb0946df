"""Steps that `clean` and `plan_exact` share: recover crashed directories, plan, run tasks, apply retention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cordwood.cleaning.engine.task import Failure, FailureKind, Indexes, Output, tasks_of
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.commands.opening import recovery_settings
from cordwood.commands.options import PlanOptions
from cordwood.commands.plan import plan, retain_after
from cordwood.common.errors import DataError, NoSpaceError
from cordwood.common.threads import in_parallel
from cordwood.fs.base import Link, TargetStore, is_full
from cordwood.fs.workspace import leftovers, mode_of, remove_tree
from cordwood.storage.changes.copy import DirectoryCopy, copy_unchanged
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.into_copy import Recovered, recover_into_copy
from cordwood.tasks.tasks import Jobs, stop_if_lost


def plan_recovered(
    fs: TargetStore,
    node: Node,
    copies: Sequence[DirectoryCopy],
    restored: Mapping[str, object],
    options: PlanOptions,
) -> Plan:
    """Plan a clean; retention is computed after it."""
    selection = replace(options.selection, metadata=options.selection.metadata or node.metadata_path)
    known = replace(options.without_retention(), selection=selection)
    return plan(_loaded_paths(copies, restored), known, fs=fs)


@contextlib.contextmanager
def explain_full_disk(fs: TargetStore, output: str) -> Iterator[None]:
    """Turn ENOSPC into an error that reports that nothing was changed, and names leftovers that take room."""
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
        others = map(left_by_another_run, leftovers(fs, output))
        raise NoSpaceError(". ".join([what, *others])) from error


def left_by_another_run(path: str) -> str:
    """Return advice about the work folder of another run."""
    return f"{path} was left by a run that was killed; remove it, unless another run is making the same directory now"


# ---- load ------------------------------------------------------------------------------------------------------------


def needs_recovery(copy: DirectoryCopy) -> bool:
    """Whether a directory was not shut down cleanly, and no process holds its lock."""
    return copy.source.crashed and copy.source.fs.lock_holder(copy.source.path) is None


def recover_crashed(
    fs: TargetStore,
    node: Node,
    copies: Sequence[DirectoryCopy],
    root: str,
    now_ms: int,
    *,
    link: Link | None,
) -> dict[str, dict[str, Recovered]]:
    """Recover crashed directories into their copies; return the results by path of the copy and of the partition."""
    for copy in copies:
        if copy.path != root:
            fs.make_directory(copy.path, mode=mode_of(fs, copy.source.path))
    return {copy.path: _load(fs, node, copy, now_ms, link=link) for copy in copies if needs_recovery(copy)}


def _load(fs: TargetStore, node: Node, copy: DirectoryCopy, now_ms: int, *, link: Link | None) -> dict[str, Recovered]:
    """Fill the copy of a directory with the state that a broker's next start would produce.

    Returns:
        the recovered partitions by the path of their source.
    """

    def one(place: LocatedPartition) -> Recovered | None:
        target = copy.target_of(place)
        fs.make_directory(target, mode=mode_of(fs, place.path))
        if not broker_would_load(place.name):
            copy_unchanged(fs, place.path, target)
            return None
        assert place.name is not None and place.topic is not None, "or it would not be loaded"
        try:
            if copy.source.failure is not None:
                raise copy.source.failure
            return recover_into_copy(
                fs,
                place.log(),
                target,
                recovery_point=copy.source.recovery_points.get(place.name.topic_partition, 0),
                now_ms=now_ms,
                settings=recovery_settings(node, place.topic),
                link=link,
            )
        except DataError as error:
            remove_tree(fs, target)
            fs.make_directory(target, mode=mode_of(fs, place.path))
            copy_unchanged(fs, place.path, target)
            return Recovered(0, (f"it cannot be recovered: {error}",), complete=False)

    restored: dict[str, Recovered] = {}
    for place, came in zip(copy.places, in_parallel(fs.concurrency, one, copy.places), strict=True):
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
    copy.copy_files(fs)
    copy.write_checkpoints(fs)
    return restored


def left_out_bytes(place: LocatedPartition, log: LogView, came: Recovered | None) -> int:
    """Return the bytes of whole batches that the copy of a partition lacks.

    Args:
        came: the result of its recovery, or None if it needed no recovery.
    """
    if came is not None:
        return came.left_out_bytes
    return log.size_bytes if log.ends_below_start and broker_would_load(place.name) else 0


def not_recovered(
    copies: Sequence[DirectoryCopy], restored: Mapping[str, Mapping[str, Recovered]]
) -> Iterator[tuple[str, Failure]]:
    """Yield the partitions whose recovery failed, by the path of their copy; they are not cleaned either."""
    for copy in copies:
        for place in copy.places:
            came = restored.get(copy.path, {}).get(place.path)
            if came is not None and not came.complete:
                yield copy.target_of(place), Failure(FailureKind.DAMAGE, came.notes[0])


def _loaded_paths(copies: Sequence[DirectoryCopy], restored: Mapping[str, object]) -> list[str]:
    """Return the directories to plan on: the sources, or their copies after a recovery."""
    paths = []
    for copy in copies:
        if copy.path in restored:
            paths += [copy.path] if copy.whole else [copy.target_of(place) for place in copy.places]
        else:
            paths += [copy.source.path] if copy.whole else [place.path for place in copy.places]
    return paths


# ---- run -------------------------------------------------------------------------------------------------------------


def run_tasks(
    jobs: Jobs,
    plan: Plan,
    failed: Mapping[str, Failure],
    outputs: str,
    on_plan: Callable[[Plan, int], None] | None,
    *,
    indexes: Indexes = Indexes.NONE,
    index_root: str | None = None,
    discard: bool = False,
) -> dict[str, Output | Failure]:
    """Run the planned tasks; return the outcome of each partition by its path.

    Args:
        indexes, index_root: see `tasks_of`.
        failed: partitions that cannot be cleaned, even if planned; they are among the outcomes.
        discard: count the output instead of writing it.

    Raises:
        NoSpaceError: the disk is full.
        StoreError: the object store failed.
    """
    tasks = [task for task in tasks_of(plan, jobs.location, indexes, index_root) if task.path not in failed]
    if on_plan is not None:
        on_plan(plan, sum(task.size_bytes for task in tasks))
    outcomes = jobs.clean(tasks, outputs, discard=discard)
    stop_if_lost(outcomes, "Nothing was changed, and nothing is left of what was written")
    return {**failed, **{task.path: outcome for task, outcome in zip(tasks, outcomes, strict=True)}}


# ---- retain ----------------------------------------------------------------------------------------------------------


def with_retention(
    fs: TargetStore,
    node: Node,
    copies: Sequence[DirectoryCopy],
    restored: Mapping[str, Mapping[str, Recovered]],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
) -> Plan:
    """Add the deletions by retention to the plan, computed from sizes and times after the clean."""
    places = {path: (place, log) for _, place, path, log in recovered_partitions(fs, copies, restored)}

    def one(found: PartitionPlan) -> PartitionPlan:
        outcome = outcomes.get(found.path)
        if isinstance(outcome, Failure):
            return replace(found, only_with_retention=())
        place, log = places[found.path]
        bases, segments = (set(), ()) if outcome is None else (set(outcome.replacement.replaced), outcome.segments)
        return retain_after(node, place, log, found, bases, segments, plan.now_ms)

    return replace(plan, partitions=tuple(map(one, plan.partitions)), choices=replace(plan.choices, retention=True))


def recovered_partitions(
    fs: TargetStore, copies: Sequence[DirectoryCopy], restored: Mapping[str, Mapping[str, Recovered]]
) -> Iterator[tuple[DirectoryCopy, LocatedPartition, str, LogView]]:
    """Yield every partition with the path and log to read: its source, or a recovered copy."""
    for copy in copies:
        for place in copy.places:
            if copy.path in restored:
                path = copy.target_of(place)
                start = place.log().log_start_offset
                yield copy, place, path, LogView(path, fs=fs, log_start_offset=start)
            else:
                yield copy, place, place.path, place.log()


def name_source(text: str, copy: DirectoryCopy, place: LocatedPartition) -> str:
    """Replace the path of a partition's copy by its source in a text for users.

    Paths of unfinished outputs stay: their work folder is in the copy.
    """
    return text.replace(copy.target_of(place), place.path)
