"""What a clean of one partition would go over, and whether there will be one: the range, the groups, the reasons.

    0 … log start … first dirty ……………… first uncleanable … active segment
                    └── keys are taken ──┘
    └────────── segments are rewritten ──┘   up to the segment that the keys reach

No record is read: names, sizes, indexes, checkpoints and batch headers tell it all. Whoever collects those facts
(`spark.planning`) hands them in; here is what follows from them, as frozen values to print, pickle and compare.

Source: Kafka LogCleanerManager.cleanableOffsets, LogToClean, Cleaner.groupSegmentsBySize, UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from cordwood.config import ConfigValue, TopicConfig, show
from cordwood.types import NONE, TopicPartition

#: A segment's offsets fit 32 bits above its base.
MAX_OFFSET_SPAN = 2**31 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What planning needs of one segment.

    Attributes:
        base_offset: in its name.
        size_bytes: of its log.
        index_bytes, time_index_bytes: of its entries, without room for more.
        mtime_ms: of its log file.
        largest_timestamp: of its time index; its mtime_ms if there is none.
    """

    base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int
    mtime_ms: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What the batch headers of one segment add up to.

    Attributes:
        first_timestamp: the largest of its first batch; NONE without any.
        max_timestamp: the largest of all batches; NONE without any.
        records: that are no markers; a wrapper of magic 0 or 1 counts as one.
        wrappers: it has some, so there are more records.
        legacy: it has batches of magic 0 or 1, which a clean may make larger.
        expired_batches: whose delete horizon has passed; they may hold tombstones, or are markers, that may go.
        damage: where its batches do not follow each other, in words; empty when they do.
    """

    first_timestamp: int = NONE
    max_timestamp: int = NONE
    records: int = 0
    wrappers: bool = False
    legacy: bool = False
    expired_batches: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """What all replicas have, and on whose word."""

    offset: int
    source: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker below the high watermark."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What planning needs of one log.

    Attributes:
        segments: by base offset; the last is active.
        headers: of each segment.
        log_start_offset, log_end_offset: of the log.
        high_watermark: of the log, within the two.
        checkpoint: the cleaner's first dirty offset; None if it has none.
        open_transactions: as of the high watermark, by first offset.
        first_batch_offset: base offset of the first batch that reaches the log start; there an open transaction goes
            on whose first batches are below it. None: at the log start.
    """

    segments: tuple[SegmentFacts, ...]
    headers: tuple[HeaderFacts, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: HighWatermark
    checkpoint: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    first_batch_offset: int | None = None

    @property
    def last_stable_offset(self) -> int:
        """Nothing from here on may be cleaned: all below is replicated, and committed or aborted."""
        first = min((one.first_offset for one in self.open_transactions), default=self.high_watermark.offset)
        if first < self.log_start_offset:
            first = self.log_start_offset if self.first_batch_offset is None else self.first_batch_offset
        return min(self.high_watermark.offset, first)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user asked for.

    Attributes:
        ignore_ratio: clean however little is dirty.
        first_dirty: clean from this offset on, whatever the checkpoint says.
        high_watermark: this offset, or `end`; None: what the directory says.
        retention: delete old segments, too.
        single_copy: no other replica exists, so that tombstones and markers may go for good.
        offset_map: clean as Kafka would with a map of so many bytes; None: what the configs say, else without a limit.
        strict_kafka: do as Kafka wherever we would do better: keys are told apart by MD5, in a map of the size that
            Kafka gives it also where nobody set one, and a partition fails where Kafka's cleaner fails for good. It
            then stays as it was, though Kafka keeps what it finished before. What guards other replicas is not Kafka's
            cleaning and is not undone: see single_copy and high_watermark.
        memory: bytes that all tasks on a machine may take for keys; None: a quarter of what this one has.
    """

    ignore_ratio: bool = False
    first_dirty: int | None = None
    high_watermark: int | str | None = None
    retention: bool = False
    single_copy: bool = False
    offset_map: int | None = None
    strict_kafka: bool = False
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Threshold:
    """How dirty a log must be to be cleaned.

    Attributes:
        cleanable_ratio: `min.cleanable.dirty.ratio`, the dirty part must be more; below 0 when it does not matter.
        min_compaction_lag_ms, max_compaction_lag_ms: `min.compaction.lag.ms`, `max.compaction.lag.ms`.
    """

    cleanable_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1


# ---- what is planned -------------------------------------------------------------------------------------------------


class Decision(StrEnum):
    """What will become of a partition, retention aside."""

    CLEAN = "clean"
    LEAVE = "leave alone"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why so.

    Attributes:
        what: the config or fact that decides, in words.
        source: who said so; empty for a fact of the log itself.
        until: when that changes; empty if nothing is known to change it.
    """

    what: str
    source: str = ""
    until: str = ""

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return self.what + source + (f"; {self.until}" if self.until else "")


class Bound(StrEnum):
    """What sets the end of a clean's range."""

    ACTIVE_SEGMENT = "active segment"
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class CleanRange:
    """Which part of a log a clean goes over.

    Attributes:
        first_dirty_offset: where it starts to take keys.
        first_uncleanable_offset: where it ends; the base offset of a segment.
        bound: what the end was set by.
        bound_offset: the offset that it set, before it was made the base of a segment.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    bound: Bound
    bound_offset: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to clean."""
        return self.first_dirty_offset >= self.first_uncleanable_offset


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that can go; the least is nothing. Only a clean, or one on trial, knows how much does.

    Attributes:
        records_max: None when wrappers of magic 0 or 1 hide how many there are.
        bytes_max: of all segments that are rewritten.
        may_grow: batches of magic 0 or 1 become larger ones of magic 2.
    """

    records_max: int | None = 0
    bytes_max: int = 0
    may_grow: bool = False


@dataclass(frozen=True, slots=True)
class Compaction:
    """What compaction has before it in one log, whether or not it will be done.

    Attributes:
        range: where keys are taken.
        first_dirty_reason: what the start was set by.
        bound_reason: what the end was set by.
        clean_bytes, cleanable_bytes: of segments below and above the first dirty offset, as Kafka counts them: the
            segment it lies in the middle of counts in both.
        overdue_ms: for how long `max.compaction.lag.ms` has been exceeded; 0 when it is not.
        groups: base offsets of the segments that become one.
        bounds: the most that can go.
        expired_batches: batches in the range whose delete horizon has passed.
    """

    range: CleanRange
    first_dirty_reason: str
    bound_reason: Reason
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    groups: tuple[tuple[int, ...], ...]
    bounds: Bounds
    expired_batches: int

    @property
    def total_bytes(self) -> int:
        """What the ratio is of."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float | None:
        """Which part is dirty; None when there is nothing."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else None

    @property
    def must_compact_now(self) -> bool:
        """Whether the ratio no longer matters."""
        return self.overdue_ms > 0 and self.cleanable_bytes > 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What one rule of retention takes.

    Attributes:
        rule: what it goes by: `log start offset` or the name of a config.
        base_offsets: of the segments, the oldest of those that the rules before it left.
        size_bytes: of their logs.
        reason: in words.
    """

    rule: str
    base_offsets: tuple[int, ...]
    size_bytes: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Setting:
    """A config that a clean goes by, and on whose word."""

    name: str
    value: int | float
    source: str


@dataclass(frozen=True, slots=True)
class OffsetMapSize:
    """Kafka's offset map, which ends a round of a clean when it is full.

    Attributes:
        slots: of the map.
        load_factor: the part of them that is filled.
        keys: how many that is, at most, in a round.
        source: on whose word.
    """

    slots: int
    load_factor: float
    keys: int
    source: str


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What will become of one partition.

    Attributes:
        path: of its directory.
        topic_partition: None if the directory is not named like a partition.
        decision: about compaction.
        reason: of the decision.
        log_start_offset, log_end_offset: of the log.
        high_watermark: of the log; None where nobody needs it.
        compaction: None where there will never be any.
        retention: what old segments are deleted, after the clean. Told by the sizes and times before it.
        replicas: how many there are; None when it is not known.
        deletes_for_good: tombstones and markers may go when their time has come: there is no other replica.
        settings: the configs that a clean goes by.
        offset_map: what limits each of its rounds; None: nothing, and there is one round.
        notes: what else is worth knowing.
        hint: what the user may want to do.
    """

    path: str
    topic_partition: TopicPartition | None
    decision: Decision
    reason: Reason
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: HighWatermark | None = None
    compaction: Compaction | None = None
    retention: tuple[Taken, ...] = ()
    replicas: int | None = None
    deletes_for_good: bool = False
    settings: tuple[Setting, ...] = ()
    offset_map: OffsetMapSize | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""

    @property
    def name(self) -> str:
        """The partition's, or its directory's."""
        return self.path if self.topic_partition is None else str(self.topic_partition)

    @property
    def changes(self) -> bool:
        """Whether the partition will be another one afterwards."""
        return self.decision is Decision.CLEAN or bool(self.retention)

    def setting(self, name: str) -> int | float:
        """The value of one of the settings."""
        return next(one.value for one in self.settings if one.name == name)

    def document(self) -> dict[str, Any]:
        """As one JSON value; null is what does not apply or is not known."""
        values = asdict(self)
        if self.compaction is not None:
            values["compaction"] |= {
                "cleanable_ratio": self.compaction.cleanable_ratio,
                "must_compact_now": self.compaction.must_compact_now,
            }
        return values


@dataclass(frozen=True, slots=True)
class Plan:
    """What will become of partitions, all at one time.

    Attributes:
        now_ms: the time that everything is decided by.
        partitions: by topic and partition.
        choices: what was asked for.
    """

    now_ms: int
    partitions: tuple[PartitionPlan, ...]
    choices: Choices = field(default_factory=Choices)

    def of(self, decision: Decision) -> tuple[PartitionPlan, ...]:
        """The partitions with one decision."""
        return tuple(one for one in self.partitions if one.decision is decision)

    def document(self) -> dict[str, Any]:
        """As one JSON value."""
        return {
            "now_ms": self.now_ms,
            "choices": asdict(self.choices),
            "partitions": [one.document() for one in self.partitions],
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(one))} to {one}" for one in Decision)
        return f"Plan of {utc(self.now_ms)}: {counts}"

    def text(self) -> str:
        """The table and the reasons, as `cordwood plan` prints them."""
        from cordwood.cleaning import report

        return "\n".join(report.lines(self))

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        from cordwood.cleaning import report

        return report.html(self)


def utc(timestamp_ms: int) -> str:
    """A time for people; one that is no date, as the number it is."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    fraction = f".{timestamp_ms % 1000:03}" if timestamp_ms % 1000 else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} UTC"


def config_reason(name: str, value: ConfigValue, why: str = "", until: str = "") -> Reason:
    """A reason that is a config."""
    source = str(value.source) if value.name == name else f"{value.name}, {value.source}"
    return Reason(f"{name}={show(value.value) or '(empty)'}" + (f": {why}" if why else ""), source, until)


# ---- the range -------------------------------------------------------------------------------------------------------


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> tuple[int, str]:
    """Where the dirty section starts, and why not at the checkpoint if it does not."""
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
    """What may be cleaned as far as replication goes. A tail that is not replicated may still be truncated.

    Args:
        entry: of the directory's checkpoint of high watermarks; None if it has none.
        log_start_offset, log_end_offset: of the log.
        brokers: the directory is a broker's, so that a missing entry means something.
        replicas: how many there are; None when it is not known.
        asked: what the user says it is: an offset, or `end`.
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
) -> CleanRange:
    """The range that may be cleaned, of a log with at least one segment.

    Args:
        segments: all of the log, by base offset; the last is active.
        first_dirty: where the dirty section starts.
        last_stable_offset: of the log; at most its high watermark.
        min_compaction_lag_ms: `min.compaction.lag.ms`.
        now_ms: the time of the clean.
    """
    active = segments[-1].base_offset
    # Of equal bounds the first is named.
    bounds = [(active, Bound.ACTIVE_SEGMENT), (last_stable_offset, Bound.LAST_STABLE_OFFSET)]
    young = too_young(segments, first_dirty, min_compaction_lag_ms, now_ms)
    if young is not None:
        bounds.append((young.base_offset, Bound.MIN_COMPACTION_LAG))
    bound_offset, bound = min(bounds, key=lambda one: one[0])
    end = max(first_dirty, bound_offset)
    # A segment is cleaned as a whole or not at all.
    whole = non_active_from(segments, end)
    return CleanRange(first_dirty, whole[0].base_offset if whole else active, bound, bound_offset)


def too_young(segments: Sequence[SegmentFacts], first_dirty: int, lag_ms: int, now_ms: int) -> SegmentFacts | None:
    """The first segment that `min.compaction.lag.ms` keeps from being cleaned."""
    if lag_ms <= 0:
        return None
    dirty = non_active_from(segments, first_dirty)
    return next((segment for segment in dirty if segment.largest_timestamp > now_ms - lag_ms), None)


def non_active_from(segments: Sequence[SegmentFacts], offset: int) -> Sequence[SegmentFacts]:
    """The segments from the one that holds `offset` on, without the active one."""
    active = segments[-1].base_offset
    return values(segments, offset, active) if offset <= active else ()


def values(segments: Sequence[SegmentFacts], start: int, end: int) -> Sequence[SegmentFacts]:
    """The segments that hold offsets of [start, end), by the offsets in their names."""
    if start >= end:
        return ()
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect.bisect_right(bases, start) - 1)
    return segments[first : bisect.bisect_left(bases, end)]


def group_segments(
    segments: Sequence[SegmentFacts], first_uncleanable: int, *, segment_bytes: int, index_bytes: int
) -> list[tuple[SegmentFacts, ...]]:
    """Which segments become one, by their sizes before the clean.

    Args:
        segments: those that are rewritten, by base offset.
        first_uncleanable: end of the range.
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
            # How far its offsets may reach; nothing is read to know it better.
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
    """For how long the oldest dirty segment has been waiting for more than `max.compaction.lag.ms`; 0 if it has not."""
    earliest = _earliest_dirty(segments, headers, first_dirty)
    return 0 if earliest is None else max(0, now_ms - max_compaction_lag_ms - earliest)


def _earliest_dirty(segments: Sequence[SegmentFacts], headers: Sequence[HeaderFacts], first_dirty: int) -> int | None:
    dirty = {segment.base_offset for segment in non_active_from(segments, first_dirty)}
    known = zip(segments, headers, strict=True)
    times = [one.first_timestamp for segment, one in known if segment.base_offset in dirty]
    return min((time for time in times if time > 0), default=None)


def plan_compaction(facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int) -> Compaction:
    """What compaction has before it in a log with at least one segment."""
    segments = facts.segments
    first_dirty, why = _first_dirty(facts, choices)
    found = clean_range(
        segments,
        first_dirty,
        facts.last_stable_offset,
        min_compaction_lag_ms=config.integer("min.compaction.lag.ms"),
        now_ms=now_ms,
    )
    if found.bound is Bound.LAST_STABLE_OFFSET and facts.last_stable_offset == facts.high_watermark.offset:
        found = CleanRange(first_dirty, found.first_uncleanable_offset, Bound.HIGH_WATERMARK, found.bound_offset)
    end = found.first_uncleanable_offset
    rewritten = () if found.is_empty else values(segments, 0, end)
    below = [one for segment, one in zip(segments, facts.headers, strict=True) if segment.base_offset < end]
    groups = group_segments(
        rewritten,
        end,
        segment_bytes=segment_bytes(config),
        index_bytes=config.integer("segment.index.bytes"),
    )
    return Compaction(
        range=found,
        first_dirty_reason=why,
        bound_reason=_BOUND_REASONS[found.bound](facts, config, found, now_ms),
        clean_bytes=sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        cleanable_bytes=sum(one.size_bytes for one in values(segments, first_dirty, end)),
        overdue_ms=overdue_ms(
            segments,
            facts.headers,
            first_dirty,
            max_compaction_lag_ms=config.integer("max.compaction.lag.ms"),
            now_ms=now_ms,
        ),
        groups=tuple(tuple(one.base_offset for one in group) for group in groups),
        bounds=_bounds(rewritten, below) if rewritten else Bounds(),
        expired_batches=sum(one.expired_batches for one in below),
    )


def segment_bytes(config: TopicConfig) -> int:
    """How large a segment may get."""
    value = config.segment_bytes.value
    assert isinstance(value, int)
    return value


def _bounds(rewritten: Sequence[SegmentFacts], headers: Sequence[HeaderFacts]) -> Bounds:
    return Bounds(
        None if any(one.wrappers for one in headers) else sum(one.records for one in headers),
        sum(one.size_bytes for one in rewritten),
        any(one.legacy for one in headers),
    )


def _first_dirty(facts: LogFacts, choices: Choices) -> tuple[int, str]:
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
        return Reason("all closed segments are clean or cleanable; the active one is empty", until="after it rolls")
    what = f"the active segment, offsets {active} to {facts.log_end_offset - 1}, is never cleaned"
    return Reason(what, until="after it rolls")


def _high_watermark(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    mark = facts.high_watermark
    what = f"nothing from the high watermark {mark.offset} on is cleaned, as it may not be replicated"
    return Reason(what, mark.source, "when it is, or with --high-watermark OFFSET|end")


def _last_stable_offset(facts: LogFacts, _config: TopicConfig, _found: CleanRange, _now_ms: int) -> Reason:
    first = facts.open_transactions[0]
    where = "" if facts.high_watermark.offset >= facts.log_end_offset else " below the high watermark"
    what = f"the last stable offset is {facts.last_stable_offset}: the transaction of producer {first.producer_id}"
    return Reason(f"{what}, open since offset {first.first_offset}, has no marker{where}", until="once it has ended")


def _min_compaction_lag(facts: LogFacts, config: TopicConfig, found: CleanRange, now_ms: int) -> Reason:
    name = "min.compaction.lag.ms"
    lag = config.integer(name)
    young = too_young(facts.segments, found.first_dirty_offset, lag, now_ms)
    assert young is not None, "or it would not have bounded the range"
    why = f"the segment from {young.base_offset} on has records of {utc(young.largest_timestamp)}"
    return config_reason(name, config[name], why, f"from {utc(young.largest_timestamp + lag)} on")


_BOUND_REASONS: Mapping[Bound, Callable[[LogFacts, TopicConfig, CleanRange, int], Reason]] = {
    Bound.ACTIVE_SEGMENT: _active_segment,
    Bound.HIGH_WATERMARK: _high_watermark,
    Bound.LAST_STABLE_OFFSET: _last_stable_offset,
    Bound.MIN_COMPACTION_LAG: _min_compaction_lag,
}


def decide(
    compaction: Compaction, facts: LogFacts, config: TopicConfig, choices: Choices, now_ms: int
) -> tuple[Decision, Reason]:
    """Whether a log is cleaned, and why."""
    if not compaction.cleanable_bytes:
        return Decision.LEAVE, _nothing_dirty(compaction, facts)
    end = compaction.range.first_uncleanable_offset
    for segment, headers in zip(facts.segments, facts.headers, strict=True):
        if segment.base_offset < end and headers.damage:
            return Decision.REFUSE, Reason(f"damaged: {headers.damage}", until="once it is repaired")
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
        return Decision.CLEAN, config_reason(late, config[late], f"the oldest dirty batch should have gone by {due}")
    until = _when_due(facts, config, compaction) if least < 1 else "only with --ignore-ratio"
    return Decision.LEAVE, config_reason(name, config[name], f"{dirty}, it needs {needed}", until)


def is_due_again(
    segments: Sequence[SegmentFacts],
    headers: Sequence[HeaderFacts],
    first_dirty: int,
    first_uncleanable: int,
    threshold: Threshold,
    now_ms: int,
) -> bool:
    """Whether a log is cleaned once more after a clean of the same range that did not reach its end.

    Args:
        segments: all of the log, by base offset; the last is active.
        headers: of each segment; only the first timestamp counts.
        first_dirty: where the clean ended.
        first_uncleanable: where the range ends.
        threshold: of the log.
        now_ms: the time of the clean.
    """
    # Segments behind the one that the clean ended in are as they were, and none of them was too young.
    holder = [one for one in segments if one.base_offset <= first_dirty][-1:]
    behind = [one for one in segments if one.base_offset > first_dirty][:1]
    if too_young([*holder, *behind], first_dirty, threshold.min_compaction_lag_ms, now_ms) is not None:
        return False
    dirty = sum(one.size_bytes for one in values(segments, first_dirty, first_uncleanable))
    clean = sum(one.size_bytes for one in segments if one.base_offset < first_dirty)
    lag = threshold.max_compaction_lag_ms
    late = overdue_ms(segments, headers, first_dirty, max_compaction_lag_ms=lag, now_ms=now_ms) > 0
    return dirty > 0 and (late or dirty / (clean + dirty) > threshold.cleanable_ratio)


def _when_due(facts: LogFacts, config: TopicConfig, compaction: Compaction) -> str:
    lag = config.integer("max.compaction.lag.ms")
    earliest = _earliest_dirty(facts.segments, facts.headers, compaction.range.first_dirty_offset)
    due = "" if earliest is None else utc(earliest + lag + 1)
    late = f", from {due} on by max.compaction.lag.ms={lag}" if due.endswith("UTC") else ""
    return f"once more is dirty{late}, or with --ignore-ratio"


def _nothing_dirty(compaction: Compaction, facts: LogFacts) -> Reason:
    first = compaction.range.first_dirty_offset
    if facts.log_end_offset <= facts.log_start_offset:
        return Reason("the log is empty", until="after something is written and its segment rolls")
    if first >= facts.log_end_offset:
        return Reason(
            f"nothing is dirty: the log ends at {facts.log_end_offset}",
            compaction.first_dirty_reason,
            "after more is written and its segment rolls",
        )
    if compaction.range.bound is Bound.ACTIVE_SEGMENT:
        what = f"the active segment holds all dirty data, offsets {first} to {facts.log_end_offset - 1}"
        return Reason(what, until="after it rolls")
    return compaction.bound_reason


def hint(compaction: Compaction, *, deletes_for_good: bool) -> str:
    """What lets expired tombstones go when nothing is dirty; empty when none are there, or something is dirty."""
    if compaction.cleanable_bytes or not compaction.expired_batches:
        return ""
    what = f"--first-dirty 0 lets go of expired tombstones and markers, which {compaction.expired_batches} batches"
    return what + (" may hold" if deletes_for_good else " may hold; with --single-copy, if there is no other replica")


# ---- retention -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """One pass of retention over what the passes before it left.

    Attributes:
        name: `log start offset`, or of the config that gives the limit.
        policy: the word that `cleanup.policy` must have; empty: none.
        wanted: how many segments it would take, oldest first. Arguments: the segments, the limit (for the log start
            offset that one), now_ms.
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
    """Which segments retention takes.

    Args:
        segments: all of the log, by base offset; the last is active.
        log_start_offset, log_end_offset: of the log.
        high_watermark: no segment is taken that reaches above it.
        limits: of the rules that apply, by their names; a negative one is none. The log start offset always applies.
        now_ms: the time of the run.

    Returns:
        per rule that takes some: its name, the base offsets of the segments, and their bytes.
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
        # When all may go, Kafka rolls first, so that there is an active segment afterwards.
        left = left[count:] or [SegmentFacts(log_end_offset, 0, 0, 0, now_ms, now_ms)]
    return tuple(taken)


def _replicated(segments: Sequence[SegmentFacts], log_end_offset: int, high_watermark: int) -> int:
    """How many of the segments retention may take at all; an empty active segment is not one of them."""
    uppers = [one.base_offset for one in segments[1:]] + [log_end_offset]
    count = sum(1 for upper in uppers if upper <= high_watermark)
    return count - (count == len(segments) and not segments[-1].size_bytes)


def retention(
    facts: LogFacts, config: TopicConfig, beyond_doubt: Callable[[str], bool], now_ms: int
) -> tuple[tuple[Taken, ...], tuple[str, ...]]:
    """What retention takes from a log whose policy is known, and which limits it leaves aside.

    Args:
        facts: of the log.
        config: of the topic.
        beyond_doubt: whether somebody set a config, by its name, and it can be nothing else.
        now_ms: the time of the run.
    """
    limits, notes = {}, []
    for rule in RETENTION_RULES:
        if rule.policy in config.policy:
            if beyond_doubt(rule.name):
                limits[rule.name] = config.integer(rule.name)
            elif config.integer(rule.name) >= 0:
                limit = show(config[rule.name].value)
                notes.append(f"{rule.name} is set by nobody: Kafka's default, {limit}, deletes nothing here")
    mark = facts.high_watermark.offset
    taken = plan_retention(facts.segments, facts.log_start_offset, facts.log_end_offset, mark, limits, now_ms)
    by_name = {
        name: config_reason(name, config[name]) if name in limits else Reason(f"{name} {facts.log_start_offset}")
        for name, _, _ in taken
    }
    return tuple(Taken(name, bases, size, by_name[name]) for name, bases, size in taken), tuple(notes)
