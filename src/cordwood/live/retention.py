"""Which segments of a live log retention deletes: the oldest ones, up to the first segment that must stay.

A segment stays if it reaches above the high watermark, because a new leader may have other records there. The last
segment stays while it is empty, as a deletion would only replace it with another empty one.

Source: Kafka UnifiedLog.deletableSegments and its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cordwood.live.segment import LogSegment

#: Returns whether a segment may be deleted, given it and the next segment (None after the last). Called oldest first.
IsDeletable = Callable[[LogSegment, LogSegment | None], bool]


def below(log_start_offset: int) -> IsDeletable:
    """Select segments whose offsets are all below the log start offset."""
    return lambda _, following: following is not None and following.base_offset <= log_start_offset


def beyond_size(size_bytes: int, limit_bytes: int) -> IsDeletable:
    """Select segments as long as `retention.bytes` remain of a log of this size; none if the limit is negative."""
    too_much = size_bytes - limit_bytes if limit_bytes >= 0 else -1

    def is_too_much(segment: LogSegment, _: LogSegment | None) -> bool:
        nonlocal too_much
        if too_much < segment.size_bytes:
            return False
        too_much -= segment.size_bytes
        return True

    return is_too_much


def older_than(limit_ms: int, now_ms: int) -> IsDeletable:
    """Select segments whose largest timestamp is more than `retention.ms` ago; none if the limit is negative."""
    return lambda segment, _: limit_ms >= 0 and now_ms - segment.largest_timestamp > limit_ms


def deletable(
    segments: Sequence[LogSegment], high_watermark: int, log_end_offset: int, is_deletable: IsDeletable
) -> list[LogSegment]:
    """Return the oldest segments, up to the first that is not deletable or reaches above the high watermark."""
    found = []
    for segment, following in zip(segments, (*segments[1:], None), strict=True):
        upper = log_end_offset if following is None else following.base_offset
        is_last_and_empty = following is None and segment.size_bytes == 0
        if high_watermark < upper or not is_deletable(segment, following) or is_last_and_empty:
            break
        found.append(segment)
    return found
