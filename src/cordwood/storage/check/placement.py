"""Checks that log directories belong to their node, and partitions to their topics and directories.

If a small file is missing that ties a directory to its cluster, or a partition to its topic, a KRaft node does not
start, or starts with empty partitions. So the absence of such a file is damage here.

Only the metadata log is read. So commands can warn of a broker's next start before they begin (`warnings`).

Source: Kafka KafkaRaftServer.initializeLogDirs, MetaPropertiesEnsemble.verify, LogManager.isStrayKraftReplica,
KafkaMetadataLog.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cordwood.common.errors import CordwoodError, NotFoundError
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import Store
from cordwood.storage.check.findings import (
    ALL_STRAY,
    EMPTY,
    KINDS,
    NO_START,
    OFFLINE,
    STRAY,
    STRAY_ONLY,
    Finding,
    Findings,
    Kind,
    Severity,
)
from cordwood.storage.check.node import RESERVED_IDS, NodeToCheck, nodes_of
from cordwood.storage.check.permissions import check_directory_files
from cordwood.storage.formats import cluster_metadata, filenames, properties
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState, FileKind
from cordwood.storage.log.files import read_file, why_unreadable
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory, twice_in_cleaner_offsets
from cordwood.storage.node.node import LocatedPartition, Node, snapshot_offsets
from cordwood.storage.node.start import Effect

# ---- directories -----------------------------------------------------------------------------------------------------


def check_directories(node: NodeToCheck, findings: Findings) -> None:
    """Report errors in the files that tie the directories to a node and its cluster."""
    if not node.is_broker or node.live:
        return
    for directory in node.directories:
        _meta(node, directory, findings)
        is_holder = node.metadata_place is None or node.metadata_place[0].path == directory.path
        check_directory_files(node.fs, directory, findings, holds_metadata=is_holder)
    for path in node.files:
        findings.add(Kind.UNREADABLE, path, "a file where a log directory should be")
    _ensemble(node, findings)
    if node.is_kraft:
        _metadata_log(node, findings)
        _registered(node, findings)
    _cleaner(node, findings)


def _meta(node: NodeToCheck, directory: LogDirectory, findings: Findings) -> None:
    path = f"{directory.path}/{filenames.META_PROPERTIES}"
    if directory.info(filenames.META_PROPERTIES) is None:
        if node.is_kraft:
            what = f"there is no {filenames.META_PROPERTIES}, as in a directory that was never formatted"
            findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
    elif directory.meta is None:
        try:
            read_file(node.fs, path)
        except OSError as error:
            meaning = KINDS[Kind.META_PROPERTIES][1]
            findings.add(Kind.UNREADABLE, path, why_unreadable(error), meaning=meaning)
            return
        wrong = next((one for one in directory.unreadable if one.path == path), None)
        if wrong is not None:
            findings.add(Kind.META_PROPERTIES, path, wrong.what, position=wrong.position)
    elif directory.meta.node_id is None and node.is_kraft:
        findings.add(Kind.META_PROPERTIES, path, "it has no node.id", meaning=NO_START)
    elif directory.meta.directory_id is not None and directory.meta.directory_id.int < RESERVED_IDS:
        what = f"its directory.id, {properties.encode_id(directory.meta.directory_id)}, is reserved"
        findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
    elif _is_unregistered(node, directory) and node.placed_by_id(directory):
        has = "no directory.id" if directory.meta.directory_id is None else "another directory.id than before"
        what = f"it has {has}, and the cluster's metadata assigns partitions to the old id"
        meaning = "its partitions get no leader until the broker has had them assigned to the new id"
        findings.add(Kind.META_PROPERTIES, path, what, meaning=meaning, effect=Effect.PARTITION_OFFLINE)


def _is_unregistered(node: NodeToCheck, directory: LogDirectory) -> bool:
    """Return whether the cluster's metadata lists this node's directories, but not the id of this directory."""
    broker = None if node.believed is None or node.node_id is None else node.believed.brokers.get(node.node_id)
    if broker is None or not broker.directories or directory.meta is None:
        return False
    own = directory.meta.directory_id
    return own is None or properties.encode_id(own) not in broker.directories


def _ensemble(node: NodeToCheck, findings: Findings) -> None:
    """Report meta.properties that contradict each other: one cluster, one node, and distinct directory ids."""
    known = [(one, one.meta) for one in node.directories if one.meta is not None]
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


def _metadata_log(node: NodeToCheck, findings: Findings) -> None:
    """Report a metadata log that is missing, empty, or begins above 0 without a snapshot."""
    first = node.directories[0].path
    if node.metadata_place is None:
        for directory in node.directories:
            if directory.info(cluster_metadata.NAME) is not None:
                path = f"{directory.path}/{cluster_metadata.NAME}"
                findings.add(Kind.METADATA_LOG, path, "a file where the directory of the metadata log should be")
                return
        if not node.was_formatted:
            return
        what = "none of the log directories has a metadata log; if it is elsewhere, name that directory, too"
        findings.add(Kind.METADATA_LOG, f"{first}/{cluster_metadata.NAME}", what, meaning=ALL_STRAY)
        return
    path = node.metadata_place[1].path
    for _, other in node.metadata_places[1:]:
        what = f"{path} is there, too: a node has its metadata log in one directory, metadata.log.dir"
        findings.add(Kind.METADATA_LOG, other.path, what)
    try:
        log = LogView(path, fs=node.fs)
    except (OSError, NotFoundError):
        return  # reported when the log is checked
    newest = max(snapshot_offsets(log), default=NONE)
    if log.first_offset > 0 and newest < log.first_offset:
        has = "there is no snapshot" if newest == NONE else f"the newest snapshot ends at {newest}"
        what = f"the metadata log begins at offset {log.first_offset}, and {has}: the records before are lost"
        findings.add(Kind.METADATA_LOG, path, what, offset=log.first_offset)
    elif node.believed is not None and node.metadata is not None and node.metadata.next_offset == 0:
        findings.add(Kind.METADATA_LOG, path, "the metadata log is empty", meaning=ALL_STRAY)


def _registered(node: NodeToCheck, findings: Findings) -> None:
    """Compare the directories with the broker's registration in the cluster's metadata."""
    metadata, known = node.believed, [one for one in node.all_directories if one.meta is not None]
    if metadata is None or not metadata.brokers or node.node_id is None or len(known) < len(node.all_directories):
        return
    broker = metadata.brokers.get(node.node_id)
    if broker is None:
        if any(node.node_id in one.replicas for topic in metadata.topics.values() for one in topic.partitions.values()):
            return
        known_ids = ", ".join(map(str, sorted(metadata.brokers)))
        path = f"{known[0].path}/{filenames.META_PROPERTIES}"
        what = f"node.id {node.node_id}, but the cluster's metadata has only the brokers {known_ids}"
        findings.add(Kind.META_PROPERTIES, path, what, meaning=NO_START)
        return
    here = {properties.encode_id(one.meta.directory_id) for one in known if one.meta and one.meta.directory_id}
    missing = [one for one in broker.directories if one not in here]
    if len(broker.directories) > len(node.all_directories) + len(node.files):
        where = node.metadata_place[1].path if node.metadata_place else node.directories[0].path
        what = (
            f"the broker has {len(broker.directories)} log directories by its cluster's metadata, "
            f"{len(node.all_directories)} given: the directory with the id {', '.join(missing) or '?'} is missing"
        )
        findings.add(
            Kind.DIRECTORY_MISSING,
            where,
            what,
            meaning="a broker does not start while a disk of it is not mounted; name all of its directories",
            effect=Effect.DOES_NOT_START,
        )


def _cleaner(node: NodeToCheck, findings: Findings) -> None:
    for partition, first, other in twice_in_cleaner_offsets(node.directories):
        path, offset = f"{other.path}/{filenames.CLEANER_OFFSETS}", other.cleaner_offsets[partition]
        what = f"{partition} is in {first.path}/{filenames.CLEANER_OFFSETS}, too: a duplicate of the entry here"
        findings.add(Kind.CHECKPOINT_DUPLICATE, path, what, offset=offset)


# ---- partitions ------------------------------------------------------------------------------------------------------


def check_topic_id(
    node: NodeToCheck, name: TopicPartition, path: str, topic_id: str | None, findings: Findings
) -> None:
    """Report a partition that a broker takes for a stray, or for a partition of another topic.

    Args:
        topic_id: topic id in its `partition.metadata`; None if the file is missing.
    """
    metadata = node.believed
    if metadata is None or name.topic == CLUSTER_METADATA_TOPIC:
        return
    before = len(findings.found)
    _stray(node, name, path, topic_id, findings)
    if any(one.effect is Effect.STRAY for one in findings.found[before:]):
        node.strays.add(path)


def _stray(node: NodeToCheck, name: TopicPartition, path: str, topic_id: str | None, findings: Findings) -> None:
    metadata = node.believed
    assert metadata is not None, "it was checked for"
    file, wanted = f"{path}/{FileKind.PARTITION_METADATA}", metadata.topics.get(name.topic)
    stray = STRAY if node.is_here(wanted, name.partition) else STRAY_ONLY
    if topic_id is None:
        what = f"missing, so a broker cannot find the partition's topic; by its name the topic id is {_id(wanted)}"
        findings.add(Kind.PARTITION_METADATA, file, what, meaning=stray)
        return
    owner = node.topics_by_id.get(topic_id)
    if owner is None:
        what = f"topic id {topic_id}, the cluster's metadata has {_id(wanted)} for {name.topic}"
        findings.add(Kind.TOPIC_ID, file, what, meaning=stray)
    elif not node.is_here(owner, name.partition):
        placed = owner.partitions.get(name.partition)
        where = "no such partition" if placed is None else f"its replicas on {', '.join(map(str, placed.replicas))}"
        what = f"topic id {topic_id} is that of {owner.name}, and the cluster's metadata has {where}"
        findings.add(Kind.TOPIC_ID, file, what, meaning=stray)
    elif owner.name != name.topic:
        what = f"topic id {topic_id} is that of {owner.name}, not of {name.topic}"
        meaning = f"a broker serves nothing of {name}: the directory is of another topic"
        findings.add(Kind.TOPIC_ID, file, what, meaning=meaning, effect=Effect.PARTITION_OFFLINE)


def _id(topic: cluster_metadata.Topic | None) -> str:
    return "none" if topic is None else topic.topic_id


def check_missing(node: NodeToCheck, findings: Findings) -> Iterator[TopicPartition]:
    """Report partitions that the metadata places on this node but no directory holds, and yield their names."""
    metadata = node.believed
    if metadata is None or node.node_id is None or not node.is_broker:
        return
    broker = metadata.brokers.get(node.node_id)
    if broker is None or len(broker.directories) > len(node.directories):
        return  # the user did not name all log directories; further ones may hold the partitions
    present = {
        partition.name.topic_partition
        for directory in node.directories
        for partition in directory.partitions
        if partition.name.state in (DirectoryState.CURRENT, DirectoryState.FUTURE)
    }
    by_id = {
        properties.encode_id(one.meta.directory_id): one
        for one in node.directories
        if one.meta is not None and one.meta.directory_id is not None
    }
    noted = {name for one in node.directories for name in (*one.recovery_points, *one.high_watermarks)}
    for topic in metadata.topics.values():
        for number, placed in topic.partitions.items():
            name = TopicPartition(topic.name, number)
            if node.node_id not in placed.replicas or name in present:
                continue
            blocked = [one.path for one in node.directories if _is_blocked(node, one, str(name))]
            if blocked:
                what = f"a file where the directory of {name} should be"
                findings.add(Kind.PARTITION_MISSING, f"{blocked[0]}/{name}", what, meaning=OFFLINE)
                yield name
                continue
            if name not in noted:
                continue  # this is a partial copy of a node, or the broker never created the partition
            at = dict(zip(placed.replicas, placed.directories, strict=False)).get(node.node_id, "")
            directory = by_id.get(at, node.directories[0])
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


def _is_blocked(node: NodeToCheck, directory: LogDirectory, name: str) -> bool:
    """Return whether a file, or a link without a target, is in the place where a broker creates a directory."""
    if directory.info(name) is not None:
        return True
    here = node.fs.real_path(directory.path)
    return node.fs.real_path(f"{directory.path}/{name}") != f"{here.rstrip('/')}/{name}"


# ---- warnings --------------------------------------------------------------------------------------------------------


class StartWarnings:
    """The damage that keeps a broker from serving a node's partitions: strays, missing files and directories."""

    def __init__(self, node: Node, *, by_request: bool = False) -> None:
        """Check the directories, but no partition yet.

        Args:
            by_request: check an object store, too, although each small file takes a request.
        """
        is_read = by_request or not node.fs.reads_by_request(node.directories[0].path if node.directories else "")
        brokers = [directory for directory in node.directories if directory.is_brokers] if is_read else []
        self._places = node.places
        self._nodes = [_with_known_metadata(one, node) for one in nodes_of(node.fs, brokers) if not one.live]
        self._node_at = {directory.path: one for one in self._nodes for directory in one.directories}
        self._of_directories = {id(one): _with_effect(self._check_node(one)) for one in self._nodes}
        self._inside: dict[str, list[Finding]] = {}
        for finding in (finding for found in self._of_directories.values() for finding in found):
            self._inside.setdefault(posixpath.dirname(finding.path), []).append(finding)

    @staticmethod
    def _check_node(one: NodeToCheck) -> Findings:
        findings = Findings()
        check_directories(one, findings)
        for error in () if one.metadata is None else one.metadata.passed_over[:1]:
            path = error.path or one.directories[0].path
            findings.add(Kind.METADATA_LOG, path, error.what, position=error.position, meaning=NO_START)
        return findings

    def of_partition(self, place: LocatedPartition) -> list[Finding]:
        """Return the damage of one partition; several threads may call this."""
        return [*self._inside.get(place.path, ()), *self._of_topic(place)]

    def _of_topic(self, place: LocatedPartition) -> list[Finding]:
        one = self._node_at.get(place.directory.path)
        if one is None or one.believed is None or place.name is None or place.name.state:
            return []
        topic_id = place.topic_id()
        if topic_id is None and place.names_topic():
            return []  # the file is unreadable or invalid; `check` reports the error
        findings = Findings()
        known = None if topic_id is None else properties.encode_id(topic_id)
        check_topic_id(one, place.name.topic_partition, place.path, known, findings)
        return _with_effect(findings)

    def all(self) -> Iterator[Finding]:
        """Yield the damage of the node and all its partitions."""
        for one in self._nodes:
            yield from self._of_directories[id(one)]
            for place in self._places:
                if self._node_at.get(place.directory.path) is one:
                    yield from self._of_topic(place)
            findings = Findings()
            list(check_missing(one, findings))
            yield from _with_effect(findings)


def _with_known_metadata(one: NodeToCheck, node: Node) -> NodeToCheck:
    """Spare a second reading of the metadata log; a broker reads it differently only if it has problems."""
    read, place = node.metadata, one.metadata_place
    is_same = read is not None and place is not None and place[1].path == node.metadata_path
    return replace(one, read=read) if is_same and read is not None and not (read.problems or read.passed_over) else one


def warnings(node: Node, *, by_request: bool = False) -> list[Finding]:
    """Return all `StartWarnings` of a node."""
    return list(StartWarnings(node, by_request=by_request).all())


def _with_effect(findings: Findings) -> list[Finding]:
    return [finding for finding in findings.take() if finding.severity is Severity.DAMAGE and finding.effect]


def text(finding: Finding) -> str:
    """Return a warning as one line of text."""
    return f"{finding.path}: {finding.what}. Because of this, {finding.meaning}"


def texts(fs: Store, paths: Sequence[str]) -> list[str]:
    """Return the warnings about some directories as lines; empty unless a broker created the directories."""
    try:
        return [text(one) for one in warnings(Node.open(fs, paths), by_request=True)]
    except (CordwoodError, OSError):
        return []  # a later read of the directories reports the error
