"""Find the producers of a log from its batch headers: their first and last offsets, records and bytes.

Only idempotent and transactional producers have an id and are found. Markers are left out, as coordinators write them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import BatchRows, is_control, is_transactional_data
from cordwood.storage.log.segment import skip_gap
from cordwood.storage.log.view import LogView

#: Sums over a producer's batches.
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
#: Number of collected rows at which they are summed.
_ROWS_MAX = 1 << 18

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ProducerSpan:
    """The batches of one producer.

    Attributes:
        epoch: epoch of its last batch.
        first_offset, last_offset: range from its first to its last batch; it includes batches of other producers.
        transactional: number of its batches in transactions.
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
        count: number of producers.
        largest: the producers with the most bytes, in descending order.
    """

    count: int
    largest: tuple[ProducerSpan, ...]


def producer_spans(log: LogView, limit: int) -> ProducerSpans:
    """Return the producers of a log.

    Args:
        limit: maximum number of producers in `largest`.

    Raises:
        OSError: the log is unreadable.
    """
    found, waiting, count = np.zeros(0, _PRODUCER), list[Rows](), 0
    for segment in log.segments:
        for batches in segment.headers(skip_gap, search=not log.live):
            waiting.append(_rows(batches))
            count += waiting[-1].size
            if count > _ROWS_MAX:
                found, waiting, count = _summed([found, *waiting]), [], 0
    found = _summed([found, *waiting])
    order = np.lexsort((found["id"], -found["size_bytes"]))[:limit]
    return ProducerSpans(found.size, tuple(ProducerSpan(*row) for row in found[order].tolist()))


def _rows(batches: BatchRows) -> Rows:
    """Return a row for each batch that a producer wrote."""
    batches = batches[(batches["producer_id"] >= 0) & ~is_control(batches)]
    rows = np.zeros(batches.size, _PRODUCER)
    rows["id"], rows["epoch"] = batches["producer_id"], batches["producer_epoch"]
    rows["first_offset"], rows["last_offset"] = batches["base_offset"], batches["last_offset"]
    rows["batches"], rows["records"] = 1, np.maximum(batches["record_count"], 0)
    rows["size_bytes"], rows["transactional"] = batches["size_bytes"], is_transactional_data(batches)
    return rows


def _summed(parts: list[Rows]) -> Rows:
    """Return one row per producer, sorted by id. The parts, and the rows in each, must be in log order."""
    rows = np.concatenate(parts)
    ids, at = np.unique(rows["id"], return_inverse=True)
    found = np.zeros(ids.size, _PRODUCER)
    found["id"] = ids
    found["epoch"][at] = rows["epoch"]  # the last batch's epoch wins
    found["first_offset"] = np.iinfo(np.int64).max
    np.minimum.at(found["first_offset"], at, rows["first_offset"])
    np.maximum.at(found["last_offset"], at, rows["last_offset"])
    for name in _SUMS:
        np.add.at(found[name], at, rows[name])
    return found
