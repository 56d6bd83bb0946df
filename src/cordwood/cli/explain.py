"""`cordwood explain`: replay a log under other configs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named, show
from cordwood.cli.options import Directories, Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.simulation.explain import explain
from cordwood.simulation.options import ExplainOptions


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
    """Predict the effect of other configs on a topic's log: at once, and if its last weeks happened under them.

    The log's records are replayed into a live log in memory, with retention and a cleaner: under the log's own configs,
    and under those of --config. Of several partitions the largest is replayed; --partition chooses another. Changes
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
