"""`cordwood brokers`: list brokers from a cluster's metadata log, as of an offset or a time."""

from __future__ import annotations

import json

from cordwood.cli.main import exit_code_of, named, show
from cordwood.cli.options import Directories, Json, with_options
from cordwood.commands import cluster
from cordwood.commands.options import BrokersOptions


@with_options
def main(directories: Directories, options: BrokersOptions, as_json: Json = False) -> int:
    """List the brokers of a cluster: state, listeners, what each leads; and the cluster's features.

    From __cluster_metadata-0, its snapshots and its log. Changes nothing; a broker may be running. Exit status 1 if a
    part of it could not be read.
    """
    listing = cluster.brokers([named(directory) for directory in directories], options)
    show(json.dumps(listing.document(), indent=1) if as_json else listing.text())
    return exit_code_of(listing.as_of.problems)
