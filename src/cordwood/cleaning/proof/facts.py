"""Facts of a comparison: counts, and violations, the first of each kind with offset and key."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.pairs import ViolationKind
from cordwood.kernels.layout import BatchRows, RecordRows, U8Array

#: Number of violations of one kind that are named per partition; all are counted.
NAMED_MAX = 20

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one state, in ascending order of offsets.

    Attributes:
        data, rows, batches: as in `RecordColumns`.
        mtime_ms: time of the last modification of their segment.
    """

    data: U8Array
    rows: RecordRows
    batches: BatchRows
    mtime_ms: int

    def part(self, start: int, end: int) -> Piece:
        """Return the records of an index range."""
        return Piece(self.data, self.rows[start:end], self.batches, self.mtime_ms)


@dataclass(slots=True)
class Facts:
    """Facts of a part of a pair: counts, and up to `NAMED_MAX` named violations of each kind.

    Attributes:
        named: offset and key of violations, by kind.
    """

    counts: dict[str, int] = field(default_factory=dict)
    named: dict[ViolationKind, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def count(self, what: str, number: int) -> None:
        """Add to a count."""
        if number:
            self.counts[what] = self.counts.get(what, 0) + int(number)

    def broken(self, what: ViolationKind, offset: int, key: bytes | None = None) -> None:
        """Report one violation."""
        self.count(what, 1)
        named = self.named.setdefault(what, [])
        if len(named) < NAMED_MAX:
            named.append((offset, key))

    def broken_at(self, what: ViolationKind, offsets: Int64Array) -> None:
        """Report a violation at each offset; the lowest are named."""
        for offset in np.sort(offsets)[:NAMED_MAX].tolist():
            self.broken(what, offset)
        self.count(what, max(offsets.size - NAMED_MAX, 0))

    def broken_batches(self, what: ViolationKind, batches: BatchRows, bad: BoolArray) -> None:
        """Report a violation for each batch where `bad`, bool[batches], is set."""
        if bad.any():
            rows = batches[bad]
            self.broken_at(what, np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"]))

    def broken_records(self, what: ViolationKind, piece: Piece, bad: BoolArray) -> None:
        """Report a violation for each record where `bad`, bool[records], is set."""
        rows = piece.rows[bad]
        for row in rows[:NAMED_MAX]:
            start, size = int(row["key_start"]), int(row["key_size"])
            key = piece.data[start : start + size].tobytes() if size >= 0 else None
            self.broken(what, int(row["offset"]), key)
        self.count(what, max(rows.size - NAMED_MAX, 0))

    def add(self, other: Facts) -> None:
        """Add the facts of another part."""
        for what, number in other.counts.items():
            self.count(what, number)
        for kind, named in other.named.items():
            self.named.setdefault(kind, []).extend(named)
