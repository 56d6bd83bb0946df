"""A broker's log directories together: which directories belong to one node, and where its partitions belong.

The cluster's metadata, if a directory holds it, lists the partitions of the node and their directories. ZooKeeper-based
brokers needed no files that tie a directory to its cluster. Therefore a node counts as a KRaft node only if its files
show that it is one.

Source: Kafka KafkaRaftServer.initializeLogDirs, LogManager.isStrayKraftReplica, KafkaMetadataLog.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.common.config import TopicConfig, resolve
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.record.columns import is_valid
from cordwood.storage.formats import cluster_metadata, filenames, properties
from cordwood.storage.formats.cluster_metadata import ClusterMetadata
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, PartitionDirectory
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.storage.node.directory import LogDirectory, Partition
from cordwood.storage.node.node import read_metadata

#: No log directory has an id below this: Kafka uses such ids for replicas whose directory is lost or not assigned yet.
RESERVED_IDS = 100


@dataclass(frozen=True)
class NodeToCheck:
    """The log directories of one broker.

    Attributes:
        directories: the log directories that the user named.
        siblings: other log directories of the node beside these. Only their ids and metadata log are used.
        files: further paths that the user named, with a file in the place of a log directory.
        strays: paths of partitions that a broker takes for strays; `check_topic_id` adds them.
        read: the metadata, if it was read already, and has no problems.
    """

    fs: Store
    directories: tuple[LogDirectory, ...]
    siblings: tuple[LogDirectory, ...] = ()
    files: tuple[str, ...] = ()
    strays: set[str] = field(default_factory=set, compare=False)
    read: ClusterMetadata | None = field(default=None, compare=False)

    @functools.cached_property
    def live(self) -> bool:
        """Whether a broker runs on one of the directories."""
        return any(directory.live for directory in self.directories)

    @functools.cached_property
    def metadata_place(self) -> tuple[LogDirectory, Partition] | None:
        """The directory that holds the metadata log, and that log; None without a metadata log."""
        return next(iter(self.metadata_places), None)

    @functools.cached_property
    def metadata_places(self) -> list[tuple[LogDirectory, Partition]]:
        """Each directory that holds a metadata log, and that log. A valid node has at most one."""
        return [
            (directory, partition)
            for directory in (*self.directories, *self.siblings)
            for partition in directory.partitions
            if partition.path.endswith(f"/{cluster_metadata.NAME}")
        ]

    @functools.cached_property
    def metadata(self) -> ClusterMetadata | None:
        """The cluster's metadata, read as a broker reads it; None without a metadata log, or while a broker runs."""
        if self.live:
            return None
        if self.read is not None:
            return self.read
        if self.metadata_place is None:
            # A formatted node without a metadata log creates an empty one, and so has no topics.
            return cluster_metadata.EMPTY if self.was_formatted else None
        path = self.metadata_place[1].path
        try:
            read = read_metadata(self.fs, path, as_broker=True)
            if not read.problems:
                return read
            # A broker cuts its metadata log at the first damage, even if valid data follows.
            return read_metadata(self.fs, path, end_offset=_first_damage(self.fs, path), as_broker=True)
        except (OSError, NotFoundError):
            return None

    @property
    def believed(self) -> ClusterMetadata | None:
        """`metadata` if it has no problems, or else None."""
        return None if self.metadata is None or self.metadata.problems else self.metadata

    @functools.cached_property
    def is_broker(self) -> bool:
        """Whether a broker created the directories; otherwise somebody copied partitions into them."""
        return self.metadata_place is not None or any(one.is_brokers for one in self.directories)

    @functools.cached_property
    def is_kraft(self) -> bool:
        """Whether the node's files show that it runs without ZooKeeper."""
        return (
            self.metadata_place is not None
            or self.was_formatted
            or any(one.meta is not None and one.meta.version == 1 for one in self.directories)
        )

    @functools.cached_property
    def was_formatted(self) -> bool:
        """Whether a directory has the file that formatting for KRaft writes; a copy of partitions lacks this file."""
        return any(one.info(filenames.BOOTSTRAP_CHECKPOINT) is not None for one in self.directories)

    @functools.cached_property
    def node_id(self) -> int | None:
        """`node.id` of the broker, preferably from the directory with the metadata log."""
        holder = [] if self.metadata_place is None else [self.metadata_place[0]]
        ids = [one.meta.node_id for one in (*holder, *self.directories) if one.meta is not None]
        return next((one for one in ids if one is not None), None)

    def config_of(self, topic: str) -> TopicConfig | None:
        """Return a topic's configs in the metadata; None if that has problems, or a value that Kafka would reject."""
        try:
            return None if self.believed is None else resolve(topic, self.believed.layers(topic, self.node_id))
        except ConfigError:
            return None

    @property
    def all_directories(self) -> tuple[LogDirectory, ...]:
        """The given directories and their siblings."""
        return (*self.directories, *self.siblings)

    def is_vital(self, path: str) -> bool:
        """Return whether a broker ends if it takes this log directory offline.

        It does if the directory is its only one, or holds the metadata log.
        """
        holder = self.metadata_place
        return len(self.all_directories) + len(self.files) == 1 or (holder is not None and holder[0].path == path)

    @functools.cached_property
    def homes(self) -> Mapping[TopicPartition, LogDirectory]:
        """The directory that each partition is served from: the first one that holds it."""
        return {name: one for one in reversed(self.directories) for name in _current(one)}

    @functools.cached_property
    def topics_by_id(self) -> Mapping[str, cluster_metadata.Topic]:
        """The topics in the metadata; empty if that has problems."""
        metadata = self.believed
        return {} if metadata is None else {topic.topic_id: topic for topic in metadata.topics.values()}

    def has_replica(self, partition: TopicPartition) -> bool:
        """Return whether the metadata places a replica of a partition on this node."""
        return self.believed is not None and self.is_here(
            self.believed.topics.get(partition.topic), partition.partition
        )

    def is_here(self, topic: cluster_metadata.Topic | None, partition: int) -> bool:
        """Return whether a partition of a topic in the metadata has a replica on this node.

        If this node is not among the metadata's brokers, any partition in the metadata counts.
        """
        placed = None if topic is None else topic.partitions.get(partition)
        unknown = self.believed is None or self.node_id not in self.believed.brokers
        return placed is not None and (unknown or self.node_id in placed.replicas)

    def placed_by_id(self, directory: LogDirectory) -> list[TopicPartition]:
        """Return the partitions of a directory that the metadata places in a directory whose id the node lacks."""
        if self.believed is None or self.node_id is None:
            return []
        here = {
            properties.encode_id(one.meta.directory_id)
            for one in self.all_directories
            if one.meta and one.meta.directory_id
        }
        found = []
        for name in _current(directory):
            topic = self.believed.topics.get(name.topic)
            placed = None if topic is None else topic.partitions.get(name.partition)
            if placed is not None:
                at = dict(zip(placed.replicas, placed.directories, strict=False)).get(self.node_id, "")
                known = properties.decode_id(at)
                if known is not None and known.int >= RESERVED_IDS and at not in here:
                    found.append(name)
        return found

    def without_leader(self, directory: LogDirectory, file: str) -> list[TopicPartition]:
        """Return the partitions that get no leader because of an error in a directory's file.

        A broker becomes leader of its partitions one after the other, and stops at the first whose high watermark it
        cannot read. Its order is that of a Java HashMap.

        Args:
            file: name of the file with the error.

        Source: Kafka ReplicaManager.applyLocalLeadersDelta, TopicPartition.hashCode, Java HashMap.
        """
        if file == filenames.META_PROPERTIES:
            return self.placed_by_id(directory)
        return self.behind_in_map(_current(directory))

    def behind_in_map(self, failing: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return all partitions from the first of `failing` on, in a broker's order of becoming their leader."""
        names = sorted(self.homes, key=str)
        names.sort(key=functools.partial(_place_in_map, size=len(names)))
        first = next((at for at, name in enumerate(names) if name in failing), len(names))
        return names[first:]

    def has_twin(self, name: TopicPartition) -> bool:
        """Return whether a partition has several directories."""
        every = [one.name for directory in self.directories for one in directory.partitions]
        return [one.topic_partition for one in every if one.state is DirectoryState.CURRENT].count(name) > 1

    def is_promoted(self, name: PartitionDirectory) -> bool:
        """Return whether a future directory, the target of a move, replaces the partition's missing directory."""
        current = {one.name.topic_partition for d in self.directories for one in d.partitions if not one.name.state}
        return name.state is DirectoryState.FUTURE and self.believed is not None and name.topic_partition not in current

    def is_stray_future(self, name: PartitionDirectory) -> bool:
        """Return whether a broker takes a future directory, the target of a move, for a stray."""
        is_known = self.believed is None or self.has_replica(name.topic_partition)
        return name.state is DirectoryState.FUTURE and not is_known


def nodes_of(fs: Store, directories: Sequence[LogDirectory], files: Sequence[str] = ()) -> list[NodeToCheck]:
    """Divide log directories into nodes.

    If one directory holds a metadata log, all directories belong to its node. If several do, each is another node;
    two of them are the same node only if their cluster and node ids are equal and their directory ids differ.
    The remaining directories join the node with their cluster and node id, or are grouped by these ids.

    Args:
        files: paths of files in the place of log directories. If there is only one node, they count as its disks.
    """
    groups = _divided(directories)
    lost = tuple(files) if len(groups) == 1 else ()
    return [NodeToCheck(fs, tuple(group), tuple(_siblings(fs, group, directories)), lost) for group in groups]


def _siblings(fs: Store, group: Sequence[LogDirectory], all_given: Sequence[LogDirectory]) -> Iterator[LogDirectory]:
    """Yield other log directories of a node, in the parent folders of the given ones.

    Lists each parent folder, and reads the meta.properties of each log directory in it. There may be many directories,
    those of other brokers, so only the node's own are listed.
    """
    key = _key(group[0])
    if key is None or not group[0].is_brokers or fs.reads_by_request(group[0].path):
        return
    given = {one.path for one in all_given}
    for parent in dict.fromkeys(posixpath.dirname(one.path) or "." for one in all_given):
        try:
            beside = [f"{parent.rstrip('/')}/{name}" for name, is_folder in fs.names_in(parent).items() if is_folder]
        except OSError:
            continue
        for path in beside:
            if path in given:
                continue
            unlisted = LogDirectory.unlisted(fs, path)
            ids = [one.meta.directory_id for one in (*group, unlisted) if one.meta is not None]
            if _key(unlisted) == key and len({*ids}) == len(ids):
                yield LogDirectory.open(fs, path)


def _divided(directories: Sequence[LogDirectory]) -> list[list[LogDirectory]]:
    holders = [one for one in directories if _holds_metadata(one)]
    keys = [_key(one) for one in holders]
    if len(holders) < 2:
        return _groups(directories, one_node=bool(holders))
    found: list[list[LogDirectory]] = []
    for at, holder in enumerate(holders):
        before = keys.index(keys[at])
        twin = holders[before].meta
        same = before < at and keys[at] is not None and twin is not None and holder.meta is not None
        if same and holder.meta is not None and twin is not None and holder.meta.directory_id != twin.directory_id:
            found[before].append(holder)
        else:
            found.append([holder])
    rest: list[LogDirectory] = []
    for directory in directories:
        if directory in holders:
            continue
        key = _key(directory)
        mine = next((group for group in found if key is not None and _key(group[0]) == key), None)
        (rest if mine is None else mine).append(directory)
    found += _groups(rest, one_node=False)
    return found


def _groups(directories: Sequence[LogDirectory], *, one_node: bool) -> list[list[LogDirectory]]:
    if one_node:
        return [list(directories)]
    found: dict[object, list[LogDirectory]] = {}
    for directory in directories:
        found.setdefault(_key(directory) or directory.path, []).append(directory)
    return list(found.values())


def _holds_metadata(directory: LogDirectory) -> bool:
    return any(partition.path.endswith(f"/{cluster_metadata.NAME}") for partition in directory.partitions)


def _key(directory: LogDirectory) -> tuple[object, ...] | None:
    meta = directory.meta
    return None if meta is None else (meta.cluster_id, meta.node_id)


def _current(directory: LogDirectory) -> set[TopicPartition]:
    """Return the partitions that a broker serves from a directory."""
    names = {one.name.topic_partition for one in directory.partitions if one.name.state is DirectoryState.CURRENT}
    return {name for name in names if name.topic != CLUSTER_METADATA_TOPIC}


def _place_in_map(name: TopicPartition, size: int) -> int:
    """Return the bucket of a partition in a Java HashMap with `size` partitions."""
    of_topic = 0
    for unit in name.topic:
        of_topic = (31 * of_topic + ord(unit)) & 0xFFFFFFFF
    value = (31 * (31 + name.partition) + of_topic) & 0xFFFFFFFF
    buckets = 16
    while size > buckets * 3 // 4:
        buckets *= 2
    return (value ^ value >> 16) & (buckets - 1)


def _first_damage(fs: Store, path: str) -> int:
    """Return the offset at which a load cuts a metadata log: that of the first damage, or its end offset."""
    next_offset = 0
    for segment, item in LogView(path, fs=fs).windows():
        next_offset = max(next_offset, segment.base_offset)
        if isinstance(item, Gap):
            return next_offset
        wrong = ~is_valid(item.batches)
        if wrong.any():
            return int(item.batches["base_offset"][int(wrong.argmax())])
        next_offset = int(item.batches["last_offset"][-1]) + 1
    return next_offset
