"""`cordwood why`: explain the size of logs, with evidence and the next step."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import LogProgress
from cordwood.commands import why_node as report
from cordwood.commands.options import WhyOptions
from cordwood.commands.why.facts import CauseKind
from cordwood.commands.why_node import why

#: Number of partitions shown one by one.
_SHOWN = 20


@with_options
def main(
    directories: Directories,
    options: WhyOptions,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show so many partitions; the others are summed up. Default: 20.")
    ] = _SHOWN,
    as_json: Json = False,
) -> int:
    """Explain the size of partitions: what keeps each from being smaller, and what to do next.

    Partitions that could lose most come first. Changes nothing; a broker may be running. Reads batch headers, and a
    sample of the records of compacted partitions. Exit status 1 if a partition is damaged, 2 if one cannot be read.
    """
    with LogProgress(enabled=sys.stderr.isatty()) as progress:
        result = why([named(directory) for directory in directories], options, on_progress=progress.update)
    show(json.dumps(result.document(), indent=1) if as_json else "\n".join(report.lines(result, limit)))
    kinds = {cause.kind for partition in result.partitions for cause in partition.causes}
    if CauseKind.DAMAGED in kinds:
        return EXIT_DAMAGE
    return EXIT_REQUEST if CauseKind.UNREADABLE in kinds else EXIT_OK
