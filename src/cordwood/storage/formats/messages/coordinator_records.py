"""The records of Kafka's coordinators: of groups, transactions and share groups.

    __consumer_offsets      committed offsets, and groups of all kinds with their members and assignments
        OffsetCommit, LegacyOffsetCommit    one committed offset of a group
        GroupMetadata                       a classic group, with its members
        ConsumerGroup…                      groups of the consumer protocol: the group, its members, each member's
                                            planned (TargetAssignment) and present (CurrentMemberAssignment) partitions
        ShareGroup…, StreamsGroup…          the same for share groups and streams groups
    __transaction_state     each transactional id with its producer, and its open or last transaction
    __share_group_state     the progress of each share group in each partition
        ShareSnapshot                       the whole state of a share partition
        ShareUpdate                         a change of the previous state; -1 keeps a number unchanged

A record's key holds its type and its subject; a null value deletes that entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.formats.messages.schema import Message, decode, read_table

GROUP_RECORDS = read_table("""
LegacyOffsetCommit 0
  key
    group                   string
    topic                   string
    partition               int32
  value 0
    offset                  int64
    metadata                string
    commit_timestamp        int64

OffsetCommit 1
  key
    group                   string
    topic                   string
    partition               int32
  value 0-4 flexible 4+
    offset                  int64
    leader_epoch            int32     3+  = -1
    metadata                string
    commit_timestamp        int64
    expire_timestamp        int64     1   = -1
    topic_id                uuid      4+  tag 0

GroupMetadata 2
  key
    group                   string
  value 0-4 flexible 4+
    protocol_type           string
    generation              int32
    protocol                string?
    leader                  string?
    current_state_timestamp int64     2+  = -1
    members                 []
      member_id             string
      group_instance_id     string?   3+  = null
      client_id             string
      client_host           string
      rebalance_timeout     int32     1+  = -1
      session_timeout       int32
      subscription          bytes
      assignment            bytes

ConsumerGroupMetadata 3
  key
    group_id                string
  value 0 flexible 0+
    epoch                   int32
    metadata_hash           int64     tag 0

ConsumerGroupPartitionMetadata 4
  key
    group_id                string
  value 0 flexible 0+
    topics                  []
      topic_id              uuid
      topic_name            string
      num_partitions        int32
      partition_metadata    []
        partition           int32
        racks               []string

ConsumerGroupMemberMetadata 5
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    instance_id             string?
    rack_id                 string?
    client_id               string
    client_host             string
    subscribed_topic_names  []string
    subscribed_topic_regex  string?
    rebalance_timeout_ms    int32     = -1
    server_assignor         string?
    classic_member_metadata {}?       tag 0
      session_timeout_ms    int32
      supported_protocols   []
        name                string
        metadata            bytes

ConsumerGroupTargetAssignmentMetadata 6
  key
    group_id                string
  value 0 flexible 0+
    assignment_epoch        int32
    assignment_timestamp    int64     tag 0

ConsumerGroupTargetAssignmentMember 7
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    topic_partitions        []
      topic_id              uuid
      partitions            []int32

ConsumerGroupCurrentMemberAssignment 8
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    struct TopicPartitions
      topic_id              uuid
      partitions            []int32
      assignment_epochs     []int32?  tag 0
    member_epoch            int32
    previous_member_epoch   int32
    state                   int8
    assigned_partitions     []TopicPartitions
    partitions_pending_revocation []TopicPartitions

ShareGroupMemberMetadata 10
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    rack_id                 string?
    client_id               string
    client_host             string
    subscribed_topic_names  []string

ShareGroupMetadata 11
  key
    group_id                string
  value 0 flexible 0+
    epoch                   int32
    metadata_hash           int64

ShareGroupTargetAssignmentMetadata 12
  key
    group_id                string
  value 0 flexible 0+
    assignment_epoch        int32
    assignment_timestamp    int64     tag 0

ShareGroupTargetAssignmentMember 13
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    topic_partitions        []
      topic_id              uuid
      partitions            []int32

ShareGroupCurrentMemberAssignment 14
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    member_epoch            int32
    previous_member_epoch   int32
    state                   int8
    assigned_partitions     []
      topic_id              uuid
      partitions            []int32

ShareGroupStatePartitionMetadata 15
  key
    group_id                string
  value 0 flexible 0+
    struct TopicPartitionsInfo
      topic_id              uuid
      topic_name            string
      partitions            []int32
    initializing_topics     []TopicPartitionsInfo
    initialized_topics      []TopicPartitionsInfo
    deleting_topics         []
      topic_id              uuid
      topic_name            string

ConsumerGroupRegularExpression 16
  key
    group_id                string
    regular_expression      string
  value 0 flexible 0+
    topics                  []string
    version                 int64
    timestamp               int64

StreamsGroupMetadata 17
  key
    group_id                string
  value 0 flexible 0+
    epoch                   int32
    metadata_hash           int64
    validated_topology_epoch int32    tag 0 = -1
    last_assignment_configs []?       tag 1
      key                   string
      value                 string

StreamsGroupMemberMetadata 19
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    instance_id             string?
    rack_id                 string?
    client_id               string
    client_host             string
    rebalance_timeout_ms    int32     = -1
    topology_epoch          int32
    process_id              string
    user_endpoint           {}?       = null
      host                  string
      port                  uint16
    client_tags             []
      key                   string
      value                 string

StreamsGroupTargetAssignmentMetadata 20
  key
    group_id                string
  value 0 flexible 0+
    assignment_epoch        int32
    assignment_timestamp    int64     tag 0

StreamsGroupTargetAssignmentMember 21
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    struct TaskIds
      subtopology_id        string
      partitions            []int32
    active_tasks            []TaskIds
    standby_tasks           []TaskIds
    warmup_tasks            []TaskIds

StreamsGroupCurrentMemberAssignment 22
  key
    group_id                string
    member_id               string
  value 0 flexible 0+
    struct TaskIds
      subtopology_id        string
      partitions            []int32
      assignment_epochs     []int32?  tag 0
    member_epoch            int32
    previous_member_epoch   int32
    state                   int8
    active_tasks            []TaskIds
    standby_tasks           []TaskIds
    warmup_tasks            []TaskIds
    active_tasks_pending_revocation  []TaskIds
    standby_tasks_pending_revocation []TaskIds
    warmup_tasks_pending_revocation  []TaskIds

StreamsGroupTopology 23
  key
    group_id                string
  value 0 flexible 0+
    struct TopicInfo
      name                  string
      partitions            int32
      replication_factor    int16
      topic_configs         []
        key                 string
        value               string
    epoch                   int32
    subtopologies           []
      subtopology_id        string
      source_topics         []string
      source_topic_regex    []string
      state_changelog_topics []TopicInfo
      repartition_sink_topics []string
      repartition_source_topics []TopicInfo
      copartition_groups    []
        source_topics       []int16
        source_topic_regex  []int16
        repartition_source_topics []int16
""")

GROUP_METADATA = next(one for one in GROUP_RECORDS.values() if one.name == "GroupMetadata")


# ---- subscriptions and assignments of consumers ----------------------------------------------------------------------

# A consumer sends its subscription to its classic group, and the group's leader sends the assignments. The coordinator
# stores both as bytes in GroupMetadata. They begin with a two-byte version; a version later than the latest supported
# one is decoded like the latest. `user_data` belongs to the assignor, and stays bytes.

#: The protocol type of groups of consumers. Other types (Connect, schema registries) use other encodings.
CONSUMER = "consumer"

_PROTOCOL = read_table(
    """
ConsumerProtocolSubscription 0
  value 0-3
    topics                  []string
    user_data               bytes?    = null
    owned_partitions        []        1+
      topic                 string
      partitions            []int32
    generation_id           int32     2+  = -1
    rack_id                 string?   3+  = null

ConsumerProtocolAssignment 1
  value 0-3
    assigned_partitions     []
      topic                 string
      partitions            []int32
    user_data               bytes?    = null
""",
    names=("", "{}"),
)
SUBSCRIPTION, ASSIGNMENT = _PROTOCOL[0].value, _PROTOCOL[1].value
_VERSION = Struct(">h")


def read(message: Message, data: bytes) -> Mapping[str, Any] | bytes:
    """Decode a subscription or assignment to its version and fields; return other bytes unchanged."""
    if len(data) < _VERSION.size:
        return data
    (version,) = _VERSION.unpack_from(data)
    try:
        decoded = decode(message, min(version, message.last_version), data, _VERSION.size)
    except CorruptMessageError:
        return data
    return {"version": version, **decoded.fields}


def with_protocol(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the subscriptions and assignments in the fields of a GroupMetadata value if its members are consumers."""
    if fields["protocol_type"] != CONSUMER:
        return dict(fields)
    members = tuple(
        {
            **member,
            "subscription": read(SUBSCRIPTION, member["subscription"]),
            "assignment": read(ASSIGNMENT, member["assignment"]),
        }
        for member in fields["members"]
    )
    return {**fields, "members": members}


# ---- transactions ----------------------------------------------------------------------------------------------------

TRANSACTION_RECORDS = read_table("""
TransactionLog 0
  key
    transactional_id        string
  value 0-1 flexible 1+
    producer_id             int64
    previous_producer_id    int64     1+  tag 0 = -1
    next_producer_id        int64     1+  tag 1 = -1
    producer_epoch          int16
    next_producer_epoch     int16     1+  tag 3 = -1
    transaction_timeout_ms  int32
    transaction_status      int8
    transaction_partitions  []?
      topic                 string
      partition_ids         []int32
    transaction_last_update_timestamp_ms int64
    transaction_start_timestamp_ms       int64
    client_transaction_version           int16  1+  tag 2
""")


class TransactionStatus(IntEnum):
    """The coordinator's state of a transaction: `transaction_status` of its record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


# ---- share groups ----------------------------------------------------------------------------------------------------

SHARE_RECORDS = read_table("""
ShareSnapshot 0
  key
    group_id                string
    topic_id                uuid
    partition               int32
  value 0 flexible 0+
    snapshot_epoch          int32
    state_epoch             int32
    leader_epoch            int32
    start_offset            int64
    delivery_complete_count int32     tag 0 = -1
    create_timestamp        int64
    write_timestamp         int64
    state_batches           []
      first_offset          int64
      last_offset           int64
      delivery_state        int8
      delivery_count        int16

ShareUpdate 1
  key
    group_id                string
    topic_id                uuid
    partition               int32
  value 0 flexible 0+
    snapshot_epoch          int32
    leader_epoch            int32
    start_offset            int64
    delivery_complete_count int32     tag 0 = -1
    state_batches           []
      first_offset          int64
      last_offset           int64
      delivery_state        int8
      delivery_count        int16
""")
