"""The interface between pass 1 and pass 2 of a clean, and the protocol of the two key tables.

Pass 1 reads keys; by its result, pass 2 decides which records are superseded. The result is one of three:

    pass 1          keys                      when full                   keys are compared by
    ScannedKeys     any number                never                       keyed hash, in buckets
    OffsetMap       keys of one round         the round ends              MD5, as in Kafka
    LatestOffsets   any number                never; memory is the limit  keyed hash

How much memory these take is computed here too, for plans, which make no table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cordwood.common.errors import MemoryNeed, TooLittleMemoryError
from cordwood.common.types import NONE
from cordwood.fs.machine import memory_bytes
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory that one task may use for its key table.

    Attributes:
        size_bytes: the task's share of `--memory`.
        tasks: number of concurrent tasks, each with such a share.
    """

    size_bytes: int
    tasks: int = 1

    def check(self, needed_bytes: int, keys: int, *, enough_bytes: int | None = None) -> None:
        """Raise if a table is larger than the share.

        Args:
            needed_bytes: memory that the table needs now.
            keys: number of keys that it has to hold.
            enough_bytes: upper bound of the table's memory until the pass ends; None if unknown.

        Raises:
            TooLittleMemoryError: the table is larger than the share.
        """
        if needed_bytes > self.size_bytes:
            raise TooLittleMemoryError(MemoryNeed(keys, needed_bytes, self.size_bytes, self.tasks, enough_bytes))


@dataclass(frozen=True, slots=True)
class KnownOutcomes:
    """Outcomes of records that pass 1 found, so that pass 2 need not decode their batches again.

    A record's ordinal is its number in the order in which pass 1 read the records.

    Attributes:
        first_ordinals: int64[batches], ordinal of each batch's first record; NONE for an unknown batch.
        records: int64[batches], number of records; 0 for an unknown batch.
        superseded: int64[batches], number of superseded records; 0 for an unknown batch.
        plain: bool[batches], whether a known batch has magic 2 and all its records have a key and a value.
        bits: uint8, one bit per ordinal; 1 for superseded.
        unread: bool[batches], whether pass 1 took a known batch from a key index and did not read its bytes.
        unconfirmed: bool[batches], unread batches with a bit set: their records may be superseded.
    """

    first_ordinals: Int64Array
    records: Int64Array
    superseded: Int64Array
    plain: BoolArray
    bits: npt.NDArray[np.uint8]
    unread: BoolArray
    unconfirmed: BoolArray

    @classmethod
    def nothing(cls, batches: int) -> KnownOutcomes:
        """Return a value that marks all batches as unknown."""
        none = np.zeros(batches, np.int64)
        never = np.zeros(batches, np.bool_)
        return cls(none + NONE, none, none, never, np.empty(0, np.uint8), never, never)

    @property
    def known(self) -> BoolArray:
        """bool[batches]: whether the outcomes of all records of the batch are known."""
        return np.asarray(self.first_ordinals != NONE)


@dataclass(frozen=True, slots=True)
class SegmentBatches:
    """The batches of a segment, and which of them pass 2 need not read.

    Attributes:
        positions: int64[batches], positions in the file.
        records: int64[batches], number of records.
        gone: bool[batches], whether all records are superseded and the batch has magic 2 and no transaction.
    """

    positions: Int64Array
    records: Int64Array
    gone: BoolArray


class NewestOffsets(Protocol):
    """The interface of pass 1's result, used by pass 2.

    Attributes:
        latest_offset: last offset whose key was read; later records are kept whatever their key.
    """

    latest_offset: int

    def known_outcomes(self, segment: int, batches: BatchRows, path: str) -> KnownOutcomes:
        """Return the outcomes that are known without decoding the batches.

        Args:
            segment: base offset of the batches' segment.
            batches: BATCH_ROW[batches].
            path: path of the segment's file, for errors.

        Raises:
            CorruptBatchError: pass 1 read different batches there.
        """
        ...

    def unchanged(self, segment: int) -> tuple[int, int] | None:
        """Return the numbers of batches and records of a segment that stays unchanged, byte for byte; None if it may
        change.
        """
        ...

    def batches(self, segment: int) -> SegmentBatches | None:
        """Return the facts about all batches of a segment, or None if nothing is known."""
        ...

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """int64[records]: the newest offset of each chosen record's key; NONE for other records and unknown keys."""
        ...


class KeyTable(NewestOffsets, Protocol):
    """The newest offset of each entered key.

    Attributes:
        keys: number of keys in the table.
    """

    keys: int

    @property
    def used_bytes(self) -> int:
        """Memory that the entered keys use, in bytes."""
        ...

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """uint64[records, 2]: the key hash of each chosen record. Thread-safe."""
        ...

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """Enter the chosen records in log order; all must have a key.

        Args:
            chosen: bool[records].
            hashes: uint64[records, 2], the result of `hashes` for the same records.

        Returns:
            index of the first record that did not fit; the number of records if all fit.

        Raises:
            TooLittleMemoryError: the table would exceed its share of memory.
        """
        ...


# ---- memory of the tables, computed without a table ------------------------------------------------------------------

#: Memory per record of an open chunk, in bytes: hash and kind, then its entry.
CHUNK_RECORD_BYTES = 16 + 1 + 20 + 20
#: The entry of a record that is not superseded in its chunk: hash and ordinal.
ENTRY_BYTES = 20
#: Maximum records of a chunk: the tables of its buckets then fit a cache.
CHUNK_RECORDS = 1 << 22
#: A chunk uses at most 1/`_CHUNK_SHARE` of a task's memory, as the survivors of many chunks need room, too.
_CHUNK_SHARE = 4
#: A table of latest offsets begins with this many slots, of this size each.
FIRST_SLOTS, SLOT_BYTES = 1 << 12, 24


def whole_memory(limit_bytes: int | None) -> int:
    """Return the bytes of memory for the keys of all tasks of a machine: the limit, or a share of the machine's."""
    return memory_bytes() // 4 if limit_bytes is None else limit_bytes


def chunk_records(memory: MemoryShare | None) -> int:
    """Return the number of records per chunk, for a task with this much memory."""
    if memory is None:
        return CHUNK_RECORDS
    some = memory.size_bytes // _CHUNK_SHARE // CHUNK_RECORD_BYTES
    return max(8, min(CHUNK_RECORDS, some) // 8 * 8)


def table_bytes(keys: int) -> int:
    """Return the peak memory of a table with this many keys while it grows."""
    # While the table grows for the last time, the old and the new one are in memory. The old one is at most half as
    # large as the new one, and larger than the filter that `complete` adds later.
    largest = slots_for(keys)
    return SLOT_BYTES * (largest + largest // 2)


def slots_for(keys: int) -> int:
    """Return the number of slots for this many keys: a power of two, at least twice the keys."""
    size = FIRST_SLOTS
    while size < 2 * keys:
        size *= 2
    return size
