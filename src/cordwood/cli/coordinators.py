"""`cordwood groups`, `transactions`, `abort-transaction`: the logs of Kafka's coordinators.

Each function imports its command, so that one starts without the others.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, exit_code_of, named, show_result
from cordwood.cli.options import ClusterDirectories, Json, complete_topics, with_options
from cordwood.cli.progress import LogProgress
from cordwood.commands.options import AbortOptions, GroupOptions, TransactionOptions


@with_options
def groups(
    directories: ClusterDirectories = None,
    *,
    options: GroupOptions,
    members: Annotated[
        bool, typer.Option("--members", help="Also a line per member, with its assigned partitions.")
    ] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Also a line per partition, with offset and lag.")] = False,
    as_json: Json = False,
) -> int:
    """List consumer groups of all kinds: state, members, committed offsets, and lag.

    From __consumer_offsets and __share_group_state; the lag counts to the end of the logs beside them. Changes nothing;
    a broker may be running. Exit status 1 if records are damaged, 2 if a log could not be read.
    """
    from cordwood.commands import groups as groups_command

    with LogProgress() as progress:
        paths = [named(directory) for directory in directories or ()]
        listing = groups_command.groups(paths, options, on_progress=progress.update)
    show_result(listing, as_json=as_json, lines=groups_command.lines(listing, members=members, offsets=offsets))
    return exit_code_of(listing.problems)


@with_options
def transactions(
    directories: ClusterDirectories = None,
    *,
    options: TransactionOptions,
    all_ids: Annotated[bool, typer.Option("--all", help="Also a line per transactional id, open or not.")] = False,
    as_json: Json = False,
) -> int:
    """List open transactions: their producers, ages, whether they hang, and the data that they hold back.

    From the logs and __transaction_state together. Changes nothing; a broker may be running. Exit status 1 if records
    are damaged, 2 if a log could not be read.
    """
    from cordwood.commands import transactions as transactions_command

    with LogProgress() as progress:
        paths = [named(directory) for directory in directories or ()]
        listing = transactions_command.transactions(paths, options, on_progress=progress.update)
    show_result(listing, as_json=as_json, lines=transactions_command.lines(listing, all_ids=all_ids))
    return exit_code_of(listing.problems)


@with_options
def abort_transaction(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="Log directories of all brokers with replicas of the partition, or with __transaction_state.",
        ),
    ],
    topic: Annotated[str, typer.Option(autocompletion=complete_topics, help="The topic.", show_default=False)],
    producer: Annotated[int, typer.Option(metavar="ID", help="The id of the producer.", show_default=False)],
    options: AbortOptions,
    as_json: Json = False,
) -> int:
    """Abort a hanging transaction in the logs of stopped brokers: append the marker that no coordinator will write.

    Without --yes, only shows the changes. The transaction must hang by all of __transaction_state, which must be in
    DIR. The partition must have one replica, or all of its replicas must be in DIR. Its directories must have been
    shut down cleanly.
    """
    from cordwood.commands.abort_transaction import abort_transaction as abort

    result = abort([named(directory) for directory in directories], topic, producer, options)
    show_result(result, as_json=as_json)
    return EXIT_OK
