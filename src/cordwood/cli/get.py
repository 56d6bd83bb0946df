"""`cordwood get`: show the history of a key."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.keys import Keys, KeysFile, given_keys
from cordwood.cli.main import EXIT_OK, EXIT_REQUEST, exit_code_of, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import Progress
from cordwood.commands import get as report
from cordwood.commands.get import get
from cordwood.commands.options import GetOptions


@with_options
def main(
    directories: Directories,
    options: GetOptions,
    key: Keys = None,
    keys: KeysFile = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Show at most N records of each key and partition, the newest; count the others by their next step.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show all records of a key in order: where each is, how its transaction ended, and which clean will remove it.

    Changes nothing in DIR; a broker may be running. Segments with a key index (cordwood index) are searched in
    milliseconds, all others are read. The table cuts long values off; --json has all of them. Exit status 2 if there
    is no record of a key, 1 if there is damage.
    """
    wanted = given_keys(key, keys)
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = get([named(one) for one in directories], wanted, options, on_progress=progress.of)
    show(json.dumps(report.document(result, limit), indent=1) if as_json else "\n".join(report.lines(result, limit)))
    return exit_code_of(result.problems) or (EXIT_REQUEST if result.unknown else EXIT_OK)
