"""The state in a log of an internal topic: the last record of each key.

The log is read twice: first for the newest offset of each key, then for the records at these offsets. So memory depends
on the number of keys, not on the length of the log, and Python objects are created only for surviving records.

A record of an aborted transaction never counts. A record of an open transaction does not count yet; such records are
returned separately, as pending. A committed record is ordered by its own offset, not by its marker's.

A tombstone always ends the pending records of its key. So all tombstones behind the start of an open transaction are
returned, not only the tombstones that are the last record of their key.

Source: Kafka OffsetMetadataManager.replay and replayEndTransactionMarker, which keep the record with the larger offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cordwood.cleaning.rules.key_table import BoolArray
from cordwood.cleaning.rules.latest import LatestOffsets
from cordwood.common.types import NONE
from cordwood.record.columns import OnDamage, RecordColumns
from cordwood.storage.log.transactions import READ_UNCOMMITTED, Transactions
from cordwood.storage.log.view import LogView

#: Size in bytes of the record type at the start of a coordinator's key.
TYPE_BYTES = 2
_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A record that counts or is pending.

    Attributes:
        value: the record's value; None for a tombstone.
        producer_id: producer of the open transaction; NONE for a record that counts.
    """

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = NONE


def state_records(log: LogView, on_damage: OnDamage, *, updates: int | None = None) -> Iterator[StateRecord]:
    """Yield the last record of each key, in log order, including tombstones; and pending records.

    Args:
        on_damage: called with each damage; if it returns, reading continues behind the damage.
        updates: a record type whose records do not replace earlier ones, but update the preceding record of another
            type. Yield all of them behind the last record of another type whose key is otherwise the same.
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
    """Yield records, which of them count, and each record's producer if its transaction is open, else NONE."""
    # A broker may still be writing; transactions of later records are unknown, so they are not read.
    for columns in log.columns(end_offset=transactions.next_offset, isolation=READ_UNCOMMITTED, on_damage=on_damage):
        batches = columns.batches
        aborted = transactions.aborted_data(batches)
        producers = np.where(transactions.open_data(batches), batches["producer_id"], NONE)
        of_row = columns.rows["batch"]
        has_key = columns.rows["key_size"] >= TYPE_BYTES
        pending = np.where(has_key & ~aborted[of_row], producers[of_row], NONE)
        yield columns, np.asarray(has_key & ~aborted[of_row] & (producers[of_row] == NONE)), pending


def _named(columns: RecordColumns, counts: BoolArray, updates: int | None) -> tuple[RecordColumns, BoolArray]:
    """Return records with the part of the key to compare, and which of them replace earlier ones."""
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
