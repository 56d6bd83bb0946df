"""The old segments that retention deletes, after a clean or from a live log: the rules as a table.

Source: Kafka UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cordwood.cleaning.rules.plan import LogFacts, Reason, SegmentFacts, Taken, config_reason
from cordwood.common.config import TopicConfig, show
from cordwood.common.types import NONE


class RetainedSegment(Protocol):
    """A segment that retention may delete: facts of a plan, or a segment of a live log."""

    @property
    def base_offset(self) -> int:
        """The offset in the names of its files."""

    @property
    def size_bytes(self) -> int:
        """Size of its log."""

    @property
    def largest_timestamp(self) -> int:
        """Timestamp of its newest record."""


S = TypeVar("S", bound=RetainedSegment)


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """One pass of retention over the segments that the passes before it left.

    Attributes:
        name: `log start offset`, or the config that sets the limit.
        policy: the word that `cleanup.policy` must contain; empty if the rule always applies.
        exceeding: yields, oldest segment first, whether a segment exceeds the limit. Arguments: the segments, the limit
            (or the log start offset), now_ms.
    """

    name: str
    policy: str
    exceeding: Callable[[Sequence[RetainedSegment], int, int], Iterator[bool]]

    def deletable(
        self, segments: Sequence[S], limit: int, now_ms: int, log_end_offset: int, high_watermark: int
    ) -> Sequence[S]:
        """Return the segments that this rule deletes: the oldest ones, up to the first that must stay.

        A segment stays if it reaches above the high watermark, because a new leader may have other records there. The
        last segment stays while it is empty, as a deletion would only replace it with another empty one.

        Args:
            segments: all of the log, by base offset; the last is active.
            limit: see `exceeding`; the rule is off if it is negative.
        """
        if not segments or limit < 0:
            return ()
        count, exceeding = 0, self.exceeding(segments, limit, now_ms)
        for upper in (*(one.base_offset for one in segments[1:]), log_end_offset):
            # In this order, because the largest timestamp of a live segment may have to be read from its file.
            if high_watermark < upper or not next(exceeding):
                break
            count += 1
        if count == len(segments) and not segments[-1].size_bytes:
            count -= 1
        return segments[:count]


def _below_start(segments: Sequence[RetainedSegment], limit: int, _now_ms: int) -> Iterator[bool]:
    for following in segments[1:]:
        yield following.base_offset <= limit
    yield False


def _above_size(segments: Sequence[RetainedSegment], limit: int, _now_ms: int) -> Iterator[bool]:
    excess = sum(one.size_bytes for one in segments) - limit
    for one in segments:
        excess -= one.size_bytes
        yield excess >= 0


def _too_old(segments: Sequence[RetainedSegment], limit: int, now_ms: int) -> Iterator[bool]:
    for one in segments:
        yield now_ms - one.largest_timestamp > limit


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
        gone = rule.deletable(left, limit, now_ms, log_end_offset, high_watermark)
        if not gone:
            continue
        taken.append((rule.name, tuple(one.base_offset for one in gone), sum(one.size_bytes for one in gone)))
        # If all segments may be deleted, Kafka rolls first, so that an active segment remains.
        left = left[len(gone) :] or [SegmentFacts(log_end_offset, 0, 0, 0, now_ms, now_ms)]
    return tuple(taken)


def plan_local_retention(
    segments: Sequence[SegmentFacts],
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    copied_offset: int,
    limits: Mapping[str, int],
    now_ms: int,
) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Choose the segments that retention deletes from the disk of a tiered log; otherwise like `plan_retention`.

    Beyond a limit, a segment goes only once it is copied; below the log start offset, it goes anyway.

    Args:
        segments: those on the disk.
        copied_offset: the last offset that is in the tier.
        limits: `local.retention.ms` and `local.retention.bytes`, by the names of the rules.

    Source: Kafka UnifiedLog.isSegmentEligibleForDeletion.
    """
    below = plan_retention(segments, log_start_offset, log_end_offset, high_watermark, {}, now_ms)
    gone = {base for _, bases, _ in below for base in bases}
    left = [one for one in segments if one.base_offset not in gone]
    mark = min(high_watermark, copied_offset + 1)
    return (*below, *plan_retention(left, log_start_offset, log_end_offset, mark, limits, now_ms))


def merge_groups(segments: Sequence[SegmentFacts], groups: Sequence[Sequence[int]]) -> tuple[SegmentFacts, ...]:
    """Return the segments with each group merged into one, as a clean leaves them if it drops no record.

    Retention runs after the clean, so it keeps old segments that the clean has merged with a young one.

    Args:
        groups: the base offsets of each group.
    """
    first_of = {base: group[0] for group in groups for base in group}
    members = dict[int, list[SegmentFacts]]()
    for one in segments:
        members.setdefault(first_of.get(one.base_offset, one.base_offset), []).append(one)
    return tuple(
        replace(
            some[-1],
            base_offset=base,
            size_bytes=sum(one.size_bytes for one in some),
            largest_timestamp=max(one.largest_timestamp for one in some),
        )
        for base, some in members.items()
    )


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
