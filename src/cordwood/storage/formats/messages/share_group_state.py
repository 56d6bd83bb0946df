"""`__share_group_state`: the progress of each share group in each partition.

A snapshot holds the whole state of a share partition; an update changes the previous state. In an update, -1 keeps a
number unchanged.
"""

from __future__ import annotations

from cordwood.storage.formats.messages.schema import read_table

RECORDS = read_table("""
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
