"""The newest offset of every key of the dirty section.

A record is superseded if the dirty section has a newer record with the same key. The table grows with the number of
keys: 24 bytes per slot, at least two slots per key. It is never full, so one clean always covers the whole cleanable
range; Kafka's map has a fixed size, so Kafka may need several cleans (`rules.offset_map`). Memory is the only limit,
and is checked before the table grows.

Two kinds of logs need this table: logs with little dirty data, as the scan looks up all records in it (`DirtyTable`),
and damaged logs whose offsets do not ascend. For all other logs see `rules.superseded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.key_table import (
    FIRST_SLOTS,
    SLOT_BYTES,
    BoolArray,
    Int64Array,
    KnownOutcomes,
    MemoryShare,
    UInt64Array,
    slots_for,
    table_bytes,
)
from cordwood.common.types import NONE
from cordwood.kernels.latest import (
    FREE,
    SLOT_NUMBERS,
    WORD_SLOTS,
    fill_filter,
    latest_offsets,
    move_table,
    probe,
    put_latest,
)
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.record.key_hashes import key_hashes

assert SLOT_BYTES == 8 * SLOT_NUMBERS


@dataclass(frozen=True, slots=True)
class DirtyTable:
    """The newest offset of each key of a dirty section, complete. A scan looks up all records in it.

    Attributes:
        hash_secret: secret of its hashes.
        slots, words: see `kernels.latest`.
        index_secret: secret of the log's key indexes; None without indexes.
        index_hashes: uint64[keys], hashes of the same keys by `index_secret`, ascending; a few surplus hashes do no
            harm.
    """

    #: The dtypes of its stored arrays.
    KINDS: ClassVar[Sequence[npt.DTypeLike]] = (np.uint64, np.uint64, np.uint64)
    hash_secret: bytes = field(repr=False)
    slots: UInt64Array
    words: UInt64Array
    index_secret: bytes | None = field(repr=False)
    index_hashes: UInt64Array

    @property
    def arrays(self) -> Sequence[npt.NDArray[Any]]:
        """Return the arrays to store."""
        return self.slots, self.words, self.index_hashes

    @classmethod
    def of(cls, hash_secret: bytes, index_secret: bytes | None, arrays: Sequence[npt.NDArray[Any]]) -> DirtyTable:
        """Restore the table from stored arrays, each of one dimension."""
        slots, words, index_hashes = arrays
        return cls(hash_secret, slots.reshape(-1, SLOT_NUMBERS), words, index_secret, index_hashes)

    def probe(self, hashes: UInt64Array, offsets: Int64Array, kinds: npt.NDArray[np.uint8]) -> None:
        """Mark, in uint8[records], each record for which the table has a newer record with the same key."""
        probe(hashes, offsets, self.slots, self.words, kinds)


class LatestOffsets:
    """A `KeyTable` for any number of keys.

    Args:
        hash_secret: 16 secret bytes, so that a writer of keys cannot construct collisions. Tables whose hashes are
            compared need the same secret.
        memory: the limit; None for no limit.
        keys_max: upper bound of the number of keys; None if unknown.
        index_secret: secret of the log's key indexes, if the keys will be looked up there; else None.
    """

    def __init__(
        self,
        hash_secret: bytes,
        memory: MemoryShare | None = None,
        keys_max: int | None = None,
        index_secret: bytes | None = None,
    ) -> None:
        self.keys = 0
        self._memory = memory
        self._keys_max = keys_max
        self.latest_offset = NONE
        self._hash_secret, self._index_secret = hash_secret, index_secret
        self._index_hashes: list[UInt64Array] = []
        self._slots = _free_slots(FIRST_SLOTS)

    @property
    def used_bytes(self) -> int:
        """See `KeyTable.used_bytes`."""
        return SLOT_BYTES * len(self._slots)

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """See `KeyTable.put`. All records always fit."""
        count = int(np.count_nonzero(chosen))
        if not count:
            return columns.rows.size
        self._make_room(self.keys + count)
        self.keys += int(put_latest(hashes, columns.rows["offset"], chosen, self._slots))
        if self._index_secret is not None:
            self._index_hashes.append(key_hashes(columns, chosen, self._index_secret)[chosen, 1])
        return columns.rows.size

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """See `NewestOffsets.get`."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if self.keys and chosen.any():
            latest_offsets(self.hashes(columns, chosen), chosen, self._slots, found)
        return found

    def known_outcomes(self, segment: int, batches: BatchRows, path: str) -> KnownOutcomes:
        """See `NewestOffsets.known_outcomes`. For this table all outcomes are unknown."""
        return KnownOutcomes.nothing(batches.size)

    def unchanged(self, segment: int) -> tuple[int, int] | None:
        """See `NewestOffsets.unchanged`. Always None."""
        return None

    def batches(self, segment: int) -> None:
        """See `NewestOffsets.batches`. Always None."""

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """See `KeyTable.hashes`."""
        return key_hashes(columns, chosen, self._hash_secret)

    def complete(self) -> DirtyTable:
        """Return the table for look-ups. Enter no more keys afterwards."""
        words = np.zeros(len(self._slots) // WORD_SLOTS, np.uint64)
        fill_filter(self._slots, words)
        index_hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *self._index_hashes]))
        self._index_hashes = []
        return DirtyTable(self._hash_secret, self._slots, words, self._index_secret, index_hashes)

    def _make_room(self, keys: int) -> None:
        if 2 * keys <= len(self._slots):
            return
        size = slots_for(keys)
        if self._memory is not None:
            # The old table stays in memory until its slots are moved.
            needed = SLOT_BYTES * (size + len(self._slots))
            self._memory.check(needed, keys, enough_bytes=self._bytes_enough(keys, needed))
        slots = _free_slots(size)
        move_table(self._slots, slots)
        self._slots = slots

    def _bytes_enough(self, keys: int, needed_bytes: int) -> int | None:
        """Return an upper bound of the table's memory; None without a valid `keys_max`."""
        if self._keys_max is None or keys > self._keys_max:
            return None
        return max(needed_bytes, table_bytes(self._keys_max))


def _free_slots(size: int) -> UInt64Array:
    """uint64[size, 3]: return a table of free slots."""
    return np.full((size, SLOT_NUMBERS), FREE, np.uint64)
