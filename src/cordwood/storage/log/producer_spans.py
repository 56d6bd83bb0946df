"""Which producers wrote a log: of each where its first and last batches stand and how much it wrote, by batch headers.

Only producers that number their batches are known, those with idempotence or transactions. Markers, which coordinators
write, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import BatchRows
from cordwood.record.headers import is_control, is_transactional_data
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers

#: A producer: sums of its batches.
_PRODUCER = np.dtype(
    [
        ("id", np.int64),
        ("epoch", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("batches", np.int64),
        ("records", np.int64),
        ("size_bytes", np.int64),
        ("transactional", np.int64),
    ]
)
_SUMS = ("batches", "records", "size_bytes", "transactional")
#: Rows are summed up once there are so many.
_ROWS_MAX = 1 << 18

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ProducerSpan:
    """What one producer wrote.

    Attributes:
        epoch: of its last batch.
        first_offset, last_offset: from its first batch to its last; others wrote in between.
        transactional: how many of its batches are of transactions.
    """

    id: int
    epoch: int
    first_offset: int
    last_offset: int
    batches: int
    records: int
    size_bytes: int
    transactional: int


@dataclass(frozen=True, slots=True)
class ProducerSpans:
    """The producers of a log.

    Attributes:
        count: how many there are.
        largest: those that wrote most, the largest first.
    """

    count: int
    largest: tuple[ProducerSpan, ...]


def producer_spans(log: LogView, limit: int) -> ProducerSpans:
    """The producers of a log.

    Args:
        limit: of so many it is told what they wrote.

    Raises:
        OSError: it cannot be read.
    """
    found, waiting, count = np.zeros(0, _PRODUCER), list[Rows](), 0
    for segment in log.segments:
        with segment.open() as file:
            for item in read_headers(file, base_offset=segment.base_offset, search=not log.live):
                if not isinstance(item, Gap):
                    waiting.append(_rows(item))
                    count += waiting[-1].size
                if count > _ROWS_MAX:
                    found, waiting, count = _summed([found, *waiting]), [], 0
    found = _summed([found, *waiting])
    order = np.lexsort((found["id"], -found["size_bytes"]))[:limit]
    return ProducerSpans(found.size, tuple(ProducerSpan(*row) for row in found[order].tolist()))


def _rows(batches: BatchRows) -> Rows:
    """A row for each batch that a producer wrote."""
    batches = batches[(batches["producer_id"] >= 0) & ~is_control(batches)]
    rows = np.zeros(batches.size, _PRODUCER)
    rows["id"], rows["epoch"] = batches["producer_id"], batches["producer_epoch"]
    rows["first_offset"], rows["last_offset"] = batches["base_offset"], batches["last_offset"]
    rows["batches"], rows["records"] = 1, np.maximum(batches["record_count"], 0)
    rows["size_bytes"], rows["transactional"] = batches["size_bytes"], is_transactional_data(batches)
    return rows


def _summed(parts: list[Rows]) -> Rows:
    """A row for each producer, by id; the rows of a part are by offset, and so are the parts."""
    rows = np.concatenate(parts)
    ids, at = np.unique(rows["id"], return_inverse=True)
    found = np.zeros(ids.size, _PRODUCER)
    found["id"] = ids
    found["epoch"][at] = rows["epoch"]  # of several the last stays
    found["first_offset"] = np.iinfo(np.int64).max
    np.minimum.at(found["first_offset"], at, rows["first_offset"])
    np.maximum.at(found["last_offset"], at, rows["last_offset"])
    for name in _SUMS:
        np.add.at(found[name], at, rows[name])
    return found
