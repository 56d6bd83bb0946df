"""`cordwood ls`: a line per partition, or per segment."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, EXIT_REQUEST, named
from cordwood.cli.options import Directories, Json, with_options
from cordwood.commands.read import ls
from cordwood.commands.selection import Selection
from cordwood.report import listing as report


@with_options
def main(
    directories: Directories,
    *,
    segments: Annotated[bool, typer.Option("--segments", help="One line per segment.")] = False,
    selection: Selection,
    as_json: Json = False,
) -> int:
    """List partitions: offsets, sizes, records, policy, dirty bytes, codecs, times and state.

    The directories are taken as those of one broker. Changes nothing; a broker may be running. Exit status 1 if the
    batches of a log are not contiguous, 2 if something could not be read.
    """
    listing = ls(
        *map(named, directories),
        topics=selection.topics,
        partitions=selection.partitions,
        metadata=selection.metadata,
        server_properties=selection.server_properties,
        overrides=selection.overrides,
        index_entries=segments,
    )
    if as_json:
        print(json.dumps(report.document(listing, segments=segments), indent=1))
    else:
        print("\n".join(report.lines(listing, segments=segments)))
    if any(one.damage for one in listing.partitions):
        return EXIT_DAMAGE
    return EXIT_REQUEST if any(one.unreadable for one in listing.partitions) else EXIT_OK
