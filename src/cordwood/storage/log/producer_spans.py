"""Find the producers of a log from its batch headers: their first and last offsets, records and bytes.

Only idempotent and transactional producers have an id and are found. Markers are left out, as coordinators write them.

Of a sampled log (`storage.log.header_sample`) the sums are estimates, and producers with few batches may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.kernels.layout import BatchRows, is_control, is_transactional_data
from cordwood.storage.log.header_sample import HeaderSample, is_small, sample_headers
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
        ("variance", np.float64),
    ]
)
_ESTIMATED = ("batches", "records", "size_bytes", "transactional")
_SUMS = (*_ESTIMATED, "variance")
#: Maximum number of collected rows before they are summed.
_ROWS_MAX = 1 << 18

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ProducerSpan:
    """The batches of one producer.

    Attributes:
        epoch: epoch of its last batch.
        first_offset, last_offset: range from its first to its last batch; it includes batches of other producers.
        transactional: number of its batches in transactions.
        size_error: twice the standard error of `size_bytes`; 0 if it is exact.
    """

    id: int
    epoch: int
    first_offset: int
    last_offset: int
    batches: int
    records: int
    size_bytes: int
    transactional: int
    size_error: int = 0


@dataclass(frozen=True, slots=True)
class ProducerSpans:
    """The producers of a log.

    Attributes:
        count: number of producers; a lower bound if `is_sampled`.
        largest: the producers with the most bytes, in descending order.
        is_sampled: whether only a sample of the headers was read. Sums are then estimates, and offsets are those of the
            batches in the sample.
    """

    count: int
    largest: tuple[ProducerSpan, ...]
    is_sampled: bool = False


def producer_spans(log: LogView, limit: int, *, exact: bool = True) -> ProducerSpans:
    """Return the producers of a log.

    Args:
        limit: maximum number of producers in `largest`.
        exact: read all headers of a large log, not a sample.

    Raises:
        OSError: the log is unreadable.
    """
    found, waiting, count, is_sampled = np.zeros(0, _PRODUCER), list[Rows](), 0, False
    exact = exact or is_small(log)
    for segment in log.segments:
        sample = None if exact else sample_headers(segment, search=not log.live)
        is_sampled = is_sampled or sample is not None
        parts = map(_rows, segment.headers(skip_gap, search=not log.live)) if sample is None else [_estimated(sample)]
        for rows in parts:
            waiting.append(rows)
            count += rows.size
            if count > _ROWS_MAX:
                found, waiting, count = _summed([found, *waiting]), [], 0
    found = _summed([found, *waiting])
    order = np.lexsort((found["id"], -found["size_bytes"]))[:limit]
    errors = np.rint(2 * np.sqrt(found["variance"])).astype(np.int64)
    columns = [found[name] for name in _PRODUCER.names or () if name != "variance"]
    spans = zip(*(column[order].tolist() for column in (*columns, errors)), strict=True)
    return ProducerSpans(found.size, tuple(ProducerSpan(*row) for row in spans), is_sampled)


def _has_producer(batches: BatchRows) -> npt.NDArray[np.bool_]:
    return np.asarray((batches["producer_id"] >= 0) & ~is_control(batches))


def _rows(batches: BatchRows) -> Rows:
    """Return a row for each batch that a producer wrote."""
    batches = batches[_has_producer(batches)]
    rows = np.zeros(batches.size, _PRODUCER)
    rows["id"], rows["epoch"] = batches["producer_id"], batches["producer_epoch"]
    rows["first_offset"], rows["last_offset"] = batches["base_offset"], batches["last_offset"]
    rows["batches"], rows["records"] = 1, np.maximum(batches["record_count"], 0)
    rows["size_bytes"], rows["transactional"] = batches["size_bytes"], is_transactional_data(batches)
    return rows


def _estimated(sample: HeaderSample) -> Rows:
    """Return a row for each producer in a sample of a segment, with estimated sums, in the order of their ids."""
    has_producer = _has_producer(sample.rows)
    each = _rows(sample.rows)
    rows = _summed([each])
    # Batches without a producer are in a group of their own, behind all other groups.
    groups = np.full(sample.rows.size, rows.size)
    groups[has_producer] = np.searchsorted(rows["id"], each["id"])
    for name in _ESTIMATED:
        values = np.zeros(sample.rows.size, np.int64)
        values[has_producer] = each[name]
        sums, errors = sample.totals(values, groups, rows.size + 1)
        rows[name] = np.maximum(rows[name], np.rint(sums[:-1]).astype(np.int64))
        if name == "size_bytes":
            rows["variance"] = (errors[:-1] / 2) ** 2
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
