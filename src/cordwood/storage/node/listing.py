"""The contents of log directories, partition by partition: the facts behind `cordwood ls`.

The listing reads batch headers: all of a small log, and a sample of a larger one (`storage.log.header_sample`) unless
`exact` is set. It checks no CRCs and reads no records. One exception: the header of a wrapper (compressed messages of
magic 0 or 1) does not contain the number of its messages, so wrappers are decompressed if a segment has only a few. In
an object store, the headers of each segment take a request. There, they are read only if `index_entries` is set, and
then all of them; otherwise the listing reads just the end of the last segment.

The node adds a partition's policy and its source, the replicas, and the first dirty offset of the cleaner's checkpoint.
Bytes below that are clean, as Kafka counts: a segment that starts below the first dirty offset is clean as a whole.

If a running broker deletes or replaces a file, the partition is listed again; if the partition is gone, it is left out.
"""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from cordwood.common.config import SourceKind
from cordwood.common.errors import ConfigError, CorruptFileError, DataError, NotFoundError
from cordwood.common.text import Presentable
from cordwood.common.threads import in_portions
from cordwood.common.types import NONE, Codec, TopicPartition
from cordwood.kernels.layout import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows, is_control
from cordwood.record.columns import BatchWindow, decode
from cordwood.storage.formats.cluster_metadata import PartitionReplicas
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    LOCK,
    LOG_START_OFFSETS,
    DirectoryState,
    FileKind,
    index_folder,
    is_key_index,
    parsed_directory,
)
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.log.header_sample import HeaderSample, is_small, sample_headers
from cordwood.storage.log.recovery import INDEX_KINDS
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.disk_usage import DiskUsage, Identity, LinkedFile, counted_once, own_bytes, usage_of
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.tier.store import RemotePart, TierStore

#: If a segment has more bytes of wrappers than this, the messages in them are not counted.
WRAPPER_BYTES_MAX = 1 << 20
_WRAPPER_DECOMPRESSED_BYTES_MAX = 64 << 20
_ATTEMPTS = 5

#: Fields that a sample of the headers only estimates.
_ESTIMATES = ("batches", "records", "codecs", "oldest_ms", "damage")

_Number = TypeVar("_Number", int, float)


class State(StrEnum):
    """A special state of a partition or a log directory; most are in no such state."""

    LIVE = "live"  #: a broker runs on it
    LOCKED = "locked"  #: another program holds its lock
    CRASHED = "crashed"  #: its broker did not shut down cleanly
    STRAY = "stray"
    TO_BE_DELETED = "to be deleted"
    FUTURE = "future"  #: being copied from another log directory of the broker
    OFFLINE = "offline"  #: a broker does not serve it after its next start
    STARTS_EMPTY = "starts empty"  #: a broker replaces it with an empty log at its next start
    CUT = "will be cut"  #: a broker truncates it at damage at its next start
    DUPLICATE = "duplicate"  #: in more than one log directory
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  #: a part of it cannot be read


_OF_NAME = {
    DirectoryState.STRAY: State.STRAY,
    DirectoryState.DELETED: State.TO_BE_DELETED,
    DirectoryState.FUTURE: State.FUTURE,
}
#: Fewer zeros at the end of a log are a write that a power cut lost. Kafka preallocates segment.bytes.
_PREALLOCATED_MIN_BYTES = 1 << 20


class SegmentPlace(StrEnum):
    """Where a segment of a tiered partition is."""

    LOCAL = "local"
    REMOTE = "remote"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """One segment.

    Attributes:
        size_bytes: size of the `.log` file, without a preallocated end.
        batches: number of batches; in magic 0 and 1, of messages and wrappers.
        records: number of records outside control batches.
        records_exact: False if `records` counts a wrapper as one record, or is an estimate.
        last_offset: last offset of the last batch; None without batches.
        max_timestamp_ms: largest timestamp of all batches, markers included; None without timestamps.
        oldest_ms: smallest first timestamp of all batches with records; None without timestamps.
        newest_ms: largest timestamp of a record; None without timestamps. In a sampled segment it is that of the last
            entry of the time index, for which markers count, too, unless later batches have a larger one.
        codecs: codecs of batches with records, by Kafka's names.
        index_entries: number of used entries by index, None for an unreadable index; None if not requested.
        files: kinds of the segment's files, as file name extensions without the dot.
        damage: errors for bytes that are not a batch.
        unreadable: why the batches are unreadable, so that facts about them are missing; None if they were read.
        headers_read: False if the batch headers were not read; then all facts from them are 0, None or empty.
        estimates: names of the fields that come from a sample of the headers. `codecs` and `damage` may then be
            incomplete, and `oldest_ms` too high. `newest_ms` is one only if the time index has a larger timestamp than
            the records that were seen: it may be a marker's.
        records_error: twice the standard error of `records`.
        place: where it is; None if the partition has no part in a tier.
    """

    base_offset: int
    size_bytes: int
    batches: int
    records: int
    records_exact: bool
    last_offset: int | None
    max_timestamp_ms: int | None
    oldest_ms: int | None
    newest_ms: int | None
    codecs: tuple[str, ...]
    index_entries: Mapping[str, int | None] | None
    files: tuple[str, ...]
    damage: tuple[DataError, ...]
    unreadable: str | None = None
    headers_read: bool = True
    estimates: tuple[str, ...] = ()
    records_error: int = 0
    place: SegmentPlace | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A partition's `cleanup.policy`.

    Attributes:
        value: compact, delete, both or neither; None if unknown.
        source: source of the value, or why the value is unknown. For KRaft's own log it is `snapshots`.
        kind: kind of the source, if the source is a config.
    """

    value: tuple[str, ...] | None
    source: str
    kind: SourceKind | None = None


@dataclass(frozen=True, slots=True)
class RemoteListing:
    """The part of a partition's log that is in a tier.

    Attributes:
        segments, size_bytes: segments that were copied, and their `.log` objects; also segments that are still local.
        lag_segments, lag_bytes: closed local segments that are not copied yet.
        local_start_offset: first offset on the disk.
    """

    segments: int
    size_bytes: int
    lag_segments: int
    lag_bytes: int
    local_start_offset: int


class ReplicaRole(StrEnum):
    """The role of a broker's replica by the cluster's metadata."""

    LEADER = "leader"
    IN_SYNC = "in sync"
    ELIGIBLE = "eligible"  #: not in sync, as it stopped, but may lead: it has all committed records
    NOT_IN_SYNC = "not in sync"
    NOT_ASSIGNED = "not assigned"  #: the metadata lists no replica on the broker


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """One partition's directory.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        states: special states; empty for most partitions.
        segments: segments by base offset, as a broker has them after it loads the partition.
        replicas: number of replicas in the cluster; None if unknown.
        first_dirty_offset: where the cleaner continues; None if, as far as is known, it is not compacted.
        recovery: actions of the next load on the files, such as deletions and renames; empty while a broker runs.
        notes: further sentences for the user.
        unreadable: unreadable files, each with the reason.
        index_bytes: size of its key indexes, valid or not.
        usage: disk space of all its files.
        disk_share: `disk_bytes` as a fraction of the disk's size; None if that size is unknown.
        remote: its part in a tier; None if it has none, or no tier is given.
        broker: name of the broker; empty if unknown.
        role: the broker's role by the metadata; None if unknown.
    """

    path: str
    topic_partition: TopicPartition | None
    states: tuple[State, ...]
    segments: tuple[SegmentListing, ...]
    log_start_offset: int
    log_end_offset: int
    policy: Policy
    replicas: int | None
    first_dirty_offset: int | None
    recovery: tuple[str, ...]
    notes: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    index_bytes: int = 0
    usage: DiskUsage = field(default_factory=DiskUsage)
    disk_share: float | None = None
    remote: RemoteListing | None = None
    broker: str = ""
    role: ReplicaRole | None = None

    def __str__(self) -> str:
        states = f", {', '.join(self.states)}" if self.states else ""
        return (
            f"{self.name}: {len(self.segments)} segments, {self.size_bytes} bytes, "
            f"start offset {self.log_start_offset}, log end offset {self.log_end_offset}{states}"
        )

    @property
    def name(self) -> str:
        """Topic and partition, or the directory's name if it is not named like a partition."""
        return posixpath.basename(self.path) if self.topic_partition is None else str(self.topic_partition)

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files, without a preallocated end."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self.segments)

    @property
    def disk_bytes(self) -> int:
        """Disk space of all its files and directories, as `du` counts."""
        return self.usage.total_bytes

    @property
    def clean_bytes(self) -> int | None:
        """Bytes of the segments that start below the first dirty offset; None if there is no such offset."""
        first_dirty = self.first_dirty_offset
        if first_dirty is None:
            return None
        return sum(segment.size_bytes for segment in self.segments if segment.base_offset < first_dirty)

    @property
    def dirty_bytes(self) -> int | None:
        """Bytes of the segments that are not clean, the active one included; None as `clean_bytes`."""
        clean = self.clean_bytes
        return None if clean is None else self.size_bytes - clean

    @property
    def records(self) -> int:
        """Records of all segments, including those below the log start offset and in aborted transactions."""
        return sum(segment.records for segment in self.segments)

    @property
    def records_exact(self) -> bool:
        """Whether `records` is exact; otherwise it is an estimate if `estimates` lists it, else a lower bound."""
        return not self.unreadable and all(segment.records_exact for segment in self.segments)

    @property
    def records_error(self) -> int:
        """Twice the standard error of `records`, if that is an estimate."""
        return round(math.hypot(*(segment.records_error for segment in self.segments)))

    @property
    def estimates(self) -> tuple[str, ...]:
        """Names of the fields that come from a sample of the headers; see `SegmentListing`."""
        return tuple(dict.fromkeys(name for one in self.segments for name in one.estimates if name != "batches"))

    @property
    def headers_read(self) -> bool:
        """Whether batches were read, so that records, codecs, times and damage are known."""
        return all(segment.headers_read for segment in self.segments)

    @property
    def oldest_ms(self) -> int | None:
        """Smallest first timestamp of all batches with records."""
        return min((one.oldest_ms for one in self.segments if one.oldest_ms is not None), default=None)

    @property
    def newest_ms(self) -> int | None:
        """Largest timestamp of a record."""
        return max((one.newest_ms for one in self.segments if one.newest_ms is not None), default=None)

    @property
    def codecs(self) -> tuple[str, ...]:
        """Codecs of batches with records, by Kafka's names."""
        return tuple(dict.fromkeys(codec for segment in self.segments for codec in segment.codecs))

    @property
    def damage(self) -> tuple[DataError, ...]:
        """Errors for bytes that are not a batch, in all segments."""
        return tuple(error for segment in self.segments for error in segment.damage)


@dataclass(frozen=True, slots=True)
class TopicListing:
    """Sums over the listed partitions of one topic, over all replicas in the directories.

    `disk_share`, `clean_bytes` and `dirty_bytes` are None if the value of any partition is None. For `estimates` and
    `records_error` see `PartitionListing`.

    Attributes:
        partitions: number of partitions; of one broker, of their directories.
        replicas: number of partition directories.
        states: special states, each with the number of partitions in it and their disk space in bytes.
        policies: distinct policies of the partitions.
    """

    name: str
    partitions: int
    states: tuple[tuple[State, int, int], ...]
    segment_count: int
    size_bytes: int
    disk_bytes: int
    disk_share: float | None
    records: int
    records_exact: bool
    headers_read: bool
    policies: tuple[Policy, ...]
    clean_bytes: int | None
    dirty_bytes: int | None
    oldest_ms: int | None
    newest_ms: int | None
    estimates: tuple[str, ...] = ()
    records_error: int = 0
    replicas: int = 0

    @classmethod
    def of(cls, name: str, partitions: Sequence[PartitionListing]) -> TopicListing:
        """Sum up partitions of one topic."""
        return cls(
            name=name,
            partitions=partition_count(partitions),
            replicas=len(partitions),
            states=tuple(
                (state, len(some), sum(one.disk_bytes for one in some))
                for state in State
                if (some := [one for one in partitions if state in one.states])
            ),
            segment_count=sum(one.segment_count for one in partitions),
            size_bytes=sum(one.size_bytes for one in partitions),
            disk_bytes=sum(one.disk_bytes for one in partitions),
            disk_share=_sum_if_known([one.disk_share for one in partitions]),
            records=sum(one.records for one in partitions),
            records_exact=all(one.records_exact for one in partitions),
            headers_read=all(one.headers_read for one in partitions),
            policies=tuple(dict.fromkeys(one.policy for one in partitions)),
            clean_bytes=_sum_if_known([one.clean_bytes for one in partitions]),
            dirty_bytes=_sum_if_known([one.dirty_bytes for one in partitions]),
            oldest_ms=min((one.oldest_ms for one in partitions if one.oldest_ms is not None), default=None),
            newest_ms=max((one.newest_ms for one in partitions if one.newest_ms is not None), default=None),
            estimates=tuple(dict.fromkeys(name for one in partitions for name in one.estimates if name != "damage")),
            records_error=round(math.hypot(*(one.records_error for one in partitions))),
        )


def partition_count(partitions: Sequence[PartitionListing]) -> int:
    """Return the number of partitions; the directories of one broker count one by one."""
    if len({one.broker for one in partitions}) < 2:
        return len(partitions)
    return len({one.topic_partition or one.path for one in partitions})


@dataclass(frozen=True, slots=True)
class BrokerListing:
    """One broker of a cluster.

    Attributes:
        name: its name; see `Node.name`. Empty if unknown.
        node_id: `node.id`; None if unknown.
        directories: number of its log directories.
        leads: number of its partitions here that it leads by the metadata; None without metadata.
        sums: sums over its partitions here.
    """

    name: str
    node_id: int | None
    directories: int
    leads: int | None
    sums: TopicListing

    @classmethod
    def of(cls, node: Node, partitions: Sequence[PartitionListing]) -> BrokerListing:
        """Sum up the listed partitions of a node."""
        own = [one for one in partitions if one.broker == node.name]
        leads = None if node.metadata is None else sum(one.role is ReplicaRole.LEADER for one in own)
        # Some partitions are not compacted, so these are sums over the compacted ones.
        clean, dirty = ([one.clean_bytes for one in own], [one.dirty_bytes for one in own])
        sums = replace(
            TopicListing.of(node.name, own),
            clean_bytes=_sum_if_known([one for one in clean if one is not None]),
            dirty_bytes=_sum_if_known([one for one in dirty if one is not None]),
        )
        return cls(node.name, node.node_id, len(node.directories), leads, sums)


@dataclass(frozen=True, slots=True)
class ReplicasListing:
    """A partition and its replicas in the directories of one or more brokers.

    Attributes:
        known: its leader and replicas by the metadata; None if unknown.
        replicas: the replicas here; directories that are future, stray or to be deleted are left out.
        missing: names of brokers whose directories lack the replica that the metadata assigns to them.
    """

    topic_partition: TopicPartition
    known: PartitionReplicas | None
    replicas: tuple[PartitionListing, ...]
    missing: tuple[str, ...] = ()

    @property
    def leader(self) -> int | None:
        """The leader's node.id by the metadata; None if it is unknown or there is none."""
        return None if self.known is None or self.known.leader == NONE else self.known.leader

    @property
    def assigned(self) -> tuple[int, ...] | None:
        """The node.ids of all replicas by the metadata; None if unknown."""
        return None if self.known is None else self.known.replicas

    @property
    def state(self) -> tuple[str, ...]:
        """Problems in words: by the metadata, and replicas that are missing in their broker's directories."""
        words = () if self.known is None else replication_state(self.known)
        return (*words, *([f"missing on {','.join(self.missing)}"] if self.missing else []))

    @property
    def brokers(self) -> tuple[str, ...]:
        """Names of the brokers whose replicas are here."""
        return tuple(one.broker for one in self.replicas)

    @property
    def disk_bytes(self) -> int:
        """Disk space of all replicas here."""
        return sum(one.disk_bytes for one in self.replicas)

    def spread(self, of: Callable[[PartitionListing], int]) -> tuple[int, int]:
        """Return the lowest and the highest value of the replicas."""
        values = [of(one) for one in self.replicas]
        return min(values), max(values)


def replication_state(known: PartitionReplicas) -> tuple[str, ...]:
    """Describe a partition's problems by the metadata, and whether it is being moved."""

    def ids(numbers: Iterable[int]) -> str:
        return ",".join(map(str, numbers))

    words = ["no leader"] if known.leader < 0 else []
    words += [f"{ids(known.eligible_leader_replicas)} eligible"] if known.eligible_leader_replicas else []
    missing = {*known.replicas} - {*known.isr, *known.eligible_leader_replicas}
    words += [f"{ids(sorted(missing))} not in sync"] if missing else []
    return (*words, *(["being moved"] if known.adding_replicas or known.removing_replicas else []))


def _sum_if_known(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """One log directory.

    Attributes:
        state: LIVE, LOCKED or CRASHED; None otherwise.
        summary: the state in words, with the lock holder.
        node_id, cluster_id: ids from meta.properties; None without them.
        problems: errors for unreadable files of the directory itself.
        own_bytes: disk space of the directory and its own files, without its partitions.
        disk_size_bytes: size of the whole disk; None if unknown.
        broker: name of the broker; empty if unknown.
    """

    path: str
    state: State | None
    summary: str
    node_id: int | None
    cluster_id: str | None
    problems: tuple[DataError, ...]
    own_bytes: int = 0
    disk_size_bytes: int | None = None
    broker: str = ""


@dataclass(frozen=True, slots=True)
class Listing(Presentable):
    """The contents of the log directories of one or more brokers.

    Attributes:
        metadata_path: path of the metadata log; None without one.
        metadata_problems: damage in the metadata log; if there is any, the log's configs are not used.
        topics: sums over the partitions of each topic, in the order of the partitions.
        brokers: the brokers, with sums over their partitions.
        by_partition: the replicas of each partition, in the order of the partitions.
    """

    directories: tuple[DirectoryListing, ...]
    partitions: tuple[PartitionListing, ...]
    metadata_path: str | None
    metadata_next_offset: int | None
    metadata_problems: tuple[DataError, ...]
    topics: tuple[TopicListing, ...] = ()
    brokers: tuple[BrokerListing, ...] = ()
    by_partition: tuple[ReplicasListing, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.partitions))


def list_directories(cluster: Cluster) -> Listing:
    """Return the listing of all log directories and the metadata, without partitions."""
    metadata = cluster.metadata
    return Listing(
        directories=tuple(
            replace(_directory(one, node.fs.disk_size(one.path)), broker=node.name)
            for node in cluster.nodes
            for one in node.directories
        ),
        partitions=(),
        metadata_path=cluster.metadata_path,
        metadata_next_offset=None if metadata is None else metadata.next_offset,
        metadata_problems=() if metadata is None else metadata.problems,
        brokers=tuple(BrokerListing.of(node, ()) for node in cluster.nodes),
    )


def list_replicas(cluster: Cluster, partitions: Sequence[PartitionListing]) -> tuple[ReplicasListing, ...]:
    """Group listed partitions of a cluster's brokers, in their order, by name."""
    found: dict[TopicPartition, list[PartitionListing]] = {}
    for one in partitions:
        name = parsed_directory(one.path)
        if one.topic_partition is not None and name is not None and name.state is DirectoryState.CURRENT:
            found.setdefault(one.topic_partition, []).append(one)
    names = {node.node_id: node.name for node in cluster.nodes}
    listed = []
    for partition, replicas in found.items():
        known = cluster.assignment(partition)
        here = {one.broker for one in replicas}
        wanted = [names[one] for one in (() if known is None else known.replicas) if one in names]
        missing = tuple(name for name in wanted if name not in here)
        listed.append(ReplicasListing(partition, known, tuple(replicas), missing))
    return tuple(listed)


def sum_topics(partitions: Iterable[PartitionListing]) -> list[TopicListing]:
    """Sum up the partitions of each topic, in their order."""
    by_topic: dict[str, list[PartitionListing]] = {}
    for one in partitions:
        if one.topic_partition is not None:
            by_topic.setdefault(one.topic_partition.topic, []).append(one)
    return list(itertools.starmap(TopicListing.of, by_topic.items()))


def list_partitions(
    node: Node,
    places: Sequence[LocatedPartition],
    directories: Sequence[DirectoryListing],
    *,
    index_entries: bool,
    exact: bool = False,
    index_root: str | None = None,
    foretell: Callable[[LocatedPartition, PartitionListing], PartitionListing] = lambda _, one: one,
) -> Iterator[list[PartitionListing | None]]:
    """List partitions of a node, in growing portions; None for a partition that is gone.

    Args:
        places: the partitions, in the order of the result.
        directories: the listed directories of the node.
        index_entries: count the entries of indexes; in an object store, also read batch headers.
        exact: read all batch headers, not a sample.
        index_root: folder of the key indexes, if they are not in the partitions' directories.
        foretell: adds the effects of a broker's next start; it may read files, and runs in several threads.
    """
    sizes = {one.path: one.disk_size_bytes for one in directories}
    counted: set[Identity] = set()
    # A single log may have thousands of segments; of many partitions, threads read one each.
    segments_at_a_time = node.fs.concurrency // max(1, len(places))

    def look(place: LocatedPartition) -> tuple[LocatedPartition, PartitionListing | None, list[LinkedFile]]:
        linked: list[LinkedFile] = []
        one = _partition(node, place, index_entries, index_root, linked, segments_at_a_time, exact=exact)
        return place, None if one is None else foretell(place, one), linked

    def with_share(
        place: LocatedPartition, one: PartitionListing | None, linked: Sequence[LinkedFile]
    ) -> PartitionListing | None:
        if one is None:
            return None
        usage, size = counted_once(one.usage, linked, counted), sizes.get(place.directory.path)
        return replace(one, usage=usage, disk_share=usage.total_bytes / size if size else None)

    by_request = any(node.fs.reads_by_request(one.path) for one in node.directories)
    for portion in in_portions(
        node.fs.concurrency, look, places, disk_order=LocatedPartition.inode, is_remote=by_request
    ):
        yield list(itertools.starmap(with_share, portion))


# ---- log directories -------------------------------------------------------------------------------------------------


def _state(directory: LogDirectory) -> State | None:
    if directory.holder is not None:
        return State.LIVE if directory.live else State.LOCKED
    # Brokers before 4.0 leave the lock file behind after a clean shutdown, too.
    return State.CRASHED if directory.crashed and directory.info(LOCK) is not None else None


def _directory(directory: LogDirectory, size_bytes: int | None) -> DirectoryListing:
    state = _state(directory)
    summary = {
        State.LIVE: f"live: a broker is running on it, {directory.holder}",
        State.LOCKED: f"locked by {directory.holder}",
        State.CRASHED: "no clean shutdown",
        None: "clean shutdown" if directory.clean_shutdown else "not in use",
    }[state]
    meta = directory.meta
    # In an object store each file takes a request: there, do not read files that only report problems.
    by_request = directory.fs.reads_by_request(directory.path)
    return DirectoryListing(
        path=directory.path,
        state=state,
        summary=summary,
        node_id=None if meta is None else meta.node_id,
        cluster_id=None if meta is None else meta.cluster_id,
        problems=tuple(directory.problems) if by_request else directory.unreadable,
        own_bytes=own_bytes(directory),
        disk_size_bytes=size_bytes,
    )


# ---- partitions ------------------------------------------------------------------------------------------------------


def _partition(
    node: Node,
    place: LocatedPartition,
    index_entries: bool,
    index_root: str | None,
    linked: list[LinkedFile],
    segments_at_a_time: int,
    *,
    exact: bool,
) -> PartitionListing | None:
    """List a partition; return None if it is gone."""
    unreadable: tuple[str, ...]
    usage = DiskUsage()
    for _ in range(_ATTEMPTS):
        try:
            log = place.log()
            by_request = node.fs.reads_by_request(place.path)
            if index_entries or not by_request:
                segments = _segments(log, index_entries, segments_at_a_time, exact=exact or by_request)
            else:
                segments = tuple(
                    _segment(log, one, _HeaderTally(), index_entries=False, is_read=False) for one in log.segments
                )
            log_start = log.log_start_offset
            log_end = _log_end_offset(log, segments)
            # A running broker, or `cordwood run`, will delete these files, or is writing them; they do not wait for a
            # start.
            live = place.directory.live
            recovery = () if place.directory.holder is not None else log.recovery.actions
            is_emptied = not live and bool(segments) and log.ends_below_start
            linked.clear()
            usage = usage_of(node.fs, log, linked)
            unreadable = tuple(one.unreadable for one in segments if one.unreadable is not None)
            break
        except FileNotFoundError:
            continue  # deleted, or replaced by the cleaner
        except NotFoundError:
            return None
        except OSError as error:
            segments, log_start, log_end, recovery, is_emptied = (), 0, 0, (), False
            unreadable = (f"{error.filename or place.path} {why_unreadable(error)}",)
            break
    else:
        return None
    part = node.fs.remote_part(place.path) if isinstance(node.fs, TierStore) else None
    if part is not None:
        segments = tuple(_placed(part, segments))
    name = place.name
    topic_partition = None if name is None else name.topic_partition
    policy = policy_of(node, place.topic)
    current = topic_partition is not None and name is not None and name.state is DirectoryState.CURRENT
    return PartitionListing(
        path=place.path,
        topic_partition=topic_partition,
        states=(
            *_states(node, place, segments, unreadable),
            *([State.STARTS_EMPTY] if is_emptied else [State.CUT] if _is_cut(place, segments) else []),
        ),
        segments=segments,
        log_start_offset=log_start,
        log_end_offset=log_end,
        policy=policy,
        replicas=node.replica_count(topic_partition) if topic_partition is not None and current else None,
        first_dirty_offset=(
            _first_dirty(place, topic_partition, policy, log_start, log_end)
            if topic_partition is not None and current
            else None
        ),
        recovery=tuple(str(action) for action in recovery),
        notes=(*_notes(node, place), *(_emptied(log_start) if is_emptied else ())),
        unreadable=unreadable,
        index_bytes=_index_bytes(node, place, index_root, asks=index_entries),
        usage=usage,
        remote=None if part is None else _remote(part, segments),
        broker=node.name,
        role=_role(node, topic_partition) if topic_partition is not None and current else None,
    )


def _role(node: Node, partition: TopicPartition) -> ReplicaRole | None:
    """Return a broker's role for a partition by the metadata; None if unknown."""
    if node.node_id is None or node.metadata is None or node.metadata.problems:
        return None
    topic = node.metadata.topics.get(partition.topic)
    known = None if topic is None else topic.partitions.get(partition.partition)
    if known is None:
        return None
    if node.node_id not in known.replicas:
        return ReplicaRole.NOT_ASSIGNED
    if node.node_id == known.leader:
        return ReplicaRole.LEADER
    if node.node_id in known.isr:
        return ReplicaRole.IN_SYNC
    return ReplicaRole.ELIGIBLE if node.node_id in known.eligible_leader_replicas else ReplicaRole.NOT_IN_SYNC


def _remote(part: RemotePart, segments: Sequence[SegmentListing]) -> RemoteListing:
    to_copy = [one.size_bytes for one in segments[:-1] if one.place is SegmentPlace.LOCAL]
    sizes = [one.size_bytes for one in part.copied]
    return RemoteListing(len(sizes), sum(sizes), len(to_copy), sum(to_copy), part.local_start)


def _placed(part: RemotePart, segments: Sequence[SegmentListing]) -> Iterator[SegmentListing]:
    """Yield the segments of a log with their places."""
    ends = [*(one.base_offset - 1 for one in segments[1:]), MAX_OFFSET]
    for segment, end in zip(segments, ends, strict=True):
        is_local, is_copied = segment.base_offset >= part.local_start, end <= part.copied_offset
        here = SegmentPlace.BOTH if is_copied else SegmentPlace.LOCAL
        yield replace(segment, place=here if is_local else SegmentPlace.REMOTE)


def _is_cut(place: LocatedPartition, segments: Sequence[SegmentListing]) -> bool:
    """Return whether a recovery finds damage in the segments that it reads, from the recovery point on."""
    if place.directory.live or place.name is None:
        return False
    point = place.directory.stop_of(place.name).recovery_point
    return point is not None and any(
        one.damage and (one.last_offset is None or one.last_offset >= point) for one in segments
    )


def _index_bytes(node: Node, place: LocatedPartition, root: str | None, *, asks: bool) -> int:
    folder = index_folder(place.path, root)
    if node.fs.reads_by_request(folder) and not asks:
        return 0
    try:
        files = node.fs.list(folder) if node.fs.exists(folder) else ()
    except OSError:
        return 0
    return sum(info.size_bytes for info in files if is_key_index(info.name))


def _states(
    node: Node, place: LocatedPartition, segments: Sequence[SegmentListing], unreadable: Sequence[str]
) -> Iterator[State]:
    state = _state(place.directory)
    if state is not None:
        yield state
    if place.name is not None:
        if place.name.state in _OF_NAME:
            yield _OF_NAME[place.name.state]
        elif node.duplicates(place.name.topic_partition):
            yield State.DUPLICATE
    if any(segment.damage for segment in segments):
        yield State.DAMAGED
    if unreadable:
        yield State.UNREADABLE


def _notes(node: Node, place: LocatedPartition) -> Iterator[str]:
    if place.name is None:
        yield "not named like a partition (topic-number), so nothing is known of its topic"
    elif place.name.state is DirectoryState.CURRENT:
        name = place.name.topic_partition
        for other in node.duplicates(name):
            if other.path != place.path:
                yield f"is also in {other.path}; a broker refuses to start with both"
        for other in node.futures(name):
            yield f"is being copied to {other.path}"


def _emptied(log_start: int) -> Iterator[str]:
    yield (
        f"ends below its log start offset, {log_start}: the next load empties it; if it is not to go, correct its line "
        f"in {LOG_START_OFFSETS}"
    )


def policy_of(node: Node, topic: str | None) -> Policy:
    """Return the `cleanup.policy` of a topic; None for a directory that is not named like a partition."""
    if topic is None:
        return Policy(None, "no topic")
    if topic == CLUSTER_METADATA_TOPIC:
        return Policy((), "snapshots")
    try:
        doubt = node.doubt(topic)
        said = node.config_of(topic)["cleanup.policy"]
    except ConfigError as error:
        return Policy(None, f"wrong configs: {error}")
    if doubt is not None:
        return Policy(None, doubt)
    assert isinstance(said.value, tuple)
    return Policy(said.value, str(said.source), said.source.kind)


def _first_dirty(
    place: LocatedPartition, partition: TopicPartition, policy: Policy, log_start: int, log_end: int
) -> int | None:
    """Return the offset where the cleaner would continue, or None for a partition that is not compacted.

    If the policy is unknown, an entry in Kafka's checkpoint shows that the partition is compacted.
    """
    said = place.directory.cleaner_offsets.get(partition)
    if "compact" not in (policy.value or ()) and (policy.value is not None or said is None):
        return None
    return said if said is not None and log_start <= said <= log_end else log_start


def _log_end_offset(log: LogView, segments: Sequence[SegmentListing]) -> int:
    if not segments:
        return log.log_start_offset
    if not segments[-1].headers_read:
        return log.next_offset
    last = segments[-1].last_offset
    return segments[-1].base_offset if last is None else last + 1


# ---- segments --------------------------------------------------------------------------------------------------------


def _segments(log: LogView, index_entries: bool, at_a_time: int, *, exact: bool) -> tuple[SegmentListing, ...]:
    """List the segments of a log; sample those of a large one, `at_a_time` in threads while they wait for a disk."""
    if exact or is_small(log):
        return tuple(_read_segment(log, segment, index_entries, exact=True) for segment in log.segments)
    portions = in_portions(
        at_a_time, lambda segment: _read_segment(log, segment, index_entries, exact=False), log.segments
    )
    return tuple(itertools.chain.from_iterable(portions))


def _read_segment(log: LogView, segment: Segment, index_entries: bool, *, exact: bool) -> SegmentListing:
    tally = _HeaderTally()
    try:
        sample = None if exact else sample_headers(segment, search=not log.live)
        if sample is not None:
            tally.add_sample(sample)
        for item in segment.headers_and_gaps(search=not log.live) if sample is None else sample.gaps:
            if not isinstance(item, Gap):
                tally.add(item)
            elif log.is_end(segment, item):
                is_preallocated = item.kind is GapKind.ZEROS and item.size_bytes >= _PREALLOCATED_MIN_BYTES
                tally.preallocated_bytes = item.size_bytes if is_preallocated else 0
            else:
                tally.damage.append(gap_error(segment, item))
    except FileNotFoundError:
        raise
    except OSError as error:
        tally.unreadable = f"{segment.path} {why_unreadable(error)}"
    return _segment(log, segment, tally, index_entries)


@dataclass
class _HeaderTally:
    """Sums over the batch headers of a segment. `times` holds first and largest timestamps of batches."""

    batches: int = 0
    records: int = 0
    wrapper_bytes: int = 0
    preallocated_bytes: int = 0
    last_offset: int | None = None
    codecs: set[int] = field(default_factory=set)
    max_timestamps: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    damage: list[DataError] = field(default_factory=list)
    unreadable: str | None = None
    records_error: int = 0
    estimates: tuple[str, ...] = ()

    def add(self, batches: BatchRows) -> None:
        """Add the next headers, BATCH_ROW[batches]."""
        self.batches += batches.size
        self.last_offset = int(batches["last_offset"][-1])
        largest = int(batches["max_timestamp"].max())
        self.max_timestamps.append(largest)
        flags = int(np.bitwise_or.reduce(batches["attributes"]))
        if batches["magic"].min() == 2 and not flags & ~CODEC_MASK and batches["record_count"].min() > 0:
            # Nearly all batches are so plain, and a node may have 100,000 small segments: a few array operations each.
            data, records = batches, batches["record_count"]
        else:
            data, records = batches[_has_records(batches)], _record_counts(batches)
            self.wrapper_bytes += int(data["size_bytes"][_is_wrapper(data)].sum())
            if not data.size:
                return
            largest = int(data["max_timestamp"].max())
        self.records += int(records.sum())
        self.codecs.update(set((data["attributes"] & CODEC_MASK).tolist()) if flags & CODEC_MASK else {Codec.NONE})
        # The base timestamp is the first record's, unless the field holds a delete horizon or the timestamp type is
        # LogAppendTime.
        first = data["base_timestamp"]
        if flags & (DELETE_HORIZON | LOG_APPEND_TIME):
            from_base = data["attributes"] & (DELETE_HORIZON | LOG_APPEND_TIME) == 0
            first = np.where(from_base, first, data["max_timestamp"])
        oldest = int(first.min())
        if oldest < 0:
            first = first[first >= 0]
            if not first.size:
                return
            oldest = int(first.min())
        self.times += [oldest, largest]

    def add_sample(self, sample: HeaderSample) -> None:
        """Add a sample of all headers."""
        rows, newest_ms = sample.rows, sample.newest_ms
        self.add(rows)
        is_seen = newest_ms <= max(self.times, default=NONE)
        self.max_timestamps.append(newest_ms)
        self.times += [newest_ms] if newest_ms >= 0 else []
        records = sample.total(_record_counts(rows))
        offsets = int(rows["last_offset"][-1] - rows["base_offset"][0]) + 1
        self.records, self.records_error = min(round(records.value), offsets), round(records.error)
        self.batches = round(sample.total(np.ones(rows.size)).value)
        self.estimates = _ESTIMATES if is_seen else (*_ESTIMATES, "newest_ms")


def _has_records(batches: BatchRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(~is_control(batches) & (batches["record_count"] != 0))


def _record_counts(batches: BatchRows) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the number of records of each batch outside control batches; 1 for a wrapper."""
    return np.asarray(np.where(_has_records(batches), np.maximum(batches["record_count"], _is_wrapper(batches)), 0))


def _segment(
    log: LogView, segment: Segment, tally: _HeaderTally, index_entries: bool, *, is_read: bool = True
) -> SegmentListing:
    records = tally.records
    exact = is_read and not tally.estimates and tally.wrapper_bytes == 0 and tally.unreadable is None
    if tally.unreadable is None and 0 < tally.wrapper_bytes <= WRAPPER_BYTES_MAX:
        more, exact = _in_wrappers(segment)
        records += more
    return SegmentListing(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes - tally.preallocated_bytes,
        batches=tally.batches,
        records=records,
        records_exact=exact,
        last_offset=tally.last_offset,
        max_timestamp_ms=max((time for time in tally.max_timestamps if time >= 0), default=None),
        oldest_ms=min(tally.times, default=None),
        newest_ms=max(tally.times, default=None),
        codecs=tuple(map(Codec.label_in, sorted(tally.codecs))),
        index_entries=_index_entries(segment) if index_entries else None,
        files=tuple(_files(log, segment)),
        damage=tuple(tally.damage),
        unreadable=tally.unreadable,
        headers_read=is_read,
        estimates=tally.estimates,
        records_error=tally.records_error,
    )


def _is_wrapper(batches: BatchRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray((batches["magic"] < 2) & (batches["record_count"] < 0))


def _in_wrappers(segment: Segment) -> tuple[int, bool]:
    """Return the number of messages in wrappers beyond one per wrapper, and whether all wrappers could be read."""
    messages = 0
    unreadable: list[DataError] = []
    for item in segment.windows():
        if isinstance(item, Gap):
            continue
        wrappers = item.batches[_is_wrapper(item.batches)]
        window = BatchWindow(item.position, item.data, wrappers, item.read)
        messages -= wrappers.size
        for columns in decode(window, on_damage=unreadable.append, max_batch_bytes=_WRAPPER_DECOMPRESSED_BYTES_MAX):
            messages += columns.rows.size
            del columns
    return messages + len(unreadable), not unreadable


def _index_entries(segment: Segment) -> dict[str, int | None]:
    entries: dict[str, int | None] = {}
    for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX):
        if kind not in segment.files.indexes:
            continue
        try:
            if kind is FileKind.TRANSACTION_INDEX:
                index = segment.transaction_index()
                count = None if index is None else index.entries
            else:
                count, _ = segment.last_entry(kind)
        except (OSError, CorruptFileError):
            count = None
        entries[kind.removeprefix(".")] = count
    return entries


def _files(log: LogView, segment: Segment) -> Iterator[str]:
    yield "log"
    for kind in INDEX_KINDS:
        if kind in segment.files.indexes:
            yield kind.removeprefix(".")
    if segment.base_offset in log.recovery.snapshots:
        yield FileKind.PRODUCER_SNAPSHOT.removeprefix(".")
