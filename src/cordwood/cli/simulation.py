"""`cordwood simulate` and `explain`: predict disk use by running a live log in memory for weeks of simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named, show_result
from cordwood.cli.options import ClusterDirectories, Json, Report, check_report, with_options, write_report
from cordwood.cli.progress import Progress
from cordwood.common.text import Charted
from cordwood.simulation import explain as explain_command
from cordwood.simulation import simulate as simulate_command
from cordwood.simulation.options import ExplainOptions, SimulateOptions

_Chart = Annotated[
    str | None, typer.Option("--svg", metavar="FILE", help="Write a chart of the disk over time to this file.")
]


@with_options
def simulate(options: SimulateOptions, chart: _Chart = None, report: Report = None, as_json: Json = False) -> int:
    """Predict the disk that a topic will take, under one set of configs, or compare two.

    Runs the live log with its retention and its cleaner in memory, on a clock of its own, on a part of the workload.
    No broker and no directory is needed, and nothing is written but the chart and the report.
    """
    check_report(report)
    with Progress() as progress:
        result = simulate_command.simulate(options, on_progress=lambda part: progress.update_part("simulating", part))
    return _finish(result, chart, report, as_json=as_json)


@with_options
def explain(
    directories: ClusterDirectories = None,
    *,
    options: ExplainOptions,
    chart: _Chart = None,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Predict the effect of other configs on a topic's log: at once, and if its last weeks happened under them.

    The log's records are replayed into a live log in memory, with retention and a cleaner: under the log's own configs,
    and under those of --config. Of several partitions the largest is replayed; --partition chooses another. Changes
    nothing; a broker may be running.
    """
    check_report(report)
    with Progress() as progress:
        paths = [named(directory) for directory in directories or ()]
        result = explain_command.explain(paths, options, on_progress=progress.update_part)
    return _finish(result, chart, report, as_json=as_json)


def _finish(result: Charted, chart: str | None, report: str | None, *, as_json: bool) -> int:
    show_result(result, as_json=as_json)
    if chart is not None:
        Path(chart).write_text(result.svg())
    write_report(report, result)
    return EXIT_OK
