"""`cordwood verify`: prove that a clean may turn one state of a log into another."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named, show
from cordwood.cli.options import Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.commands.options import VerifyOptions


@with_options
def main(
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
    with Progress(enabled=sys.stderr.isatty()) as progress, where.begun():
        # Loading this takes as long as starting Java, so load it while Java starts.
        from cordwood.commands.verify import verify

        result = verify(
            named(before),
            named(after),
            options,
            on_start=progress.begin,
            on_progress=progress.update,
        )
    write_report(report, result)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK if result.holds else EXIT_DAMAGE
