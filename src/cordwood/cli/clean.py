"""`cordwood clean`: clean logs as `cordwood plan` announces, into a copy or in place, and report the result."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cordwood.cli.main import (
    EXIT_DAMAGE,
    EXIT_FULL,
    EXIT_MEMORY,
    EXIT_OK,
    EXIT_OUR_FAULT,
    named,
    show,
    tell_defect,
    tell_forecast,
)
from cordwood.cli.options import Directories, Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.commands.options import CopyOptions, InPlaceOptions, PlanOptions, TaskOptions
from cordwood.common.arguments import option_fields
from cordwood.common.errors import RequestError

if TYPE_CHECKING:
    from cordwood.cleaning.engine.results import CleanResult


@with_options
def main(
    directories: Directories,
    *,
    output: Annotated[
        str | None, typer.Option(metavar="DIR2", help="Write a cleaned copy to this new or empty directory.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Clean DIR itself; no broker may be running on it.")
    ] = False,
    copy: CopyOptions,
    replacing: InPlaceOptions,
    options: PlanOptions,
    tasks: TaskOptions,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Clean logs by the rules of Kafka's cleaner: into a copy that a broker can start on, or in place.

    Copy: DIR is only read. DIR2 appears at the end, complete, or not at all.

    In place: groups of segments are replaced one after another, each atomically, after the new segments were checked
    and proved right. An interrupted clean keeps the groups that are finished; the rest is unchanged.

    Exit status 1 if a partition could not be cleaned, usually because it is damaged. It is left, or copied, unchanged;
    the other partitions are cleaned.
    """
    _check_target(directories, output, in_place=in_place)
    _check_mode(copy, "--output", allowed=output is not None)
    _check_mode(replacing, "--in-place", allowed=in_place)
    check_report(report)
    paths = [named(directory) for directory in directories]
    with Progress(enabled=sys.stderr.isatty()) as progress, tasks.where().begun():
        # Loading these takes as long as starting Java, so load them while it starts.
        from cordwood.commands.clean import clean
        from cordwood.commands.clean_in_place import clean_in_place

        on_plan, on_progress = progress.begin, progress.update
        if output is None:
            result = clean_in_place(paths, options, replacing, tasks, on_plan=on_plan, on_progress=on_progress)
        else:
            result = clean(
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
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return exit_code_of(result)


def _check_target(directories: Sequence[str], output: str | None, *, in_place: bool) -> None:
    if in_place and output is not None:
        raise RequestError("Give either --output DIR2 or --in-place, not both")
    if not in_place and output is None:
        command = shlex.join(["cordwood", "plan", *directories])
        raise RequestError(
            "Give --output DIR2 to write a cleaned copy, or --in-place. To see first what a clean would do, run: "
            + command
        )


def _check_mode(values: CopyOptions | InPlaceOptions, mode: str, *, allowed: bool) -> None:
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
    damaged = bool(failures) or any(partition.left_out_bytes for partition in result.partitions)
    return next((code for kind, code in codes.items() if kind in failures), EXIT_DAMAGE if damaged else EXIT_OK)
