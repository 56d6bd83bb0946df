"""Groups of consumers, from the records of `__consumer_offsets` and `__share_group_state`.

    type        protocol                           records of its members                its progress
    classic     consumers, Connect, …              one record with all members           committed offsets
    consumer    the broker assigns (KIP-848)       records per member and for the group  committed offsets
    share       members share the records          as consumer                           a share state per partition
    streams     tasks of Kafka Streams             as consumer                           committed offsets

A group's state is computed from its records, as the coordinator does when it loads them. The records lack state that
only a running coordinator has, such as a rebalance in progress in a classic group.

Source: Kafka GroupMetadataManager.replay, and maybeUpdateGroupState of each kind of group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cordwood.common.errors import DataError
from cordwood.common.text import Presentable, number
from cordwood.common.types import NONE, TopicPartition
from cordwood.storage.formats.messages.coordinator_records import ASSIGNMENT, CONSUMER, read
from cordwood.storage.formats.messages.topics import DecodedRecord


class GroupType(StrEnum):
    """Kafka's types of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class EndSource(StrEnum):
    """Source of the end offset from which lag is computed."""

    HIGH_WATERMARK = "high watermark"  #: from the log directory's checkpoint
    LOG_END = "log end"  #: from the log itself


@dataclass(frozen=True, slots=True)
class ConsumerLogEnd:
    """The end offset of a log for a consumer, and its source."""

    offset: int
    source: EndSource


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        instance_id: `group.instance.id` of a static member, else None.
        epoch: member epoch; None in a classic group.
        subscribed: subscribed topics; None if the records do not contain them.
        assigned: partitions that the member owns, including those that it still has to revoke.
        target: partitions of the member in the target assignment; None in a classic group.
        tasks: names (subtopology_partition) of `active`, `standby` and `warmup` tasks, in a streams group.
        problem: why `assigned` is empty although the member has an assignment: it cannot be decoded; else empty.
    """

    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    epoch: int | None = None
    subscribed: tuple[str, ...] | None = None
    assigned: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] | None = None
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's progress in a partition.

    Attributes:
        offset: next offset that the group reads; in a share group, the share-partition start offset: delivery of all
            lower offsets is complete. -1 if a member has the partition and the group has committed no offset for it.
        end: end of the log; None if the log is missing.
        lag: number of offsets from `offset` to `end`; None if unknown. In a share group it excludes offsets after
            `offset` whose delivery is complete. Negative if the group is ahead of the log.
        leader_epoch: leader epoch of the last record read; None if unknown.
        commit_timestamp_ms: time of the commit; None for share groups, and if no offset is committed.
        expire_timestamp_ms: time of expiry; None if the broker's `offsets.retention.minutes` decides.
        member_id: member to which the partition is assigned, or None.
        producer_id: producer of the open transaction that will commit this offset; None for a committed offset.
    """

    partition: TopicPartition
    offset: int
    end: ConsumerLogEnd | None = None
    lag: int | None = None
    leader_epoch: int | None = None
    metadata: str = ""
    commit_timestamp_ms: int | None = None
    expire_timestamp_ms: int | None = None
    member_id: str | None = None
    producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group.

    Attributes:
        state: Kafka's name of the state.
        coordinator: partition of `__consumer_offsets` that contains the group's records.
        protocol_type: in a classic group, such as `consumer` or `connect`; empty if it only commits offsets. In other
            groups, the group's type.
        assignor: name of the assignor; None if the records do not contain it.
        epoch: group epoch, or generation of a classic group; None if the group only commits offsets.
        target_epoch: epoch of the target assignment; None in a classic group.
        leader: id of the member that assigned the partitions of a classic group; else None.
        offsets: committed offsets, and assigned partitions without one; in a share group, its share partitions.
        pending: offsets in transactions that are still open.
    """

    group_id: str
    type: GroupType
    state: str
    coordinator: int
    protocol_type: str
    assignor: str | None
    epoch: int | None
    target_epoch: int | None
    leader: str | None
    members: tuple[GroupMember, ...]
    offsets: tuple[CommittedOffset, ...]
    pending: tuple[CommittedOffset, ...] = ()

    def __str__(self) -> str:
        lag = "" if self.lag is None else f", lag {self.lag}"
        return f"{self.group_id}: {self.type}, {self.state}, {number(len(self.members), 'member')}{lag}"

    @property
    def lag(self) -> int | None:
        """Sum over all partitions with a known lag; None if no lag is known."""
        known = [one.lag for one in self.offsets if one.lag is not None]
        return sum(known) if known else None

    @property
    def behind(self) -> int:
        """Number of unread records, over partitions with a known lag. Excludes partitions where the group is ahead."""
        return sum(one.lag for one in self.offsets if one.lag is not None and one.lag > 0)

    @property
    def ahead(self) -> tuple[CommittedOffset, ...]:
        """Partitions with a lag below 0."""
        return tuple(one for one in self.offsets if one.lag is not None and one.lag < 0)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which partitions of an internal topic were read.

    Attributes:
        partitions: the partitions that were read.
        partition_count: number of partitions of the topic in the cluster; None if unknown.
        count_is: source of the count, if not the cluster's metadata, or why the count is unknown; else empty.
    """

    topic: str
    partitions: tuple[int, ...]
    partition_count: int | None
    count_is: str = ""

    @property
    def is_whole(self) -> bool | None:
        """Whether all partitions of the topic were read; None if their number is unknown."""
        return None if self.partition_count is None else set(range(self.partition_count)) <= set(self.partitions)


@dataclass(frozen=True, slots=True)
class GroupListing(Presentable):
    """The groups in the directories of one or more brokers.

    Attributes:
        problems: errors for unreadable records, batches and logs.
        brokers: names of the brokers; an unknown name is empty.
    """

    groups: tuple[Group, ...]
    offsets_topic: Coverage
    share_topic: Coverage
    problems: tuple[DataError | OSError, ...] = ()
    brokers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.groups))


# ---- from records to groups ------------------------------------------------------------------------------------------


class _GroupRecord(StrEnum):
    """Kinds of records about consumer, share and streams groups."""

    GROUP = "group"
    MEMBER = "member"
    TARGET_EPOCH = "target epoch"
    TARGET = "target"
    CURRENT = "current"
    TOPOLOGY = "topology"


def _parts(prefix: str, kind: GroupType) -> dict[str, tuple[GroupType, _GroupRecord]]:
    return {
        f"{prefix}Metadata": (kind, _GroupRecord.GROUP),
        f"{prefix}MemberMetadata": (kind, _GroupRecord.MEMBER),
        f"{prefix}TargetAssignmentMetadata": (kind, _GroupRecord.TARGET_EPOCH),
        f"{prefix}TargetAssignmentMember": (kind, _GroupRecord.TARGET),
        f"{prefix}CurrentMemberAssignment": (kind, _GroupRecord.CURRENT),
    }


_PARTS = {
    **_parts("ConsumerGroup", GroupType.CONSUMER),
    **_parts("ShareGroup", GroupType.SHARE),
    **_parts("StreamsGroup", GroupType.STREAMS),
    "StreamsGroupTopology": (GroupType.STREAMS, _GroupRecord.TOPOLOGY),
}
#: Number of the record type ShareUpdate, which changes a share partition's state.
SHARE_UPDATE = 1
_OFFSETS = ("OffsetCommit", "LegacyOffsetCommit")
_NEWER = (GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS)
#: The `state` of a member that owns its target assignment.
_STABLE = {GroupType.CONSUMER: 0, GroupType.SHARE: 0, GroupType.STREAMS: 1}
_TASKS = ("active", "standby", "warmup")
#: The value for a partition that is assigned to a member, but has no committed offset.
_NOT_COMMITTED: Mapping[str, Any] = {"offset": NONE}
#: A null `user_data`, the last field of an assignment.
_NO_BYTES = b"\xff\xff\xff\xff"
#: Number of bytes shown of an assignment that cannot be decoded.
_HEX_BYTES = 16


@dataclass
class _Draft:
    """State of a group from the records read so far."""

    coordinator: int
    classic: Mapping[str, Any] | None = None
    parts: dict[tuple[GroupType, _GroupRecord], dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    offsets: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    pending: dict[tuple[TopicPartition, int], Mapping[str, Any]] = field(default_factory=dict)
    shares: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)

    def part(self, kind: GroupType, part: _GroupRecord) -> dict[str, Mapping[str, Any]]:
        return self.parts.get((kind, part), {})

    @property
    def is_there(self) -> bool:
        """Whether the records leave a group, and not only tombstones."""
        return bool(self.classic is not None or any(self.parts.values()) or self.offsets or self.pending)

    @property
    def type(self) -> GroupType:
        """Type of the group; a group that only commits offsets is classic."""
        for part in (_GroupRecord.GROUP, _GroupRecord.MEMBER):
            for kind in _NEWER:
                if self.part(kind, part):
                    return kind
        return GroupType.CLASSIC


class GroupBuilder:
    """Builds groups from records.

    Args:
        names: topic names by topic id.
        end_of: returns the end of a partition's log for a consumer at an offset, or None if the log is missing.
    """

    def __init__(
        self, names: Mapping[str, str], end_of: Callable[[TopicPartition, int], ConsumerLogEnd | None]
    ) -> None:
        self._names = dict(names)
        self._end_of = end_of
        self._drafts: dict[str, _Draft] = {}

    def add(self, coordinator: int, record: DecodedRecord, producer_id: int = NONE) -> None:
        """Add the last record of a key; call in the order of the log.

        Args:
            coordinator: partition of `__consumer_offsets` that contains the record.
            producer_id: producer of the open transaction that the record is part of; NONE outside a transaction.
        """
        if record.type is None or record.key is None:
            return
        group_id = record.key.get("group", record.key.get("group_id", ""))
        draft = self._drafts.setdefault(group_id, _Draft(coordinator))
        if record.type in _OFFSETS:
            self._offset(draft, record, producer_id)
        elif record.type == "GroupMetadata":
            draft.classic = record.value
        elif record.type in _PARTS and record.value is not None:
            draft.parts.setdefault(_PARTS[record.type], {})[record.key.get("member_id", "")] = record.value
        self._learn(record.value)

    def _offset(self, draft: _Draft, record: DecodedRecord, producer_id: int) -> None:
        assert record.key is not None
        partition = TopicPartition(record.key["topic"], record.key["partition"])
        if record.value is None:
            # A tombstone deletes the partition's offsets that wait for their transactions, too.
            draft.pending = {key: value for key, value in draft.pending.items() if key[0] != partition}
        elif producer_id != NONE:
            draft.pending[partition, producer_id] = record.value
        else:
            draft.offsets[partition] = record.value

    def _learn(self, value: Mapping[str, Any] | None) -> None:
        """Remember each topic name that the value holds beside the topic's id."""
        for name, inner in (value or {}).items():
            if name.endswith("topics") and isinstance(inner, tuple):
                for one in inner:
                    if isinstance(one, Mapping) and "topic_id" in one and "topic_name" in one:
                        self._names.setdefault(one["topic_id"], one["topic_name"])

    def add_share_record(self, record: DecodedRecord) -> None:
        """Add a snapshot of a share partition, or an update to one; call in the order of the log."""
        if record.type is None or record.key is None or record.value is None:
            return
        draft = self._drafts.setdefault(record.key["group_id"], _Draft(NONE))
        partition = TopicPartition(self._name(record.key["topic_id"]), record.key["partition"])
        before = draft.shares.get(partition) if record.type == "ShareUpdate" else None
        if before is None:
            draft.shares[partition] = record.value
            return
        # Source: Kafka ShareCoordinatorShard.merge.
        unchanged = {name for name in ("start_offset", "leader_epoch") if record.value[name] == NONE}
        changed = {name: value for name, value in record.value.items() if name not in unchanged}
        draft.shares[partition] = {**before, **changed}

    def groups(self) -> Iterator[Group]:
        """Yield the groups, ordered by id."""
        for group_id, draft in sorted(self._drafts.items()):
            if draft.is_there:
                yield (
                    self._classic(group_id, draft) if draft.type is GroupType.CLASSIC else self._newer(group_id, draft)
                )

    def _name(self, topic_id: str) -> str:
        # The name of a deleted topic is unknown: use its id.
        return self._names.get(topic_id, topic_id)

    # ---- classic -----------------------------------------------------------------------------------------------------

    def _classic(self, group_id: str, draft: _Draft) -> Group:
        value = draft.classic or {}
        protocol_type = value.get("protocol_type", "")
        members = [_classic_member(one, protocol_type) for one in value.get("members", ())]
        members.sort(key=lambda one: one.member_id)
        return Group(
            group_id,
            GroupType.CLASSIC,
            "Stable" if members else "Empty",
            draft.coordinator,
            protocol_type,
            value.get("protocol"),
            value.get("generation"),
            None,
            value.get("leader"),
            tuple(members),
            *self._offsets(draft, _owners(members)),
        )

    # ---- consumer, share, streams ------------------------------------------------------------------------------------

    def _newer(self, group_id: str, draft: _Draft) -> Group:
        kind = draft.type
        group = draft.part(kind, _GroupRecord.GROUP).get("", {})
        epoch = group.get("epoch")
        target_epoch = draft.part(kind, _GroupRecord.TARGET_EPOCH).get("", {}).get("assignment_epoch")
        sources = _sources(draft.part(kind, _GroupRecord.TOPOLOGY).get("", {}))
        members = tuple(
            self._member(draft, kind, member_id, sources) for member_id in sorted(draft.part(kind, _GroupRecord.MEMBER))
        )
        assignors = Counter(
            one["server_assignor"]
            for one in draft.part(kind, _GroupRecord.MEMBER).values()
            if one.get("server_assignor")
        )
        offsets = self._shares(draft) if kind is GroupType.SHARE else None
        committed, pending = self._offsets(draft, _owners(members))
        return Group(
            group_id,
            kind,
            _state(draft, kind, epoch, target_epoch),
            draft.coordinator,
            kind if kind is not GroupType.CONSUMER else CONSUMER,
            assignors.most_common(1)[0][0] if assignors else None,
            epoch,
            target_epoch,
            None,
            members,
            committed if offsets is None else offsets,
            pending,
        )

    def _member(
        self, draft: _Draft, kind: GroupType, member_id: str, sources: Mapping[str, tuple[str, ...]]
    ) -> GroupMember:
        value = draft.part(kind, _GroupRecord.MEMBER)[member_id]
        current = draft.part(kind, _GroupRecord.CURRENT).get(member_id, {})
        target = draft.part(kind, _GroupRecord.TARGET).get(member_id, {})
        tasks = {}
        if kind is GroupType.STREAMS:
            tasks = {one: _task_names(current.get(f"{one}_tasks", ())) for one in _TASKS}
            assigned = _of_tasks(current.get("active_tasks", ()), sources)
            wanted = _of_tasks(target.get("active_tasks", ()), sources)
        else:
            has = (*current.get("assigned_partitions", ()), *current.get("partitions_pending_revocation", ()))
            assigned, wanted = self._partitions(has), self._partitions(target.get("topic_partitions", ()))
        return GroupMember(
            member_id,
            value["client_id"],
            value["client_host"],
            value.get("instance_id"),
            value.get("rack_id"),
            current.get("member_epoch"),
            value.get("subscribed_topic_names"),
            assigned,
            wanted,
            tasks,
        )

    def _partitions(self, by_topic: Iterable[Mapping[str, Any]]) -> tuple[TopicPartition, ...]:
        found = {
            TopicPartition(self._name(one["topic_id"]), number) for one in by_topic for number in one["partitions"]
        }
        return tuple(sorted(found))

    # ---- offsets -----------------------------------------------------------------------------------------------------

    def _offsets(
        self, draft: _Draft, owners: Mapping[TopicPartition, str]
    ) -> tuple[tuple[CommittedOffset, ...], tuple[CommittedOffset, ...]]:
        """Return committed offsets, including assigned partitions without one, and offsets in open transactions."""
        assigned = dict.fromkeys(owners, _NOT_COMMITTED)
        values = sorted((assigned | draft.offsets).items())
        committed = (self._committed(one, value, owners, None) for one, value in values)
        pending = (self._committed(one, value, owners, id) for (one, id), value in sorted(draft.pending.items()))
        return tuple(committed), tuple(pending)

    def _committed(
        self,
        partition: TopicPartition,
        value: Mapping[str, Any],
        owners: Mapping[TopicPartition, str],
        producer_id: int | None,
    ) -> CommittedOffset:
        offset = value["offset"]
        end = self._end_of(partition, offset)
        return CommittedOffset(
            partition,
            offset,
            end,
            _lag(end, offset),
            _known(value.get("leader_epoch", NONE)),
            value.get("metadata", ""),
            value.get("commit_timestamp"),
            _known(value.get("expire_timestamp", NONE)),
            owners.get(partition),
            producer_id,
        )

    def _shares(self, draft: _Draft) -> tuple[CommittedOffset, ...]:
        found = []
        for partition, value in sorted(draft.shares.items()):
            offset, done = value["start_offset"], value["delivery_complete_count"]
            # Source: Kafka GroupCoordinatorService.computeShareGroupLagAndBuildResponse.
            reached = offset + max(done, 0) if offset >= 0 else offset
            end = self._end_of(partition, reached)
            lag = None if done < 0 else _lag(end, reached)
            found.append(CommittedOffset(partition, offset, end, lag, _known(value["leader_epoch"])))
        return tuple(found)


def _lag(end: ConsumerLogEnd | None, offset: int) -> int | None:
    if end is None or offset < 0:
        return None
    # The high watermark in a checkpoint is older than the log: a group beyond it is not ahead. A group beyond the log's
    # end is.
    return max(end.offset - offset, 0) if end.source is EndSource.HIGH_WATERMARK else end.offset - offset


def _known(number: int) -> int | None:
    return None if number == NONE else number


def _state(draft: _Draft, kind: GroupType, epoch: int | None, target_epoch: int | None) -> str:
    members = draft.part(kind, _GroupRecord.MEMBER)
    if not members:
        return "Empty"
    if kind is GroupType.SHARE:
        return "Stable"
    if kind is GroupType.STREAMS:
        validated = draft.part(kind, _GroupRecord.GROUP).get("", {}).get("validated_topology_epoch", NONE)
        if draft.part(kind, _GroupRecord.TOPOLOGY).get("", {}).get("epoch") != validated:
            return "NotReady"
    target_epoch = NONE if target_epoch is None else target_epoch
    if epoch is not None and epoch > target_epoch:
        return "Assigning"
    current = draft.part(kind, _GroupRecord.CURRENT)
    for member_id in members:
        one = current.get(member_id, {})
        if one.get("state") != _STABLE[kind] or one.get("member_epoch") != target_epoch:
            return "Reconciling"
    return "Stable"


def _classic_member(value: Mapping[str, Any], protocol_type: str) -> GroupMember:
    subscription, assignment, problem = value["subscription"], value["assignment"], ""
    if isinstance(assignment, bytes) and protocol_type == CONSUMER:
        # Some clients omit `user_data`, so Kafka's clients reject the assignment. Its partitions can be decoded.
        assignment = read(ASSIGNMENT, assignment + _NO_BYTES)
    if isinstance(assignment, bytes):
        if value["assignment"]:
            problem = f"an assignment that cannot be decoded: {_hex(value['assignment'])}"
        assignment = {"assigned_partitions": ()}
    return GroupMember(
        value["member_id"],
        value["client_id"],
        value["client_host"],
        value["group_instance_id"],
        None if isinstance(subscription, bytes) else subscription["rack_id"],
        subscribed=None if isinstance(subscription, bytes) else subscription["topics"],
        assigned=tuple(
            sorted(
                TopicPartition(one["topic"], number)
                for one in assignment["assigned_partitions"]
                for number in one["partitions"]
            )
        ),
        problem=problem,
    )


def _hex(data: bytes) -> str:
    return f"{number(len(data), 'byte')}, 0x{data[:_HEX_BYTES].hex()}{'…' if len(data) > _HEX_BYTES else ''}"


def _owners(members: Iterable[GroupMember]) -> dict[TopicPartition, str]:
    return {partition: one.member_id for one in members for partition in one.assigned}


# ---- tasks of Kafka Streams ------------------------------------------------------------------------------------------


def _sources(topology: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the topics that each subtopology reads."""
    return {
        one["subtopology_id"]: (*one["source_topics"], *(topic["name"] for topic in one["repartition_source_topics"]))
        for one in topology.get("subtopologies", ())
    }


def _task_names(tasks: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(f"{one['subtopology_id']}_{number}" for one in tasks for number in sorted(one["partitions"]))


def _of_tasks(tasks: Iterable[Mapping[str, Any]], sources: Mapping[str, tuple[str, ...]]) -> tuple[TopicPartition, ...]:
    """Return the partitions that tasks read: the partition with the task's number of each topic of its subtopology."""
    return tuple(
        sorted(
            TopicPartition(topic, number)
            for one in tasks
            for topic in sources.get(one["subtopology_id"], ())
            for number in one["partitions"]
        )
    )
