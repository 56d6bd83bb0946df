"""`cordwood topics`, `configs`, `brokers`: a cluster's state in its metadata log, at the end, an offset or a time."""

from __future__ import annotations

from typing import Annotated

import typer

from cordwood.cli.main import exit_code_of, named, show_result
from cordwood.cli.options import ClusterDirectories, Json, with_options
from cordwood.commands import cluster
from cordwood.commands.options import BrokersOptions, ClusterOptions


@with_options
def topics(
    directories: ClusterDirectories = None,
    *,
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
    listing = cluster.topics([named(directory) for directory in directories or ()], options)
    show_result(listing, as_json=as_json, lines=cluster.topic_lines(listing, partitions=by_partition))
    return exit_code_of(listing.as_of.problems)


@with_options
def configs(directories: ClusterDirectories = None, *, options: ClusterOptions, as_json: Json = False) -> int:
    """List the configs that are set in a cluster: of topics, of brokers, of all brokers.

    From __cluster_metadata-0, its snapshots and its log. Changes nothing; a broker may be running. Exit status 1 if a
    part of it could not be read.
    """
    listing = cluster.configs([named(directory) for directory in directories or ()], options)
    show_result(listing, as_json=as_json)
    return exit_code_of(listing.as_of.problems)


@with_options
def brokers(directories: ClusterDirectories = None, *, options: BrokersOptions, as_json: Json = False) -> int:
    """List the brokers of a cluster: state, listeners, number of led partitions; and the cluster's features.

    From __cluster_metadata-0, its snapshots and its log. Changes nothing; a broker may be running. Exit status 1 if a
    part of it could not be read.
    """
    listing = cluster.brokers([named(directory) for directory in directories or ()], options)
    show_result(listing, as_json=as_json)
    return exit_code_of(listing.as_of.problems)
