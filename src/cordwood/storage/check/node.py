"""Checks all log directories of one broker: their ids, the cluster's metadata, missing directories and partitions.

If a small file is missing that ties a directory to its cluster, or a partition to its topic, a KRaft node does not
start, or starts with empty partitions. So the absence of such a file is damage here. ZooKeeper-based brokers needed no
such files. Therefore a node counts as a KRaft node only if its files show that it is one.

Source: Kafka KafkaRaftServer.initializeLogDirs, MetaPropertiesEnsemble.verify, LogManager.isStrayKraftReplica,
KafkaMetadataLog.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cordwood.common.config import TopicConfig, resolve
from cordwood.common.errors import ConfigError, NotFoundError
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import Store
from cordwood.record.columns import is_valid
from cordwood.storage.check.findings import (
    ALL_STRAY,
    EMPTY,
    KINDS,
    NO_START,
    OFFLINE,
    STRAY,
    STRAY_ONLY,
    Findings,
    Kind,
)
from cordwood.storage.check.permissions import READ, SEARCH, WRITE, may_not
from cordwood.storage.formats import cluster_metadata, filenames, properties
from cordwood.storage.formats.cluster_metadata import ClusterMetadata
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, FileKind, PartitionDirectory
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.storage.node.directory import LogDirectory, Partition, twice_in_cleaner_offsets
from cordwood.storage.node.node import read_metadata, snapshot_offsets
from cordwood.storage.node.start import Effect

#: No log directory has an id below this: Kafka uses such ids for replicas whose directory is lost or not assigned yet.
_RESERVED_IDS = 100


@dataclass(frozen=True)
class NodeToCheck:
    """The log directories of one broker.

    Attributes:
        directories: the log directories that the user named.
        siblings: other log directories of the node beside these. Only their ids and metadata log are used.
        files: further paths that the user named, with a file in the place of a log directory.
        strays: paths of partitions that a broker takes for strays; `check_topic_id` adds them.
    """

    fs: Store
    directories: tuple[LogDirectory, ...]
    siblings: tuple[LogDirectory, ...] = ()
    files: tuple[str, ...] = ()
    strays: set[str] = field(default_factory=set, compare=False)

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
    def _all(self) -> tuple[LogDirectory, ...]:
        return (*self.directories, *self.siblings)

    def is_vital(self, path: str) -> bool:
        """Return whether a broker ends if it takes this log directory offline.

        It does if the directory is its only one, or holds the metadata log.
        """
        holder = self.metadata_place
        return len(self._all) + len(self.files) == 1 or (holder is not None and holder[0].path == path)

    # ---- directories ---------------------------------------------------------------------------------------------

    def check_directories(self, findings: Findings) -> None:
        """Report errors in the files that tie the directories to a node and its cluster."""
        if not self.is_broker or self.live:
            return
        for directory in self.directories:
            self._meta(directory, findings)
            self._permissions(directory, findings)
        for path in self.files:
            findings.add(Kind.UNREADABLE, path, "a file where a log directory should be")
        self._ensemble(findings)
        if self.is_kraft:
            self._metadata_log(findings)
            self._registered(findings)
        self._cleaner(findings)

    def _meta(self, directory: LogDirectory, findings: Findings) -> None:
        path = f"{directory.path}/{filenames.META_PROPERTIES}"
        if directory.info(filenames.META_PROPERTIES) is None:
            if self.is_kraft:
                what = f"there is no {filenames.META_PROPERTIES}, as in a directory that was never formatted"
                findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
        elif directory.meta is None:
            try:
                read_file(self.fs, path)
            except OSError as error:
                meaning = KINDS[Kind.META_PROPERTIES][1]
                findings.add(Kind.UNREADABLE, path, why_unreadable(error), meaning=meaning)
                return
            wrong = next((one for one in directory.unreadable if one.path == path), None)
            if wrong is not None:
                findings.add(Kind.META_PROPERTIES, path, wrong.what, position=wrong.position)
        elif directory.meta.node_id is None and self.is_kraft:
            findings.add(Kind.META_PROPERTIES, path, "it has no node.id", meaning=NO_START)
        elif directory.meta.directory_id is not None and directory.meta.directory_id.int < _RESERVED_IDS:
            what = f"its directory.id, {properties.encode_id(directory.meta.directory_id)}, is reserved"
            findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
        elif self._is_unregistered(directory) and self._placed_by_id(directory):
            has = "no directory.id" if directory.meta.directory_id is None else "another directory.id than before"
            what = f"it has {has}, and the cluster's metadata places partitions by the one that it had"
            meaning = "its partitions get no leader until the broker has had them assigned to the new id"
            findings.add(Kind.META_PROPERTIES, path, what, meaning=meaning, effect=Effect.PARTITION_OFFLINE)

    def _is_unregistered(self, directory: LogDirectory) -> bool:
        """Return whether the cluster's metadata lists this node's directories, but not the id of this directory."""
        broker = None if self.believed is None or self.node_id is None else self.believed.brokers.get(self.node_id)
        if broker is None or not broker.directories or directory.meta is None:
            return False
        own = directory.meta.directory_id
        return own is None or properties.encode_id(own) not in broker.directories

    def _placed_by_id(self, directory: LogDirectory) -> list[TopicPartition]:
        """Return the partitions of a directory that the metadata places in an unknown directory of the node: in one
        whose id no directory has.
        """
        if self.believed is None or self.node_id is None:
            return []
        here = {properties.encode_id(one.meta.directory_id) for one in self._all if one.meta and one.meta.directory_id}
        found = []
        for name in _current(directory):
            topic = self.believed.topics.get(name.topic)
            placed = None if topic is None else topic.partitions.get(name.partition)
            if placed is not None:
                at = dict(zip(placed.replicas, placed.directories, strict=False)).get(self.node_id, "")
                known = properties.decode_id(at)
                if known is not None and known.int >= _RESERVED_IDS and at not in here:
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
            return self._placed_by_id(directory)
        return self.behind_in_map(_current(directory))

    def behind_in_map(self, failing: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return all partitions from the first of `failing` on, in a broker's order of becoming their leader."""
        names = sorted(self.homes, key=str)
        names.sort(key=functools.partial(_place_in_map, size=len(names)))
        first = next((at for at, name in enumerate(names) if name in failing), len(names))
        return names[first:]

    @functools.cached_property
    def homes(self) -> Mapping[TopicPartition, LogDirectory]:
        """The directory that each partition is served from: the first one that holds it."""
        return {name: one for one in reversed(self.directories) for name in _current(one)}

    def _permissions(self, directory: LogDirectory, findings: Findings) -> None:
        """Report files that the owner of a log directory may not read or write. Its broker runs as this owner."""
        try:
            owner = self.fs.stat(directory.path)
        except OSError:
            return
        if missing := may_not(owner, owner, READ | WRITE | SEARCH):
            findings.add(Kind.NOT_WRITABLE, directory.path, f"its owner may not {missing} in it")
        read: tuple[str, ...] = (filenames.META_PROPERTIES, *filenames.OFFSET_CHECKPOINTS)
        if self.metadata_place is None or self.metadata_place[0].path == directory.path:
            read = (*read, filenames.BOOTSTRAP_CHECKPOINT)
        for name in (filenames.LOCK, *read):
            info, wanted = directory.info(name), READ | WRITE if name == filenames.LOCK else READ
            if info is not None and (missing := may_not(owner, info, wanted)):
                what = f"the owner of the log directory may not {missing} it"
                findings.add(Kind.NOT_WRITABLE, f"{directory.path}/{name}", what)

    def _ensemble(self, findings: Findings) -> None:
        """Report meta.properties that contradict each other: one cluster, one node, and distinct directory ids."""
        known = [(one, one.meta) for one in self.directories if one.meta is not None]
        if not known:
            return
        first, of_first = known[0]
        for at, (directory, meta) in enumerate(known[1:], 1):
            path = f"{directory.path}/{filenames.META_PROPERTIES}"
            for name, mine, other in (
                ("cluster.id", meta.cluster_id, of_first.cluster_id),
                ("node.id", meta.node_id, of_first.node_id),
            ):
                if mine is not None and other is not None and mine != other:
                    what = f"{name} {mine}, but {first.path} has {other}"
                    findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
            for twin, of_twin in known[:at]:
                if meta.directory_id is not None and meta.directory_id == of_twin.directory_id:
                    what = f"its directory.id is that of {twin.path}, too: one is a copy of the other"
                    findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)

    def _metadata_log(self, findings: Findings) -> None:
        """Report a metadata log that is missing, empty, or begins above 0 without a snapshot."""
        first = self.directories[0].path
        if self.metadata_place is None:
            for directory in self.directories:
                if directory.info(cluster_metadata.NAME) is not None:
                    path = f"{directory.path}/{cluster_metadata.NAME}"
                    findings.add(Kind.METADATA_LOG, path, "a file where the directory of the metadata log should be")
                    return
            if not self.was_formatted:
                return
            what = "none of the log directories has a metadata log; if it is elsewhere, name that directory, too"
            findings.add(Kind.METADATA_LOG, f"{first}/{cluster_metadata.NAME}", what, meaning=ALL_STRAY)
            return
        path = self.metadata_place[1].path
        for _, other in self.metadata_places[1:]:
            what = f"{path} is there, too: a node has its metadata log in one directory, metadata.log.dir"
            findings.add(Kind.METADATA_LOG, other.path, what)
        try:
            log = LogView(path, fs=self.fs)
        except (OSError, NotFoundError):
            return  # reported when the log is checked
        newest = max(snapshot_offsets(log), default=NONE)
        if log.first_offset > 0 and newest < log.first_offset:
            has = "there is no snapshot" if newest == NONE else f"the newest snapshot ends at {newest}"
            what = f"the metadata log begins at offset {log.first_offset}, and {has}: what was before is lost"
            findings.add(Kind.METADATA_LOG, path, what, offset=log.first_offset)
        elif self.believed is not None and self.metadata is not None and self.metadata.next_offset == 0:
            findings.add(Kind.METADATA_LOG, path, "the metadata log is empty", meaning=ALL_STRAY)

    def _registered(self, findings: Findings) -> None:
        """Compare the directories with the broker's registration in the cluster's metadata."""
        metadata, known = self.believed, [one for one in self._all if one.meta is not None]
        if metadata is None or not metadata.brokers or self.node_id is None or len(known) < len(self._all):
            return
        broker = metadata.brokers.get(self.node_id)
        if broker is None:
            if any(
                self.node_id in one.replicas for topic in metadata.topics.values() for one in topic.partitions.values()
            ):
                return
            known_ids = ", ".join(map(str, sorted(metadata.brokers)))
            path = f"{known[0].path}/{filenames.META_PROPERTIES}"
            what = f"node.id {self.node_id}, but the cluster's metadata knows only the brokers {known_ids}"
            findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
            return
        here = {properties.encode_id(one.meta.directory_id) for one in known if one.meta and one.meta.directory_id}
        missing = [one for one in broker.directories if one not in here]
        if len(broker.directories) > len(self._all) + len(self.files):
            where = self.metadata_place[1].path if self.metadata_place else self.directories[0].path
            what = (
                f"the broker has {len(broker.directories)} log directories by its cluster's metadata, "
                f"{len(self._all)} given: the one with the id {', '.join(missing) or '?'} is not there"
            )
            findings.add(
                Kind.DIRECTORY_MISSING,
                where,
                what,
                meaning="a broker does not start while a disk of it is not mounted; name all of its directories",
                effect=Effect.DOES_NOT_START,
            )

    def _cleaner(self, findings: Findings) -> None:
        for partition, first, other in twice_in_cleaner_offsets(self.directories):
            path, offset = f"{other.path}/{filenames.CLEANER_OFFSETS}", other.cleaner_offsets[partition]
            what = f"{partition} is in {first.path}/{filenames.CLEANER_OFFSETS}, too: a duplicate of the entry here"
            findings.add(Kind.CHECKPOINT_DUPLICATE, path, what, offset=offset)

    # ---- partitions ----------------------------------------------------------------------------------------------

    @functools.cached_property
    def _topics_by_id(self) -> Mapping[str, cluster_metadata.Topic]:
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

    def check_topic_id(self, name: TopicPartition, path: str, topic_id: str | None, findings: Findings) -> None:
        """Report a partition that a broker takes for a stray, or for a partition of another topic.

        Args:
            topic_id: topic id in its `partition.metadata`; None if the file is missing.
        """
        metadata = self.believed
        if metadata is None or name.topic == CLUSTER_METADATA_TOPIC:
            return
        before = len(findings.found)
        self._stray(name, path, topic_id, findings)
        if any(one.effect is Effect.STRAY for one in findings.found[before:]):
            self.strays.add(path)

    def _stray(self, name: TopicPartition, path: str, topic_id: str | None, findings: Findings) -> None:
        metadata = self.believed
        assert metadata is not None, "it was asked for"
        file, wanted = f"{path}/{FileKind.PARTITION_METADATA}", metadata.topics.get(name.topic)
        stray = STRAY if self.is_here(wanted, name.partition) else STRAY_ONLY
        if topic_id is None:
            what = f"missing, so a broker does not know of which topic it is; by name its id is {_id(wanted)}"
            findings.add(Kind.PARTITION_METADATA, file, what, meaning=stray)
            return
        owner = self._topics_by_id.get(topic_id)
        if owner is None:
            what = f"topic id {topic_id}, the cluster's metadata has {_id(wanted)} for {name.topic}"
            findings.add(Kind.TOPIC_ID, file, what, meaning=stray)
        elif not self.is_here(owner, name.partition):
            placed = owner.partitions.get(name.partition)
            where = "no such partition" if placed is None else f"its replicas on {', '.join(map(str, placed.replicas))}"
            what = f"topic id {topic_id} is that of {owner.name}, and the cluster's metadata has {where}"
            findings.add(Kind.TOPIC_ID, file, what, meaning=stray)
        elif owner.name != name.topic:
            what = f"topic id {topic_id} is that of {owner.name}, not of {name.topic}"
            meaning = f"a broker serves nothing of {name}: the directory is of another topic"
            findings.add(Kind.TOPIC_ID, file, what, meaning=meaning, effect=Effect.PARTITION_OFFLINE)

    def _is_blocked(self, directory: LogDirectory, name: str) -> bool:
        """Return whether a file, or a link without a target, is in the place where a broker creates a directory."""
        if directory.info(name) is not None:
            return True
        here = self.fs.real_path(directory.path)
        return self.fs.real_path(f"{directory.path}/{name}") != f"{here.rstrip('/')}/{name}"

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

    def check_missing(self, findings: Findings) -> Iterator[TopicPartition]:
        """Report partitions that the metadata places on this node but no directory holds, and yield their names."""
        metadata = self.believed
        if metadata is None or self.node_id is None or not self.is_broker:
            return
        broker = metadata.brokers.get(self.node_id)
        if broker is None or len(broker.directories) > len(self.directories):
            return  # the user did not name all log directories; further ones may hold the partitions
        present = {
            partition.name.topic_partition
            for directory in self.directories
            for partition in directory.partitions
            if partition.name.state in (DirectoryState.CURRENT, DirectoryState.FUTURE)
        }
        by_id = {
            properties.encode_id(one.meta.directory_id): one
            for one in self.directories
            if one.meta is not None and one.meta.directory_id is not None
        }
        noted = {name for one in self.directories for name in (*one.recovery_points, *one.high_watermarks)}
        for topic in metadata.topics.values():
            for number, placed in topic.partitions.items():
                name = TopicPartition(topic.name, number)
                if self.node_id not in placed.replicas or name in present:
                    continue
                blocked = [one.path for one in self.directories if self._is_blocked(one, str(name))]
                if blocked:
                    what = f"a file where the directory of {name} should be"
                    findings.add(Kind.PARTITION_MISSING, f"{blocked[0]}/{name}", what, meaning=OFFLINE)
                    yield name
                    continue
                if name not in noted:
                    continue  # this is a partial copy of a node, or the broker never created the partition
                at = dict(zip(placed.replicas, placed.directories, strict=False)).get(self.node_id, "")
                directory = by_id.get(at, self.directories[0])
                copied = len(placed.replicas) > 1
                what = f"the cluster's metadata places {name} on this broker, and no log directory holds it"
                findings.add(
                    Kind.PARTITION_MISSING,
                    f"{directory.path}/{name}",
                    what,
                    meaning=f"{EMPTY}; its leader may still have the records" if copied else EMPTY,
                    effect=Effect.STARTS_EMPTY,
                )
                yield name


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


def _id(topic: cluster_metadata.Topic | None) -> str:
    return "none" if topic is None else topic.topic_id


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

    Lists each parent folder, and reads the meta.properties of each log directory in it.
    """
    key = _key(group[0])
    if key is None or not group[0].is_brokers or fs.reads_by_request(group[0].path):
        return
    given = {one.path for one in all_given}
    for parent in dict.fromkeys(posixpath.dirname(one.path) or "." for one in all_given):
        try:
            beside = [f"{parent.rstrip('/')}/{info.name}" for info in fs.list(parent) if info.is_directory]
        except OSError:
            continue
        for path in beside:
            if path in given or not fs.exists(f"{path}/{filenames.META_PROPERTIES}"):
                continue
            directory = LogDirectory.open(fs, path)
            ids = [one.meta.directory_id for one in (*group, directory) if one.meta is not None]
            if _key(directory) == key and len({*ids}) == len(ids):
                yield directory


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
