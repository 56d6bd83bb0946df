"""The range that a clean of a live log would cover, and whether it is due.

Source: Kafka LogToClean, LogCleanerManager.cleanableOffsets. `rules.selection` has the rules.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from cordwood.cleaning.rules.plan import HeaderFacts, SegmentFacts
from cordwood.cleaning.rules.selection import (
    clean_range,
    first_dirty_offset,
    non_active_from,
    overdue_ms,
    segments_between,
)
from cordwood.common.config import LONG_MAX
from cordwood.common.types import NONE, TopicPartition
from cordwood.live.log import Log
from cordwood.live.log_config import LogConfig
from cordwood.live.segment import LogSegment


@dataclass(frozen=True, slots=True)
class LogToClean:
    """The range that a clean of a log would cover.

    Attributes:
        uncleanable_offset: the lowest of the last stable offset, the start of the active segment, and the start of the
            first segment that `min.compaction.lag.ms` protects; at least the first dirty offset.
        first_uncleanable_offset: end of the range, at the base offset of a segment.
        force_update_checkpoint: the log's checkpoint is outside the log, and must be corrected.
        clean_bytes: size of the segments that begin below the first dirty offset.
        cleanable_bytes: size of the segments in the range; the first of them may be in `clean_bytes`, too.
        overdue_ms: time by which the oldest dirty batch exceeds `max.compaction.lag.ms`.
    """

    partition: TopicPartition
    log: Log
    first_dirty_offset: int
    uncleanable_offset: int
    first_uncleanable_offset: int
    force_update_checkpoint: bool
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int

    @property
    def total_bytes(self) -> int:
        """Clean and cleanable bytes together."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The dirty share; 0 for an empty log."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is dirty enough, or has waited for too long."""
        must = self.overdue_ms > 0 and self.cleanable_bytes > 0
        return must or self.cleanable_ratio > self.log.config.min_cleanable_dirty_ratio


class _Seen(NamedTuple):
    """The inputs that decide a clean's range if no lag is set; the current time then has no influence."""

    log: Log
    segments: tuple[LogSegment, ...]
    config: LogConfig
    offsets: tuple[int, int, int | None]

    def equals(self, other: _Seen) -> bool:
        """Return whether nothing has changed; a roll, a removal or a swap replaces the tuple of segments."""
        return (
            self.log is other.log
            and self.segments is other.segments
            and self.config is other.config
            and self.offsets == other.offsets
        )


def log_to_clean(partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Return the range that a clean of a log would cover now."""
    config = log.config
    first_dirty, why = first_dirty_offset(checkpoint, log.log_start_offset, log.log_end_offset)
    live = log.log_segments
    dirty = {one.base_offset for one in non_active_from([_facts(one, NONE) for one in live], first_dirty)}
    # The largest timestamp may require a read from disk; only a lag needs it, and only for dirty segments.
    asks = config.min_compaction_lag_ms > 0
    segments = [_facts(one, one.largest_timestamp if asks and one.base_offset in dirty else NONE) for one in live]
    found = clean_range(
        segments,
        first_dirty,
        log.last_stable_offset,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        now_ms=now_ms,
    )
    end = found.first_uncleanable_offset
    headers = [HeaderFacts(first_timestamp=one.first_timestamp if one.base_offset in dirty else NONE) for one in live]
    return LogToClean(
        partition,
        log,
        first_dirty,
        max(first_dirty, found.bound_offset),
        end,
        checkpoint is not None and bool(why),
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in segments_between(segments, min(first_dirty, end), end)),
        overdue_ms(segments, headers, first_dirty, max_compaction_lag_ms=config.max_compaction_lag_ms, now_ms=now_ms),
    )


def _facts(segment: LogSegment, largest_timestamp: int) -> SegmentFacts:
    return SegmentFacts(segment.base_offset, segment.size_bytes, 0, 0, 0, largest_timestamp)


class LogsToClean:
    """Cached ranges of logs, computed again only after a change, because each round looks at up to 10,000 logs."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, tuple[_Seen, LogToClean]] = {}

    def forget_all_but(self, partitions: Container[TopicPartition]) -> None:
        """Forget logs that were removed."""
        self._known = {one: known for one, known in self._known.items() if one in partitions}

    def of(self, partition: TopicPartition, log: Log, checkpoint: int | None, now_ms: int) -> LogToClean:
        """See `log_to_clean`."""
        config = log.config
        if checkpoint is not None and checkpoint > log.log_end_offset:
            checkpoint = LONG_MAX  # so the cached range is computed again once the log end reaches the checkpoint
        stable = min(log.last_stable_offset, log.active_segment.base_offset)
        seen = _Seen(log, log.log_segments, config, (log.log_start_offset, stable, checkpoint))
        before = self._known.get(partition)
        if before is not None and before[0].equals(seen):
            return before[1]
        found = log_to_clean(partition, log, checkpoint, now_ms)
        if config.min_compaction_lag_ms <= 0 and config.max_compaction_lag_ms == LONG_MAX:
            self._known[partition] = seen, found
        return found
