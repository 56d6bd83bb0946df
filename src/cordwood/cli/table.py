"""`cordwood table`: the last value of each key, on a terminal, as JSON lines, or as files."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named, show_result, tell
from cordwood.cli.options import ClusterDirectories, with_options
from cordwood.cli.progress import Progress
from cordwood.commands import table_output as report
from cordwood.commands.options import TableFileOptions, TableOptions
from cordwood.commands.replicas import replica_lines
from cordwood.commands.table import shown_table, write_table
from cordwood.common.errors import RequestError
from cordwood.tasks.engines import EngineOptions

#: Number of rows shown on a terminal.
_SHOWN_ROWS = 50


@with_options
def table(
    directories: ClusterDirectories = None,
    *,
    options: TableOptions,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write files to this new folder. Default: print rows.")
    ] = None,
    files: TableFileOptions = TableFileOptions(),  # noqa: B008 - a frozen value
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Show or write at most N rows. Default: 50 on a terminal, else all."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON lines to a terminal, too; with --output, the result as a JSON document."
        ),
    ] = False,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
) -> int:
    """Show the last committed value of each key of a topic, or write them to files.

    Changes nothing in DIR; a broker may be running. A terminal shows a table, a pipe gets JSON lines. Records without
    a key, of aborted transactions and from the last stable offset on do not count.
    """
    paths = [named(directory) for directory in directories or ()]
    if output is None:
        if files != TableFileOptions():
            raise RequestError("--format and --writer-option are for files; give --output, too")
        return _show(paths, options, limit, engine, as_json=as_json or not sys.stdout.isatty())
    with Progress() as progress:
        result = write_table(
            paths,
            output,
            options,
            files,
            engine,
            on_start=progress.begin,
            on_progress=progress.update,
            limit=limit,
        )
    show_result(result, as_json=as_json)
    return EXIT_OK


def _show(
    paths: Sequence[str], options: TableOptions, limit: int | None, engine: EngineOptions, *, as_json: bool
) -> int:
    with shown_table(paths, options, where=engine.where()) as shown:
        schema = shown.rows_format.schema
        if as_json:
            decoders = {"key": shown.rows_format.key, "value": shown.rows_format.value}
            found = report.json_lines(
                itertools.islice(shown.rows, limit), [name for name, one in decoders.items() if one.is_json]
            )
        else:
            found = report.row_lines(shown.rows, schema.names, _SHOWN_ROWS if limit is None else limit)
        for line in found:
            print(line)
        for line in replica_lines(shown.point.replicas):
            tell(f"note: {line}")
        for one in shown.healed:
            tell(f"note: {one}")
        for note in shown.point.notes:
            tell(f"note: {note}")
    return EXIT_OK
