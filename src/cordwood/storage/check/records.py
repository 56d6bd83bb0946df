"""Checks the records of a `.log` file against the headers of their batches.

Records arrive as columns; the records of one batch may arrive in several parts. Offsets must increase and be within the
batch, the largest timestamp must equal the header's, and the values of transaction markers must be valid.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import LOG_APPEND_TIME, BatchRows
from cordwood.record.columns import RecordColumns
from cordwood.record.control import MARKER_VALUE
from cordwood.record.headers import is_marker
from cordwood.storage.check.findings import Kind

BoolArray = npt.NDArray[np.bool_]


class RecordCheck:
    """Compares records with the header of their batch, even if the records of a batch arrive in several parts."""

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._batch: np.void | None = None
        self._max_timestamp = 0
        self._last_offset = -1
        self._spoiled = -1

    def spoil(self, position: int) -> None:
        """Stop checking the batch at this position, because it cannot be decoded."""
        self._spoiled = position
        if self._batch is not None and self._batch["position"] == position:
            self._batch = None

    def add(self, columns: RecordColumns) -> None:
        """Check the next records."""
        rows, batches = columns.rows, columns.batches
        owner = rows["batch"]
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(owner)) + 1])
        owners = owner[starts]
        largest = np.maximum.reduceat(rows["timestamp"], starts)
        goes_on = self._batch is not None and self._batch["position"] == batches["position"][owners[0]]
        if goes_on:
            largest[0] = max(int(largest[0]), self._max_timestamp)
        elif self._batch is not None:
            self.end()
        self._offsets(rows["offset"], owner, batches, starts, goes_on)
        self._markers(columns)
        differs = largest[:-1] != batches["max_timestamp"][owners[:-1]]
        for i in np.flatnonzero(differs).tolist():
            self._time(batches[owners[i]], int(largest[i]))
        self._batch = batches[owners[-1]].copy()
        self._max_timestamp = int(largest[-1])
        self._last_offset = int(rows["offset"][-1])

    def end(self) -> None:
        """Compare the last batch's timestamp, after all of its records."""
        if self._batch is not None:
            self._time(self._batch, self._max_timestamp)
        self._batch = None

    def _offsets(
        self,
        offsets: npt.NDArray[np.int64],
        owner: npt.NDArray[np.int32],
        batches: BatchRows,
        starts: npt.NDArray[np.int64],
        goes_on: bool,
    ) -> None:
        bad = (offsets < batches["base_offset"][owner]) | (offsets > batches["last_offset"][owner])
        follows = np.zeros(offsets.size, bool)
        follows[1:] = np.diff(offsets) <= 0
        follows[starts] = False
        if goes_on:
            follows[0] = offsets[0] <= self._last_offset
        elif batches["magic"][owner[0]] < 2:
            # A wrapper's first offset is its first message's. It must be above the last offset of the entry before.
            bad[0] |= offsets[0] <= self._last_offset and batches["last_offset"][owner[0]] > self._last_offset
        wrong = np.flatnonzero(bad | follows)
        _, first_of_batch = np.unique(owner[wrong], return_index=True)
        for i in wrong[first_of_batch].tolist():
            batch = batches[owner[i]]
            what = f"a record has offset {offsets[i]}, its batch {batch['base_offset']} to {batch['last_offset']}"
            if not bad[i]:
                before = offsets[i - 1] if i else self._last_offset
                what = f"a record of offset {offsets[i]} follows one of offset {before}"
            elif batch["magic"] < 2:
                what = (
                    f"a message of offset {offsets[i]} in a set that ends at {batch['last_offset']} "
                    f"and follows {self._last_offset}"
                )
            self._report(Kind.RECORD_OFFSET, what, position=int(batch["position"]), offset=int(offsets[i]))

    def _markers(self, columns: RecordColumns) -> None:
        """Check the values of transaction markers: their size and version."""
        rows, batches = columns.rows, columns.batches
        markers = is_marker(batches)
        if not markers.any():
            return
        chosen = np.flatnonzero(markers[rows["batch"]])
        short = rows["value_size"][chosen] < MARKER_VALUE.size
        signs = columns.data[np.where(short, 0, rows["value_start"][chosen])] & 0x80
        for i in chosen[short | (signs != 0)].tolist():
            size = max(int(rows["value_size"][i]), 0)
            what = "the value of a transaction marker has a negative version"
            if size < MARKER_VALUE.size:
                what = f"the value of a transaction marker has {size} bytes, not 6 or more"
            batch = batches[rows["batch"][i]]
            self._report(Kind.CONTROL_BATCH, what, position=int(batch["position"]), offset=int(batch["base_offset"]))

    def _time(self, batch: np.void, largest: int) -> None:
        if (
            batch["attributes"] & LOG_APPEND_TIME
            or batch["max_timestamp"] == largest
            or batch["position"] == self._spoiled
        ):
            return
        what = f"max timestamp {batch['max_timestamp']}, but the latest of its records is {largest}"
        offset = batch["base_offset"] if batch["base_offset"] >= 0 else batch["last_offset"]
        self._report(Kind.MAX_TIMESTAMP, what, position=int(batch["position"]), offset=int(offset))
