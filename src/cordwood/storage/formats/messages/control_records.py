"""KRaft's control records. Their value is a message that starts with its own version, in two bytes.

The numbers are those of `types.ControlType`. ABORT and COMMIT are markers, which `record.batch` reads.
"""

from __future__ import annotations

from cordwood.storage.formats.messages.schema import read_table

RECORDS = read_table(
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
