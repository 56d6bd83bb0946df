"""Groups of consumers, from the records of `__consumer_offsets` and `__share_group_state`.

    kind        protocol                           its members come from                 its progress
    classic     of consumers, Connect, …           one record with all members           committed offsets
    consumer    the broker assigns (KIP-848)       records per member and for the group  committed offsets
    share       records are shared out             the same                              a share state per partition
    streams     tasks of Kafka Streams             the same                              committed offsets

A group's state follows from its records, as it does for the coordinator when it loads them. The records lack state that
only a running coordinator has, such as a rebalance in progress in a classic group.

Source: Kafka GroupMetadataManager.replay, and maybeUpdateGroupState of each kind of group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cordwood.errors import DataError
from cordwood.presentable import Presentable
from cordwood.storage.formats.messages.consumer_protocol import ASSIGNMENT, CONSUMER, read
from cordwood.storage.formats.messages.topics import DecodedRecord
from cordwood.text import number
from cordwood.types import NONE, TopicPartition


class GroupType(StrEnum):
    """Kafka's types of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class EndSource(StrEnum):
    """What a partition's end is, which lag counts to."""

    HIGH_WATERMARK = "high watermark"  #: of the log directory's checkpoint
    LOG_END = "log end"  #: of the log that is there


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends for a consumer."""

    offset: int
    source: EndSource


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        instance_id: `group.instance.id` of a static member, else None.
        epoch: the member's; None in a classic group.
        subscribed: topics; None where the records do not say.
        assigned: partitions that it has, or still has to give up.
        target: partitions that it is to have; None in a classic group.
        tasks: of a streams group: `active`, `standby` and `warmup` tasks, as subtopology_partition.
        problem: why `assigned` does not have its assignment: those bytes cannot be decoded; else empty.
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
    """How far a group is in a partition.

    Attributes:
        offset: the next that it would read; of a share group, the first that is not done with. -1: none yet, though a
            member has the partition.
        end: where the log ends; None if the log is not there.
        lag: records between; None if it is not known. Of a share group, without those in between that are done with.
            Below 0 if the group is ahead of the log.
        leader_epoch: of the last record read; None if it is not known.
        commit_timestamp_ms: when it was committed; None for share groups, and if nothing was.
        expire_timestamp_ms: when it expires; None: by the broker's `offsets.retention.minutes`.
        member_id: of the member that has the partition; None if none has.
        producer_id: of the open transaction that would commit it; None: it is committed.
    """

    partition: TopicPartition
    offset: int
    end: LogEnd | None = None
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
        state: Kafka's word for it.
        coordinator: the partition of `__consumer_offsets` that its records are in.
        protocol_type: of a classic group, such as `consumer` or `connect`; empty if it only commits offsets.
        assignor: how partitions are assigned; None if its records do not say.
        epoch: of the group, or the generation of a classic group; None if it only commits offsets.
        target_epoch: of the assignment that members are to have; None in a classic group.
        leader: the member that assigned the partitions of a classic group; else None.
        pending: offsets of transactions that are still open.
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
        """Of all partitions whose lag is known; None if none is."""
        known = [one.lag for one in self.offsets if one.lag is not None]
        return sum(known) if known else None

    @property
    def behind(self) -> int:
        """Records that it has not read yet, where that is known; partitions in which it is ahead do not count."""
        return sum(one.lag for one in self.offsets if one.lag is not None and one.lag > 0)

    @property
    def ahead(self) -> tuple[CommittedOffset, ...]:
        """Its partitions with a lag below 0."""
        return tuple(one for one in self.offsets if one.lag is not None and one.lag < 0)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which partitions of an internal topic were read.

    Attributes:
        partition_count: how many the cluster has; None if it is not known.
        count_is: where the count is from, if not from the cluster's metadata, or why it is not known; else empty.
    """

    topic: str
    partitions: tuple[int, ...]
    partition_count: int | None
    count_is: str = ""

    @property
    def is_whole(self) -> bool | None:
        """Whether all were read; None if that is not known."""
        return None if self.partition_count is None else len(self.partitions) >= self.partition_count


@dataclass(frozen=True, slots=True)
class GroupListing(Presentable):
    """The groups in a node's directories.

    Attributes:
        problems: records, batches and logs that could not be read.
    """

    groups: tuple[Group, ...]
    offsets_topic: Coverage
    share_topic: Coverage
    problems: tuple[DataError | OSError, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.groups))


# ---- from records to groups ------------------------------------------------------------------------------------------


class _Part(StrEnum):
    """What a record says of a group of the newer kinds."""

    GROUP = "group"
    MEMBER = "member"
    TARGET_EPOCH = "target epoch"
    TARGET = "target"
    CURRENT = "current"
    TOPOLOGY = "topology"


def _parts(prefix: str, kind: GroupType) -> dict[str, tuple[GroupType, _Part]]:
    return {
        f"{prefix}Metadata": (kind, _Part.GROUP),
        f"{prefix}MemberMetadata": (kind, _Part.MEMBER),
        f"{prefix}TargetAssignmentMetadata": (kind, _Part.TARGET_EPOCH),
        f"{prefix}TargetAssignmentMember": (kind, _Part.TARGET),
        f"{prefix}CurrentMemberAssignment": (kind, _Part.CURRENT),
    }


_PARTS = {
    **_parts("ConsumerGroup", GroupType.CONSUMER),
    **_parts("ShareGroup", GroupType.SHARE),
    **_parts("StreamsGroup", GroupType.STREAMS),
    "StreamsGroupTopology": (GroupType.STREAMS, _Part.TOPOLOGY),
}
#: The type of records that change a share partition's state, by number.
SHARE_UPDATE = 1
_OFFSETS = ("OffsetCommit", "LegacyOffsetCommit")
_NEWER = (GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS)
#: The `state` of a member that has what it is to have.
_STABLE = {GroupType.CONSUMER: 0, GroupType.SHARE: 0, GroupType.STREAMS: 1}
_TASKS = ("active", "standby", "warmup")
#: The value of a partition that a member has, and its group has committed nothing for.
_NOT_COMMITTED: Mapping[str, Any] = {"offset": NONE}
#: `user_data` that is null, as an assignment ends with it.
_NO_BYTES = b"\xff\xff\xff\xff"
#: Of an assignment that cannot be decoded, so many bytes are shown.
_HEX_BYTES = 16


@dataclass
class _Draft:
    """What the records say of a group so far."""

    coordinator: int
    classic: Mapping[str, Any] | None = None
    parts: dict[tuple[GroupType, _Part], dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    offsets: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    pending: dict[tuple[TopicPartition, int], Mapping[str, Any]] = field(default_factory=dict)
    shares: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)

    def part(self, kind: GroupType, part: _Part) -> dict[str, Mapping[str, Any]]:
        return self.parts.get((kind, part), {})

    @property
    def is_there(self) -> bool:
        """Whether anything is left of it."""
        return bool(self.classic is not None or any(self.parts.values()) or self.offsets or self.pending)

    @property
    def type(self) -> GroupType:
        """A group that only commits offsets is a classic one."""
        for part in (_Part.GROUP, _Part.MEMBER):
            for kind in _NEWER:
                if self.part(kind, part):
                    return kind
        return GroupType.CLASSIC


class GroupBuilder:
    """Builds groups from records.

    Args:
        end_of: where the log of a partition ends for a consumer with an offset; None if it is not there.
    """

    def __init__(self, names: Mapping[str, str], end_of: Callable[[TopicPartition, int], LogEnd | None]) -> None:
        self._names = dict(names)
        self._end_of = end_of
        self._drafts: dict[str, _Draft] = {}

    def add(self, coordinator: int, record: DecodedRecord, producer_id: int = NONE) -> None:
        """Take in the last record of a key, in the order of the log.

        Args:
            coordinator: the partition of `__consumer_offsets` that it is in.
            producer_id: of the open transaction that it is part of.
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
            # What deletes an offset deletes those of it that wait for their transaction, too.
            draft.pending = {key: value for key, value in draft.pending.items() if key[0] != partition}
        elif producer_id != NONE:
            draft.pending[partition, producer_id] = record.value
        else:
            draft.offsets[partition] = record.value

    def _learn(self, value: Mapping[str, Any] | None) -> None:
        """Names of topics that stand beside their ids."""
        for name, inner in (value or {}).items():
            if name.endswith("topics") and isinstance(inner, tuple):
                for one in inner:
                    if isinstance(one, Mapping) and "topic_id" in one and "topic_name" in one:
                        self._names.setdefault(one["topic_id"], one["topic_name"])

    def add_share_record(self, record: DecodedRecord) -> None:
        """Take in a snapshot of a share partition, or an update of it; in the order of the log."""
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
        """The groups, by id."""
        for group_id, draft in sorted(self._drafts.items()):
            if draft.is_there:
                yield (
                    self._classic(group_id, draft) if draft.type is GroupType.CLASSIC else self._newer(group_id, draft)
                )

    def _name(self, topic_id: str) -> str:
        # A topic that is gone has but its id.
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
        group = draft.part(kind, _Part.GROUP).get("", {})
        epoch = group.get("epoch")
        target_epoch = draft.part(kind, _Part.TARGET_EPOCH).get("", {}).get("assignment_epoch")
        sources = _sources(draft.part(kind, _Part.TOPOLOGY).get("", {}))
        members = tuple(
            self._member(draft, kind, member_id, sources) for member_id in sorted(draft.part(kind, _Part.MEMBER))
        )
        assignors = Counter(
            one["server_assignor"] for one in draft.part(kind, _Part.MEMBER).values() if one.get("server_assignor")
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
        value = draft.part(kind, _Part.MEMBER)[member_id]
        current = draft.part(kind, _Part.CURRENT).get(member_id, {})
        target = draft.part(kind, _Part.TARGET).get(member_id, {})
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
        """Committed offsets, with assigned partitions that have none, and offsets of open transactions."""
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


def _lag(end: LogEnd | None, offset: int) -> int | None:
    if end is None or offset < 0:
        return None
    # A checkpoint is older than the log, so a group between the two is not ahead; one behind the log's end is.
    return max(end.offset - offset, 0) if end.source is EndSource.HIGH_WATERMARK else end.offset - offset


def _known(number: int) -> int | None:
    return None if number == NONE else number


def _state(draft: _Draft, kind: GroupType, epoch: int | None, target_epoch: int | None) -> str:
    members = draft.part(kind, _Part.MEMBER)
    if not members:
        return "Empty"
    if kind is GroupType.SHARE:
        return "Stable"
    if kind is GroupType.STREAMS:
        validated = draft.part(kind, _Part.GROUP).get("", {}).get("validated_topology_epoch", NONE)
        if draft.part(kind, _Part.TOPOLOGY).get("", {}).get("epoch") != validated:
            return "NotReady"
    target_epoch = NONE if target_epoch is None else target_epoch
    if epoch is not None and epoch > target_epoch:
        return "Assigning"
    current = draft.part(kind, _Part.CURRENT)
    for member_id in members:
        one = current.get(member_id, {})
        if one.get("state") != _STABLE[kind] or one.get("member_epoch") != target_epoch:
            return "Reconciling"
    return "Stable"


def _classic_member(value: Mapping[str, Any], protocol_type: str) -> GroupMember:
    subscription, assignment, problem = value["subscription"], value["assignment"], ""
    if isinstance(assignment, bytes) and protocol_type == CONSUMER:
        # Some clients end it before the assignor's own data, which Kafka's clients refuse; the partitions are there.
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
    """The topics that each subtopology reads."""
    return {
        one["subtopology_id"]: (*one["source_topics"], *(topic["name"] for topic in one["repartition_source_topics"]))
        for one in topology.get("subtopologies", ())
    }


def _task_names(tasks: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(f"{one['subtopology_id']}_{number}" for one in tasks for number in sorted(one["partitions"]))


def _of_tasks(tasks: Iterable[Mapping[str, Any]], sources: Mapping[str, tuple[str, ...]]) -> tuple[TopicPartition, ...]:
    """The partitions that tasks read: those with a task's number, of each topic of its subtopology."""
    return tuple(
        sorted(
            TopicPartition(topic, number)
            for one in tasks
            for topic in sources.get(one["subtopology_id"], ())
            for number in one["partitions"]
        )
    )
