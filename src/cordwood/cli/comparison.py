"""`cordwood compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named, show_result
from cordwood.cli.options import (
    ClusterDirectories,
    Json,
    Report,
    check_output,
    check_report,
    with_options,
    write_output,
    write_report,
)
from cordwood.cli.progress import Progress
from cordwood.commands.options import CompareOptions


@with_options
def compare(
    directories: ClusterDirectories = None,
    *,
    options: CompareOptions,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Also write metrics to this file, for the textfile collector of node_exporter. The file is replaced "
            "as a whole.",
        ),
    ] = None,
    report: Report = None,
    as_json: Json = False,
) -> int:
    """Compare the replicas of each partition: do consumers see the same data, whichever replica leads?

    Changes nothing. Exit status 1 if an election could change what consumers see; each difference is listed with its
    replica, offset and key. Differences that timing alone explains, as when one replica was cleaned later, are summed.
    """
    check_report(report)
    if prometheus is not None:
        check_output(prometheus, "the metrics")
    where = options.tasks.where()
    paths = [named(one) for one in directories or ()]
    with Progress() as progress, where.begun():
        # Loading this takes as long as starting Java, so load it while Java starts.
        from cordwood.commands import compare as comparing

        result = comparing.compare(paths, options, on_start=progress.begin, on_progress=progress.update)
    write_report(report, result)
    if prometheus is not None:
        write_output(prometheus, result.prometheus())
    show_result(result, as_json=as_json)
    return EXIT_OK if result.agrees else EXIT_DAMAGE
