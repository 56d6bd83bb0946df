"""`cordwood transactions`: list open transactions and the records they hold back."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import exit_code_of, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import LogProgress
from cordwood.commands import transactions as report
from cordwood.commands.options import TransactionOptions
from cordwood.commands.transactions import transactions


@with_options
def main(
    directories: Directories,
    options: TransactionOptions,
    all_ids: Annotated[bool, typer.Option("--all", help="Also a line per transactional id, open or not.")] = False,
    as_json: Json = False,
) -> int:
    """List open transactions: whose they are, how old, whether they hang, and what they hold back.

    From the logs and __transaction_state together. Changes nothing; a broker may be running. Exit status 1 if records
    are damaged, 2 if a log could not be read.
    """
    with LogProgress(enabled=sys.stderr.isatty()) as progress:
        paths = [named(directory) for directory in directories]
        listing = transactions(paths, options, on_progress=progress.update)
    show(json.dumps(listing.document(), indent=1) if as_json else "\n".join(report.lines(listing, all_ids=all_ids)))
    return exit_code_of(listing.problems)
