"""`cordwood ls`: a line per partition, or per segment."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.cli.progress import LogProgress
from cordwood.commands import ls as report
from cordwood.commands.ls import ls
from cordwood.commands.options import ListOptions
from cordwood.common.errors import RequestError


@with_options
def main(
    directories: Directories,
    options: ListOptions,
    by_topic: Annotated[
        bool, typer.Option("--by-topic", help="A line per topic, with the sums of its partitions.")
    ] = False,
    as_json: Json = False,
) -> int:
    """List partitions: offsets, sizes, records, policy, dirty bytes, codecs, times and state.

    The directories are taken as those of one broker. Changes nothing; a broker may be running. Exit status 1 if the
    batches of a log are not contiguous, 2 if something could not be read. In an object store, records, codecs, times
    and damage take a request per segment, so they are left out without --segments.
    """
    segments = options.index_entries
    if segments and by_topic:
        raise RequestError("--segments and --by-topic: give one of them")
    with LogProgress(enabled=sys.stderr.isatty()) as progress:
        listing = ls([named(directory) for directory in directories], options, on_progress=progress.update)
    if as_json:
        show(json.dumps(report.document(listing, segments=segments), indent=1))
    else:
        show("\n".join(report.lines(listing, segments=segments, by_topic=by_topic)))
    if any(one.damage for one in listing.partitions):
        return EXIT_DAMAGE
    return EXIT_REQUEST if any(one.unreadable for one in listing.partitions) else EXIT_OK
