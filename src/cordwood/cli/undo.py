"""`cordwood undo`: restore the files that a clean in place replaced, unless the log has changed since."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, show
from cordwood.cli.options import Json
from cordwood.commands.undo import undo


def main(
    folder: Annotated[str, typer.Argument(metavar="DIR3", help="The --keep-old folder of a clean in place.")],
    as_json: Json = False,
) -> int:
    """Restore the segments, snapshots and checkpoints that a clean in place replaced and kept.

    If anything was appended, cleaned or deleted since, lists it, changes nothing, and exits with status 1. DIR3 is
    removed once everything is restored.
    """
    result = undo(folder)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK if result.done else EXIT_DAMAGE
