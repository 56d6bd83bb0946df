"""What cleans and retention will do to the records of a log; the rules are in `cleaning.next_step`.

Names, sizes, checkpoints, the ends of time indexes and the headers behind the newest producer snapshot are read, but no
records, so that this takes milliseconds.
"""

from __future__ import annotations

from cordwood.cleaning.next_step import Prospects
from cordwood.cleaning.plan import Bound, CleanRange
from cordwood.cleaning.selection import clean_range, first_dirty_offset, high_watermark
from cordwood.commands.policy import why_never
from cordwood.engine.facts import segment_facts
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.recovery.replay import headers_from, newest_snapshot


def prospects_of(node: Node, place: LocatedPartition, log: LogView, now_ms: int) -> Prospects:
    """What will happen to the records of a log that has a segment."""
    if (obstacle := why_never(node, place)) is not None:
        return Prospects(None, str(obstacle.reason), {}, None)
    assert place.name is not None, "a rule is about it"
    name, directory = place.name.topic_partition, place.directory
    config = node.config_of(name.topic)
    segments = [segment_facts(segment) for segment in log.segments]
    ends: dict[int, int] = {}
    if config.delete and node.doubt(name.topic, "retention.ms") is None and config["retention.ms"].explicit:
        keep_ms = config.integer("retention.ms")
        ends = {one.base_offset: one.largest_timestamp + keep_ms for one in segments} if keep_ms >= 0 else {}
    if not config.compact:
        return Prospects(None, "cleanup.policy does not compact it", ends, config)
    start, end = log.log_start_offset, log.next_offset
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
    own = believed_checkpoint(log)
    return Prospects(found, "", ends, config, 0 if own is None else own.cleaned_to)


def _first_open(log: LogView, end: int, now_ms: int) -> int:
    """First offset of the earliest transaction that is open at an offset; the offset itself if none is."""
    producers, start = newest_snapshot(log, end, now_ms=now_ms)
    for batches in headers_from(log, start, end):
        producers.replay(batches[batches["base_offset"] < end])
    return min((one.transaction_start for _, one in producers.by_id.in_transaction()), default=end)
