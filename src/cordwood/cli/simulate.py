"""`cordwood simulate`: predict a topic's disk use by running months of its live log in seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, show
from cordwood.cli.options import Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.simulation.options import SimulateOptions
from cordwood.simulation.simulate import simulate


@with_options
def main(
    options: SimulateOptions,
    chart: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Write a chart of the disk over time to this file.")
    ] = None,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Predict the disk that a topic will take, under one set of configs, or compare two.

    Runs the live log with its retention and its cleaner in memory, on a clock of its own, on a part of the workload.
    No broker and no directory is needed, and nothing is written but the chart and the report.
    """
    check_report(report)
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = simulate(options, on_progress=lambda part: progress.update_part("simulating", part))
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    if chart is not None:
        Path(chart).write_text(result.svg())
    write_report(report, result)
    return EXIT_OK
