"""`cordwood undo`: puts back what a clean in place took away, or says what speaks against it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK
from cordwood.cli.options import Json
from cordwood.storage.changes.undo import undo


def main(
    folder: Annotated[str, typer.Argument(metavar="DIR3", help="Where a clean in place kept what it took away.")],
    as_json: Json = False,
) -> int:
    """Put back what a clean in place took away and kept: segments, snapshots and checkpoints, as they were.

    If anything was appended, cleaned or deleted since, it says what, changes nothing, and exits with 1. DIR3 is removed
    when all is back.
    """
    result = undo(folder)
    print(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK if result.done else EXIT_DAMAGE
