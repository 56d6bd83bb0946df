"""`plan --exact`: a clean that counts its output instead of writing it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cordwood.cleaning.engine.progress import OnProgress, total
from cordwood.cleaning.engine.results import CleanResult, ExactPlan, Fate, PartitionResult, TrialWork, result_of
from cordwood.cleaning.engine.task import Failure, Output
from cordwood.cleaning.rules.plan import PartitionPlan, Plan
from cordwood.commands.clean import COLUMNS, SEGMENT_COLUMNS, failed_lines, note_lines, summary
from cordwood.commands.clean import document as clean_document
from cordwood.commands.clean import html as clean_html
from cordwood.commands.copies import (
    explain_full_disk,
    left_out_bytes,
    loaded_partitions,
    name_source,
    not_loaded,
    plan_loaded,
    run_tasks,
    with_retention,
)
from cordwood.commands.load import Loaded, load_into_copies, needs_recovery
from cordwood.commands.opening import open_node, select_partitions
from cordwood.commands.options import PlanOptions
from cordwood.commands.plan import document as plan_document
from cordwood.commands.plan import html as plan_html
from cordwood.commands.plan import lines as plan_lines
from cordwood.common.text import Column, bytes_text, cells_of, number, printable, register, table
from cordwood.common.types import Clock, system_clock
from cordwood.fs.base import Link, Target, TargetStore
from cordwood.fs.workspace import temporary_directory
from cordwood.storage.changes.copy import DirectoryCopy, check_space, lay_out
from cordwood.storage.formats.filenames import DirectoryState, FileKind
from cordwood.storage.log.loaded import broker_would_load, files_after_recovery, zero_bytes
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition
from cordwood.tasks.engines import EngineOptions
from cordwood.tasks.tasks import Jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plan_exact(
    paths: Sequence[str],
    options: PlanOptions,
    engine: EngineOptions,
    *,
    spark: SparkSession | None = None,
    on_plan: Callable[[Plan, int], None] | None = None,
    on_progress: OnProgress | None = None,
    fs: TargetStore | None = None,
    clock: Clock = system_clock,
) -> ExactPlan:
    """Plan a clean, and run it without writing, for the figures that `clean` would report instead of bounds.

    The directories are only read; a broker may be running on them. A directory whose broker crashed is first recovered
    into the temporary folder, as `clean` does into its copy: that takes room for its unflushed segments. Retention is
    computed from the sizes and times after the clean.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: see `plan`; or Spark does not start.
        NoSpaceError: the temporary folder has no room for a directory to recover.
    """
    started = time.monotonic()
    fs = fs or options.selection.store([*paths, *options.paths])
    options.named.refuse("plan --exact")
    options, now_ms = options.at(clock)
    sources = [fs.absolute_path(path) for path in paths]
    node = open_node(fs, sources, options.selection)
    asked = select_partitions(node.places, sources, options.selection)
    root = options.index_place.root(fs, [place.path for place in asked])
    # No other user can read this folder, as it may hold recovered records.
    with temporary_directory(fs, "cordwood-plan-") as folder, _planned_in(fs, folder) as work:
        copies = lay_out(fs, node, sources, work.data, locked_too=True)
        for copy in copies:
            copy.places = [one for one in copy.places if one in asked]
        to_load = [copy for copy in copies if needs_recovery(copy)]
        advice = "or name another temporary folder with TMPDIR"
        check_space(fs, folder, to_load, link=Link.SYMBOLIC, advice=advice, work_folder=work.path)
        loaded = load_into_copies(fs, node, copies, work.data, now_ms, link=Link.SYMBOLIC)
        plan = plan_loaded(fs, node, copies, loaded, options, exact=True)
        with Jobs(fs, work.progress, engine.where(spark).start, on_progress) as jobs:
            failed = not_loaded(copies, loaded)
            retained = options.choices.retention
            outcomes = run_tasks(
                jobs, plan, failed, work.outputs, on_plan, index_root=root, retained=retained, discard=True
            )
            work_of_all = TrialWork.of(outcomes.values(), total(fs, jobs.progress))
        if options.choices.retention:
            plan = with_retention(fs, node, copies, loaded, plan, outcomes)
        plan = _with_exact_work_space(plan, outcomes)
        results = tuple(_foretell(fs, copies, plan, outcomes, loaded))
    return ExactPlan(
        _of_sources(plan, copies),
        CleanResult(
            target="",
            now_ms=now_ms,
            partitions=results,
            seconds=time.monotonic() - started,
            clean_seconds=jobs.seconds,
        ),
        work_of_all,
    )


@contextlib.contextmanager
def _planned_in(fs: TargetStore, folder: str) -> Iterator[Target]:
    """Make a work folder in a temporary folder."""
    with explain_full_disk(fs, folder), fs.target(f"{folder}/plan", ()) as work:
        yield work


def _with_exact_work_space(plan: Plan, outcomes: Mapping[str, Output | Failure]) -> Plan:
    """Replace the bounds of the plan by the exact output size of each group; remove bounds of failed partitions."""

    def one(found: PartitionPlan) -> PartitionPlan:
        outcome = outcomes.get(found.path)
        if outcome is None or found.compaction is None:
            return found
        sizes = tuple(outcome.group_bytes()) if isinstance(outcome, Output) else ()
        return replace(found, compaction=replace(found.compaction, group_bytes=sizes, group_bytes_expected=sizes))

    return replace(plan, partitions=tuple(map(one, plan.partitions)))


# ---- results ---------------------------------------------------------------------------------------------------------


def _foretell(
    fs: TargetStore,
    copies: Sequence[DirectoryCopy],
    plan: Plan,
    outcomes: Mapping[str, Output | Failure],
    loaded: Loaded,
) -> Iterator[PartitionResult]:
    """Yield the result that a clean would have for each selected partition."""
    plans = {one.path: one for one in plan.partitions}
    for copy, place, path, log in loaded_partitions(fs, copies, loaded):
        found, outcome = plans.get(path), outcomes.get(path)
        result = result_of(place, found, outcome, loaded.notes(place))
        is_copied = copy.path in loaded.copies
        after = _log_bytes(copy, place, log, copied=is_copied) - (0 if is_copied else zero_bytes(log))
        if isinstance(outcome, Output):
            replaced = outcome.replacement.replaced
            after -= sum(segment.size_bytes for segment in log.segments if segment.base_offset in replaced)
            after += sum(size for name, size in outcome.files if name.endswith(FileKind.LOG))
        size = 0 if found is None else found.bytes_retained_away
        source = place.log() if copy.path in loaded.copies else log
        yield replace(
            result,
            why=name_source(result.why, copy, place),
            left_out_bytes=left_out_bytes(place, source, loaded),
            bytes_before=source.size_bytes - zero_bytes(source),
            bytes_after=after - size,
            segments_retained_away=0 if found is None else len(found.retained_away),
            bytes_retained_away=size,
        )


def _log_bytes(copy: DirectoryCopy, place: LocatedPartition, log: LogView, *, copied: bool) -> int:
    """Return the size of the logs in the copy of a partition, before any other step."""
    names = {info.name: info.size_bytes for info in log.entries if not info.is_directory}
    current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if not copied and current and broker_would_load(place.name):
        names = {then: names[now] for now, then, _ in files_after_recovery(log)}
    return sum(size for name, size in names.items() if name.endswith(FileKind.LOG))


def _of_sources(plan: Plan, copies: Sequence[DirectoryCopy]) -> Plan:
    """Replace the paths of recovered copies in a plan by their sources, for users."""
    sources = {copy.target_of(place): (copy, place) for copy in copies for place in copy.places}

    def one(found: PartitionPlan) -> PartitionPlan:
        if found.path not in sources:
            return found
        copy, place = sources[found.path]
        reason = replace(found.reason, what=name_source(found.reason.what, copy, place))
        notes = tuple(name_source(note, copy, place) for note in found.notes)
        return replace(found, path=place.path, reason=reason, notes=notes)

    return replace(plan, partitions=tuple(map(one, plan.partitions)))


# ---- the result as text, HTML and JSON -------------------------------------------------------------------------------


def _lines(found: ExactPlan) -> Iterator[str]:
    yield from plan_lines(found.plan, exact=True)
    yield ""
    cleaned = found.result.with_fate(Fate.CLEANED)
    if cleaned:
        yield "exactly:"
        yield from table(*cells_of(COLUMNS, cleaned))
        rows = [(one.name, part) for one in cleaned for part in one.segments]
        if rows:
            yield ""
            yield from table(
                [Column("PARTITION"), *(column for column, _ in SEGMENT_COLUMNS)],
                [[printable(name), *(cell(part) for _, cell in SEGMENT_COLUMNS)] for name, part in rows],
            )
        yield ""
    yield from failed_lines(found.result, "cannot be cleaned")
    yield from note_lines(found.result, "would delete")
    yield from summary(found.result)
    if cleaned:
        work = found.work
        yield (
            f"files: {number(work.segments_kept, 'segment')} kept, {work.segments_replaced} to be written anew as "
            f"{work.segments_written}; {bytes_text(work.bytes_read)} to read, {bytes_text(work.bytes_written)} to write"
        )


def _html(found: ExactPlan) -> str:
    return f"{plan_html(found.plan)}\n{clean_html(found.result)}"


def _document(exact: ExactPlan) -> dict[str, Any]:
    return {**plan_document(exact.plan), "exact": {**clean_document(exact.result), "work": asdict(exact.work)}}


register(ExactPlan, lines=_lines, document=_document, html=_html)
