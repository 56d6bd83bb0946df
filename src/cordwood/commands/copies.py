"""Steps that `clean` and `plan_exact` share after the load: plan, run tasks, apply retention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from cordwood.cleaning.engine.task import Failure, Indexes, Output, tasks_of
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.commands.load import Loaded
from cordwood.commands.opening import open_node
from cordwood.commands.options import PlanOptions
from cordwood.commands.plan import plan_node, retain_after
from cordwood.common.errors import NoSpaceError
from cordwood.fs.base import TargetStore, is_full
from cordwood.fs.workspace import leftovers
from cordwood.storage.changes.copy import DirectoryCopy
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tasks.tasks import Jobs, stop_if_lost


def plan_loaded(
    fs: TargetStore,
    node: Node,
    copies: Sequence[DirectoryCopy],
    loaded: Loaded,
    options: PlanOptions,
    *,
    exact: bool = False,
) -> Plan:
    """Plan a clean of the sources, or of their copies after a recovery; retention is computed after the clean.

    Args:
        exact: for a user who reads the plan: with the main cause of each partition's size; see also `log_facts`.
    """
    if not loaded.copies:
        return plan_node(node, node.paths, options.without_retention(), with_causes=exact, exact=exact)
    paths = []
    for copy in copies:
        if copy.path in loaded.copies:
            paths += [copy.path] if copy.whole else [copy.target_of(place) for place in copy.places]
        else:
            paths += [copy.source.path] if copy.whole else [place.path for place in copy.places]
    selection = replace(options.selection, metadata=options.selection.metadata or node.metadata_path)
    options = replace(options.without_retention(), selection=selection)
    return plan_node(open_node(fs, paths, selection), paths, options, with_causes=exact, exact=exact)


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
            what += ". Nothing was changed, and all written files are removed"
        else:
            raise
        others = map(left_by_another_run, leftovers(fs, output))
        raise NoSpaceError(". ".join([what, *others])) from error


def left_by_another_run(path: str) -> str:
    """Return advice about the work folder of another run."""
    return f"{path} was left by a run that was killed; remove it, unless another run is making the same directory now"


def left_out_bytes(place: LocatedPartition, log: LogView, loaded: Loaded) -> int:
    """Return the bytes of whole batches that the copy of a partition lacks."""
    if (found := loaded.recovered.get(place.path)) is not None:
        return found.left_out_bytes
    return log.size_bytes if log.ends_below_start and broker_would_load(place.name) else 0


def not_loaded(copies: Sequence[DirectoryCopy], loaded: Loaded) -> dict[str, Failure]:
    """Return the partitions that cannot be loaded, and so not cleaned, by the path of their copy."""
    targets = {place.path: copy.target_of(place) for copy in copies for place in copy.places}
    return {targets[path]: failure for path, failure in loaded.failures.items()}


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
    retained: bool = False,
    discard: bool = False,
) -> dict[str, Output | Failure]:
    """Run the planned tasks; return the outcome of each partition by its path.

    Args:
        indexes, index_root, retained: see `tasks_of`.
        failed: partitions that cannot be cleaned, even if planned; they are among the outcomes.
        discard: count the output instead of writing it.

    Raises:
        NoSpaceError: the disk is full.
        StoreError: the object store failed.
    """
    found = tasks_of(plan, jobs.location, indexes, index_root, retained=retained)
    tasks = [task for task in found if task.path not in failed]
    if on_plan is not None:
        on_plan(plan, sum(task.size_bytes for task in tasks))
    outcomes = jobs.clean(tasks, outputs, discard=discard)
    stop_if_lost(outcomes, "Nothing was changed, and all written files are removed")
    return {**failed, **{task.path: outcome for task, outcome in zip(tasks, outcomes, strict=True)}}


# ---- retain ----------------------------------------------------------------------------------------------------------


def with_retention(
    fs: TargetStore,
    node: Node,
    copies: Sequence[DirectoryCopy],
    loaded: Loaded,
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
) -> Plan:
    """Add the deletions by retention to the plan, computed from sizes and times after the clean."""
    places = {path: (place, log) for _, place, path, log in loaded_partitions(fs, copies, loaded)}

    def one(found: PartitionPlan) -> PartitionPlan:
        outcome = outcomes.get(found.path)
        if isinstance(outcome, Failure):
            return replace(found, only_with_retention=())
        place, log = places[found.path]
        bases, segments = (set(), ()) if outcome is None else (set(outcome.replacement.replaced), outcome.segments)
        return retain_after(node, place, log, found, bases, segments, plan.now_ms)

    return replace(plan, partitions=tuple(map(one, plan.partitions)), choices=replace(plan.choices, retention=True))


def loaded_partitions(
    fs: TargetStore, copies: Sequence[DirectoryCopy], loaded: Loaded
) -> Iterator[tuple[DirectoryCopy, LocatedPartition, str, LogView]]:
    """Yield every partition with the path and log to read: its source, or a recovered copy."""
    for copy in copies:
        for place in copy.places:
            if copy.path in loaded.copies:
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
