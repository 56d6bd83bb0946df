"""`cordwood tier`: change the owner of a tier."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named, show_result
from cordwood.cli.options import Json, with_options
from cordwood.commands.options import HandOverOptions


class Direction(StrEnum):
    """Which way a tier is handed over."""

    EXPORT = "export"
    ADOPT = "adopt"


@with_options
def tier(
    action: Annotated[
        Direction, typer.Argument(help="export: from live logs to their broker. adopt: from a broker to live logs.")
    ],
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="Log directories of the broker, and of all brokers with replicas of __remote_log_metadata.",
        ),
    ],
    options: HandOverOptions,
    as_json: Json = False,
) -> int:
    """Hand the tier of topics over from live logs to a broker, or from a broker to live logs; no object moves.

    A broker finds its remote segments by the records of __remote_log_metadata, a live log by its manifest. export
    writes the records from the manifest, adopt the manifest from the records. Brokers and programs on DIR must be
    stopped. After an interruption call it again. Exit status 3 if a directory is in use.
    """
    from cordwood.commands import hand_over

    changes = {Direction.EXPORT: hand_over.export_tier, Direction.ADOPT: hand_over.adopt_tier}
    show_result(changes[action]([named(directory) for directory in directories], options), as_json=as_json)
    return EXIT_OK
