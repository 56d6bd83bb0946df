"""Kafka's offset map: the newest offset of each key, for as many keys as fit the memory of a cleaner thread.

Used instead of `LatestOffsets` to clean exactly as Kafka does, round by round (`--offset-map`). Once the map holds
`limit` keys, the round ends at the next record with a key, even if that key is already in the map. As in Kafka, keys
are compared by their MD5 sums alone.

Source: Kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, KnownOutcomes, MemoryShare, UInt64Array
from cordwood.common.types import NONE
from cordwood.kernels import Deferred
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns

if TYPE_CHECKING:
    from cordwood.kernels import latest as kernel
else:
    kernel = Deferred("latest")

#: An MD5 sum and an offset.
SLOT_BYTES = 24
PAGE_BYTES = 4096
#: The most memory that a cleaner thread uses, at any config: the longest Java array.
MEMORY_BYTES_MAX = 2**31 - 1


def slots_of(memory_bytes: int) -> int:
    """Return the number of slots in the map of a cleaner thread with this much memory."""
    return min(memory_bytes, MEMORY_BYTES_MAX) // SLOT_BYTES


def keys_max(slots: int, load_factor: float) -> int:
    """Return the number of keys at which a map counts as full.

    Differs from Kafka for a load factor above 1: Kafka's clean fails once all slots are taken, here the round ends.
    """
    return min(slots, int(slots * load_factor))


class OffsetMap:
    """A `KeyTable` of fixed size.

    Attributes:
        limit: maximum number of keys that `put` enters.
    """

    def __init__(self, slots: int, limit: int | None = None, memory: MemoryShare | None = None) -> None:
        self.slots = slots
        self.limit = slots if limit is None else min(slots, limit)
        self._memory = memory
        self.keys = 0
        self.latest_offset = NONE
        # Pages of zeros use no memory until they are written to.
        self._sums = np.zeros((self.slots, 2), np.uint64)
        self._offsets = np.zeros(self.slots, np.int64)

    @property
    def used_bytes(self) -> int:
        """See `KeyTable.used_bytes`."""
        return SLOT_BYTES * self.keys

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """See `KeyTable.hashes`. The hashes are the bytes of the MD5 sums."""
        rows = columns.rows
        digests = np.empty((rows.size, 4), np.uint32)
        kernel.digest_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], chosen, digests)
        return digests.view(np.uint64)

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """See `KeyTable.put`. Once the map holds `limit` keys, no chosen record fits, not even one of a known key."""
        offsets = columns.rows["offset"]
        if self._memory is not None:
            # Count a page per key, as keys are scattered, and for all keys together at most the whole map.
            most = self.keys + int(np.count_nonzero(chosen))
            whole = SLOT_BYTES * self.slots
            self._memory.check(min(whole, PAGE_BYTES * most), most, enough_bytes=whole)
        done, self.keys = kernel.put_offsets(
            hashes.ctypes.data, hashes, offsets, chosen, self._sums, self._offsets, self.keys, self.limit
        )
        entered = np.flatnonzero(chosen[:done])
        if entered.size:
            self.latest_offset = int(offsets[entered[-1]])
        return int(done)

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """See `NewestOffsets.get`."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if self.keys and chosen.any():
            digests = self.hashes(columns, chosen)
            kernel.get_offsets(digests.ctypes.data, digests, chosen, self._sums, self._offsets, found)
        return found

    def known_outcomes(self, segment: int, batches: BatchRows, path: str) -> KnownOutcomes:
        """See `NewestOffsets.known_outcomes`. For this table all outcomes are unknown."""
        return KnownOutcomes.nothing(batches.size)

    def unchanged(self, segment: int) -> tuple[int, int] | None:
        """See `NewestOffsets.unchanged`. Always None."""
        return None

    def batches(self, segment: int) -> None:
        """See `NewestOffsets.batches`. Always None."""
