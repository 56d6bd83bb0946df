"""`cordwood pack`: pack this environment into an archive for the executors of a Spark cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK
from cordwood.cli.options import Json
from cordwood.commands.spark import DEFAULT_OUTPUT, pack


def main(
    output: Annotated[
        str, typer.Option(metavar="FILE", help=f"The new file. Default: {DEFAULT_OUTPUT}.")
    ] = DEFAULT_OUTPUT,
    as_json: Json = False,
) -> int:
    """Make an archive of Cordwood and the packages that it needs, and say how the executors of a cluster get it.

    Python itself and Spark are not in it. Takes half a minute.
    """
    packed = pack(output)
    print(json.dumps(asdict(packed), indent=1) if as_json else packed.text())
    return EXIT_OK
