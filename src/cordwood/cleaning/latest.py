"""The newest offset of every key of the dirty section.

A record is superseded if the dirty section has a newer record with the same key. The table grows with the number of
keys: 32 bytes per slot, at least two slots per key. It is never full, so one clean always covers the whole cleanable
range; Kafka's map has a fixed size, so Kafka may need several cleans (`cleaning.offset_map`). Memory is the only limit,
and is checked before the table grows.

Pass 2 also copies the dirty section. The table records which of its records were superseded, as one bit per record and
a few numbers per batch, so that pass 2 need not look them up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.key_table import BoolArray, Int64Array, KnownOutcomes, MemoryShare, UInt64Array
from cordwood.kernels.hashing import hash_keys
from cordwood.kernels.latest import (
    FREE,
    SLOT_NUMBERS,
    count_superseded,
    latest_offsets,
    move_table,
    note_batches,
    put_latest,
)
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.types import NONE

_FIRST_SLOTS = 1 << 12
_SLOT_BYTES = 8 * SLOT_NUMBERS
_LINE_BYTES = 64
#: Smaller batches are not remembered: looking up their few records again costs less than the memory.
_BATCH_RECORDS_MIN = 4


class LatestOffsets:
    """A `KeyTable` for any number of keys.

    Args:
        hash_secret: 16 secret bytes, so that nobody who chooses keys can construct collisions. Tables whose hashes are
            compared need the same secret.
        memory: the limit; None: no limit.
        keys_max: an upper bound of the number of keys; None: unknown.
    """

    def __init__(self, hash_secret: bytes, memory: MemoryShare | None = None, keys_max: int | None = None) -> None:
        self.keys = 0
        self._memory = memory
        self._keys_max = keys_max
        self.latest_offset = NONE
        self._secret = np.frombuffer(hash_secret, np.uint64)
        self._slots = _free_slots(_FIRST_SLOTS)
        self._known_batches = _KnownBatches()

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """See `KeyTable.put`. All records always fit."""
        count = int(np.count_nonzero(chosen))
        if not count:
            return columns.rows.size
        self._make_room(self.keys + count)
        known = self._known_batches
        first = known.add(columns, chosen)
        added, known.last_offset, in_order = put_latest(
            hashes,
            columns.rows["offset"],
            chosen,
            first,
            known.last_offset,
            self._slots,
            known.superseded,
        )
        known.in_order = known.in_order and bool(in_order)
        self.keys += int(added)
        return columns.rows.size

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """See `KeyTable.get`."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if self.keys and chosen.any():
            latest_offsets(self.hashes(columns, chosen), chosen, self._slots, found)
        return found

    def known_outcomes(self, batches: BatchRows) -> KnownOutcomes:
        """See `KeyTable.known_outcomes`."""
        return self._known_batches.outcomes(batches)

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """See `KeyTable.hashes`."""
        rows = columns.rows
        hashes = np.empty((rows.size, 2), np.uint64)
        low, high = self._secret
        hash_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], chosen, low, high, hashes)
        return hashes

    def _make_room(self, keys: int) -> None:
        if 2 * keys <= len(self._slots):
            return
        size = _slots_for(keys)
        if self._memory is not None:
            # The old table is in memory, too, until its slots are moved.
            needed = _SLOT_BYTES * (size + len(self._slots))
            self._memory.check(needed, keys, enough_bytes=self._bytes_enough(keys, needed))
        slots = _free_slots(size)
        move_table(self._slots, slots)
        self._slots = slots

    def _bytes_enough(self, keys: int, needed_bytes: int) -> int | None:
        """An upper bound of the memory that the table can need; None without a valid `keys_max`."""
        if self._keys_max is None or keys > self._keys_max:
            return None
        # The last growth needs both tables; the old one is at most half as large.
        largest = _slots_for(self._keys_max)
        return max(needed_bytes, _SLOT_BYTES * (largest + largest // 2))


def _slots_for(keys: int) -> int:
    """The number of slots of a table with this many keys: a power of two, at least twice the keys."""
    size = _FIRST_SLOTS
    while size < 2 * keys:
        size *= 2
    return size


def _free_slots(size: int) -> UInt64Array:
    """uint64[size, 4]: a table of free slots, aligned so that no slot spans two cache lines."""
    numbers = np.full(SLOT_NUMBERS * size + _LINE_BYTES // 8, FREE, np.uint64)
    first = -numbers.ctypes.data % _LINE_BYTES // 8
    return numbers[first : first + SLOT_NUMBERS * size].reshape(size, SLOT_NUMBERS)


class _KnownBatches:
    """Batches whose records are all in the table, with one bit per record: superseded or not.

    Pass 2 meets these batches again and need not decode them or look up their keys. A batch is identified by its last
    offset and CRC: where both agree, so do keys and offsets, and so do the outcomes.
    """

    def __init__(self) -> None:
        self.superseded = np.zeros(_FIRST_SLOTS, np.uint8)
        self.last_offset = NONE
        self.in_order = True
        self._records = 0
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._whole: tuple[npt.NDArray[Any], ...] | None = None

    def add(self, columns: RecordColumns, chosen: BoolArray) -> int:
        """Remember the batches whose records are being entered; return the ordinal of their first record."""
        rows, batches = columns.rows, columns.batches
        first = self._records
        self._records += rows.size
        if 8 * self.superseded.size < self._records:
            more = np.zeros(max(self.superseded.size, self._records), np.uint8)
            self.superseded = np.concatenate([self.superseded, more])
        part = tuple(np.empty(batches.size, kind) for kind in (np.int64, np.uint32, np.int64, np.bool_))
        count = note_batches(rows, batches, chosen, first, _BATCH_RECORDS_MIN, *part)
        self._parts.append(tuple(column[:count] for column in part))
        return first

    def outcomes(self, batches: BatchRows) -> KnownOutcomes:
        """See `KeyTable.known_outcomes`."""
        if self._whole is None:
            self._whole = tuple(map(np.concatenate, zip(*self._parts, strict=True))) if self._parts else ()
        # The bits assume that a record entered later is newer, which only holds for ascending offsets.
        if not self._whole or not self.in_order or not self._whole[0].size:
            return KnownOutcomes.nothing(batches.size)
        last_offsets, crcs, ordinals, tombstones = self._whole
        at = np.minimum(np.searchsorted(last_offsets, batches["last_offset"]), last_offsets.size - 1)
        known = (batches["magic"] == 2) & (last_offsets[at] == batches["last_offset"]) & (crcs[at] == batches["crc"])
        first = np.where(known, ordinals[at], NONE)
        superseded = np.empty(batches.size, np.int64)
        count_superseded(self.superseded, first, batches["record_count"].astype(np.int64), superseded)
        return KnownOutcomes(first, superseded, known & tombstones[at], self.superseded)
