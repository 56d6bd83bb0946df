"""`cordwood plan`, `clean`, `verify`, `undo`, `fetch`: clean logs, with the steps before and after a clean.

The functions import their commands: loading these takes as long as starting Java, so they load while Java starts.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cleaning.rules.plan import Decision
from cordwood.cli.main import (
    EXIT_DAMAGE,
    EXIT_FULL,
    EXIT_LOCKED,
    EXIT_MEMORY,
    EXIT_OK,
    EXIT_OUR_FAULT,
    EXIT_REQUEST,
    named,
    show_result,
    tell_defect,
    tell_forecast,
)
from cordwood.cli.options import ClusterDirectories, Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.commands.options import (
    CopyOptions,
    FetchOptions,
    InPlaceOptions,
    InTierOptions,
    PlanOptions,
    TaskOptions,
    VerifyOptions,
)
from cordwood.common.arguments import option_fields
from cordwood.common.errors import RequestError
from cordwood.tasks.engines import EngineOptions

if TYPE_CHECKING:
    from cordwood.cleaning.engine.results import CleanResult


@with_options
def plan(
    directories: ClusterDirectories = None,
    *,
    options: PlanOptions,
    exact: Annotated[bool, typer.Option("--exact", help="Run the clean without writing, for exact figures.")] = False,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
    as_json: Json = False,
) -> int:
    """Show the effect of a clean on each partition, or why the clean would leave it alone, and until when.

    Of several brokers, each replica has its own line. Changes nothing; a broker may be running. Records are not read,
    so the figures are upper bounds. With --exact, everything is read and counted. Exit status 1 if a partition cannot
    be cleaned because it is damaged, 2 if one cannot be read; all other partitions are planned.
    """
    paths = [named(directory) for directory in directories or ()]
    if exact:
        return _plan_exactly(paths, options, engine, as_json=as_json)
    # Not imported at the top: with --exact, this is loaded while the engine starts.
    from cordwood.commands import plan as planning

    planned = planning.plan(paths, options)
    show_result(planned, as_json=as_json)
    refused = planned.with_decision(Decision.REFUSE)
    if any(not one.is_unreadable for one in refused):
        return EXIT_DAMAGE
    return EXIT_REQUEST if refused else EXIT_OK


def _plan_exactly(paths: Sequence[str], options: PlanOptions, engine: EngineOptions, *, as_json: bool) -> int:
    with Progress() as progress, engine.where().begun():
        # Loading this takes as long as starting Java, so load it while Java starts.
        from cordwood.commands.plan_exact import plan_exact

        exact = plan_exact(paths, options, engine, on_plan=progress.begin, on_progress=progress.update)
    show_result(exact, as_json=as_json)
    return exit_code_of(exact.result)


@with_options
def clean(
    directories: ClusterDirectories = None,
    *,
    output: Annotated[
        str | None, typer.Option(metavar="DIR2", help="Write a cleaned copy to this new or empty directory.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Clean DIR itself; no broker may be running on it.")
    ] = False,
    in_tier: Annotated[
        bool,
        typer.Option(
            "--in-tier",
            help="Clean tiered topics inside their tier (--tier), with the directories of all brokers that have a "
            "replica; these must be stopped.",
        ),
    ] = False,
    copy: CopyOptions,
    replacing: InPlaceOptions,
    tiered: InTierOptions,
    options: PlanOptions,
    tasks: TaskOptions,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Clean logs by the rules of Kafka's cleaner: into a copy that a broker can start on, in place, or in a tier.

    Copy: DIR is only read. DIR2 appears at the end, complete, or not at all. With --of cluster, give the directories of
    all brokers; the copy has one replica of each partition.

    In place: new segments are checked and proved right. Then they replace the old segments, one group after another,
    each group atomically. An interrupted clean keeps the finished groups; all other segments are unchanged.

    In a tier: new remote segments replace the segments that lose records, partition by partition. Segments that are
    still on a disk of any DIR stay as they are. Give the policy of each topic: --config TOPIC:cleanup.policy=compact.

    In place, you can give the directories of several brokers. If they hold all replicas of a partition, the clean makes
    these replicas alike, and removes tombstones and markers that have expired in all of them. It leaves the directories
    of a running broker alone (exit status 3).

    Exit status 1 if a partition could not be cleaned, usually because it is damaged. That partition is left, or copied,
    unchanged; all other partitions are cleaned.
    """
    directories = directories or []
    options.named.with_paths(directories)  # or raise without directories
    _check_target(directories, output, in_place=in_place, in_tier=in_tier)
    _check_mode(copy, "--output", allowed=output is not None)
    _check_mode(replacing, "--in-place", allowed=in_place)
    _check_mode(tiered, "--in-tier", allowed=in_tier)
    check_report(report)
    paths = [named(directory) for directory in directories or ()]
    with Progress() as progress, tasks.where().begun():
        # Loading these takes as long as starting Java, so load them while it starts.
        from cordwood.commands.clean import clean as clean_into_copy
        from cordwood.commands.clean_in_place import clean_in_place
        from cordwood.commands.clean_in_tier import clean_in_tier

        on_plan, on_progress = progress.begin, progress.update
        if in_tier:
            result = clean_in_tier(paths, options, tiered, tasks, on_plan=on_plan, on_progress=on_progress)
        elif output is None:
            result = clean_in_place(paths, options, replacing, tasks, on_plan=on_plan, on_progress=on_progress)
        else:
            result = clean_into_copy(
                paths,
                output,
                options,
                copy,
                tasks,
                on_forecast=tell_forecast,
                on_plan=on_plan,
                on_progress=on_progress,
            )
    write_report(report, result)
    show_result(result, as_json=as_json)
    return exit_code_of(result)


def _check_target(directories: Sequence[str], output: str | None, *, in_place: bool, in_tier: bool) -> None:
    count = in_place + in_tier + (output is not None)
    if count > 1:
        raise RequestError("Give only one of --output DIR2, --in-place and --in-tier")
    if not count:
        command = shlex.join(["cordwood", "plan", *directories])
        raise RequestError(
            "Give --output DIR2 to write a cleaned copy, --in-place, or --in-tier. To see the effect of a clean first, "
            f"run: {command}"
        )


def _check_mode(values: CopyOptions | InPlaceOptions | InTierOptions, mode: str, *, allowed: bool) -> None:
    """Raise RequestError if options of the other mode are set."""
    for one in option_fields(type(values)):
        if not allowed and one.panel == values.PANEL and getattr(values, one.name) != one.default:
            raise RequestError(f"{one.flag} requires {mode}")


def exit_code_of(result: CleanResult) -> int:
    """Return the exit code: 0 only if nothing failed and a copy lacks no whole batch."""
    from cordwood.cleaning.engine.task import FailureKind

    failures = {partition.failure.kind for partition in result.partitions if partition.failure is not None}
    if FailureKind.BUG in failures:
        tell_defect("the result shows what failed, by partition")
    codes = {
        FailureKind.BUG: EXIT_OUR_FAULT,
        FailureKind.FULL: EXIT_FULL,
        FailureKind.MEMORY: EXIT_MEMORY,
    }
    if failures == {FailureKind.LOCKED}:
        return EXIT_LOCKED
    damaged = bool(failures) or any(partition.left_out_bytes for partition in result.partitions)
    return next((code for kind, code in codes.items() if kind in failures), EXIT_DAMAGE if damaged else EXIT_OK)


@with_options
def verify(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help="The log before the clean: log directory or partition.")
    ],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The log after the clean.")],
    options: VerifyOptions,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Prove that a clean kept its guarantees, from the two states of a log alone, without the cleaner's code.

    Changes nothing. Exit status 1 if there is any violation; each is listed with its key, offset and file.
    """
    check_report(report)
    where = options.tasks.where()
    with Progress() as progress, where.begun():
        # Loading this takes as long as starting Java, so load it while Java starts.
        from cordwood.commands import verify as proving

        paths = named(before), named(after)
        result = proving.verify(*paths, options, on_start=progress.begin, on_progress=progress.update)
    write_report(report, result)
    show_result(result, as_json=as_json)
    return EXIT_OK if result.holds else EXIT_DAMAGE


def undo(
    folder: Annotated[str, typer.Argument(metavar="DIR3", help="The --keep-old folder of a clean in place.")],
    as_json: Json = False,
) -> int:
    """Restore the segments, snapshots and checkpoints that a clean in place replaced and kept.

    If anything was appended, cleaned or deleted since, lists it, changes nothing, and exits with status 1. DIR3 is
    removed once everything is restored.
    """
    from cordwood.commands import undo as undoing

    result = undoing.undo(folder)
    show_result(result, as_json=as_json)
    return EXIT_OK if result.done else EXIT_DAMAGE


@with_options
def fetch(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[URL] DIR",
            help="A directory in an object store (s3://, gs:// or az://), or, with --tier, any log directory, or "
            "nothing; and a new or empty directory.",
            show_default=False,
        ),
    ],
    options: FetchOptions,
    as_json: Json = False,
) -> int:
    """Bring a broker's directory back from an object store, with the modification times of its files.

    DIR appears at the end, complete, or not at all. Files of a copy that Cordwood made must have the checksums that its
    manifest lists. With --tier, DIR gets all segments of tiered topics as ordinary files, but not the metadata that
    would make a broker delete remote segments; without URL, partitions are restored from the tier alone.
    """
    from cordwood.commands import fetch as fetching

    tier = options.tier_place
    if len(places) > 2 or (len(places) == 1 and tier.tier is None):
        raise RequestError("give URL and DIR, or --tier and DIR")
    source, target = (None, *places)[-2:]
    assert target is not None, "a place is given"
    with Progress() as progress:
        result = fetching.fetch(
            source,
            target,
            tier=tier.tier,
            tier_keys=tier.tier_keys,
            topics=options.topics,
            on_forecast=tell_forecast,
            on_progress=progress.of,
        )
    show_result(result, as_json=as_json)
    return EXIT_OK
