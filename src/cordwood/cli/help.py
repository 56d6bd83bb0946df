"""`cordwood help`: the same as `--help`, for one command or all."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.main import app


def main(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="Which command. Default: all of them.")
    ] = None,
) -> None:
    """Show what a command does and its options, or list all commands."""
    app([*([] if command is None else [command]), "--help"], prog_name="cordwood")
