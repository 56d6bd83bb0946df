"""Find offsets in a log: of the first record since a time, as `offsetsForTimes`, and of the last records."""

from __future__ import annotations

import numpy as np

from cordwood.common.types import Isolation
from cordwood.record.columns import BatchWindow, decode
from cordwood.storage.log.segment import Segment, skip_gap
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap


def first_since(log: LogView, since_ms: int, *, start_offset: int, end_offset: int) -> int | None:
    """Return the offset of the first record that is not older than a time; control records count as well.

    Args:
        start_offset, end_offset: offsets [start, end) to search.

    Returns:
        the offset, or None if no record is new enough. Damaged batches are skipped; reading the records reports them.

    Source: Kafka UnifiedLog.fetchOffsetByTimestamp. Differs: the search continues after a segment without a record that
    is new enough. Kafka can choose an emptied segment and stop there, as it uses the file's modification time as the
    segment's largest timestamp.
    """
    for segment, lowest in log.segments_since(since_ms):
        if segment.base_offset >= end_offset:
            return None
        for item in segment.windows(start_offset=max(lowest, start_offset), end_offset=end_offset):
            if not isinstance(item, BatchWindow):
                continue
            new = item.batches[item.batches["max_timestamp"] >= since_ms]
            if not new.size:
                continue
            window = BatchWindow(item.position, item.data, new, item.read)
            for columns in decode(window, on_damage=lambda _: None):
                offsets = columns.rows["offset"]
                found = (columns.rows["timestamp"] >= since_ms) & (offsets >= start_offset) & (offsets < end_offset)
                if found.any():
                    return int(offsets[np.argmax(found)])
    return None


def start_of_last(
    log: LogView, count: int, first: int, end: int, isolation: Isolation | None, transactions: Transactions
) -> int:
    """Return the offset at which the last `count` records within [first, end) start; `first` if there are fewer.

    Batch headers are read from the last segment backwards, and only the batches around the found offset are decoded.
    For a count of 0 this is `end`: `dump --tail 0 --follow` shows only records appended from now on.

    Args:
        isolation: count only records that a consumer gets; None counts all, control records too.
        transactions: transactions that decide which records a consumer gets.
    """
    if count == 0:
        return end
    segments = [segment for segment in log.segments_from(first) if segment.base_offset < end]
    records = 0
    for at in range(len(segments) - 1, -1, -1):
        records += _count(log, segments[at], first, end, isolation, transactions)
        if records >= count:
            return _nth_last(log, segments[at].base_offset, count, first, end, isolation, transactions)
    return first


def _count(
    log: LogView, segment: Segment, first: int, end: int, isolation: Isolation | None, transactions: Transactions
) -> int:
    """Return a lower bound of a segment's record count, from headers: a wrapper counts as 1, but may hold more."""
    count = 0
    for batches in segment.headers(skip_gap, search=not log.live):
        inside = batches[(batches["base_offset"] >= first) & (batches["last_offset"] < end)]
        counted = inside[transactions.visible(inside, isolation)] if isolation is not None else inside
        count += int(np.abs(counted["record_count"]).sum(dtype=np.int64))
    return count


def _nth_last(
    log: LogView,
    start: int,
    count: int,
    first: int,
    end: int,
    isolation: Isolation | None,
    transactions: Transactions,
) -> int:
    """Return the offset of the `count`-th last record, which is at `start` or after it; decodes the batches there."""
    offsets = np.empty(0, np.int64)
    for _, item in log.windows(start_offset=max(start, first), end_offset=end):
        if isinstance(item, Gap):
            continue
        window = item
        if isolation is not None:
            batches = item.batches[transactions.visible(item.batches, isolation)]
            window = BatchWindow(item.position, item.data, batches, item.read)
        for columns in decode(window, on_damage=lambda _: None):
            some = columns.rows["offset"]
            offsets = np.concatenate([offsets, some[(some >= first) & (some < end)]])[-count:]
            del columns
    return int(offsets[0]) if offsets.size else first
