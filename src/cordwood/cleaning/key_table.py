"""What both tables of keys have in common: what they offer, what they may take, what they know of whole batches.

Pass 1 of a clean enters the keys of the dirty section, pass 2 asks for them:

    table           keys                      full                     a key is known by
    LatestOffsets   any number                never; memory bounds it  its keyed hash
    OffsetMap       those of one round        ends the clean           its MD5 sum, as in Kafka
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
    """What a task may take for keys.

    Attributes:
        size_bytes: its share of `--memory`.
        tasks: how many run at once and have as much.
    """

    size_bytes: int
    tasks: int = 1

    def check(self, needed_bytes: int, keys: int, *, enough_bytes: int | None = None) -> None:
        """Refuse a table that is too large.

        Args:
            needed_bytes: what it takes.
            keys: how many it has to hold.
            enough_bytes: what it takes at most, whatever follows, if that is known.

        Raises:
            TooLittleMemoryError: it is too large.
        """
        if needed_bytes > self.size_bytes:
            raise TooLittleMemoryError(MemoryNeed(keys, needed_bytes, self.size_bytes, self.tasks, enough_bytes))


@dataclass(frozen=True, slots=True)
class KnownOutcomes:
    """What is known of the records of some batches without decoding them again.

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
    def nothing(cls, batches: int) -> KnownOutcomes:
        """Of that many batches nothing is known."""
        none = np.zeros(batches, np.int64)
        return cls(none + NONE, none, np.zeros(batches, np.bool_), np.empty(0, np.uint8))

    @property
    def known(self) -> BoolArray:
        """bool[batches]: something is known."""
        return np.asarray(self.first_ordinals != NONE)


class KeyTable(Protocol):
    """The newest offset of each key that was put.

    Attributes:
        keys: how many keys it holds.
        latest_offset: the last offset that the table speaks for; records above it are kept whatever their key.
    """

    keys: int
    latest_offset: int

    def hashes(self, columns: RecordColumns, chosen: BoolArray) -> UInt64Array:
        """uint64[records, 2]: the hash of the key of each chosen record. Any thread may call it at any time."""
        ...

    def put(self, columns: RecordColumns, chosen: BoolArray, hashes: UInt64Array) -> int:
        """Enter the chosen records, all of which have a key, in log order.

        Args:
            columns: the records.
            chosen: bool[records].
            hashes: uint64[records, 2], what `hashes` returned for them.

        Returns:
            the index of the first record for which there was no room; the number of records if there was for all.

        Raises:
            TooLittleMemoryError: the table would take more memory than it may.
        """
        ...

    def get(self, columns: RecordColumns, chosen: BoolArray) -> Int64Array:
        """int64[records]: the newest offset of each chosen record's key; NONE for other records and unknown keys."""
        ...

    def known_outcomes(self, batches: BatchRows) -> KnownOutcomes:
        """What is known of batches (BATCH_ROW[batches]) once the whole dirty section was put."""
        ...
