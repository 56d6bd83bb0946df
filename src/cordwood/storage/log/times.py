"""Find a record by its time, as a consumer's `offsetsForTimes` does."""

from __future__ import annotations

import numpy as np

from cordwood.record.columns import BatchWindow, decode
from cordwood.storage.log.view import LogView


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
