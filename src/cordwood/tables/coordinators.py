"""The state that a log of an internal topic holds: the last record of each key.

The log is read twice: first for the newest offset of each key, then for the records at these offsets. So memory follows
the number of keys, whatever the length of the log, and objects are made for the surviving records only.

A record of an aborted transaction never counts. A record of an open transaction does not count yet; such records are
returned separately, as pending. For a committed record its own offset decides, not that of its marker.

A tombstone always ends the pending records of its key. So all tombstones behind the start of an open transaction are
returned, and not only those that are the last record of their key.

Source: Kafka OffsetMetadataManager.replay and replayEndTransactionMarker, which keep the record with the larger offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cordwood.cleaning.key_table import BoolArray
from cordwood.cleaning.latest import LatestOffsets
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.log.transactions import READ_UNCOMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.types import NONE

#: Bytes of a coordinator's key before what it names: the record type.
TYPE_BYTES = 2
_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record that counts, or is pending.

    Attributes:
        key, value: of the record; None: the value is null.
        producer_id: of the transaction that is open; NONE for a record that counts.
    """

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = NONE


def state_records(log: LogView, on_damage: OnDamage, *, updates: int | None = None) -> Iterator[StateRecord]:
    """The last record of each key, in log order; tombstones that are there, too, and what is pending.

    Args:
        on_damage: called with each damage; when it returns, reading goes on behind it.
        updates: a record type whose records change the record of another type before them, and replace none. All after
            the last record of the same key, but for its type, are given.
    """
    transactions = log.transactions()
    keys = LatestOffsets(os.urandom(_SECRET_BYTES))
    for columns, counts, _ in _columns(log, transactions, lambda _: None):
        named, replaces = _named(columns, counts, updates)
        keys.put(named, replaces, keys.hashes(named, replaces))
    first_open = transactions.last_stable_offset
    for columns, counts, producers in _columns(log, transactions, on_damage):
        named, replaces = _named(columns, counts, updates)
        newest = keys.get(named, counts)
        keep = replaces & (newest == columns.rows["offset"])
        keep |= counts & ~replaces & (newest < columns.rows["offset"])
        keep |= producers != NONE
        if first_open is not None:
            keep |= counts & (columns.rows["value_size"] < 0) & (columns.rows["offset"] > first_open)
        yield from _records(columns, keep, producers)


def _columns(
    log: LogView, transactions: Transactions, on_damage: OnDamage
) -> Iterator[tuple[RecordColumns, BoolArray, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Records with a key, of each whether it counts, and the producer of those whose transaction is open, else NONE."""
    # A broker may write on; what comes now is of transactions that are not known.
    for columns in log.columns(end_offset=transactions.next_offset, isolation=READ_UNCOMMITTED, on_damage=on_damage):
        batches = columns.batches
        aborted = transactions.aborted_data(batches)
        producers = np.where(transactions.open_data(batches), batches["producer_id"], NONE)
        of_row = columns.rows["batch"]
        has_key = columns.rows["key_size"] >= TYPE_BYTES
        pending = np.where(has_key & ~aborted[of_row], producers[of_row], NONE)
        yield columns, np.asarray(has_key & ~aborted[of_row] & (producers[of_row] == NONE)), pending


def _named(columns: RecordColumns, counts: BoolArray, updates: int | None) -> tuple[RecordColumns, BoolArray]:
    """Records whose keys are compared, and which of them replace earlier ones."""
    if updates is None:
        return columns, counts
    starts = columns.rows["key_start"]
    types = np.zeros(starts.size, np.int32)
    types[counts] = columns.data[starts[counts]].astype(np.int32) << 8 | columns.data[starts[counts] + 1]
    rows = columns.rows.copy()
    rows["key_start"] += TYPE_BYTES
    rows["key_size"] -= TYPE_BYTES
    return replace(columns, rows=rows), np.asarray(counts & (types != updates))


def _records(
    columns: RecordColumns, keep: BoolArray, producers: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[StateRecord]:
    view = memoryview(np.ascontiguousarray(columns.data))
    rows = columns.rows[keep]
    for (offset, _, _, key, key_size, value, value_size, _, _), producer in zip(
        rows.tolist(), producers[keep].tolist(), strict=True
    ):
        yield StateRecord(
            offset,
            bytes(view[key : key + key_size]),
            None if value_size < 0 else bytes(view[value : value + value_size]),
            producer,
        )
