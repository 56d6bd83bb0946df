"""Plan the clean of one partition: rules that exclude it, the cleanable range, the segment groups, the decision.

    0 … log start … first dirty ……………… first uncleanable … active segment
                    └── keys are read ───┘
    └────────── segments are rewritten ──┘   up to the last segment whose keys were read

Planning uses names, sizes and headers only; it decodes no record.

Source: Kafka LogCleanerManager.cleanableOffsets, LogToClean, Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cordwood.cleaning.rules.plan import (
    AgreedRange,
    Bound,
    Bounds,
    Choices,
    CleanRange,
    Compaction,
    Decision,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    Reason,
    SegmentFacts,
    Threshold,
    config_reason,
    utc,
)
from cordwood.cleaning.rules.waves import expected_work_bytes, work_bytes
from cordwood.common.config import TopicConfig
from cordwood.common.errors import ConfigError
from cordwood.storage.formats.filenames import CLUSTER_METADATA_TOPIC, DirectoryState
from cordwood.storage.node.node import LocatedPartition, Node

#: Configs that keep records longer; a damaged metadata log may hide a value of one.
_KEEPING = ("min.compaction.lag.ms", "delete.retention.ms")


# ---- partitions that are never cleaned -------------------------------------------------------------------------------


class ObstacleKind(StrEnum):
    """Kind of the rule that excludes a partition from cleaning."""

    NO_PARTITION = "no partition"
    TO_BE_DELETED = "to be deleted"
    STRAY = "stray"
    FUTURE = "copy in the making"
    MOVING = "being moved"
    DUPLICATE = "duplicate"
    METADATA_LOG = "metadata log"
    WRONG_CONFIG = "wrong config"
    UNKNOWN_POLICY = "unknown policy"
    TIERED = "remote copies"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a partition is never cleaned."""

    kind: ObstacleKind
    reason: Reason


def _no_name(_node: Node, place: LocatedPartition) -> Obstacle | None:
    if place.name is not None:
        return None
    return Obstacle(ObstacleKind.NO_PARTITION, Reason("not named like a partition (topic-number)"))


_STATES = {
    DirectoryState.DELETED: (ObstacleKind.TO_BE_DELETED, "a -delete directory: about to be removed"),
    DirectoryState.FUTURE: (
        ObstacleKind.FUTURE,
        "a -future directory: a copy in the making, for another log directory",
    ),
    DirectoryState.STRAY: (ObstacleKind.STRAY, "a -stray directory: it is not part of the cluster"),
}


def _state(_node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.name is not None, "asked before"
    if place.name.state not in _STATES:
        return None
    kind, what = _STATES[place.name.state]
    return Obstacle(kind, Reason(what))


def _metadata_log(_node: Node, place: LocatedPartition) -> Obstacle | None:
    if place.topic != CLUSTER_METADATA_TOPIC:
        return None
    return Obstacle(ObstacleKind.METADATA_LOG, Reason(f"{CLUSTER_METADATA_TOPIC} is never cleaned"))


def _twin(node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.name is not None, "asked before"
    for other in node.duplicates(place.name.topic_partition):
        if other.path != place.path:
            reason = Reason(f"it is also in {other.path}, and a broker refuses to start with both")
            return Obstacle(ObstacleKind.DUPLICATE, reason)
    for other in node.futures(place.name.topic_partition):
        reason = Reason(f"it is being moved to {other.path}", until="cleanable once it has been moved")
        return Obstacle(ObstacleKind.MOVING, reason)
    return None


def _topic(node: Node, place: LocatedPartition) -> Obstacle | None:
    assert place.topic is not None, "asked before"
    return _topic_obstacle(node, place.topic)


def _topic_obstacle(node: Node, topic: str) -> Obstacle | None:
    if node.metadata is not None and node.metadata.is_tiered(topic) and not node.has_tier:
        where = f"topic {topic} in {node.metadata_path}"
        reason = Reason("remote.storage.enable: a part of a tiered topic may be elsewhere", where)
        return Obstacle(ObstacleKind.TIERED, reason)
    give = "give --config cleanup.policy=…, --server-properties or --metadata"
    try:
        doubt = node.doubt(topic)
        config = node.config_of(topic)
    except ConfigError as error:
        return Obstacle(ObstacleKind.WRONG_CONFIG, Reason(f"cleanup.policy is unknown: {error}"))
    if doubt is not None:
        reason = Reason(f"cleanup.policy is unknown: {doubt}", node.metadata_path or "", give)
        return Obstacle(ObstacleKind.UNKNOWN_POLICY, reason)
    if config.flag("remote.storage.enable") and not node.has_tier:
        said = config["remote.storage.enable"]
        reason = config_reason("remote.storage.enable", said, "a part of a tiered topic may be elsewhere")
        return Obstacle(ObstacleKind.TIERED, reason)
    return None


def why_topic_is_left(node: Node, topic: str) -> Reason | None:
    """Return why cleaning must not touch a topic: it is tiered, or its policy is uncertain; None if it may."""
    obstacle = _topic_obstacle(node, topic)
    return None if obstacle is None else obstacle.reason


#: The rules; the first that returns an obstacle decides.
_NEVER_CLEANED: Sequence[Callable[[Node, LocatedPartition], Obstacle | None]] = (
    _no_name,
    _metadata_log,
    _state,
    _twin,
    _topic,
)


def why_never(node: Node, place: LocatedPartition) -> Obstacle | None:
    """Return the reason why a partition is never cleaned, or None if it may be."""
    return next((found for rule in _NEVER_CLEANED if (found := rule(node, place)) is not None), None)


def policy_in_doubt(node: Node, config: TopicConfig) -> Reason | None:
    """Return a reason if unknown configs might keep records longer than the known ones, else None."""
    if node.metadata is None or not node.metadata.problems:
        return None
    for name in _KEEPING:
        if (doubt := node.doubt(config.topic, name)) is not None:
            what = f"{name} is unknown: {doubt}"
            return Reason(what, node.metadata_path or "", f"with --config {name}=…")
    return None


#: Maximum distance of an offset from the base offset of its segment: a signed 32-bit number.
MAX_OFFSET_SPAN = 2**31 - 1

# ---- the range -------------------------------------------------------------------------------------------------------


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> tuple[int, str]:
    """Return the start of the dirty section, and the reason if it is not the checkpoint (else empty)."""
    if checkpoint is None:
        return log_start_offset, "never cleaned"
    if checkpoint < log_start_offset:
        return log_start_offset, f"checkpoint {checkpoint} is below the log start offset"
    if checkpoint > log_end_offset:
        return log_start_offset, f"checkpoint {checkpoint} is above the log end offset"
    return checkpoint, ""


def high_watermark(
    entry: int | None,
    log_start_offset: int,
    log_end_offset: int,
    *,
    brokers: bool,
    replicas: int | None,
    asked: int | str | None = None,
) -> HighWatermark:
    """Return the high watermark: records from it on may not be replicated yet, and may still be truncated.

    Args:
        entry: the entry in replication-offset-checkpoint; None without one.
        brokers: whether the directory is a broker's; then a missing entry means that no record is known to be
            replicated.
        replicas: number of replicas; None if unknown.
        asked: the value of `--high-watermark`: an offset, or `end`.
    """
    if asked is not None:
        offset, source = (log_end_offset if asked == "end" else int(asked)), f"--high-watermark {asked}"
    elif entry is not None:
        offset, source = entry, "replication-offset-checkpoint"
    elif replicas == 1:
        offset, source = log_end_offset, "the log end: it is the only replica"
    elif brokers:
        offset, source = log_start_offset, "the log start: a broker's directory, and no replication-offset-checkpoint"
        source += " has an entry for it"
    else:
        offset, source = log_end_offset, "the log end: no broker's directory"
    return HighWatermark(max(log_start_offset, min(offset, log_end_offset)), source)


def clean_range(
    segments: Sequence[SegmentFacts],
    first_dirty: int,
    last_stable_offset: int,
    *,
    min_compaction_lag_ms: int = 0,
    now_ms: int = 0,
    local_start: int | None = None,
) -> CleanRange:
    """Return the cleanable range of a log with at least one segment.

    Args:
        segments: all of the log, by base offset; the last is active.
        first_dirty: start of the dirty section.
        last_stable_offset: the log's last stable offset; at most its high watermark.
        min_compaction_lag_ms: `min.compaction.lag.ms`.
        now_ms: the time of the clean.
        local_start: see `LogFacts.local_start_offset`.
    """
    active = segments[-1].base_offset
    # Of several equal bounds, `min` takes the first.
    bounds = [(active, Bound.ACTIVE_SEGMENT), (last_stable_offset, Bound.LAST_STABLE_OFFSET)]
    young = _too_young(segments, first_dirty, min_compaction_lag_ms, now_ms)
    if young is not None:
        bounds.append((young.base_offset, Bound.MIN_COMPACTION_LAG))
    if local_start is not None:
        bounds.append((local_start, Bound.LOCAL_LOG_START))
    bound_offset, bound = min(bounds, key=lambda one: one[0])
    end = max(first_dirty, bound_offset)
    # A segment is cleaned as a whole or not at all.
    whole = non_active_from(segments, end)
    return CleanRange(first_dirty, whole[0].base_offset if whole else active, bound, bound_offset)


def _too_young(segments: Sequence[SegmentFacts], first_dirty: int, lag_ms: int, now_ms: int) -> SegmentFacts | None:
    """Return the first dirty segment that is too young for `min.compaction.lag.ms`, or None."""
    if lag_ms <= 0:
        return None
    dirty = non_active_from(segments, first_dirty)
    return next((segment for segment in dirty if segment.largest_timestamp > now_ms - lag_ms), None)


def non_active_from(segments: Sequence[SegmentFacts], offset: int) -> Sequence[SegmentFacts]:
    """Return the segments from the segment that holds `offset` on, without the active one."""
    active = segments[-1].base_offset
    return segments_between(segments, offset, active) if offset <= active else ()


def segments_between(segments: Sequence[SegmentFacts], start: int, end: int) -> Sequence[SegmentFacts]:
    """Return the segments that hold offsets of [start, end), by the offsets in their names."""
    if start >= end:
        return ()
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect.bisect_right(bases, start) - 1)
    return segments[first : bisect.bisect_left(bases, end)]


def group_segments(
    segments: Sequence[SegmentFacts], first_uncleanable: int, *, segment_bytes: int, index_bytes: int
) -> list[tuple[SegmentFacts, ...]]:
    """Group neighbouring segments whose outputs fit one segment, judged by their sizes before the clean.

    Args:
        segments: the segments to rewrite, by base offset.
        first_uncleanable: end of the cleanable range.
        segment_bytes: `segment.bytes`.
        index_bytes: `segment.index.bytes`.
    """
    groups: list[tuple[SegmentFacts, ...]] = []
    at = 0
    while at < len(segments):
        group = [segments[at]]
        size, index, times = segments[at].size_bytes, segments[at].index_bytes, segments[at].time_index_bytes
        at += 1
        while at < len(segments):
            one = segments[at]
            # An upper bound of its offsets: the exact last offset would require reading the segment.
            last = (segments[at + 1].base_offset if at + 1 < len(segments) else first_uncleanable) - 1
            size, index, times = size + one.size_bytes, index + one.index_bytes, times + one.time_index_bytes
            if size > segment_bytes or index > index_bytes or times > index_bytes:
                break
            if one.size_bytes and last - group[0].base_offset > MAX_OFFSET_SPAN:
                break
            group.append(one)
            at += 1
        groups.append(tuple(group))
    return groups


# ---- compaction ------------------------------------------------------------------------------------------------------


def overdue_ms(
    segments: Sequence[SegmentFacts],
    headers: Sequence[HeaderFacts],
    first_dirty: int,
    *,
    max_compaction_lag_ms: int,
    now_ms: int,
) -> int:
    """Return by how many ms the oldest dirty segment exceeds `max.compaction.lag.ms`; 0 if it does not."""
    earliest = _earliest_dirty(segments, headers, first_dirty)
    return 0 if earliest is None else max(0, now_ms - max_compaction_lag_ms - earliest)


def _earliest_dirty(segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], first_dirty: int) -> int | None:
    dirty = {segment.base_offset for segment in non_active_from(segments, first_dirty)}
    known = zip(segments, headers, strict=True)
    times = [one.first_timestamp for segment, one in known if segment.base_offset in dirty]
    return min((time for time in times if time > 0), default=None)


def plan_compaction(facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int) -> Compaction:
    """Plan the compaction of a log with at least one segment."""
    first_dirty, why = _first_dirty(facts, choices)
    segments = facts.segments
    found = (
        _own_range(facts, first_dirty, config, now_ms) if facts.agreed is None else _joint_range(facts.agreed, facts)
    )
    end = found.first_uncleanable_offset
    rewritten = () if found.is_empty else segments_between(segments, 0, end)
    below = [one for segment, one in zip(segments, facts.headers, strict=True) if segment.base_offset < end]
    groups = group_segments(
        rewritten,
        end,
        segment_bytes=config.segment_bytes,
        index_bytes=config.integer("segment.index.bytes"),
    )
    bounds = _bounds(rewritten, below, end) if rewritten else Bounds()
    bound_reason = _BOUND_REASONS[found.bound](facts, config, found, now_ms)
    return Compaction(
        range=found,
        first_dirty_reason=why,
        bound_reason=bound_reason,
        clean_bytes=sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        cleanable_bytes=sum(one.size_bytes for one in segments_between(segments, first_dirty, end)),
        overdue_ms=overdue_ms(
            segments,
            facts.headers,
            first_dirty,
            max_compaction_lag_ms=config.integer("max.compaction.lag.ms"),
            now_ms=now_ms,
        ),
        log_bytes=sum(one.size_bytes for one in segments),
        groups=tuple(tuple(one.base_offset for one in group) for group in groups),
        group_bytes=tuple(_by_group(work_bytes, groups, below, config)),
        group_bytes_expected=tuple(_by_group(expected_work_bytes, groups, below, config)),
        bounds=bounds,
        expired_batches=sum(one.expired_batches for one in below),
        transactional_batches=sum(one.transactional_batches for one in below),
        estimates=tuple(_estimates(rewritten, below, bounds, end)),
    )


def _own_range(facts: LogFacts, first_dirty: int, config: TopicConfig, now_ms: int) -> CleanRange:
    found = clean_range(
        facts.segments,
        first_dirty,
        facts.last_stable_offset,
        min_compaction_lag_ms=config.integer("min.compaction.lag.ms"),
        now_ms=now_ms,
        local_start=facts.local_start_offset,
    )
    if found.bound is Bound.LAST_STABLE_OFFSET and facts.last_stable_offset == facts.high_watermark.offset:
        return replace(found, bound=Bound.HIGH_WATERMARK)
    return found


def _joint_range(agreed: AgreedRange, facts: LogFacts) -> CleanRange:
    """Return the range of all replicas, in a replica whose log may begin above its start or its end."""
    start = max(agreed.first_dirty_offset, facts.log_start_offset)
    end = max(agreed.first_uncleanable_offset, start)
    return CleanRange(start, end, agreed.bound, agreed.first_uncleanable_offset)


#: Figures of a `Compaction`, besides `records_max`, that come from batch headers.
_OF_HEADERS = ("may_grow", "group_bytes", "group_bytes_expected", "expired_batches", "transactional_batches")


def _estimates(
    rewritten: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], bounds: Bounds, end: int
) -> Iterator[str]:
    """Yield the names of the figures that come from a sample of the headers."""
    if any(one.is_sampled for one in headers):
        # There is at most one record per offset, so the number of offsets is a bound, not an estimate.
        if rewritten and bounds.records_max != end - rewritten[0].base_offset:
            yield "records_max"
        yield from _OF_HEADERS


def _by_group(
    bytes_of: Callable[..., int],
    groups: Sequence[Sequence[SegmentFacts]],
    headers: Sequence[HeaderFacts],
    config: TopicConfig,
) -> Iterator[int]:
    at = 0
    for group in groups:
        interval = config.integer("index.interval.bytes")
        yield bytes_of(group, headers[at : at + len(group)], index_interval_bytes=interval)
        at += len(group)


def _bounds(rewritten: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], end: int) -> Bounds:
    next_bases = [*(one.base_offset for one in rewritten[1:]), end]
    records = sum(
        min(one.records + one.records_error, next_base - segment.base_offset) if one.is_sampled else one.records
        for segment, next_base, one in zip(rewritten, next_bases, headers, strict=True)
    )
    return Bounds(
        None if any(one.wrappers for one in headers) else records,
        sum(one.size_bytes for one in rewritten),
        any(one.legacy for one in headers),
    )


def _first_dirty(facts: LogFacts, choices: Choices) -> tuple[int, str]:
    if facts.agreed is not None:
        first = max(facts.agreed.first_dirty_offset, facts.log_start_offset)
        return first, facts.agreed.first_dirty_reason
    if choices.first_dirty is None:
        first, why = first_dirty_offset(facts.checkpoint, facts.log_start_offset, facts.log_end_offset)
        return first, why or "cleaner-offset-checkpoint"
    asked = f"--first-dirty {choices.first_dirty}"
    if choices.first_dirty < facts.log_start_offset:
        return facts.log_start_offset, f"{asked}, which is below the log start offset"
    return choices.first_dirty, asked


def _active_segment(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    active = facts.segments[-1].base_offset
    if active >= facts.log_end_offset:
        return Reason(
            "all closed segments are clean or cleanable; the active one is empty", until="cleanable after it rolls"
        )
    what = f"the active segment, offsets {active} to {facts.log_end_offset - 1}, is never cleaned"
    return Reason(what, until="cleanable after it rolls")


def _high_watermark(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    mark = facts.high_watermark
    what = f"records from the high watermark {mark.offset} on may not be replicated yet"
    return Reason(what, mark.source, "cleanable once they are, or with --high-watermark OFFSET|end")


def _last_stable_offset(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    first = facts.open_transactions[0]
    where = "" if facts.high_watermark.offset >= facts.log_end_offset else " below the high watermark"
    what = f"the last stable offset is {facts.last_stable_offset}: the transaction of producer {first.producer_id}"
    return Reason(
        f"{what}, open since offset {first.first_offset}, has no marker{where}", until="cleanable once it ends"
    )


def _min_compaction_lag(facts: LogFacts, config: TopicConfig, found: CleanRange, now_ms: int) -> Reason:
    name = "min.compaction.lag.ms"
    lag = config.integer(name)
    young = _too_young(facts.segments, found.first_dirty_offset, lag, now_ms)
    assert young is not None, "or it would not have bounded the range"
    why = f"the segment from {young.base_offset} on has records of {utc(young.largest_timestamp)}"
    return config_reason(name, config[name], why, f"cleanable from {utc(young.largest_timestamp + lag)} on")


def _local_log_start(_facts: LogFacts, _config: TopicConfig, found: CleanRange, _now_ms: int) -> Reason:
    what = f"segments from offset {found.bound_offset} on are still on the disk of a broker"
    return Reason(what, until="cleanable once they are only in the tier")


def _replicas(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    assert facts.agreed is not None, "or the log has a range of its own"
    return facts.agreed.bound_reason


_BOUND_REASONS: Mapping[Bound, Callable[[LogFacts, TopicConfig, CleanRange, int], Reason]] = {
    Bound.ACTIVE_SEGMENT: _active_segment,
    Bound.HIGH_WATERMARK: _high_watermark,
    Bound.LAST_STABLE_OFFSET: _last_stable_offset,
    Bound.MIN_COMPACTION_LAG: _min_compaction_lag,
    Bound.LOCAL_LOG_START: _local_log_start,
    Bound.REPLICAS: _replicas,
}


def decide(
    compaction: Compaction, facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int
) -> tuple[Decision, Reason]:
    """Decide whether a log is cleaned, and give the reason."""
    if not compaction.cleanable_bytes:
        return Decision.LEAVE, _nothing_dirty(compaction, facts)
    end = compaction.range.first_uncleanable_offset
    for segment, headers in zip(facts.segments, facts.headers, strict=True):
        if segment.base_offset < end and headers.damage:
            return Decision.REFUSE, Reason(f"damaged: {headers.damage}", until="cleanable once it is repaired")
    ratio = compaction.cleanable_ratio
    assert ratio is not None, "what is cleanable is part of the total"
    name = "min.cleanable.dirty.ratio"
    dirty = f"{100 * ratio:.4g} % of {compaction.total_bytes} bytes is dirty"
    if choices.ignore_ratio:
        return Decision.CLEAN, Reason(dirty, "--ignore-ratio")
    least = config.real(name)
    needed = f"more than {100 * least:.4g} %"
    if ratio > least:
        return Decision.CLEAN, config_reason(name, config[name], f"{needed} is dirty")
    if compaction.must_compact_now:
        late = "max.compaction.lag.ms"
        due = utc(now_ms - compaction.overdue_ms)
        return Decision.CLEAN, config_reason(late, config[late], f"a clean of the oldest dirty batch was due at {due}")
    until = _when_due(facts, config, compaction) if least < 1 else "only with --ignore-ratio"
    return Decision.LEAVE, config_reason(name, config[name], f"{dirty}, {needed} is required", until)


def is_due_again(
    segments: Sequence[SegmentFacts],
    headers: Sequence[HeaderFacts],
    first_dirty: int,
    first_uncleanable: int,
    threshold: Threshold,
    now_ms: int,
) -> bool:
    """Whether Kafka would clean a log again after a round that ended before the end of its range.

    Args:
        segments: all of the log, by base offset; the last is active.
        headers: header facts of each segment; only the first timestamp is used.
        threshold: when the log counts as dirty enough.
        now_ms: the time of the clean.
    """
    # Only the last segment of the round can be too young now: all segments were old enough before the round, and
    # it did not change later ones. Pass the next segment, too, because `_too_young` treats the last one as active.
    holder = [one for one in segments if one.base_offset <= first_dirty][-1:]
    behind = [one for one in segments if one.base_offset > first_dirty][:1]
    if _too_young([*holder, *behind], first_dirty, threshold.min_compaction_lag_ms, now_ms) is not None:
        return False
    dirty = sum(one.size_bytes for one in segments_between(segments, first_dirty, first_uncleanable))
    clean = sum(one.size_bytes for one in segments if one.base_offset < first_dirty)
    lag = threshold.max_compaction_lag_ms
    late = overdue_ms(segments, headers, first_dirty, max_compaction_lag_ms=lag, now_ms=now_ms) > 0
    return dirty > 0 and (late or dirty / (clean + dirty) > threshold.cleanable_ratio)


def _when_due(facts: LogFacts, config: TopicConfig, compaction: Compaction) -> str:
    lag = config.integer("max.compaction.lag.ms")
    earliest = _earliest_dirty(facts.segments, facts.headers, compaction.range.first_dirty_offset)
    due = "" if earliest is None else utc(earliest + lag + 1)
    late = f", from {due} on by max.compaction.lag.ms={lag}" if due.endswith("UTC") else ""
    return f"cleanable once more is dirty{late}, or with --ignore-ratio"


def _nothing_dirty(compaction: Compaction, facts: LogFacts) -> Reason:
    first = compaction.range.first_dirty_offset
    if facts.log_end_offset <= facts.log_start_offset:
        return Reason("the log is empty", until="cleanable after a segment is written and rolls")
    if first >= facts.log_end_offset:
        return Reason(
            f"nothing is dirty: the log ends at {facts.log_end_offset}",
            compaction.first_dirty_reason,
            "cleanable after more is written and its segment rolls",
        )
    if compaction.range.bound is Bound.ACTIVE_SEGMENT:
        what = f"all dirty data (offsets {first} to {facts.log_end_offset - 1}) is in the active segment"
        return Reason(what, until="cleanable after it rolls")
    return compaction.bound_reason


def hint(compaction: Compaction, *, deletes_for_good: bool) -> str:
    """Suggest how to remove expired tombstones while nothing is dirty; empty if there are none, or something is
    dirty.
    """
    if compaction.cleanable_bytes or not compaction.expired_batches:
        return ""
    options = "--first-dirty 0"
    if not deletes_for_good:
        options += ", with the directories of all replicas; or with --single-copy, if there is no other replica"
    about = "about" if "expired_batches" in compaction.estimates else "up to"
    return f"{about} {compaction.expired_batches} batches hold expired tombstones or markers; to remove them: {options}"
