"""`cordwood topics`: list topics from a cluster's metadata log, as of an offset or a time."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cordwood.cli.main import exit_code_of, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.commands import cluster
from cordwood.commands import cluster as report
from cordwood.commands.options import ClusterOptions


@with_options
def main(
    directories: Directories,
    options: ClusterOptions,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="A line per partition: leader, replicas, which are in sync.")
    ] = False,
    as_json: Json = False,
) -> int:
    """List the topics of a cluster: partitions, replicas, configs.

    From __cluster_metadata-0, its snapshots and its log. Changes nothing; a broker may be running. Exit status 1 if a
    part of it could not be read.
    """
    listing = cluster.topics([named(directory) for directory in directories], options)
    lines = report.topic_lines(listing, partitions=by_partition)
    show(json.dumps(listing.document(), indent=1) if as_json else "\n".join(lines))
    return exit_code_of(listing.as_of.problems)
