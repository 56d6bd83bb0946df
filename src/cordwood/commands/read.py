"""Commands that only read: open a log, list directories, check directories."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import cordwood.commands.report.check
import cordwood.commands.report.listing  # noqa: F401 - so that results can show themselves
from cordwood.commands.opening import open_node
from cordwood.commands.selection import ListOptions
from cordwood.common.arguments import AnyPath, no_path, text_paths
from cordwood.common.errors import NotFoundError, RequestError
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.check import Check, CheckResult, Finding
from cordwood.storage.check.warnings import warnings
from cordwood.storage.index.keyed_log import KeyedLog
from cordwood.storage.log.view import open_log_as
from cordwood.storage.node.directory import PathKind, look
from cordwood.storage.node.listing import Listing, PartitionListing, State, TopicListing, list_partitions
from cordwood.storage.node.node import Node
from cordwood.storage.node.start import Effect


def open_log(path: AnyPath, *, index_dir: AnyPath | None = None, fs: Store | None = None) -> KeyedLog:
    """Open the log of one partition for reading, also while a broker writes to it.

    Args:
        path: the partition's directory.
        index_dir: folder of key indexes, with a folder for each partition; default: in the directory itself.
        fs: the store; default: what the path leads to.

    Raises:
        NotFoundError: there is no such directory, or no segment in it.
        RequestError: it is a file.
    """
    place, folder = os.fspath(path), None if index_dir is None else os.fspath(index_dir)
    fs = fs or file_system_for([place, folder])
    try:
        log = open_log_as(KeyedLog, place, fs)
    except (NotFoundError, NotADirectoryError):
        # For a wrong path this message is clearer.
        if look(fs, place).kind is PathKind.FILE:
            raise RequestError(f"{place} is a file, not a partition's directory") from None
        raise
    return log.with_indexes_in(None if folder is None else log.fs.absolute_path(folder))


#: Sort orders of `ls`, each with a key that is lowest for the first row.
ORDERS: Mapping[str, Callable[[PartitionListing | TopicListing], float]] = {
    "name": lambda _: 0,
    "disk": lambda one: -one.disk_bytes,
    "size": lambda one: -one.size_bytes,
    "dirty": lambda one: -(one.dirty_bytes or 0),
    "clean": lambda one: -(one.clean_bytes or 0),
    "records": lambda one: -one.records,
    "segments": lambda one: -one.segment_count,
    "newest": lambda one: math.inf if one.newest_ms is None else -one.newest_ms,
    "oldest": lambda one: math.inf if one.oldest_ms is None else one.oldest_ms,
}


def ls(
    paths: Sequence[str],
    options: ListOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    fs: Store | None = None,
) -> Listing:
    """List the partitions of one broker's directories.

    Args:
        on_progress: called with the number of partitions listed so far, and of all.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: Kafka would not accept a config.
    """
    one = options.selection
    fs = fs or file_system_for([*paths, one.metadata, one.server_properties, options.index_place.index_dir])
    return list_node(open_node(fs, paths, one), paths, options, on_progress=on_progress)


#: Effects of a broker's next start on a partition, as states in the listing.
_STATES = {
    Effect.STRAY: State.STRAY,
    Effect.PARTITION_OFFLINE: State.OFFLINE,
    Effect.DIRECTORY_OFFLINE: State.OFFLINE,
    Effect.STARTS_EMPTY: State.STARTS_EMPTY,
}


def _foretold(partitions: Sequence[PartitionListing], found: Sequence[Finding]) -> Iterator[PartitionListing]:
    """Add the effects of a broker's next start to each partition."""
    for one in partitions:
        mine = [finding for finding in found if finding.path.startswith(f"{one.path}/")]
        states = dict.fromkeys((*one.states, *(_STATES[each.effect] for each in mine if each.effect in _STATES)))
        notes = tuple(f"{finding.what}: {finding.meaning}" for finding in mine)
        yield replace(one, states=tuple(states), notes=(*one.notes, *notes)) if mine else one


def list_node(
    node: Node,
    paths: Sequence[str],
    options: ListOptions,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Listing:
    """List the partitions of a node's directories, as they were when it was opened."""
    order = ORDERS.get(options.sort or "name")
    if order is None:
        raise RequestError(f"--sort {options.sort}: give one of {', '.join(ORDERS)}")
    found = list_partitions(
        node,
        paths,
        options.selection.topics,
        options.selection.partitions,
        index_entries=options.index_entries,
        index_root=options.index_place.root(node.fs, [place.path for place in node.places]),
        on_progress=on_progress,
    )
    found = replace(found, partitions=tuple(_foretold(found.partitions, warnings(node))))
    by_topic: dict[str, list[PartitionListing]] = {}
    for partition in found.partitions:
        if partition.topic_partition is not None:
            by_topic.setdefault(partition.topic_partition.topic, []).append(partition)
    topics = [TopicListing.of(name, some) for name, some in by_topic.items()]
    return replace(
        found,
        partitions=tuple(sorted(found.partitions, key=order)),
        topics=tuple(sorted(topics, key=order)),
    )


def check(*paths: AnyPath, fs: Store | None = None) -> CheckResult:
    """Everything that is wrong with the files at some paths. Damage has `Severity.DAMAGE`.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.

    Raises:
        NotFoundError: a path leads to nothing that could be checked.
        TypeError: there is no path.
    """
    given = text_paths(paths)
    if not given:
        raise no_path("check")
    found = Check(fs or file_system_for(given))
    return CheckResult(list(found.run(given)), found.summary, found.start)
