"""Makes the key entries of two replicas; `kernels.two_sides` defines their flags.

The kernels that read logs mark a record as removed or remaining, see `last_records`. For replicas these marks mean
*only here* and *in both*. This module sets the other flags afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.keys import CHUNK_ENTRIES, KeyRules
from cordwood.cleaning.proof.pairs import BoolArray, Int64Array, Piece
from cordwood.cleaning.proof.scratch import Kept, ScratchWriter
from cordwood.comparison.values import PairRole
from cordwood.kernels.last_records import ENTRY, PRIME, THERE, WENT, divide, enter_records, keep_last
from cordwood.kernels.layout import TRANSACTIONAL, BatchRows
from cordwood.kernels.two_sides import EXCUSE, ON_OTHER

_MIX = np.uint64(0x9E3779B97F4A7C15)
_ALL_OFFSETS = np.array([0, np.iinfo(np.int64).max], np.int64)


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A share of all keys, chosen by their fingerprints, which differ from run to run.

    Attributes:
        share: from 0 to 1.
    """

    share: float = 1.0

    def of(self, entries: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Return the entries of the chosen keys."""
        if self.share >= 1:
            return entries
        # Fingerprints of short keys are close together; a product's upper bits are spread.
        mixed = (entries["low"] & PRIME) * _MIX
        return entries[mixed < np.uint64(self.share * 2.0**64)]


@dataclass(slots=True)
class SidedEntries:
    """Makes entries for the records of two replicas, and divides them by hash range; see `KeyEntries`.

    Attributes:
        first: the replica that the pass reads as *before*; `add_other` adds records that it lacks.
        excused: whether the records only explain gaps, in the replica `first`, or in both if that is None.
        points: uint64[2], the points of the rules.
    """

    rules: KeyRules
    writer: ScratchWriter
    first: PairRole | None = PairRole.NEWEST
    excused: bool = False
    between: Int64Array = field(default_factory=lambda: _ALL_OFFSETS)
    sample: KeyShare = field(default_factory=KeyShare)
    chunk_entries: int = CHUNK_ENTRIES
    points: npt.NDArray[np.uint64] = field(init=False)
    _entries: npt.NDArray[np.void] = field(init=False)
    _used: int = field(default=0, init=False)
    _may_drop_older: bool = field(default=True, init=False)
    _chunks: list[Kept] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.points = np.array(self.rules.points, np.uint64)
        self._entries = np.empty(self.chunk_entries, ENTRY)

    def room_for(self, records: int) -> tuple[npt.NDArray[np.void], int]:
        """Return the array for entries, and its used count, with room for up to `chunk_entries` records."""
        if self._used + records > self.chunk_entries:
            self._spill()
        return self._entries, self._used

    def entered(self, used: int, batches: BatchRows) -> None:
        """Set the used count after new entries were made; `batches` are the batches of their records."""
        self._flag(self._entries[self._used : used], self.first, excused=self.excused)
        self._used = used
        self._may_drop_older &= not self.excused and not (batches["attributes"] & TRANSACTIONAL).any()

    def add(self, piece: Piece, rules: npt.NDArray[np.uint8], there: BoolArray) -> None:
        """Add records of the first replica; `rules` and `there` as for `enter_records`."""
        self._add(piece, rules, there, self.first, excused=self.excused)

    def add_other(self, piece: Piece, rules: npt.NDArray[np.uint8]) -> None:
        """Add records that the first replica lacks."""
        assert self.first is not None
        self._may_drop_older = False
        self._add(piece, rules, np.zeros(piece.rows.size, np.bool_), self.first.opposite, excused=self.excused)

    def excuse(self, piece: Piece, rules: npt.NDArray[np.uint8]) -> None:
        """Add records that explain gaps of both replicas."""
        self._add(piece, rules, np.zeros(piece.rows.size, np.bool_), None, excused=True)

    def _add(
        self, piece: Piece, rules: npt.NDArray[np.uint8], there: BoolArray, role: PairRole | None, *, excused: bool
    ) -> None:
        for start in range(0, piece.rows.size, self.chunk_entries):
            some = slice(start, start + self.chunk_entries)
            rows = piece.rows[some]
            entries, was = self.room_for(rows.size)
            used = enter_records(
                *(piece.data.ctypes.data, rows, rows["offset"], rules, there[some]),
                *(self.between, self.points, entries, was),
            )
            self._flag(entries[was:used], role, excused=excused)
            self._used = used
        self._may_drop_older &= not excused and not (piece.batches["attributes"] & TRANSACTIONAL).any()

    def finish(self) -> list[Kept]:
        """Return all entries, see `KeyEntries.finish`."""
        if self._used:
            self._spill()
        return self._chunks

    def _flag(self, entries: npt.NDArray[np.void], role: PairRole | None, *, excused: bool) -> None:
        low = entries["low"]
        if role is None:  # of both
            low &= PRIME
            entries["high"] |= THERE
        elif role is PairRole.OTHER:
            low[low & WENT != 0] |= ON_OTHER
        if excused:
            low |= EXCUSE

    def _spill(self) -> None:
        self._chunks.append(self.writer.write(*self._divided()))

    def _divided(self) -> tuple[npt.NDArray[np.void], Int64Array]:
        entries = self.sample.of(self._entries[: self._used])
        target = np.empty(entries.size, ENTRY)
        starts = np.zeros(2 * self.rules.hash_ranges + 1, np.int64)
        divide(entries, self.rules.hash_ranges, target, starts)
        self._used = 0
        singles = int(np.diff(starts)[::2].max())
        # Drop older entries of a key, as in a proof; but each key needs its last record in each replica.
        if self._may_drop_older and singles:
            target = target[: keep_last(target, starts, np.empty(2 << singles.bit_length(), np.int32))]
        self._may_drop_older = True
        return target, starts
