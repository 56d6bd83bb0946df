"""Finds each key's last record across all parts of a log, and checks that its last committed value survived the clean.

Tasks that read parts of a log collect keys in a table (`LastRecords`) and send its entries, by hash range, to tasks
that merge and judge them (`judge`). So Spark moves one row per table and hash range, not one per record.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.kernels.last_records import (
    ENTRY,
    FREE,
    MAY_GO,
    NO_VALUE,
    PRIME,
    THERE,
    TOMBSTONE,
    fingerprints,
    merge_entries,
    number_buckets,
)
from cordwood.verification.pairs import Count, ViolationKind

Entries = npt.NDArray[np.void]
BoolArray = npt.NDArray[np.bool_]

_SLOTS_MIN = 1 << 12
#: 64 MB. A full table is sent before more is read.
_SLOTS_MAX = 1 << 21
#: About the most keys that a hash range has; their table takes some 60 MB.
BUCKET_KEYS = 1 << 20
_FULL = 0.6
_GROWTH = 4


def secret_points() -> tuple[int, int]:
    """Two random points for the fingerprints of one proof."""
    return secrets.randbelow(int(PRIME)), secrets.randbelow(int(PRIME))


@dataclass
class LastRecords:
    """A hash table from a key's fingerprint to its last record.

    Attributes:
        slots_max: the most slots that the table may have, a power of two; None: no limit.
    """

    slots_max: int | None = _SLOTS_MAX
    _table: Entries = field(init=False)
    _used: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._table = _empty(self._at_most(_SLOTS_MIN))

    def add(self, entries: Entries) -> Iterator[Entries]:
        """Merge entries, ENTRY[n]. Whenever the table is full and may not grow, yields its entries and empties it."""
        done = 0
        while True:
            done, self._used = merge_entries(entries, done, self._table, self._used, int(_FULL * self._table.size))
            if done == entries.size:
                return
            if self.slots_max is None or self._table.size < self.slots_max:
                self._grow()
            else:
                yield self.take()

    def take(self) -> Entries:
        """Return all entries, ENTRY[keys], and empty the table."""
        found: Entries = self._table[self._table["last"] != FREE]
        self._table["last"] = FREE
        self._used = 0
        return found

    def _at_most(self, slots: int) -> int:
        return slots if self.slots_max is None else min(slots, self.slots_max)

    def _grow(self) -> None:
        entries = self._table[self._table["last"] != FREE]
        self._table = _empty(self._at_most(_GROWTH * self._table.size))
        done, self._used = merge_entries(entries, 0, self._table, 0, self._table.size - 1)
        assert done == entries.size, "the new table is larger"


def _empty(slots: int) -> Entries:
    table = np.zeros(slots, ENTRY)
    table["last"] = FREE
    return table


def entries_of(
    data: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    points: tuple[int, int],
    *,
    there: BoolArray,
    may_go: BoolArray,
) -> Entries:
    """Make the entries of records, ENTRY[records].

    Args:
        data: uint8[bytes], holds the keys.
        rows: RECORD_ROW[records]; each has a key and an offset of 0 or more.
        points: see `secret_points`.
        there: bool[records]: the record is in the state after the clean.
        may_go: bool[records]: the record is a tombstone that the clean may remove.
    """
    found = np.empty(rows.size, ENTRY)
    lows, highs = np.empty(rows.size, np.uint64), np.empty(rows.size, np.uint64)
    starts, sizes = (np.ascontiguousarray(rows[name]) for name in ("key_start", "key_size"))
    fingerprints(data.ctypes.data, starts, sizes, np.array(points, np.uint64), lows, highs)
    value = rows["value_size"] >= 0
    for known, flag in ((there, THERE), (may_go, MAY_GO), (~value, TOMBSTONE)):
        highs |= np.where(known, flag, np.uint64(0))
    found["low"], found["high"], found["last"] = lows, highs, rows["offset"]
    found["value_there"] = np.where(there & value, rows["offset"], NO_VALUE)
    return found


def by_bucket(entries: Entries, buckets: int) -> Iterator[tuple[int, Entries]]:
    """Split entries by hash range; yields (number of the range, its entries), without empty ranges."""
    if buckets == 1:
        if entries.size:
            yield 0, entries
        return
    numbers = np.empty(entries.size, np.int64)
    number_buckets(np.ascontiguousarray(entries["low"]), buckets, numbers)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=buckets))
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if end > start:
            yield number, entries[order[start:end]]


def judge(entries: Entries) -> tuple[dict[Count, int], dict[ViolationKind, npt.NDArray[np.int64]]]:
    """Judge the merged entries of a hash range, ENTRY[keys].

    A key is right if its last record is still there, or if that record is a tombstone that may be gone and no value of
    the key is left. An older value without the tombstone would bring the deleted key back.

    Returns:
        counts of keys; and, by kind of violation, the offsets of the wrong records.
    """
    there, may_go, tombstone = (entries["high"] & flag != 0 for flag in (THERE, MAY_GO, TOMBSTONE))
    gone = ~there & may_go
    no_value = entries["value_there"] == NO_VALUE
    wrong = {
        ViolationKind.CAME_BACK: entries["value_there"][gone & ~no_value],
        ViolationKind.TOMBSTONE_LOST: entries["last"][~there & ~may_go & tombstone],
        ViolationKind.VALUE_LOST: entries["last"][~there & ~may_go & ~tombstone],
    }
    counts = {Count.KEYS_KEPT: int(there.sum()), Count.KEYS_DELETED: int((gone & no_value).sum())}
    return counts, {kind: offsets for kind, offsets in wrong.items() if offsets.size}
