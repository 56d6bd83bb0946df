"""Compares the indexes of a segment that a clean has written with its batches, while a caller reads the batches.

    offset index    an entry has the position of a batch, and its last offset
    time index      an entry has the largest timestamp of all batches up to one, and an offset of that batch

`storage.check` accepts more, as older brokers wrote other entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from cordwood.common.types import NONE
from cordwood.kernels.layout import BatchRows
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.log.segment import Segment


class WrittenSegment:
    """The batches of a written segment, added from the first to the last, and the faults of its indexes.

    Attributes:
        batches, records: numbers of added batches, and of records in their headers.
    """

    def __init__(self, segment: Segment) -> None:
        self.batches = self.records = 0
        self._newest = np.int64(NONE)
        self._places_done = self._times_done = 0
        places, times = segment.offset_index(), segment.time_index()
        self._faults = ["an index is missing"] if places is None or times is None else []
        self._places = places or offset_index.decode(b"", segment.base_offset)
        self._times = times or time_index.decode(b"", segment.base_offset)
        self._faults += map(str, chain(offset_index.faults(self._places), time_index.faults(self._times)))

    def add(self, batches: BatchRows) -> None:
        """Add the next batches, BATCH_ROW[batches]."""
        if not batches.size:
            return
        self.batches += batches.size
        self.records += int(batches["record_count"].sum(dtype=np.int64))
        starts, lasts = batches["position"], batches["last_offset"]
        positions, first = self._places.positions, self._places_done
        self._places_done = end = int(np.searchsorted(positions, starts[-1], side="right"))
        at = np.minimum(np.searchsorted(starts, positions[first:end]), starts.size - 1)
        named = (starts[at] == positions[first:end]) & (lasts[at] == self._places.offsets[first:end])
        if not named.all():
            self._faults.append("an entry of the offset index names no batch")
        newest = np.maximum(np.maximum.accumulate(batches["max_timestamp"]), self._newest)
        self._newest = newest[-1]
        offsets, first = self._times.offsets, self._times_done
        self._times_done = end = int(np.searchsorted(offsets, lasts[-1], side="right"))
        at = np.minimum(np.searchsorted(lasts, offsets[first:end]), lasts.size - 1)
        if (newest[at] != self._times.timestamps[first:end]).any():
            self._faults.append("an entry of the time index names no batch")

    def faults(self) -> Iterator[str]:
        """Yield the faults, once all batches are added."""
        yield from self._faults
        if self._places_done < self._places.entries:
            yield "an entry of the offset index names no batch"
        if self._times_done < self._times.entries:
            yield "an entry of the time index names no batch"
