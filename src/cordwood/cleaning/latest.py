"""The newest offset of every key of the dirty section; the log is compared with it, record by record.

A record goes when the dirty section has a newer one with its key. The table takes any number of keys: it grows as they
come, by 32 bytes a slot and at least two slots a key. It is never full, so a clean always covers the whole range that
may be cleaned, unlike Kafka's with its map of fixed size (`cleaning.offset_map`). Memory is the only bound, and it is
checked before the table grows.

Pass 2 copies the dirty section, too. By then the table knows which of its records were superseded: one bit per record,
and a few numbers per batch.
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
#: What is remembered of a batch is worth its memory only when it stands for some records.
_BATCH_RECORDS_MIN = 4


class LatestOffsets:
    """A `KeyTable` for any number of keys.

    Args:
        hash_secret: 16 bytes, unknown to whoever chose the keys, so that nobody can aim collisions at a log. Tables
            whose hashes are compared need the same secret.
        memory: what the table may take; None: all there is.
        keys_max: no more keys will be put; None: that is not known.
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
        """See `KeyTable.put`; there is room for all records."""
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
            # While it grows the old one is there, too.
            needed = _SLOT_BYTES * (size + len(self._slots))
            self._memory.check(needed, keys, enough_bytes=self._bytes_enough(keys, needed))
        slots = _free_slots(size)
        move_table(self._slots, slots)
        self._slots = slots

    def _bytes_enough(self, keys: int, needed_bytes: int) -> int | None:
        """What the table takes at most, if `keys_max` is known and holds."""
        if self._keys_max is None or keys > self._keys_max:
            return None
        # The old table is at most half as large.
        largest = _slots_for(self._keys_max)
        return max(needed_bytes, _SLOT_BYTES * (largest + largest // 2))


def _slots_for(keys: int) -> int:
    """How many slots a table of that many keys has."""
    size = _FIRST_SLOTS
    while size < 2 * keys:
        size *= 2
    return size


def _free_slots(size: int) -> UInt64Array:
    """uint64[size, 4], a table of free slots, none of which lies across two lines of a cache."""
    numbers = np.full(SLOT_NUMBERS * size + _LINE_BYTES // 8, FREE, np.uint64)
    first = -numbers.ctypes.data % _LINE_BYTES // 8
    return numbers[first : first + SLOT_NUMBERS * size].reshape(size, SLOT_NUMBERS)


class _KnownBatches:
    """Batches whose records are all in the table, with one bit per record: superseded or not.

    Pass 2 meets them again and skips decoding and look-up. A batch is identified by its last offset and CRC: where both
    agree, keys and offsets do, and so does what becomes of the records.
    """

    def __init__(self) -> None:
        self.superseded = np.zeros(_FIRST_SLOTS, np.uint8)
        self.last_offset = NONE
        self.in_order = True
        self._records = 0
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._whole: tuple[npt.NDArray[Any], ...] | None = None

    def add(self, columns: RecordColumns, chosen: BoolArray) -> int:
        """Remember the batches of records that are being put; returns the ordinal of the first record."""
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
        """What is known of batches."""
        if self._whole is None:
            self._whole = tuple(map(np.concatenate, zip(*self._parts, strict=True))) if self._parts else ()
        # Elsewhere than in order, a record that comes later is not newer.
        if not self._whole or not self.in_order or not self._whole[0].size:
            return KnownOutcomes.nothing(batches.size)
        last_offsets, crcs, ordinals, tombstones = self._whole
        at = np.minimum(np.searchsorted(last_offsets, batches["last_offset"]), last_offsets.size - 1)
        known = (batches["magic"] == 2) & (last_offsets[at] == batches["last_offset"]) & (crcs[at] == batches["crc"])
        first = np.where(known, ordinals[at], NONE)
        superseded = np.empty(batches.size, np.int64)
        count_superseded(self.superseded, first, batches["record_count"].astype(np.int64), superseded)
        return KnownOutcomes(first, superseded, known & tombstones[at], self.superseded)
