"""Decide which transactional data a consumer gets, from batch headers and markers in log order.

A producer has at most one open transaction. Its first transactional batch opens it, its marker ends it. The data of an
aborted transaction is between its first offset and its ABORT marker; the last stable offset is the first
offset of the earliest transaction that no marker ended.

A broker derives the same from its transaction indexes. These can be missing, stale or damaged, and the headers contain
all the facts, so a reader of files uses the headers.

This reader and the check of the transaction index share `steps`. The other replays of transactions do not use `steps`,
on purpose: ARCHITECTURE.md has a table of all replays.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.common.types import ControlType, Isolation
from cordwood.kernels.layout import BatchRows, concerns_transactions, is_control, is_transactional_data

READ_UNCOMMITTED = Isolation.READ_UNCOMMITTED
READ_COMMITTED = Isolation.READ_COMMITTED


def steps(batches: BatchRows) -> Iterator[tuple[int, int, int, ControlType | None]]:
    """Yield the transactional batches and markers as (base offset, last offset, producer id, marker; None for data)."""
    matters = concerns_transactions(batches)
    if matters.any():
        columns = ("base_offset", "last_offset", "producer_id", "control_type")
        rows = zip(is_control(batches)[matters].tolist(), *(batches[c][matters].tolist() for c in columns), strict=True)
        for is_marker, base_offset, last_offset, producer_id, kind in rows:
            if not is_marker:
                yield base_offset, last_offset, producer_id, None
            elif kind in (ControlType.ABORT, ControlType.COMMIT):
                yield base_offset, last_offset, producer_id, ControlType(kind)


@dataclass
class Transactions:
    """The transactions of a log, derived from its headers, which are added in order.

    Attributes:
        open: producer id to first offset.
        aborted: producer id to (first offset, marker offset) of its aborted transactions, ascending.
        next_offset: offset after the last added batch.
    """

    open: dict[int, int] = field(default_factory=dict)
    aborted: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    next_offset: int = 0

    def add(self, batches: BatchRows) -> None:
        """Apply the next batches (BATCH_ROW[batches])."""
        if batches.size:
            self.next_offset = int(batches["last_offset"][-1]) + 1
        for base_offset, last_offset, producer_id, marker in steps(batches):
            if marker is None:
                self.open.setdefault(producer_id, base_offset)
            else:
                first = self.open.pop(producer_id, None)
                if first is not None and marker is ControlType.ABORT:
                    self.aborted.setdefault(producer_id, []).append((first, last_offset))

    def forget_below(self, offset: int) -> None:
        """Forget aborted transactions that ended below an offset, for a reader that has passed it."""
        for producer_id, ranges in list(self.aborted.items()):
            if ranges[0][1] < offset:
                self.aborted[producer_id] = [one for one in ranges if one[1] >= offset]
                if not self.aborted[producer_id]:
                    del self.aborted[producer_id]

    @property
    def last_stable_offset(self) -> int | None:
        """First offset of the earliest open transaction; None if none is open."""
        return min(self.open.values(), default=None)

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return whether a transactional batch of this producer that starts at `offset` was aborted."""
        ranges = self.aborted.get(producer_id, [])
        at = bisect.bisect_right(ranges, (offset, 2**63)) - 1
        return at >= 0 and offset < ranges[at][1]

    def is_open(self, producer_id: int, offset: int) -> bool:
        """Return whether no marker has ended the transaction of a batch of this producer that starts at `offset`."""
        first = self.open.get(producer_id)
        return first is not None and first <= offset

    def aborted_data(self, batches: BatchRows) -> npt.NDArray[np.bool_]:
        """Mark the batches with data of an aborted transaction, bool[batches]."""
        found = np.zeros(batches.size, np.bool_)
        for i in np.flatnonzero(is_transactional_data(batches)).tolist() if self.aborted else ():
            found[i] = self.is_aborted(int(batches["producer_id"][i]), int(batches["base_offset"][i]))
        return found

    def open_data(self, batches: BatchRows) -> npt.NDArray[np.bool_]:
        """Mark the batches with data of a transaction that no marker has ended, bool[batches]."""
        found = np.zeros(batches.size, np.bool_)
        for i in np.flatnonzero(is_transactional_data(batches)).tolist() if self.open else ():
            found[i] = self.is_open(int(batches["producer_id"][i]), int(batches["base_offset"][i]))
        return found

    def visible(self, batches: BatchRows, isolation: Isolation) -> npt.NDArray[np.bool_]:
        """Mark the batches that a consumer gets, bool[batches]; all must be below the last stable offset."""
        keep = ~is_control(batches)
        if isolation is READ_COMMITTED:
            keep &= ~self.aborted_data(batches)
        return keep
