"""The interface between pass 1 and pass 2 of a clean, and the protocol of the two key tables.

Pass 1 reads the keys of the dirty section, pass 2 asks which records are superseded:

    pass 1          keys                      when full                   keys are compared by
    ScannedKeys     any number                never                       keyed hash, in buckets
    OffsetMap       those of one round        the round ends              MD5, as in Kafka
    LatestOffsets   any number                never; memory is the limit  keyed hash; if offsets do not ascend
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cordwood.errors import MemoryNeed, TooLittleMemoryError
from cordwood.kernels.layout import BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.types import NONE

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory that one task may use for its key table.

    Attributes:
        size_bytes: the task's share of `--memory`.
        tasks: how many tasks run at once, each with such a share.
    """

    size_bytes: int
    tasks: int = 1

    def check(self, needed_bytes: int, keys: int, *, enough_bytes: int | None = None) -> None:
        """Refuse a table that is larger than the share.

        Args:
            needed_bytes: memory that the table needs now.
            keys: how many keys it has to hold.
            enough_bytes: upper bound of what the table can need until the pass ends; None: unknown.

        Raises:
            TooLittleMemoryError: the table is larger than the share.
        """
        if needed_bytes > self.size_bytes:
            raise TooLittleMemoryError(MemoryNeed(keys, needed_bytes, self.size_bytes, self.tasks, enough_bytes))


@dataclass(frozen=True, slots=True)
class KnownOutcomes:
    """Outcomes of records that pass 1 found, so that pass 2 need not decode their batches again.

    A record's ordinal is its number in the order in which pass 1 met the records.

    Attributes:
        first_ordinals: int64[batches], ordinal of each batch's first record; NONE for a batch that is not known.
        records: int64[batches], number of records; 0 for a batch that is not known.
        superseded: int64[batches], number of superseded records; 0 for a batch that is not known.
        plain: bool[batches], whether a known batch is of magic 2, and all its records have a key and a value.
        bits: uint8, one bit per ordinal; 1: superseded.
        unread: bool[batches], whether pass 1 has not read the bytes of a known batch, as a key index spoke for it.
        unconfirmed: bool[batches], those unread ones of which a bit says that the record may be superseded.
        held: bool[batches], those whose tombstones stay although their time has come.
    """

    first_ordinals: Int64Array
    records: Int64Array
    superseded: Int64Array
    plain: BoolArray
    bits: npt.NDArray[np.uint8]
    unread: BoolArray
    unconfirmed: BoolArray
    held: BoolArray

    @classmethod
    def nothing(cls, batches: int) -> KnownOutcomes:
        """The value for batches that are all not known."""
        none = np.zeros(batches, np.int64)
        never = np.zeros(batches, np.bool_)
        return cls(none + NONE, none, none, never, np.empty(0, np.uint8), never, never, never)

    @property
    def known(self) -> BoolArray:
        """bool[batches]: the outcomes of all of the batch's records are known."""
        return np.asarray(self.first_ordinals != NONE)


@dataclass(frozen=True, slots=True)
class SegmentBatches:
    """The batches of a segment, and which of them pass 2 need not read.

    Attributes:
        positions: int64[batches], in the file.
        records: int64[batches].
        gone: bool[batches]: all records are superseded, and the batch is neither of magic 0 or 1 nor of a transaction.
    """

    positions: Int64Array
    records: Int64Array
    gone: BoolArray


class NewestOffsets(Protocol):
    """What pass 2 asks of pass 1.

    Attributes:
        latest_offset: keys were read up to this offset; records above it are kept, whatever their key.
    """

    latest_offset: int

    def known_outcomes(self, segment: int, batches: BatchRows, path: str) -> KnownOutcomes:
        """What is known of batches without their records.

        Args:
            segment: base offset of the batches' segment.
            batches: BATCH_ROW[batches].
            path: of the segment's file, for errors.

        Raises:
            CorruptBatchError: they are not the batches that pass 1 read there.
        """
        ...

    def unchanged(self, segment: int) -> tuple[int, int] | None:
        """Whether a segment is known to stay as it is, byte for byte.

        Returns:
            how many batches and records it has; None if something of it may change.
        """
        ...

    def batches(self, segment: int) -> SegmentBatches | None:
        """What is known of all batches of a segment; None if that is nothing."""
        ...

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """int64[records]: the newest offset of each chosen record's key; NONE for other records and unknown keys."""
        ...


class KeyTable(NewestOffsets, Protocol):
    """The newest offset of each key that was entered.

    Attributes:
        keys: number of keys in the table.
    """

    keys: int

    @property
    def used_bytes(self) -> int:
        """Memory that the keys in it take."""
        ...

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """uint64[records, 2]: the key hash of each chosen record. Thread-safe."""
        ...

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """Enter the chosen records, all of which have a key, in log order.

        Args:
            chosen: bool[records].
            hashes: uint64[records, 2], the result of `hashes` for the same records.

        Returns:
            the index of the first record that did not fit; the number of records if all fit.

        Raises:
            TooLittleMemoryError: the table would exceed its share of memory.
        """
        ...
