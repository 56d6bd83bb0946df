"""Predicts the effect of cleans and retention on the records of a log; the rules are in `commands.why.next_step`.

Reads names, sizes, checkpoints, the ends of time indexes and the headers after the newest producer snapshot, but no
records, so it takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.cleaning.engine.facts import loaded_facts
from cordwood.cleaning.rules.plan import Bound, CleanRange, SegmentFacts
from cordwood.cleaning.rules.policy import why_never
from cordwood.cleaning.rules.selection import clean_range, first_dirty_offset, high_watermark
from cordwood.commands.why.next_step import Prospects, SegmentEnd
from cordwood.common.config import TopicConfig
from cordwood.common.types import NONE
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.log.loaded import LoadedLog
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.replay import headers_from, newest_snapshot


def prospects_of(node: Node, place: LocatedPartition, log: LogView, now_ms: int) -> Prospects:
    """Predict the fate of the records of a log that has a segment."""
    obstacle = why_never(node, place)
    if obstacle is not None and place.name is None:
        return Prospects(None, str(obstacle.reason), {}, None)
    assert place.name is not None, "a rule is about it"
    loaded = place.loaded(log, now_ms)
    cut = _cut_offsets(loaded)
    if obstacle is not None:
        return Prospects(None, str(obstacle.reason), {}, None, cut=cut)
    name, directory = place.name.topic_partition, place.directory
    config = node.config_of(name.topic)
    segments = [loaded_facts(segment) for segment in loaded.segments]
    ends = _ends(node, config, segments)
    if not config.compact:
        return Prospects(None, "cleanup.policy does not compact it", ends, config, now_ms=now_ms, cut=cut)
    start, end = log.log_start_offset, loaded.log_end_offset
    mark = high_watermark(
        directory.high_watermarks.get(name),
        start,
        end,
        brokers=directory.info(META_PROPERTIES) is not None,
        replicas=node.replica_count(name),
    ).offset
    stable = min(mark, _first_open(log, mark, now_ms))
    first_dirty, _ = first_dirty_offset(directory.cleaner_offsets.get(name), start, end)
    lag_ms = config.integer("min.compaction.lag.ms")
    found = clean_range(segments, first_dirty, stable, min_compaction_lag_ms=lag_ms, now_ms=now_ms)
    if found.bound is Bound.LAST_STABLE_OFFSET and stable == mark:
        found = CleanRange(first_dirty, found.first_uncleanable_offset, Bound.HIGH_WATERMARK, found.bound_offset)
    return Prospects(found, "", ends, config, now_ms, cut)


def _cut_offsets(loaded: LoadedLog) -> tuple[tuple[int, int | None], ...]:
    """Return the ranges of offsets that a load cuts off; a range up to the end of the log has no end."""
    if loaded.is_emptied:
        return ((0, None),)
    by_base = {one.segment.base_offset: one for one in loaded.segments}
    ranges = list[tuple[int, int | None]]()
    for cut in loaded.cuts:
        segment = by_base[cut.base_offset]
        if segment.next_offset is not None:
            following = None if cut.is_end else segment.segment.following
            ranges.append((segment.next_offset, None if following is None else following.base_offset))
    return tuple(ranges)


def _ends(node: Node, config: TopicConfig, segments: Sequence[SegmentFacts]) -> dict[int, SegmentEnd]:
    """Return when retention deletes each segment, by explicitly set limits."""

    def limit(name: str) -> int:
        is_set = config.delete and config[name].explicit and node.doubt(config.topic, name) is None
        return config.integer(name) if is_set else NONE

    keep_ms, keep_bytes = limit("retention.ms"), limit("retention.bytes")
    ends, newest_ms = dict[int, SegmentEnd](), NONE
    more_bytes = keep_bytes - sum(one.size_bytes for one in segments)
    for one in segments:
        newest_ms, more_bytes = max(newest_ms, one.largest_timestamp), more_bytes + one.size_bytes
        is_active = one is segments[-1]
        from_ms = newest_ms + keep_ms if keep_ms >= 0 else None
        # Further bytes go into the active segment itself, so only a limit of 0 deletes it by size.
        by_size = more_bytes if keep_bytes >= 0 and (not is_active or not keep_bytes) else None
        if from_ms is not None or by_size is not None:
            ends[one.base_offset] = SegmentEnd(from_ms, by_size, is_active)
    return ends


def _first_open(log: LogView, end: int, now_ms: int) -> int:
    """Return the first offset of the earliest transaction that is open at an offset; else the offset itself."""
    producers, start = newest_snapshot(log, end, now_ms=now_ms)
    for batches in headers_from(log, start, end):
        producers.replay(batches[batches["base_offset"] < end])
    return min((one.transaction_start for _, one in producers.by_id.in_transaction()), default=end)
