"""Choose the batches that pass 2 reads: it skips batches whose records are all superseded and that are not needed.

    file      │ goes │ goes │ stays │ goes │ stays │ goes │ goes │ goes │ stays │ …
    read                    └─── small gap: read ──┘                    └───────┘

The buffer of a window holds several stretches at the same distances as in the file. Its gaps take address space, but no
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cordwood.cleaning.engine.readahead import PACKED_BYTES, portions, window_bytes
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array, NewestOffsets
from cordwood.cleaning.rules.rewrite import COUNTS_ROW, ActiveProducers, CountRows
from cordwood.common.errors import CorruptBatchError
from cordwood.fs.base import ReadableFile
from cordwood.kernels import scan
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.columns import BatchWindow
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.windows import pieces_of

#: Gap size that takes about as long to read as a separate read costs: in the page cache, and in a remote store.
GAP_BYTES, REMOTE_GAP_BYTES = 128 << 10, 8 << 20


@dataclass(frozen=True, slots=True)
class Staying:
    """The batches of a segment, and which of them are read.

    Attributes:
        edges: int64[batches + 1], positions of the batches, and the end of the last one.
        is_read: bool[batches].
        left_out: COUNTS_ROW[skipped batches], their counts.
    """

    segment: Segment
    edges: Int64Array
    is_read: BoolArray
    left_out: CountRows = field(default_factory=lambda: np.empty(0, COUNTS_ROW))

    def windows(self) -> Iterator[BatchWindow]:
        """Yield the windows to read.

        Raises:
            CorruptBatchError: the batches are not at their positions.
        """
        size_max = window_bytes(self.segment)
        with self.segment.open() as file:
            pieces = pieces_of(file, PACKED_BYTES)
            chosen = np.flatnonzero(self.is_read)
            at = 0
            while at < chosen.size:
                start = self.edges[chosen[at]]
                stop = max(int(np.searchsorted(self.edges[chosen + 1], start + size_max, side="right")), at + 1)
                data, batches = self._read(file, chosen[at:stop])
                yield from portions(BatchWindow(int(start), data, batches, pieces))
                del data, batches  # free large ones before reading more
                at = stop

    def _read(self, file: ReadableFile, chosen: Int64Array) -> tuple[np.ndarray, BatchRows]:
        starts, ends = self.edges[chosen], self.edges[chosen + 1]
        first, jumps = int(starts[0]), np.flatnonzero(starts[1:] != ends[:-1]) + 1
        data, batches = np.empty(int(ends[-1]) - first, np.uint8), np.empty(chosen.size, BATCH_ROW)
        for low, high in itertools.pairwise([0, *jumps.tolist(), chosen.size]):
            start, end = int(starts[low]), int(ends[high - 1])
            part = data[start - first : end - first]
            got = file.read_into(start, memoryview(part))
            rows = batches[low:high]
            count, consumed, _ = scan.scan_batches(part.ctypes.data, got, got, start, True, rows)
            if (count, consumed) != (rows.size, part.size):
                what = "the file was changed while it was being cleaned: other batches were here a moment ago"
                raise CorruptBatchError(what, path=self.segment.path, position=start)
        return data, batches


def read_through_gaps(segment: Segment, edges: Int64Array, is_read: BoolArray) -> None:
    """Also mark batches in small gaps between batches to read; see `Staying`."""
    borders = np.flatnonzero(np.diff(is_read)) + 1
    gap_min = REMOTE_GAP_BYTES if segment.fs.reads_by_request(segment.path) else GAP_BYTES
    for low, high in itertools.pairwise([0, *borders.tolist(), is_read.size]):
        if not is_read[low] and edges[high] - edges[low] < gap_min:
            is_read[low:high] = True


def staying(segment: Segment, upper: int, newest: NewestOffsets, producers: ActiveProducers) -> Staying | None:
    """Choose the batches of a segment to read; None to read all, if no batch may be skipped or it would not pay.

    Args:
        upper: base offset of the next segment.
        newest: result of pass 1.
        producers: active producers; their last batches stay, whatever their records.
    """
    last = producers.last_offsets
    if ((last >= segment.base_offset) & (last < upper)).any():
        return None
    found = newest.batches(segment.base_offset)
    if found is None or not found.gone.any():
        return None
    # The last batch of the range is never skipped: no record supersedes its last one.
    edges = np.append(found.positions, segment.size_bytes)
    is_read = ~found.gone
    read_through_gaps(segment, edges, is_read)
    if is_read.all():
        return None
    counts = np.zeros(np.count_nonzero(~is_read), COUNTS_ROW)
    counts["bytes_read"] = np.diff(edges)[~is_read]
    counts["batches_read"] = counts["batches_dropped"] = 1
    counts["records_read"] = counts["records_superseded"] = found.records[~is_read]
    return Staying(segment, edges, is_read, counts)
