"""`__remote_log_metadata`: the segments of tiered topics in remote storage, and their states.

The history of a segment is one RemoteLogSegmentMetadataRecord and an update for each change of its state. A snapshot
record holds the result.
"""

from __future__ import annotations

from cordwood.storage.formats.messages.schema import read_table

RECORDS = read_table(
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
