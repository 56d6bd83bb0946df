"""`cordwood index`: makes the key indexes of segments, or removes them."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_OK, named
from cordwood.cli.options import Directories, Json, Partitions, Topics, parse_size
from cordwood.commands.index import index


def main(
    directories: Directories,
    drop: Annotated[bool, typer.Option("--drop", help="Remove all key indexes.")] = False,
    index_dir: Annotated[
        str | None,
        typer.Option(
            "--index-dir",
            metavar="DIR4",
            help="Folder for the indexes, with a folder for each partition; DIR is only read then. Default: in DIR.",
        ),
    ] = None,
    index_max: Annotated[
        str | None,
        typer.Option(
            "--index-max",
            metavar="BYTES",
            help="Disk space for the indexes of a partition. Default: a tenth of its log.",
        ),
    ] = None,
    topic: Topics = None,
    partition: Partitions = None,
    no_broker_elsewhere: Annotated[
        bool,
        typer.Option(
            "--no-broker-elsewhere", help="I confirm that no broker on another machine uses this network disk."
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Make a key index of each segment: which keys it has, and in which records. No file of the log changes.

    With one, `cordwood get` and `cordwood dump --key` read only the batches that may have the key. An index takes about
    8.5 bytes per record. Those that are up to date stay, and those of segments that are gone or have changed are
    removed or made anew; a segment gets none if the index would be larger than a tenth of it.
    """
    result = index(
        *map(named, directories),
        drop=drop,
        index_dir=index_dir,
        index_max=None if index_max is None else parse_size(index_max, "--index-max"),
        topics=topic or (),
        partitions=partition or (),
        no_broker_elsewhere=no_broker_elsewhere,
    )
    print(json.dumps(result.document(), indent=1) if as_json else result.text())
    return EXIT_OK
