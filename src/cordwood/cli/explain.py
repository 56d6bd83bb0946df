"""`cordwood explain`: replay a log under other configs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.output_file import Report, check_report, write_report
from cordwood.cli.progress import Progress
from cordwood.commands.explain_options import ExplainOptions
from cordwood.simulation.explain import explain


@with_options
def main(
    directories: Directories,
    options: ExplainOptions,
    chart: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write a chart of the disk over time to this file.")
    ] = None,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Tell what would become of a topic's log under other configs: at once, and over the last weeks.

    What was written to it is written again to a live log in memory, with its retention and its cleaner, under its own
    configs and with those of --config. Of several partitions the largest is taken; --partition chooses another. Changes
    nothing; a broker may be running.
    """
    check_report(report)
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = explain([named(directory) for directory in directories], options, on_progress=progress.update_part)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    if chart is not None:
        Path(chart).write_text(result.svg())
    write_report(report, result)
    return EXIT_OK
