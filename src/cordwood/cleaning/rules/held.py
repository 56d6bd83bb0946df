"""Offsets whose tombstones and markers stay on all replicas of a partition.

Each replica sets its own delete horizons, as each is cleaned at its own time. A tombstone goes from all replicas or
stays in all, so the latest horizon counts: batches that must stay on one replica are held on all. Only few ranges are
necessary, since a horizon is set by the first clean that covers a batch, and each clean covers the log from its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOffsets:
    """Disjoint ranges of offsets, in ascending order.

    Attributes:
        starts, ends: int64[ranges]; an end is not included.
    """

    starts: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    ends: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def overlap(self, firsts: Int64Array, lasts: Int64Array) -> BoolArray:
        """bool[batches]: whether the offsets of a batch, from its first to its last, overlap a range."""
        at = np.searchsorted(self.ends, firsts, side="right")
        found = np.zeros(firsts.size, np.bool_)
        inside = at < self.ends.size
        found[inside] = self.starts[at[inside]] <= lasts[inside]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldOffsets) and list(self.ranges()) == list(other.ranges())

    def __hash__(self) -> int:
        return hash(tuple(self.ranges()))

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each range."""
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)


NOTHING_HELD = HeldOffsets()
