"""Kafka's offset map: the newest offset of each key, for as many keys as a cleaner thread's memory has room for.

It stands in the place of `LatestOffsets` where a clean is to be Kafka's own, round by round: a clean then ends at the
first record that comes when the map holds `limit` keys, even if that record's key is one of them. Keys are told apart
by their MD5 sums alone, as there.

Source: Kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment.
"""

from __future__ import annotations

import numpy as np

from cordwood.cleaning.key_table import BoolArray, Int64Array, KnownOutcomes, MemoryShare, UInt64Array
from cordwood.kernels.layout import BatchRows
from cordwood.kernels.offset_map import digest_keys, get_offsets, put_offsets
from cordwood.record.columns import RecordColumns
from cordwood.types import NONE

#: An MD5 sum and an offset.
SLOT_BYTES = 24
PAGE_BYTES = 4096
#: The most memory that a cleaner thread takes, whatever it is given: a Java array is no longer.
MEMORY_BYTES_MAX = 2**31 - 1


def slots_of(memory_bytes: int) -> int:
    """How many slots the map of a cleaner thread has that has this much memory for it."""
    return min(memory_bytes, MEMORY_BYTES_MAX) // SLOT_BYTES


def keys_max(slots: int, load_factor: float) -> int:
    """How many keys a clean puts into a map.

    Differs from Kafka with a load factor above 1: there a clean fails once all slots are taken, here it ends.
    """
    return min(slots, int(slots * load_factor))


class OffsetMap:
    """A `KeyTable` of fixed size.

    Attributes:
        slots: how many keys there is room for.
        limit: how many keys `put` enters.
    """

    def __init__(self, slots: int, limit: int | None = None, memory: MemoryShare | None = None) -> None:
        self.slots = slots
        self.limit = slots if limit is None else min(slots, limit)
        self._memory = memory
        self.keys = 0
        self.latest_offset = NONE
        # Zeros that were never written to take no memory.
        self._sums = np.zeros((self.slots, 2), np.uint64)
        self._offsets = np.zeros(self.slots, np.int64)

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """See `KeyTable.hashes`: the MD5 sums, byte for byte."""
        rows = columns.rows
        digests = np.empty((rows.size, 4), np.uint32)
        digest_keys(columns.data.ctypes.data, rows["key_start"], rows["key_size"], chosen, digests)
        return digests.view(np.uint64)

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """See `KeyTable.put`: a record that comes when `limit` keys are there ends it, whatever the record's key."""
        offsets = columns.rows["offset"]
        if self._memory is not None:
            # A key touches a page of memory at the most, and all keys no more than the map.
            most = self.keys + int(np.count_nonzero(chosen))
            whole = SLOT_BYTES * self.slots
            self._memory.check(min(whole, PAGE_BYTES * most), most, enough_bytes=whole)
        done, self.keys = put_offsets(
            hashes.ctypes.data, hashes, offsets, chosen, self._sums, self._offsets, self.keys, self.limit
        )
        entered = np.flatnonzero(chosen[:done])
        if entered.size:
            self.latest_offset = int(offsets[entered[-1]])
        return int(done)

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """See `KeyTable.get`."""
        found = np.full(columns.rows.size, NONE, np.int64)
        if self.keys and chosen.any():
            digests = self.hashes(columns, chosen)
            get_offsets(digests.ctypes.data, digests, chosen, self._sums, self._offsets, found)
        return found

    def known_outcomes(self, batches: BatchRows) -> KnownOutcomes:
        """See `KeyTable.known_outcomes`: nothing is known beforehand."""
        return KnownOutcomes.nothing(batches.size)
