"""Open the directories of a command: its partitions, and the configs that apply; or the log of one partition."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cordwood.cleaning.rules.offset_map import keys_max, slots_of
from cordwood.cleaning.rules.plan import Choices, Decision, OffsetMapSize, PartitionPlan
from cordwood.cleaning.rules.precedence import KEEP_RULE
from cordwood.commands.options import ChosenPartitions, NamedBrokers, Selection
from cordwood.common.arguments import AnyPath
from cordwood.common.config import BrokerConfig, Layer, SourceKind, resolve_broker
from cordwood.common.errors import ConfigError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.index.keyed_log import KeyedLog
from cordwood.storage.log.view import open_log_as
from cordwood.storage.node.cluster import ChosenReplica, Cluster
from cordwood.storage.node.directory import PathKind, look, nothing_selected
from cordwood.storage.node.node import LocatedPartition, Node, is_asked_for
from cordwood.storage.tier.store import NOT_COPIED_FROM_TIER
from cordwood.tasks.in_forks import forks_for

if TYPE_CHECKING:
    from cordwood.storage.recovery.into_copy import RecoverySettings

#: The broker configs that determine the size of Kafka's offset map.
_MAP_CONFIGS = ("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.threads")


def open_node(fs: Store, paths: Sequence[str], selection: Selection) -> Node:
    """Open the directories with the configs of a selection; see `Node.open`.

    Raises:
        NotFoundError: no path exists, or a config names a topic without partitions here, perhaps misspelt.
    """
    node = Node.open(fs, paths, selection.metadata, selection.server_properties, selection.overrides)
    _check_topics_of_configs(Cluster.of(node), paths)
    return node


def open_cluster(fs: Store, paths: Sequence[str], selection: Selection, brokers: NamedBrokers) -> Cluster:
    """Open the directories of one or more brokers with the configs of a selection; see `Cluster.open`.

    Raises:
        NotFoundError: no path exists, or a config names a topic without partitions here, perhaps misspelt.
    """
    chosen = selection.metadata, selection.server_properties, selection.overrides
    cluster = Cluster.open(fs, paths, *chosen, named=brokers.named)
    _check_topics_of_configs(cluster, brokers.with_paths(paths))
    return cluster


def _check_topics_of_configs(cluster: Cluster, paths: Sequence[str]) -> None:
    said, known = cluster.nodes[0].said, frozenset[str]().union(*(node.topics for node in cluster.nodes))
    asked = [one.source.subject for one in said if one.source.kind is SourceKind.TOPIC_OVERRIDE]
    if unknown := [topic for topic in asked if topic not in known]:
        raise nothing_selected(known, paths, unknown, [], asked_by="--config")


def open_to_copy(fs: Store, paths: Sequence[str], selection: Selection) -> Node:
    """Open directories as `open_node` does, with the partitions that a cleaned copy has.

    With a tier, the copy leaves out the partitions that would make a broker on it delete remote segments of the
    original.
    """
    node = open_node(fs, paths, selection)
    if not node.has_tier:
        return node
    return replace(node, places=tuple(place for place in node.places if place.topic not in NOT_COPIED_FROM_TIER))


def select_partitions(
    places: Iterable[LocatedPartition], paths: Sequence[str], chosen: ChosenPartitions
) -> list[LocatedPartition]:
    """Return the selected partitions within the paths."""
    places, topics, partitions = [*places], chosen.topics, chosen.partitions
    selected = [place for place in places if is_asked_for(place, topics, partitions)]
    if not selected:
        raise nothing_selected((place.topic for place in places), paths, topics, partitions)
    return selected


def select_newest(cluster: Cluster, paths: Sequence[str], chosen: ChosenPartitions) -> Sequence[LocatedPartition]:
    """Return the selected partitions within the paths; of several brokers, each partition's newest replica."""
    return select_replicas(cluster, paths, chosen, None)[0]


def select_replicas(
    cluster: Cluster, paths: Sequence[str], chosen: ChosenPartitions, broker: str | None
) -> tuple[Sequence[LocatedPartition], Mapping[TopicPartition, ChosenReplica]]:
    """Return the selected partitions within the paths, and of several brokers the choice among their replicas.

    Args:
        broker: name of the broker whose replicas the user wants; None: the newest replicas.

    Raises:
        NotFoundError: no partition was selected, or the broker has no replica of one.
        RequestError: no directory belongs to the broker.
    """
    if broker is not None:
        cluster.named(broker)
    places = select_partitions((place for node in cluster.nodes for place in node.places), paths, chosen)
    if cluster.is_one_broker:
        return places, {}
    names = {place.name.topic_partition for place in places if place.name is not None}
    choices = {name: cluster.choose_replica(name, broker) for name in cluster.partitions if name in names}
    return [one.replica.place for one in choices.values()], choices


#: With fewer partitions of several brokers, one process is as fast.
_IN_FORKS_MIN = 2_000


def forks_for_brokers(cluster: Cluster, partitions: int) -> int:
    """Return the number of processes that divide the brokers of a cluster; 1 for few partitions, or an object store."""
    by_request = any(cluster.fs.reads_by_request(one.path) for node in cluster.nodes for one in node.directories)
    return 1 if by_request or partitions < _IN_FORKS_MIN else forks_for(len(cluster.nodes))


def recovery_settings(node: Node, topic: str) -> RecoverySettings:
    """Return the configs for loading a topic's partitions."""
    from cordwood.storage.recovery.into_copy import RecoverySettings  # a plan does not need it

    try:
        return RecoverySettings(index_interval_bytes=node.config_of(topic).integer("index.interval.bytes"))
    except ConfigError:
        return RecoverySettings()  # the plan reports invalid configs


def offset_map_size(node: Node, choices: Choices) -> OffsetMapSize | None:
    """Return the size of Kafka's offset map that limits a clean, or None without a limit.

    Raises:
        RequestError: the map has no room for a single key.
        ConfigError: the broker would reject one of its configs.
    """
    config = broker_config(node, _MAP_CONFIGS)
    buffer, factor = config["log.cleaner.dedupe.buffer.size"], config.real("log.cleaner.io.buffer.load.factor")
    if choices.offset_map is not None:
        memory, source = choices.offset_map, f"--offset-map {choices.offset_map}"
    elif buffer.explicit or choices.strict_kafka:
        threads = max(1, config.integer("log.cleaner.threads"))
        memory = config.integer("log.cleaner.dedupe.buffer.size") // threads
        shared = f" for {threads} threads" if threads > 1 else ""
        said = buffer.source if buffer.explicit else "--strict-kafka"
        source = f"log.cleaner.dedupe.buffer.size={buffer.value}{shared}, {said}"
    else:
        return None
    slots = slots_of(memory)
    keys = keys_max(slots, factor)
    if keys < 1:
        what = f"An offset map of {memory} bytes, filled to at most {100 * factor:g} %, has no room for a key"
        raise RequestError(f"{what} ({source}): no clean could advance")
    return OffsetMapSize(slots, factor, keys, source)


def broker_config(node: Node, names: Collection[str]) -> BrokerConfig:
    """Resolve only these broker configs, so that errors in others do not matter.

    Raises:
        ConfigError: the broker would reject one of them.
    """
    layers = node.broker_layers()
    return resolve_broker(
        Layer(one.source, {name: text for name, text in one.texts.items() if name in names}) for one in layers
    )


def limited_by_map(partition: PartitionPlan, size: OffsetMapSize | None) -> PartitionPlan:
    """Plan the rounds of a partition by Kafka's offset map; unchanged without a map."""
    if size is None or partition.decision is not Decision.CLEAN:
        return partition
    note = f"cleaned in rounds of at most {size.keys} keys, by Kafka's offset map ({size.source})"
    return replace(partition, offset_map=size, notes=(*partition.notes, note))


def open_log(path: AnyPath, *, index_dir: AnyPath | None = None, fs: Store | None = None) -> KeyedLog:
    """Open the log of one partition for reading; a broker may write to it meanwhile.

    Args:
        path: the partition's directory.
        index_dir: folder of key indexes, with a folder for each partition; default: in the directory itself.
        fs: the store; default: the store of the path.

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
    log.ranks = KEEP_RULE.ranks
    return log.with_indexes_in(None if folder is None else log.fs.absolute_path(folder))
