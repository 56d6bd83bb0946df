"""Groups from records: their kind, state, members, offsets and lag."""

from __future__ import annotations

from typing import Any

import pytest

from cordwood.common.types import NONE, TopicPartition
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, DecodedRecord, decode_record
from cordwood.storage.node.groups import ConsumerLogEnd, EndSource, Group, GroupBuilder, GroupType
from tests.logs import T0 as TIME
from tests.storage.messages import internal_record, offset_commit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
ENDS = {T0: ConsumerLogEnd(100, EndSource.LOG_END), T1: ConsumerLogEnd(50, EndSource.HIGH_WATERMARK)}


def record(name: str, value: dict[str, Any] | None, **key: Any) -> DecodedRecord:
    topic = next(one for one in INTERNAL_TOPICS.values() if one.record_type(name))
    return decode_record(topic, *internal_record(name, value, key))


def commit(group: str, partition: int, offset: int | None, topic: str = "t") -> DecodedRecord:
    return decode_record(INTERNAL_TOPICS["__consumer_offsets"], *offset_commit(group, topic, partition, offset))


def built(*records: DecodedRecord | tuple[DecodedRecord, int], shares: tuple[DecodedRecord, ...] = ()) -> list[Group]:
    builder = GroupBuilder({ID: "t"}, lambda name, _offset: ENDS.get(name))
    for one in records:
        if isinstance(one, tuple):
            builder.add(3, *one)
        else:
            builder.add(3, one)
    for share in shares:
        builder.add_share_record(share)
    return list(builder.groups())


def only(*records: DecodedRecord | tuple[DecodedRecord, int], shares: tuple[DecodedRecord, ...] = ()) -> Group:
    (found,) = built(*records, shares=shares)
    return found


# ---- classic ---------------------------------------------------------------------------------------------------------


def classic(*members: dict[str, Any], **fields: Any) -> DecodedRecord:
    return record("GroupMetadata", {"generation": 4, **fields, "members": members}, group="g")


SUBSCRIPTION = b"\0\3\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0\0\0\0\1\0\1r"
ASSIGNMENT = b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff"


def test_a_classic_group_has_its_members_in_one_record() -> None:
    member = {
        "member_id": "m",
        "client_id": "c",
        "client_host": "/h",
        "group_instance_id": "static",
        "subscription": SUBSCRIPTION,
        "assignment": ASSIGNMENT,
    }
    found = only(classic(member, protocol_type="consumer", protocol="range", leader="m"), commit("g", 1, 40))
    assert (found.type, found.state, found.coordinator) == (GroupType.CLASSIC, "Stable", 3)
    assert (found.protocol_type, found.assignor, found.epoch, found.leader) == ("consumer", "range", 4, "m")
    (one,) = found.members
    assert (one.member_id, one.instance_id, one.rack_id, one.subscribed) == ("m", "static", "r", ("t",))
    assert (one.assigned, one.target, one.epoch) == ((T0, T1), None, None)
    # As in Kafka's tool: a partition assigned to a member is listed, too, if it has no committed offset.
    none, offset = found.offsets
    assert (none.partition, none.offset, none.lag, none.member_id) == (T0, -1, None, "m")
    assert (offset.partition, offset.offset, offset.lag, offset.member_id) == (T1, 40, 10, "m")
    assert (offset.end, offset.metadata, offset.commit_timestamp_ms) == (ENDS[T1], "m", TIME)


def test_a_group_of_another_protocol_has_members_whose_assignment_only_they_can_read() -> None:
    found = only(classic({"member_id": "m", "subscription": b"?", "assignment": ASSIGNMENT}, protocol_type="connect"))
    assert (found.state, found.protocol_type, found.members[0].assigned, found.members[0].subscribed) == (
        "Stable", "connect", (), None,
    )  # fmt: skip
    assert "cannot be decoded" in found.members[0].problem


@pytest.mark.parametrize(
    ("assignment", "assigned", "problem"),
    [
        (b"", (), ""),  # between two rebalances the protocol is empty
        (ASSIGNMENT, (T0, T1), ""),
        (ASSIGNMENT[:-4], (T0, T1), ""),  # without user data
        (b"\0\0\x7f\xff\xff\xff", (), "an assignment that cannot be decoded: 6 bytes, 0x00007fffffff"),
    ],
)
def test_an_assignment_that_cannot_be_decoded_is_a_problem_of_its_member(
    assignment: bytes, assigned: object, problem: str
) -> None:
    member = {"member_id": "m", "subscription": b"\xff", "assignment": assignment}
    (one,) = only(classic(member, protocol_type="consumer")).members
    assert (one.assigned, one.problem) == (assigned, problem)


def test_a_group_without_members_is_empty_and_one_that_only_commits_has_no_protocol() -> None:
    assert only(classic(protocol_type="consumer")).state == "Empty"
    simple = only(commit("g", 0, 1))
    assert (simple.type, simple.state, simple.protocol_type, simple.epoch) == (GroupType.CLASSIC, "Empty", "", None)


def test_a_deleted_group_is_none_and_one_with_offsets_is_left_with_these() -> None:
    gone = record("GroupMetadata", None, group="g")
    assert built(gone, commit("g", 0, None)) == []
    assert only(gone, commit("g", 0, 7)).offsets[0].offset == 7


# ---- offsets ---------------------------------------------------------------------------------------------------------


def test_lag_counts_to_where_a_log_ends_and_is_not_known_without_the_log() -> None:
    found = only(commit("g", 0, 90), commit("g", 1, 45), commit("g", 0, 5, topic="elsewhere"))
    assert [(str(one.partition), one.end, one.lag) for one in found.offsets] == [
        ("elsewhere-0", None, None), ("t-0", ENDS[T0], 10), ("t-1", ENDS[T1], 5),
    ]  # fmt: skip
    assert found.lag == 15
    assert only(commit("g", 0, 5, topic="elsewhere")).lag is None


def test_lag_is_below_0_only_where_a_group_is_ahead_of_the_log_itself() -> None:
    # T1 ends at a high watermark, which was written some time ago.
    found = only(commit("g", 0, 103), commit("g", 1, 53))
    assert [(one.partition, one.lag) for one in found.offsets] == [(T0, -3), (T1, 0)]


def test_offsets_of_open_transactions_are_pending_until_something_deletes_them() -> None:
    found = only(commit("g", 0, 1), (commit("g", 0, 9), 17), (commit("g", 1, 3), 17))
    assert [(one.partition, one.offset, one.producer_id) for one in found.offsets] == [(T0, 1, None)]
    assert [(one.partition, one.offset, one.producer_id) for one in found.pending] == [(T0, 9, 17), (T1, 3, 17)]
    found = only((commit("g", 0, 9), 17), commit("g", 0, None), (commit("g", 1, 3), 18))
    assert [(one.partition, one.producer_id) for one in found.pending] == [(T1, 18)]


# ---- the newer kinds -------------------------------------------------------------------------------------------------


def consumer(epoch: int, target_epoch: int, **members: tuple[int, int]) -> list[DecodedRecord]:
    """A group of the consumer protocol; of each member its state and epoch."""
    found = [
        record("ConsumerGroupMetadata", {"epoch": epoch}, group_id="g"),
        record("ConsumerGroupTargetAssignmentMetadata", {"assignment_epoch": target_epoch}, group_id="g"),
    ]
    for name, (state, member_epoch) in members.items():
        value = {"client_id": "c", "client_host": "/h", "rack_id": "r", "server_assignor": "range"}
        found += [
            record(
                "ConsumerGroupMemberMetadata", {**value, "subscribed_topic_names": ("t",)}, group_id="g", member_id=name
            ),
            record(
                "ConsumerGroupTargetAssignmentMember",
                {"topic_partitions": ({"topic_id": ID, "partitions": (1,)},)},
                group_id="g",
                member_id=name,
            ),
            record(
                "ConsumerGroupCurrentMemberAssignment",
                {
                    "member_epoch": member_epoch,
                    "state": state,
                    "assigned_partitions": ({"topic_id": ID, "partitions": (1,)},),
                    "partitions_pending_revocation": ({"topic_id": OTHER_ID, "partitions": (0,)},),
                },
                group_id="g",
                member_id=name,
            ),
        ]
    return found


def test_a_consumer_protocol_group_has_a_record_per_member_and_topic_ids_for_names() -> None:
    found = only(*consumer(5, 5, a=(0, 5), b=(0, 5)))
    assert (found.type, found.state, found.epoch, found.target_epoch, found.assignor) == (
        GroupType.CONSUMER, "Stable", 5, 5, "range",
    )  # fmt: skip
    one = found.members[0]
    assert (one.member_id, one.epoch, one.rack_id, one.subscribed) == ("a", 5, "r", ("t",))
    # A partition that it still has to revoke is still assigned; a deleted topic has only its id.
    assert (one.assigned, one.target) == ((TopicPartition(OTHER_ID, 0), T1), (T1,))


@pytest.mark.parametrize(
    ("records", "state"),
    [
        (consumer(5, 5), "Empty"),
        (consumer(6, 5, a=(0, 5)), "Assigning"),
        (consumer(5, 5, a=(0, 5), b=(1, 5)), "Reconciling"),
        (consumer(5, 5, a=(0, 4)), "Reconciling"),
        (consumer(5, 5, a=(0, 5)), "Stable"),
        (consumer(5, 5, a=(0, 5))[:-1], "Reconciling"),
    ],
)
def test_the_state_of_a_consumer_group_follows_from_its_epochs(records: list[DecodedRecord], state: str) -> None:
    assert only(*records).state == state


def streams(validated: int, state: int, topology: int | None = 0) -> list[DecodedRecord]:
    tasks = ({"subtopology_id": "0", "partitions": (1, 0)},)
    subtopology = {"subtopology_id": "0", "source_topics": ("t",), "repartition_source_topics": ({"name": "t-r"},)}
    found = [
        record("StreamsGroupMetadata", {"epoch": 2, "validated_topology_epoch": validated}, group_id="g"),
        record("StreamsGroupTargetAssignmentMetadata", {"assignment_epoch": 2}, group_id="g"),
        record("StreamsGroupMemberMetadata", {"client_id": "c"}, group_id="g", member_id="m"),
        record("StreamsGroupTargetAssignmentMember", {"active_tasks": tasks}, group_id="g", member_id="m"),
        record(
            "StreamsGroupCurrentMemberAssignment",
            {"member_epoch": 2, "state": state, "active_tasks": tasks, "standby_tasks": tasks},
            group_id="g",
            member_id="m",
        ),
    ]
    if topology is not None:
        found.append(record("StreamsGroupTopology", {"epoch": topology, "subtopologies": (subtopology,)}, group_id="g"))
    return found


def test_a_streams_group_has_tasks_and_by_its_topology_the_partitions_they_read() -> None:
    found = only(*streams(0, 1), commit("g", 0, 98))
    assert (found.type, found.state) == (GroupType.STREAMS, "Stable")
    (member,) = found.members
    assert member.tasks == {"active": ("0_0", "0_1"), "standby": ("0_0", "0_1"), "warmup": ()}
    assert member.assigned == (T0, T1, TopicPartition("t-r", 0), TopicPartition("t-r", 1))
    assert (found.offsets[0].lag, found.offsets[0].member_id) == (2, "m")


@pytest.mark.parametrize(
    ("records", "state"),
    [
        (streams(0, 1), "Stable"),
        (streams(0, 2), "Reconciling"),
        (streams(-1, 1), "NotReady"),
        (streams(0, 1, topology=None), "NotReady"),
    ],
)
def test_the_state_of_a_streams_group_follows_from_its_topology_too(records: list[DecodedRecord], state: str) -> None:
    assert only(*records).state == state


def share(kind: str, value: dict[str, Any] | None, partition: int = 0, topic: str = ID) -> DecodedRecord:
    return record(kind, value, group_id="g", topic_id=topic, partition=partition)


def test_a_share_group_is_where_its_snapshots_and_updates_say() -> None:
    group = [
        record("ShareGroupMetadata", {"epoch": 3}, group_id="g"),
        record("ShareGroupMemberMetadata", {"client_id": "c"}, group_id="g", member_id="m"),
    ]
    shares = (
        share("ShareSnapshot", {"start_offset": 40, "leader_epoch": 2, "delivery_complete_count": 0}),
        share("ShareUpdate", {"start_offset": 60, "leader_epoch": -1, "delivery_complete_count": 5}),
        share("ShareUpdate", {"start_offset": -1, "leader_epoch": 3, "delivery_complete_count": 7}),
        share("ShareSnapshot", {"start_offset": -1, "leader_epoch": 0, "delivery_complete_count": -1}, partition=1),
    )
    found = only(*group, shares=shares)
    assert (found.type, found.state, found.epoch) == (GroupType.SHARE, "Stable", 3)
    # Acknowledgements beyond the first unfinished offset do not count.
    assert [(one.partition, one.offset, one.leader_epoch, one.lag) for one in found.offsets] == [
        (T0, 60, 3, 100 - 60 - 7), (T1, -1, 0, None),
    ]  # fmt: skip
    assert only(group[0], shares=shares).state == "Empty"
    assert built(shares=shares) == [], "what is left of a group that is gone"


def test_records_of_types_that_are_not_known_change_nothing() -> None:
    unknown = decode_record(INTERNAL_TOPICS["__consumer_offsets"], b"\0\x63", b"\0\0")
    assert built(unknown) == []
    assert [one.group_id for one in built(unknown, commit("g", 0, 1))] == ["g"]
    assert built((commit("g", 0, 1), NONE)) == built(commit("g", 0, 1))
