"""`__transaction_state`: each transactional id with its producer, and its open or last transaction.

`TransactionStatus` names the number in `transaction_status`.
"""

from __future__ import annotations

from enum import IntEnum

from cordwood.storage.formats.messages.schema import read_table

RECORDS = read_table("""
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
    """The coordinator's state of a transaction."""

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
