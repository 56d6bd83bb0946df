"""`cordwood groups`: a line per consumer group, per member, and per partition."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import exit_code_of, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import LogProgress
from cordwood.commands import groups as report
from cordwood.commands.groups import groups
from cordwood.commands.options import GroupOptions


@with_options
def main(
    directories: Directories,
    options: GroupOptions,
    members: Annotated[
        bool, typer.Option("--members", help="Also a line per member, with what it is assigned.")
    ] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Also a line per partition, with offset and lag.")] = False,
    as_json: Json = False,
) -> int:
    """List consumer groups of all kinds: state, members, committed offsets, and lag.

    From __consumer_offsets and __share_group_state; the lag counts to the end of the logs beside them. Changes nothing;
    a broker may be running. Exit status 1 if records are damaged, 2 if a log could not be read.
    """
    with LogProgress(enabled=sys.stderr.isatty()) as progress:
        listing = groups([named(directory) for directory in directories], options, on_progress=progress.update)
    if as_json:
        show(json.dumps(listing.document(), indent=1))
    else:
        show("\n".join(report.lines(listing, members=members, offsets=offsets)))
    return exit_code_of(listing.problems)
