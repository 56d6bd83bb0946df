"""`cordwood fetch`: copy a broker's directory from an object store."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, show, tell_forecast
from cordwood.cli.options import Json
from cordwood.cli.progress import Progress
from cordwood.commands.fetch import fetch


def main(
    source: Annotated[
        str, typer.Argument(metavar="URL", help="A directory in an object store: s3://, gs:// or az://.")
    ],
    target: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    as_json: Json = False,
) -> int:
    """Bring a broker's directory back from an object store, with the modification times of its files.

    DIR appears at the end, complete, or not at all. Files of a copy that Cordwood made must have the checksums that its
    manifest lists.
    """
    with Progress(enabled=sys.stderr.isatty()) as progress:
        result = fetch(source, target, on_forecast=tell_forecast, on_progress=progress.of)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK
