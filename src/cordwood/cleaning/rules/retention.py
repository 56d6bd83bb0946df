"""The old segments that retention deletes after a clean: the rules as a table.

Source: Kafka UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cordwood.cleaning.rules.plan import LogFacts, Reason, SegmentFacts, Taken, config_reason
from cordwood.common.config import TopicConfig, show
from cordwood.common.types import NONE


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """One pass of retention over the segments that the passes before it left.

    Attributes:
        name: `log start offset`, or the config that sets the limit.
        policy: the word that `cleanup.policy` must contain; empty if the rule always applies.
        wanted: returns how many segments, oldest first, the rule deletes. Arguments: the segments, the limit (or the
            log start offset), now_ms.
    """

    name: str
    policy: str
    wanted: Callable[[Sequence[SegmentFacts], int, int], int]


def _below_start(segments: Sequence[SegmentFacts], limit: int, _now_ms: int) -> int:
    return sum(1 for one in segments[1:] if one.base_offset <= limit)


def _above_size(segments: Sequence[SegmentFacts], limit: int, _now_ms: int) -> int:
    excess = sum(one.size_bytes for one in segments) - limit
    count = 0
    for one in segments:
        excess -= one.size_bytes
        if excess < 0:
            break
        count += 1
    return count


def _too_old(segments: Sequence[SegmentFacts], limit: int, now_ms: int) -> int:
    young = (at for at, one in enumerate(segments) if now_ms - one.largest_timestamp <= limit)
    return next(young, len(segments))


#: In the order in which Kafka applies them.
RETENTION_RULES = (
    RetentionRule("log start offset", "", _below_start),
    RetentionRule("retention.bytes", "delete", _above_size),
    RetentionRule("retention.ms", "delete", _too_old),
)


def plan_retention(
    segments: Sequence[SegmentFacts],
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    limits: Mapping[str, int],
    now_ms: int,
) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Choose the segments that retention deletes.

    Args:
        segments: all of the log, by base offset; the last is active.
        high_watermark: no segment that reaches above it is deleted.
        limits: limits of the applicable rules, by rule name; a negative limit is off. The log start offset always
            applies.
        now_ms: the time of the run.

    Returns:
        per rule that deletes segments: its name, the base offsets of the segments, and their bytes.
    """
    left, taken = list(segments), []
    for rule in RETENTION_RULES:
        limit = log_start_offset if not rule.policy else limits.get(rule.name, NONE)
        if limit < 0:
            continue
        count = min(rule.wanted(left, limit, now_ms), _replicated(left, log_end_offset, high_watermark))
        if not count:
            continue
        gone = left[:count]
        taken.append((rule.name, tuple(one.base_offset for one in gone), sum(one.size_bytes for one in gone)))
        # If all segments may be deleted, Kafka rolls first, so that an active segment remains.
        left = left[count:] or [SegmentFacts(log_end_offset, 0, 0, 0, now_ms, now_ms)]
    return tuple(taken)


def merge_groups(segments: Sequence[SegmentFacts], groups: Sequence[Sequence[int]]) -> tuple[SegmentFacts, ...]:
    """Return the segments with each group merged into one, as a clean leaves them if it drops no record.

    Retention runs after the clean, so it keeps old segments that the clean has merged with a young one.

    Args:
        groups: the base offsets of each group.
    """
    first_of = {base: group[0] for group in groups for base in group}
    merged = dict[int, SegmentFacts]()
    for one in segments:
        base = first_of.get(one.base_offset, one.base_offset)
        before = merged.get(base)
        merged[base] = (
            one
            if before is None
            else replace(
                one,
                base_offset=base,
                size_bytes=before.size_bytes + one.size_bytes,
                largest_timestamp=max(before.largest_timestamp, one.largest_timestamp),
            )
        )
    return tuple(merged.values())


def _replicated(segments: Sequence[SegmentFacts], log_end_offset: int, high_watermark: int) -> int:
    """Return how many of the segments retention may delete at all; excludes an empty active segment."""
    uppers = [one.base_offset for one in segments[1:]] + [log_end_offset]
    count = sum(1 for upper in uppers if upper <= high_watermark)
    return count - (count == len(segments) and not segments[-1].size_bytes)


def retention(
    facts: LogFacts, config: TopicConfig, beyond_doubt: Callable[[str], bool], now_ms: int
) -> tuple[tuple[Taken, ...], tuple[str, ...]]:
    """Return the segments that retention deletes from a log with a known policy, and the limits that it ignores.

    Args:
        beyond_doubt: whether a config, by its name, is set explicitly and unambiguously.
        now_ms: the time of the run.
    """
    limits, notes = {}, []
    for rule in RETENTION_RULES:
        if rule.policy in config.policy:
            if beyond_doubt(rule.name):
                limits[rule.name] = config.integer(rule.name)
            elif config.integer(rule.name) >= 0:
                limit = show(config[rule.name].value)
                default = f"Kafka's default, {limit}, is not applied; give it with --config to apply it"
                notes.append(f"{rule.name} is not set; {default}")
    mark = facts.high_watermark.offset
    taken = plan_retention(facts.segments, facts.log_start_offset, facts.log_end_offset, mark, limits, now_ms)
    by_name = {
        name: config_reason(name, config[name]) if name in limits else Reason(f"{name} {facts.log_start_offset}")
        for name, _, _ in taken
    }
    return tuple(Taken(name, bases, size, by_name[name]) for name, bases, size in taken), tuple(notes)
