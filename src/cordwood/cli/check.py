"""`cordwood check`: print the findings of `storage.check`, for people or as JSON lines."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named, show
from cordwood.cli.progress import Line
from cordwood.commands import check as report
from cordwood.fs.by_url import file_system_for
from cordwood.storage.check import Check


def main(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line per finding, and one with a summary at the end.")
    ] = False,
) -> int:
    """Foretell a broker's start: what it serves, what it refuses or loses, and every inconsistency with its place.

    Changes nothing; a broker may be running. Exit status 1 if anything is damaged. What a crash left and the next load
    repairs is explained; it does not count as damage.
    """
    found, is_read = [], True
    with _Progress(enabled=sys.stderr.isatty()) as progress:
        check = Check(file_system_for(paths), progress.update)
        for finding in check.run([named(path) for path in paths]):
            if as_json:
                is_read = is_read and show(json.dumps(report.finding_document(finding)))
                if not is_read and check.summary.damaged:
                    break  # the output's reader has quit, and the exit status cannot change any more
            else:
                found.append(finding)
    if as_json:
        show(json.dumps(report.summary_document(check.summary, check.start)))
    else:
        show("\n".join(report.lines(found, check.summary, check.start)))
    return EXIT_DAMAGE if check.summary.damaged else EXIT_OK


class _Progress(Line):
    def update(self, check: Check) -> None:
        seconds = self.due_seconds()
        if seconds is not None:
            done = min(check.bytes_done / max(check.bytes_total, 1), 1.0)
            left = f", {seconds * (1 - done) / done:,.0f} s left" if done > 0.01 else ""
            self.show(f"{done:4.0%} of {report.megabytes(check.bytes_total)}{left}")
