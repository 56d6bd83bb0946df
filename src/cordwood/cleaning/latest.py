"""The newest offset of every key of the dirty section: what the rest of the log is held against.

A record goes when the dirty section has a newer one with its key. The table takes any number of keys: it grows as they
come, by 32 bytes a slot and at least two slots a key. It is never full, so a clean always covers the whole range that
may be cleaned, unlike Kafka's with its map of fixed size (`cleaning.offset_map`). Only memory bounds it, and that one
is asked before the table grows.

The dirty section is copied, too, and by then it is known which of its records were superseded: a bit for each says so,
and a few numbers for each batch.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cordwood.errors import RequestError
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

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_FIRST_SLOTS = 1 << 12
_SLOT_BYTES = 8 * SLOT_NUMBERS
_LINE_BYTES = 64
#: What is remembered of a batch is worth its memory only when it stands for some records.
_BATCH_RECORDS_MIN = 4


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """What a task may take for keys.

    Attributes:
        size_bytes: its share of `--memory`.
        tasks: how many run at once and have as much.
    """

    size_bytes: int
    tasks: int = 1

    def check(self, needed_bytes: int, keys: int) -> None:
        """Refuse a table that is too large.

        Raises:
            RequestError: it is.
        """
        if needed_bytes > self.size_bytes:
            raise RequestError(
                f"A table of {keys} keys takes {needed_bytes} bytes, and each of {self.tasks} tasks has "
                f"{self.size_bytes} of --memory {self.size_bytes * self.tasks}. "
                f"Give at least --memory {needed_bytes * self.tasks}, or fewer partitions at a time"
            )


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What is known of the records of some batches without looking at them again.

    Attributes:
        first_ordinals: int64[batches]; NONE where nothing is known.
        superseded: int64[batches], how many of each batch's records are; 0 where nothing is known.
        tombstones: bool[batches], whether a batch holds any.
        bits: uint8, one bit per ordinal.
    """

    first_ordinals: Int64Array
    superseded: Int64Array
    tombstones: BoolArray
    bits: npt.NDArray[np.uint8]

    @classmethod
    def nothing(cls, batches: int) -> Verdicts:
        """Of that many batches nothing is known."""
        none = np.zeros(batches, np.int64)
        return cls(none + NONE, none, np.zeros(batches, np.bool_), np.empty(0, np.uint8))

    @property
    def known(self) -> BoolArray:
        """bool[batches]: something is known."""
        return np.asarray(self.first_ordinals != NONE)


class LatestOffsets:
    """Key to newest offset, for the keys that were put.

    Attributes:
        keys: how many there are.
        latest_offset: the last offset that the table speaks for; records above it are kept whatever their key.
    """

    def __init__(self, memory: MemoryShare | None = None) -> None:
        self.keys = 0
        self._memory = memory
        self.latest_offset = NONE
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)
        self._slots = _free_slots(_FIRST_SLOTS)
        self._put = _Put()

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> None:
        """Enter the chosen (bool[records]) ones of some records, all of them with a key, in log order.

        Args:
            columns: the records.
            chosen: bool[records].
            hashes: uint64[records, 2], what `hashes` says of their keys.

        Raises:
            RequestError: their table would take more memory than it may.
        """
        count = int(np.count_nonzero(chosen))
        if not count:
            return
        self._make_room(self.keys + count)
        put = self._put
        first = put.add(columns, chosen)
        added, put.last_offset, in_order = put_latest(
            hashes,
            columns.rows["offset"],
            chosen,
            first,
            put.last_offset,
            self._slots,
            put.superseded,
        )
        put.in_order = put.in_order and bool(in_order)
        self.keys += int(added)

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """int64[records]: the newest offset of the key of each chosen record; NONE for the others and unknown keys."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if self.keys and chosen.any():
            latest_offsets(self.hashes(columns, chosen), chosen, self._slots, found)
        return found

    def verdicts(self, batches: BatchRows) -> Verdicts:
        """What is known of batches (BATCH_ROW[batches]) now that all of the dirty section was put."""
        return self._put.verdicts(batches)

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """uint64[records, 2]: of the keys of the chosen (bool[records]) ones. Any thread may ask, at any time."""
        rows = columns.rows
        hashes = np.empty((rows.size, 2), np.uint64)
        low, high = self._secret
        hash_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], chosen, low, high, hashes)
        return hashes

    def _make_room(self, keys: int) -> None:
        size = len(self._slots)
        if 2 * keys <= size:
            return
        while size < 2 * keys:
            size *= 2
        if self._memory is not None:
            # While it grows the old one is there, too.
            self._memory.check(_SLOT_BYTES * (size + len(self._slots)), keys)
        slots = _free_slots(size)
        move_table(self._slots, slots)
        self._slots = slots


def _free_slots(size: int) -> UInt64Array:
    """uint64[size, 4], a table of free slots, none of which lies across two lines of a cache."""
    numbers = np.full(SLOT_NUMBERS * size + _LINE_BYTES // 8, FREE, np.uint64)
    first = -numbers.ctypes.data % _LINE_BYTES // 8
    return numbers[first : first + SLOT_NUMBERS * size].reshape(size, SLOT_NUMBERS)


class _Put:
    """The batches all of whose records were put, and which of these another took the place of.

    Copying meets them again, and need not decode or look up what is known. A batch is told by its last offset and CRC:
    where both agree, keys and offsets do, and so does what becomes of them.
    """

    def __init__(self) -> None:
        self.superseded = np.zeros(_FIRST_SLOTS, np.uint8)
        self.last_offset = NONE
        self.in_order = True
        self._records = 0
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._whole: tuple[npt.NDArray[Any], ...] | None = None

    def add(self, columns: RecordColumns, chosen: BoolArray) -> int:
        """Take note of records that are being put; returns the ordinal of the first."""
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

    def verdicts(self, batches: BatchRows) -> Verdicts:
        """What is known of batches."""
        if self._whole is None:
            self._whole = tuple(map(np.concatenate, zip(*self._parts, strict=True))) if self._parts else ()
        # Elsewhere than in order, a record that comes later is not newer.
        if not self._whole or not self.in_order or not self._whole[0].size:
            return Verdicts.nothing(batches.size)
        last_offsets, crcs, ordinals, tombstones = self._whole
        at = np.minimum(np.searchsorted(last_offsets, batches["last_offset"]), last_offsets.size - 1)
        known = (batches["magic"] == 2) & (last_offsets[at] == batches["last_offset"]) & (crcs[at] == batches["crc"])
        first = np.where(known, ordinals[at], NONE)
        superseded = np.empty(batches.size, np.int64)
        count_superseded(self.superseded, first, batches["record_count"].astype(np.int64), superseded)
        return Verdicts(first, superseded, known & tombstones[at], self.superseded)
