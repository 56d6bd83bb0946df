"""`cordwood abort-transaction`: end a hanging transaction while no broker runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli import completion
from cordwood.cli.main import EXIT_OK, named, show
from cordwood.cli.options import Json, with_options
from cordwood.commands.abort_transaction import abort_transaction
from cordwood.commands.options import AbortOptions


@with_options
def main(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="Log directories of all brokers that have the partition, and of those that have __transaction_state.",
        ),
    ],
    topic: Annotated[str, typer.Option(autocompletion=completion.topics, help="The topic.", show_default=False)],
    producer: Annotated[int, typer.Option(metavar="ID", help="The id of the producer.", show_default=False)],
    options: AbortOptions,
    as_json: Json = False,
) -> int:
    """Abort a hanging transaction in the logs of stopped brokers: append the marker that no coordinator will write.

    Shows what it would do; with --yes, does it. The transaction must hang by all of __transaction_state, which must be
    in DIR. The partition must have one replica, or all of its replicas must be in DIR. Its directories must have been
    shut down cleanly.
    """
    result = abort_transaction([named(directory) for directory in directories], topic, producer, options)
    show(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK
