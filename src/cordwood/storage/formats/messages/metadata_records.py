"""The records of a KRaft cluster's metadata log, and those about remote storage.

__cluster_metadata          the state of the cluster, as a history of changes; `storage.formats.cluster_metadata`
replays the records that concern logs. Types 6, 13 and 16 were abandoned before any
release wrote them
control records of KRaft    in the metadata log, between other records. Their value is a message that starts with its
own version, in two bytes. Their numbers are those of `types.ControlType`; ABORT and
COMMIT are markers, which `record` reads
__remote_log_metadata       the segments of tiered topics in remote storage, and their states. The history of a
segment is one RemoteLogSegmentMetadataRecord and an update for each change of its
state. A snapshot record holds the result
"""

from __future__ import annotations

from cordwood.storage.formats.messages.schema import read_table

CLUSTER_RECORDS = read_table(
    """
RegisterBrokerRecord 0
  value 0-4 flexible 0+
    broker_id               int32
    is_migrating_zk_broker  bool      2+  = false
    incarnation_id          uuid
    broker_epoch            int64
    end_points              []
      name                  string
      host                  string
      port                  uint16
      security_protocol     int16
    features                []
      name                  string
      min_supported_version int16
      max_supported_version int16
    rack                    string?
    fenced                  bool          = true
    in_controlled_shutdown  bool      1+  = false
    log_dirs                []uuid    3+  tag 0
    cordoned_log_dirs       []uuid?   4+  tag 1 = null

UnregisterBrokerRecord 1
  value 0 flexible 0+
    broker_id               int32
    broker_epoch            int64

TopicRecord 2
  value 0 flexible 0+
    name                    string
    topic_id                uuid

PartitionRecord 3
  value 0-2 flexible 0+
    partition_id            int32         = -1
    topic_id                uuid
    replicas                []int32
    isr                     []int32
    removing_replicas       []int32
    adding_replicas         []int32
    leader                  int32         = -1
    leader_recovery_state   int8          tag 0
    leader_epoch            int32         = -1
    partition_epoch         int32         = -1
    directories             []uuid    1+
    eligible_leader_replicas []int32? 2+  tag 1 = null
    last_known_elr          []int32?  2+  tag 2 = null

ConfigRecord 4
  value 0 flexible 0+
    resource_type           int8
    resource_name           string
    name                    string
    value                   string?

PartitionChangeRecord 5
  value 0-2 flexible 0+
    partition_id            int32         = -1
    topic_id                uuid
    isr                     []int32?      tag 0 = null
    leader                  int32         tag 1 = -2
    replicas                []int32?      tag 2 = null
    removing_replicas       []int32?      tag 3 = null
    adding_replicas         []int32?      tag 4 = null
    leader_recovery_state   int8          tag 5 = -1
    directories             []uuid?   1+  tag 8 = null
    eligible_leader_replicas []int32? 2+  tag 6 = null
    last_known_elr          []int32?  2+  tag 7 = null

FenceBrokerRecord 7
  value 0 flexible 0+
    id                      int32
    epoch                   int64

UnfenceBrokerRecord 8
  value 0 flexible 0+
    id                      int32
    epoch                   int64

RemoveTopicRecord 9
  value 0 flexible 0+
    topic_id                uuid

DelegationTokenRecord 10
  value 0 flexible 0+
    owner                   string
    requester               string
    renewers                []string
    issue_timestamp         int64
    max_timestamp           int64
    expiration_timestamp    int64
    token_id                string

UserScramCredentialRecord 11
  value 0 flexible 0+
    name                    string
    mechanism               int8
    salt                    bytes
    stored_key              bytes
    server_key              bytes
    iterations              int32

FeatureLevelRecord 12
  value 0 flexible 0+
    name                    string
    feature_level           int16

ClientQuotaRecord 14
  value 0 flexible 0+
    entity                  []
      entity_type           string
      entity_name           string?
    key                     string
    value                   float64
    remove                  bool

ProducerIdsRecord 15
  value 0 flexible 0+
    broker_id               int32
    broker_epoch            int64         = -1
    next_producer_id        int64

BrokerRegistrationChangeRecord 17
  value 0-3 flexible 0+
    broker_id               int32
    broker_epoch            int64
    fenced                  int8          tag 0
    in_controlled_shutdown  int8      1+  tag 1
    log_dirs                []uuid    2+  tag 2
    cordoned_log_dirs       []uuid?   3+  tag 3 = null

AccessControlEntryRecord 18
  value 0 flexible 0+
    id                      uuid
    resource_type           int8
    resource_name           string
    pattern_type            int8
    principal               string
    host                    string
    operation               int8
    permission_type         int8

RemoveAccessControlEntryRecord 19
  value 0 flexible 0+
    id                      uuid

NoOpRecord 20
  value 0 flexible 0+

ZkMigrationStateRecord 21
  value 0 flexible 0+
    zk_migration_state      int8

RemoveUserScramCredentialRecord 22
  value 0 flexible 0+
    name                    string
    mechanism               int8

BeginTransactionRecord 23
  value 0 flexible 0+
    name                    string?       tag 0 = null

EndTransactionRecord 24
  value 0 flexible 0+

AbortTransactionRecord 25
  value 0 flexible 0+
    reason                  string?       tag 0 = null

RemoveDelegationTokenRecord 26
  value 0 flexible 0+
    token_id                string

RegisterControllerRecord 27
  value 0 flexible 0+
    controller_id           int32
    incarnation_id          uuid
    zk_migration_ready      bool
    end_points              []
      name                  string
      host                  string
      port                  uint16
      security_protocol     int16
    features                []
      name                  string
      min_supported_version int16
      max_supported_version int16

ClearElrRecord 28
  value 0 flexible 0+
    topic_name              string
""",
    names=("", "{}"),
)

CONTROL_RECORDS = read_table(
    """
LeaderChangeMessage 2
  value 0-1 flexible 0+
    struct Voter
      voter_id              int32
      voter_directory_id    uuid      1+
    version                 int16
    leader_id               int32
    voters                  []Voter
    granting_voters         []Voter

SnapshotHeaderRecord 3
  value 0 flexible 0+
    version                 int16
    last_contained_log_timestamp int64

SnapshotFooterRecord 4
  value 0 flexible 0+
    version                 int16

KRaftVersionRecord 5
  value 0 flexible 0+
    version                 int16
    kraft_version           int16

VotersRecord 6
  value 0 flexible 0+
    version                 int16
    voters                  []
      voter_id              int32
      voter_directory_id    uuid
      endpoints             []
        name                string
        host                string
        port                uint16
      kraft_version_feature {}
        min_supported_version int16
        max_supported_version int16
""",
    names=("", "{}"),
)

REMOTE_LOG_RECORDS = read_table(
    """
RemoteLogSegmentMetadataRecord 0
  value 0 flexible 0+
    remote_log_segment_id   {}
      topic_id_partition    {}
        name                string
        id                  uuid
        partition           int32
      id                    uuid
    start_offset            int64
    end_offset              int64
    broker_id               int32
    max_timestamp_ms        int64
    event_timestamp_ms      int64
    segment_leader_epochs   []
      leader_epoch          int32
      offset                int64
    segment_size_in_bytes   int32
    custom_metadata         bytes?    = null
    remote_log_segment_state int8
    txn_index_empty         bool      tag 0

RemoteLogSegmentMetadataUpdateRecord 1
  value 0 flexible 0+
    remote_log_segment_id   {}
      topic_id_partition    {}
        name                string
        id                  uuid
        partition           int32
      id                    uuid
    broker_id               int32
    event_timestamp_ms      int64
    custom_metadata         bytes?    = null
    remote_log_segment_state int8

RemotePartitionDeleteMetadataRecord 2
  value 0 flexible 0+
    topic_id_partition      {}
      name                  string
      id                    uuid
      partition             int32
    broker_id               int32
    event_timestamp_ms      int64
    remote_partition_delete_state int8

RemoteLogSegmentMetadataSnapshotRecord 3
  value 0 flexible 0+
    segment_id              uuid
    start_offset            int64
    end_offset              int64
    broker_id               int32
    max_timestamp_ms        int64
    event_timestamp_ms      int64
    segment_leader_epochs   []
      leader_epoch          int32
      offset                int64
    segment_size_in_bytes   int32
    custom_metadata         bytes?    = null
    remote_log_segment_state int8
    txn_index_empty         bool      tag 0
""",
    names=("", "{}"),
)
