"""`cordwood plan`: bounds on the effect of a clean; with `--exact`, figures from a clean that writes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cleaning.rules.plan import Decision
from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import Progress
from cordwood.commands.options import PlanOptions
from cordwood.tasks.engines import EngineOptions


@with_options
def main(
    directories: Directories,
    options: PlanOptions,
    exact: Annotated[bool, typer.Option("--exact", help="Run the clean without writing, for exact figures.")] = False,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
    as_json: Json = False,
) -> int:
    """Show what a clean would do to each partition, or why it would leave it alone and when that changes.

    Changes nothing; a broker may be running. Records are not read, so the figures are upper bounds. With --exact,
    everything is read and counted. Exit status 1 if a partition cannot be cleaned because it is damaged, 2 if one
    cannot be read; the others are planned.
    """
    paths = [named(directory) for directory in directories]
    if exact:
        return _plan_exactly(paths, options, engine, as_json=as_json)
    # Not imported at the top: with --exact, this is loaded while the engine starts.
    from cordwood.commands.plan import plan

    planned = plan(paths, options)
    show(json.dumps(planned.document(), indent=1) if as_json else planned.text())
    refused = planned.with_decision(Decision.REFUSE)
    if any(not one.is_unreadable for one in refused):
        return EXIT_DAMAGE
    return EXIT_REQUEST if refused else EXIT_OK


def _plan_exactly(paths: Sequence[str], options: PlanOptions, engine: EngineOptions, *, as_json: bool) -> int:
    with Progress(enabled=sys.stderr.isatty()) as progress, engine.where().begun():
        # Loading this takes as long as starting Java, so load it while Java starts.
        from cordwood.cli.clean import exit_code_of
        from cordwood.commands.plan_exact import plan_exact

        exact = plan_exact(paths, options, engine, on_plan=progress.begin, on_progress=progress.update)
    show(json.dumps(exact.document(), indent=1) if as_json else exact.text())
    return exit_code_of(exact.result)
