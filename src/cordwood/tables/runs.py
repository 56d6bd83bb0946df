"""The runs that the logs of a table are cut into, and how a run is scanned.

A table covers the offsets [start, end) of a log. It has the records that a consumer with `read_committed` gets there:
no control records and no records of aborted transactions. The end is never above the last stable offset, so all
transactions below it are decided. Records without a key are not part of a table. Unlike a clean, a table includes the
active segment and applies no compaction lag.

Of two records with the same key, the later one in the log wins, as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cordwood.cleaning.engine.by_index import Mark
from cordwood.cleaning.engine.exchange import MANY_RANGES, RANGES, RunTask
from cordwood.cleaning.engine.progress import CountedLog
from cordwood.cleaning.engine.scan import KeyScan, scan_part
from cordwood.cleaning.rules.key_table import BoolArray, Int64Array
from cordwood.cleaning.rules.superseded import NEVER, Chunk, ScannedRun
from cordwood.common.types import override
from cordwood.kernels.layout import BatchRows
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.tables.headers import SegmentHeaders

#: Records of a chunk, whose arrays need less than 60 MB.
CHUNK_RECORDS = 1 << 20
#: Logs below the first size are merged in one hash range, logs above the second in many.
_ONE_RANGE_BYTES, _MANY_RANGES_BYTES = 64 << 20, 4 << 30
#: For each producer, (first offset, marker's offset) of its aborted transactions; see `Transactions`.
Aborted = Mapping[int, Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class TableSlice:
    """The offsets [start_offset, end_offset) of a log, as input of a table.

    Attributes:
        headers: headers of the segments that hold these offsets, in log order.
    """

    log: CountedLog
    partition: int
    start_offset: int
    end_offset: int
    headers: Sequence[SegmentHeaders]
    aborted: Aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun(RunTask):
    """A part of a segment; one task scans it, and one task reads its newest records.

    Attributes:
        start_offset, end_offset: the offsets [start, end) that the table covers.
        aborted: transactions that reach into the segment.
    """

    partition: int
    start_offset: int
    end_offset: int
    aborted: Aborted

    @override
    def scan(self, keep: Callable[[Chunk], None]) -> ScannedRun:
        return scan_part(self.log.segment(self.base_offset), (self.start, self.end), self.marking(), self.how, keep)

    def marking(self) -> Mark:
        """Return a function that marks the table's batches in the run's segment, with the first offset that counts."""
        transactions = Transactions(aborted={producer: list(ranges) for producer, ranges in self.aborted.items()})

        def mark(batches: BatchRows) -> tuple[BoolArray, Int64Array]:
            wanted = transactions.visible(batches, READ_COMMITTED)
            wanted &= (batches["last_offset"] >= self.start_offset) & (batches["base_offset"] < self.end_offset)
            return wanted, np.where(wanted, self.start_offset, NEVER)

        return mark


def cut(
    slices: Iterable[TableSlice], hash_secret: bytes, *, chunk_records: int = CHUNK_RECORDS, ranges: int | None = None
) -> list[list[TableRun]]:
    """Cut logs into runs; return the runs of each log, in log order.

    Args:
        hash_secret: 16-byte secret for hashing keys.
        chunk_records: records of a chunk, a multiple of 8.
        ranges: number of hash ranges; None to choose it by the size of each log.
    """
    found = []
    for part in slices:
        places = list(_parts(part))
        how = KeyScan(hash_secret, chunk_records, end_offset=part.end_offset)
        ranges_of_log = ranges or _ranges(sum(end - start for _, start, end in places))
        found.append(
            [
                TableRun(
                    log=part.log,
                    partition=part.partition,
                    base_offset=headers.base_offset,
                    start=start,
                    end=end,
                    size_bytes=end - start,
                    start_offset=part.start_offset,
                    end_offset=part.end_offset,
                    aborted=_reaching_into(part.aborted, headers),
                    how=how,
                    ranges=ranges_of_log,
                )
                for headers, start, end in places
            ]
        )
    return found


def _ranges(size_bytes: int) -> int:
    if size_bytes < _ONE_RANGE_BYTES:
        return 1
    return RANGES if size_bytes < _MANY_RANGES_BYTES else MANY_RANGES


def _parts(part: TableSlice) -> Iterator[tuple[SegmentHeaders, int, int]]:
    """Yield the runs of a slice: segment, position of the first batch, position behind the last."""
    for headers in part.headers:
        edges = [*headers.starts, (headers.end, headers.next_offset)]
        for (start, first_offset), (end, next_offset) in pairwise(edges):
            if first_offset < part.end_offset and next_offset > part.start_offset:
                yield headers, start, end


def _reaching_into(aborted: Aborted, headers: SegmentHeaders) -> Aborted:
    """Return the transactions that may have data in a segment."""
    found = {
        producer: [(first, marker) for first, marker in ranges if marker >= headers.base_offset]
        for producer, ranges in aborted.items()
    }
    return {
        producer: reaching
        for producer, ranges in found.items()
        if (reaching := [(first, marker) for first, marker in ranges if first < headers.next_offset])
    }
