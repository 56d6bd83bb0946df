"""`clean --output --of cluster`: one replica of each partition of a cluster, in one directory for a single broker.

The copy has the newest replica of each partition. A broker that starts on it must be the only replica of all
partitions. But the metadata log assigns them to several brokers, and a broker sets a partition aside that is not
assigned to it. So records at the end of the copy's metadata log make one broker the only replica of each partition:

    newest metadata log    offset 0 to 4,210: the cluster as it was
    added at the end       PartitionChangeRecord for each partition: replicas, in sync: broker 1; no leader yet

The broker is the owner of the newest metadata log, and the copy has its `node.id` and `directory.id`. Without a file
`quorum-state` it reads its voters from `controller.quorum.voters`. It elects itself as the controller, replays the
metadata, and leads all partitions.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cordwood.commands.opening import open_cluster
from cordwood.commands.options import NamedBrokers, Selection
from cordwood.commands.replicas import replica_lines
from cordwood.common.errors import RequestError
from cordwood.common.text import names_text, number
from cordwood.common.types import ControlType, TopicPartition, override
from cordwood.fs.base import TargetStore
from cordwood.kernels.layout import is_control
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.changes.copy import DirectoryCopy, check_unlocked
from cordwood.storage.formats import checkpoints, cluster_metadata, filenames
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, FileKind
from cordwood.storage.formats.properties import MetaProperties, decode_id
from cordwood.storage.log.files import copy_file, read_leader_epochs
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, Gap, read_headers
from cordwood.storage.node.cluster import ChosenReplica, Cluster
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition, Node, snapshot_offsets
from cordwood.storage.node.read_replica import ReadReplica

#: The first `metadata.version` whose metadata has the log directory of each replica (3.7-IV2).
_DIRECTORIES_LEVEL = 17
_ELIGIBLE_FEATURE = "eligible.leader.replicas.version"
#: Files of the broker's own directory that the copy has, too.
_OWN_FILES = (filenames.META_PROPERTIES, filenames.BOOTSTRAP_CHECKPOINT)
_BATCH_RECORDS = 1000


class _Part(DirectoryCopy):
    """The chosen replicas of one directory; `_MergedCopy` writes the files beside all of them."""

    @override
    def copy_files(self, fs: TargetStore) -> None:
        pass

    @override
    def write_checkpoints(self, fs: TargetStore) -> None:
        pass


@dataclass
class _MergedCopy(DirectoryCopy):
    """The chosen replicas of the directory with the metadata log, and the files beside those of all directories."""

    parts: Sequence[DirectoryCopy] = ()

    @override
    def copy_files(self, fs: TargetStore) -> None:
        for name in (*_OWN_FILES, filenames.CLEAN_SHUTDOWN):
            if (info := self.source.info(name)) is not None:
                copy_file(fs, f"{self.source.path}/{name}", f"{self.path}/{name}", info=info)

    @override
    def write_checkpoints(self, fs: TargetStore) -> None:
        merged: dict[str, dict[TopicPartition, int]] = {name: {} for name in filenames.OFFSET_CHECKPOINTS}
        for part in (self, *self.parts):
            source = part.source
            for name, before, changes in (
                (filenames.CLEANER_OFFSETS, source.cleaner_offsets, part.cleaner_offsets),
                (filenames.RECOVERY_POINTS, source.recovery_points, part.recovery_points),
                (filenames.LOG_START_OFFSETS, source.log_start_offsets, {}),
                (filenames.HIGH_WATERMARKS, source.high_watermarks, part.high_watermarks),
            ):
                mine = {place.name.topic_partition for place in part.places if place.name is not None}
                merged[name] |= {one: offset for one, offset in {**before, **changes}.items() if one in mine}
        for name, offsets in merged.items():
            fs.put(f"{self.path}/{name}", checkpoints.encode(offsets))


@dataclass(frozen=True)
class MergedCluster:
    """A cluster as one node with one replica of each partition.

    Attributes:
        node: the directories, each with its chosen replicas only.
        owner: the directory with the metadata log, whose broker starts on the copy.
        meta: its `meta.properties`.
        broker: node.id of that broker.
        notes: the chosen replicas, and partitions that are not in the copy.
    """

    cluster: Cluster
    node: Node
    owner: LogDirectory
    meta: MetaProperties
    broker: int
    notes: tuple[str, ...] = field(repr=False)

    def lay_out(self, root: str) -> list[DirectoryCopy]:
        """Assign one path to the copies of all directories.

        Raises:
            LockedError: a process holds the lock of a directory.
        """
        parts = []
        for directory in self.node.directories:
            check_unlocked(directory)
            places = [place for place in self.node.places if place.directory is directory]
            kind = _MergedCopy if directory is self.owner else _Part
            parts.append(kind(directory, root, places, False))
        for part in parts:
            if isinstance(part, _MergedCopy):
                part.parts = [one for one in parts if one is not part]
        # Others first, so that their cleaner offsets are known when the merged checkpoints are written.
        return sorted(parts, key=lambda one: isinstance(one, _MergedCopy))

    def write_metadata(self, fs: TargetStore, root: str, now_ms: int) -> None:
        """Append the records to the copy's metadata log that make its broker the only replica of each partition."""
        path = f"{root}/{cluster_metadata.NAME}"
        if fs.exists(f"{path}/{FileKind.QUORUM_STATE}"):
            fs.unlink(f"{path}/{FileKind.QUORUM_STATE}")
        log = LogView(path, fs=fs)
        epochs = read_leader_epochs(fs, path).latest
        records = [
            Record(offset=log.next_offset + at, timestamp=now_ms, key=None, value=value)
            for at, value in enumerate(self._changes())
        ]
        data = b"".join(
            encode_batch(records[start : start + _BATCH_RECORDS], leader_epoch=0 if epochs is None else epochs.epoch)
            for start in range(0, len(records), _BATCH_RECORDS)
        )
        with fs.open_for_update(log.segments[-1].path) as file:
            file.write(file.size(), data)
            file.sync()

    def _changes(self) -> Iterator[bytes]:
        metadata = self.cluster.metadata
        assert metadata is not None, "checked before"
        has_directories = metadata.features.get("metadata.version", 0) >= _DIRECTORIES_LEVEL
        directory_id = self.meta.directory_id if has_directories else None
        clears = bool(metadata.features.get(_ELIGIBLE_FEATURE)) and directory_id is not None
        for place in self.node.places:
            if place.name is None or place.topic == CLUSTER_METADATA_TOPIC:
                continue
            name = place.name.topic_partition
            topic_id = decode_id(metadata.topics[name.topic].topic_id)
            assert topic_id is not None, "the metadata has an id for each topic"
            yield cluster_metadata.encode_only_replica(
                topic_id, name.partition, self.broker, directory_id, clears_eligible=clears
            )


def merge_cluster(
    fs: TargetStore, paths: Sequence[str], output: str, selection: Selection, named: Sequence[tuple[str, str]]
) -> MergedCluster:
    """Open the directories of a cluster's brokers, and choose the newest replica of each partition.

    Raises:
        NotFoundError: there is nothing at a path.
        RequestError: no broker could start on the copy: there is no usable metadata log, a directory was not shut down
            cleanly, is not given as a whole, or has tiered topics; or the output is not on a disk.
    """
    brokers = NamedBrokers(brokers=tuple(f"{name}={path}" for name, path in named))
    cluster = open_cluster(fs, paths, selection, brokers)
    if fs.path_on_disk(output) is None:
        raise RequestError("--of cluster: the copy is changed after it was made, so it needs a disk")
    owner, meta = _owner(cluster)
    _check_directories(cluster)
    metadata = cluster.metadata
    assert metadata is not None and cluster.metadata_path is not None, "or it has no owner"
    choices: list[ChosenReplica] = []
    unknown, chosen = [], {cluster.metadata_path}
    for name in cluster.partitions:
        topic = metadata.topics.get(name.topic)
        if name.topic == CLUSTER_METADATA_TOPIC:
            continue
        if topic is None or name.partition not in topic.partitions:
            unknown.append(str(name))
            continue
        choices.append(cluster.choose_replica(name))
        chosen.add(choices[-1].replica.path)
    node = _only(cluster, chosen, owner)
    here = {choice.replica.name for choice in choices}
    missing = [
        str(TopicPartition(topic.name, partition))
        for topic in metadata.topics.values()
        for partition in topic.partitions
        if TopicPartition(topic.name, partition) not in here
    ]
    node_id = meta.node_id
    assert node_id is not None, "or it has no owner"
    notes = [
        f"records at the end of the copy's metadata log make broker {node_id} the only replica of each partition. "
        f"Start it with node.id={node_id}, process.roles=broker,controller and itself alone in controller.quorum.voters"
    ]
    notes += replica_lines([ReadReplica.of(choice) for choice in choices if choice.others])
    if unknown:
        notes.append(f"not in the metadata, and so not in the copy: {names_text(unknown)}")
    if missing:
        notes.append(f"no directory has {number(len(missing), 'partition')}, without leader now: {names_text(missing)}")
    return MergedCluster(
        cluster, node, next(one for one in node.directories if one.path == owner.path), meta, node_id, tuple(notes)
    )


def _owner(cluster: Cluster) -> tuple[LogDirectory, MetaProperties]:
    """Return the directory with the newest metadata log."""
    if cluster.metadata is None or cluster.metadata_path is None:
        raise RequestError("--of cluster: no directory has a metadata log, so a broker would find no partition")
    if cluster.metadata.problems:
        raise RequestError(f"--of cluster: the metadata is damaged: {cluster.metadata.problems[0]}")
    folder = posixpath.dirname(cluster.metadata_path)
    owner = next((one for node in cluster.nodes for one in node.directories if one.path == folder), None)
    if owner is None or owner.meta is None or owner.meta.node_id is None:
        raise RequestError(
            f"--of cluster: {folder} has the metadata, so give it as one of the directories, with its meta.properties"
        )
    log = LogView(cluster.metadata_path, fs=cluster.fs)
    if log.recovery.segments and _has_voters(log):
        raise RequestError(
            "--of cluster: the controllers of this cluster are in its metadata log (kraft.version 1), so a single one "
            "cannot elect itself. Copy the directories of one broker instead"
        )
    return owner, owner.meta


def _has_voters(log: LogView) -> bool:
    """Return whether a metadata log, or its newest snapshot, has the set of voters."""
    for _, item in log.windows(checks=Checks.HEADERS):
        if isinstance(item, Gap):
            continue
        if (item.batches["control_type"][is_control(item.batches)] == ControlType.KRAFT_VOTERS).any():
            return True
    return any(_snapshot_has_voters(log, name) for name in [*snapshot_offsets(log).values()][-1:])


def _snapshot_has_voters(log: LogView, name: str) -> bool:
    with log.fs.open(f"{log.path}/{name}") as file:
        return any(
            bool((item["control_type"][is_control(item)] == ControlType.KRAFT_VOTERS).any())
            for item in read_headers(file)
            if not isinstance(item, Gap)
        )


def _check_directories(cluster: Cluster) -> None:
    for node in cluster.nodes:
        given = {place.path for place in node.places}
        for directory in node.directories:
            if not given.issuperset(one.path for one in directory.partitions):
                raise RequestError(f"--of cluster: give {directory.path} as a whole, not some of its partitions")
            if directory.crashed:
                raise RequestError(
                    f"--of cluster: {directory.path} was not shut down cleanly. Start its broker and stop it properly"
                )
        for name in node.partitions:
            if twins := node.duplicates(name):
                paths = names_text([twin.path for twin in twins])
                raise RequestError(f"{name} is in {paths}: no broker starts with both")
    metadata = cluster.metadata
    tiered = [] if metadata is None else [topic for topic in metadata.topics if metadata.is_tiered(topic)]
    if tiered:
        raise RequestError(
            f"--of cluster: {names_text(tiered)} has segments in a tier, which a broker on the copy would delete by "
            "retention. fetch restores such topics"
        )


def _only(cluster: Cluster, chosen: set[str], owner: LogDirectory) -> Node:
    """Return the cluster as one node with the chosen replicas; the owner's directory is first."""
    first = cluster.nodes[0]
    directories = [
        replace(directory, partitions=[one for one in directory.partitions if one.path in chosen])
        for node in cluster.nodes
        for directory in node.directories
    ]
    directories.sort(key=lambda one: one.path != owner.path)
    places = [
        LocatedPartition(directory, one.path, one.name) for directory in directories for one in directory.partitions
    ]
    return Node(
        cluster.fs,
        tuple(directories),
        tuple(sorted(places, key=lambda one: one.path.rpartition("/")[2])),
        cluster.metadata,
        cluster.metadata_path,
        tuple(directory.path for directory in directories),
        first.said,
    )
