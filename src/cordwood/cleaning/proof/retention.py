"""Proves, before retention deletes segments, that each of them may be deleted.

The rules are written a second time here, and not shared with `rules.retention`, which chooses the segments. Kafka
deletes only from the start of a log, and only records that all in-sync replicas have: every deleted segment ends at or
below the high watermark. One of these limits must also hold for each deleted segment:

    log start offset     it ends at or below the log start offset, and is not the active one
    retention.bytes      the segments after it still hold at least that many bytes
    retention.ms         its newest record is older than that

Source: Kafka UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cordwood.common.types import NONE
from cordwood.storage.log.loaded import loaded_segment
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits of retention in one partition.

    Attributes:
        high_watermark: no segment that reaches above it may be deleted.
        now_ms: the time of the run.
        bytes_kept: `retention.bytes`; negative: no limit.
        ms_kept: `retention.ms`; negative: no limit.
    """

    high_watermark: int
    now_ms: int
    bytes_kept: int = NONE
    ms_kept: int = NONE


def retention_faults(log: LogView, base_offsets: Collection[int], limits: RetentionLimits) -> Iterator[str]:
    """Yield, in words, the reasons against deleting segments; nothing if all of them may be deleted.

    Args:
        log: the log before the deletion.
        base_offsets: base offsets of the segments to delete.
    """
    segments = log.segments
    oldest = {segment.base_offset for segment in segments[: len(base_offsets)]}
    if oldest != set(base_offsets):
        yield f"the segments from {sorted(base_offsets)} on are not the oldest ones, from {sorted(oldest)} on"
        return
    ends = [segment.base_offset for segment in segments[1:]] + [log.next_offset]
    after_bytes = sum(segment.size_bytes for segment in segments)
    for segment, end in zip(segments, ends, strict=True):
        after_bytes -= segment.size_bytes
        if segment.base_offset not in oldest:
            return
        if end > limits.high_watermark:
            yield f"the segment from {segment.base_offset} on reaches above the high watermark, {limits.high_watermark}"
        elif not (
            (end <= log.log_start_offset and segment is not segments[-1])
            or 0 <= limits.bytes_kept <= after_bytes
            or 0 <= limits.ms_kept < limits.now_ms - loaded_segment(segment, limits.now_ms).largest_timestamp
        ):
            yield f"no limit is exceeded by the segment from {segment.base_offset} on"
