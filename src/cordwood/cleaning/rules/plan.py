"""The values of a plan: its facts, the user's choices, and the decision for each partition.

All are frozen values, to print, pickle and compare. Facts come from names, sizes, indexes, checkpoints and batch
headers; `commands.plan` collects them and passes them to `selection` and `retention`, which decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from cordwood.common.arguments import SINGLE_COPY, Option
from cordwood.common.config import ConfigValue, show
from cordwood.common.text import Presentable
from cordwood.common.types import NONE, TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts about one segment that planning needs.

    Attributes:
        index_bytes, time_index_bytes: size of the index entries, without preallocated space.
        largest_timestamp: the value that a load would set: from the time index, or from the batches if the load
            rebuilds the index; else the mtime_ms.
        disk_bytes: blocks of the segment's files, in bytes.
    """

    base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int
    mtime_ms: int
    largest_timestamp: int
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """Totals over the batch headers of one segment, or estimates of the totals from a sample of the headers.

    Attributes:
        first_timestamp: the largest timestamp of its first batch; NONE without batches.
        records: number of records other than markers; a wrapper of magic 0 or 1 counts as one.
        wrappers: whether it has wrappers, so that there are more records than `records`.
        legacy: whether it has batches of magic 0 or 1, which a clean may make larger.
        compressed_bytes: size of its compressed batches.
        plain_records: number of records in its uncompressed batches, markers included; each message of magic 0 or 1
            counts as one.
        transactional_batches: number of markers and of data batches of transactions.
        expired_batches: number of batches whose delete horizon has passed: their tombstones, or the batch itself if it
            is a marker, may be removed.
        damage: where its batches are not contiguous, in words; empty if they are.
        expired_bytes: size of the expired batches.
        waiting_bytes: size of the batches whose delete horizon is in the future.
        last_horizon_ms: the latest of these horizons; NONE without any.
        is_sampled: whether only a sample was read. All totals but `first_timestamp` are then estimates, and `damage` is
            that of the sample.
        records_error: twice the standard error of `records`.
    """

    first_timestamp: int = NONE
    records: int = 0
    wrappers: bool = False
    legacy: bool = False
    compressed_bytes: int = 0
    plain_records: int = 0
    markers: int = 0
    transactional_batches: int = 0
    expired_batches: int = 0
    damage: str = ""
    expired_bytes: int = 0
    waiting_bytes: int = 0
    last_horizon_ms: int = NONE
    is_sampled: bool = False
    records_error: int = 0


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """The high watermark, below which all replicas have every record, and the source of this value."""

    offset: int
    source: str


@dataclass(frozen=True, slots=True)
class BlockingTransaction:
    """A transaction whose marker is not below the high watermark."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class AgreedRange:
    """The range that a joint clean covers in all replicas of a partition.

    Attributes:
        first_dirty_offset: the lowest first dirty offset of all replicas.
        first_uncleanable_offset: the lowest end of all replicas' own ranges; not always a segment's base offset.
        first_dirty_reason, bound_reason: the reasons, of the replicas that set them.
        bound: `REPLICAS`, or the own limit of all replicas if their ranges end alike.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    first_dirty_reason: str
    bound_reason: Reason
    bound: Bound


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about one log that planning needs.

    Attributes:
        segments: by base offset; the last is active.
        high_watermark: high watermark, limited to the offsets of the log.
        checkpoint: the cleaner's first dirty offset; None without an entry.
        open_transactions: open transactions as of the high watermark, by first offset.
        first_unstable_offset: base offset of the first existing batch at or after the start of the first open
            transaction, which may be below the log start or in batches that a clean removed. None if no transaction is
            open.
        local_start_offset: in a clean in a tier, the first offset that is still on a disk; segments from there on stay.
        agreed: in a joint clean, the range of all replicas.
    """

    segments: tuple[SegmentFacts, ...]
    headers: tuple[HeaderFacts, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: HighWatermark
    checkpoint: int | None = None
    open_transactions: tuple[BlockingTransaction, ...] = ()
    first_unstable_offset: int | None = None
    local_start_offset: int | None = None
    agreed: AgreedRange | None = None

    @property
    def last_stable_offset(self) -> int:
        """Lower bound of the uncleanable offsets: all records below are replicated, and committed or aborted."""
        if self.first_unstable_offset is None:
            return self.high_watermark.offset
        return min(self.high_watermark.offset, self.first_unstable_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The user's choices for cleaning partitions.

    `strict_kafka` follows Kafka wherever Cordwood would do better: it distinguishes keys by MD5, in a map of Kafka's
    size even if no config sets one, and a partition fails where Kafka's cleaner fails for good. The partition then
    stays unchanged, though Kafka would keep the groups that it finished before. The guards that protect other replicas
    (`single_copy`, `high_watermark`) still apply, though Kafka's cleaner has none.
    """

    PANEL: ClassVar[str] = "How partitions are cleaned"

    ignore_ratio: Annotated[bool, Option("Clean even if min.cleanable.dirty.ratio is not reached.")] = False
    first_dirty: Annotated[
        int | None, Option("Clean from this offset on, instead of from the cleaner's checkpoint.", metavar="OFFSET")
    ] = None
    high_watermark: Annotated[
        int | Literal["end"] | None,
        Option(
            "The offset below which all replicas have the log (end: all of it). Nothing from there on is cleaned. "
            "Default: its checkpoint.",
            metavar="OFFSET|end",
        ),
    ] = None
    retention: Annotated[
        bool, Option("Also apply retention.ms and retention.bytes, where set explicitly, and the log start offset.")
    ] = False
    single_copy: Annotated[bool, SINGLE_COPY] = False
    offset_map: Annotated[
        int | None,
        Option(
            "Clean in rounds, as Kafka does with an offset map of this size. "
            "Default: log.cleaner.dedupe.buffer.size where it is set, else one round.",
            metavar="BYTES",
        ),
    ] = None
    strict_kafka: Annotated[
        bool, Option("Do exactly what Kafka's cleaner does: use its offset map, and fail where it fails.")
    ] = False
    memory: Annotated[
        int | None,
        Option("Memory for keys per machine, such as 512m or 4g. Default: a quarter of RAM.", metavar="BYTES"),
    ] = None
    read_all: Annotated[
        bool, Option("Read the whole log, even the parts without anything to clean by their key indexes.")
    ] = False


@dataclass(frozen=True, slots=True)
class Threshold:
    """How dirty a log must be to be cleaned.

    Attributes:
        cleanable_ratio: `min.cleanable.dirty.ratio`; the dirty share must exceed it. Below 0 if the share is ignored.
        min_compaction_lag_ms, max_compaction_lag_ms: `min.compaction.lag.ms`, `max.compaction.lag.ms`.
    """

    cleanable_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1


# ---- the plan --------------------------------------------------------------------------------------------------------


class Decision(StrEnum):
    """The decision for a partition, apart from retention."""

    CLEAN = "clean"
    LEAVE = "leave alone"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a decision.

    Attributes:
        what: the deciding config or fact, in words.
        source: source of the config; empty for a fact of the log itself.
        until: when this changes; empty if no such time is known.
    """

    what: str
    source: str = ""
    until: str = ""

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return self.what + source + (f"; {self.until}" if self.until else "")


class Bound(StrEnum):
    """The limit that sets the end of a clean's range."""

    ACTIVE_SEGMENT = "active segment"
    HIGH_WATERMARK = "high watermark"
    LAST_STABLE_OFFSET = "last stable offset"
    MIN_COMPACTION_LAG = "min.compaction.lag.ms"
    LOCAL_LOG_START = "local log start"
    REPLICAS = "other replicas"


@dataclass(frozen=True, slots=True)
class CleanRange:
    """The part of a log that a clean covers.

    Attributes:
        first_dirty_offset: first offset whose key is read.
        first_uncleanable_offset: end of the range; the base offset of a segment, or of one that a joint clean splits.
        bound: the limit that set the end.
        bound_offset: the offset of that limit, before it was lowered to the base of a segment.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    bound: Bound
    bound_offset: int

    @property
    def offsets(self) -> int:
        """Number of dirty offsets."""
        return self.first_uncleanable_offset - self.first_dirty_offset

    @property
    def is_empty(self) -> bool:
        """Whether the range is empty."""
        return self.first_dirty_offset >= self.first_uncleanable_offset


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds on a clean's removals. Only a clean, or a trial of one, finds the exact figures.

    Attributes:
        records_max: None if wrappers of magic 0 or 1 hide the number of records. From a sample, the estimate and twice
            its standard error, if that is less than the number of offsets.
        bytes_max: bytes of all segments that are rewritten.
        may_grow: whether batches of magic 0 or 1 become larger ones of magic 2.
    """

    records_max: int | None = 0
    bytes_max: int = 0
    may_grow: bool = False


@dataclass(frozen=True, slots=True)
class Compaction:
    """The pending compaction of one log, whether or not it will be done.

    Attributes:
        first_dirty_reason: reason for the start of the range.
        bound_reason: reason for the end of the range.
        clean_bytes, cleanable_bytes: size of the segments below and above the first dirty offset, as Kafka counts them:
            a segment that contains the offset counts in both.
        overdue_ms: by how much `max.compaction.lag.ms` is exceeded; 0 if it is not.
        log_bytes: size of all segments, including those outside the range.
        groups: base offsets of the segments that are merged into one, per group.
        group_bytes: upper bound of each group's outputs on disk, see `waves.work_bytes`.
        group_bytes_expected: the same if no record is dropped and rebuilt batches compress as before. After a trial
            clean both are exact, and empty if the trial failed.
        bounds: upper bounds on the removals.
        expired_batches: number of batches in the range whose delete horizon has passed.
        transactional_batches: number of markers and data batches of transactions in the range.
        estimates: names of the figures that come from a sample of the headers. None of them decides whether the log is
            cleaned, or up to where.
    """

    range: CleanRange
    first_dirty_reason: str
    bound_reason: Reason
    clean_bytes: int
    cleanable_bytes: int
    overdue_ms: int
    log_bytes: int
    groups: tuple[tuple[int, ...], ...]
    group_bytes: tuple[int, ...]
    group_bytes_expected: tuple[int, ...]
    bounds: Bounds
    expired_batches: int
    transactional_batches: int
    estimates: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Denominator of the cleanable ratio, in bytes."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes that the tasks read: once to find superseded records, once to copy the survivors."""
        return 2 * self.total_bytes

    @property
    def cleanable_ratio(self) -> float | None:
        """Dirty share of the bytes; None if there are no bytes."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else None

    @property
    def may_be_transactional(self) -> bool:
        """Whether markers or data of transactions may be in the range: a sample does not exclude them."""
        return self.transactional_batches > 0 or "transactional_batches" in self.estimates

    @property
    def dirty_part(self) -> float:
        """Upper bound of the dirty share of the records; the ratio counts whole segments."""
        records = self.bounds.records_max
        return min(1.0, self.range.offsets / records) if records else 1.0

    @property
    def must_compact_now(self) -> bool:
        """Whether `max.compaction.lag.ms` overrides the ratio."""
        return self.overdue_ms > 0 and self.cleanable_bytes > 0


@dataclass(frozen=True, slots=True)
class Taken:
    """The segments that one retention rule deletes.

    Attributes:
        rule: `log start offset` or the name of a config.
        base_offsets: base offsets of the segments: the oldest that the earlier rules have left.
    """

    rule: str
    base_offsets: tuple[int, ...]
    size_bytes: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Setting:
    """A config that a clean uses, and its source."""

    name: str
    value: int | float
    source: str


@dataclass(frozen=True, slots=True)
class OffsetMapSize:
    """Kafka's offset map, which ends a round of a clean when it is full.

    Attributes:
        load_factor: the share of the slots that is filled.
        keys: maximum number of keys in a round.
    """

    slots: int
    load_factor: float
    keys: int
    source: str


@dataclass(frozen=True, slots=True)
class Division:
    """How the clean of a partition is divided among tasks.

    Attributes:
        staged: whether many tasks clean it, stage by stage, instead of one task.
        run_bytes: approximate bytes of the log that each task scans; 0 for one task.
        runs: approximate number of such tasks.
        reason: why there are many tasks, in words; empty for one task.
        table_keys: upper bound of the dirty keys, if all records are looked up in a table of them; 0 if records are
            compared in chunks or by Kafka's offset map.
    """

    staged: bool = False
    run_bytes: int = 0
    runs: int = 1
    reason: str = ""
    table_keys: int = 0


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The plan for one partition.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        high_watermark: the log's high watermark; None if it is not needed.
        compaction: None if the log will never be compacted.
        retention: old segments that are deleted after the clean, as far as can be planned: as if each group were one
            segment already, with the sizes and times before the clean.
        only_with_retention: segments that retention would delete if the user chose it; nothing deletes them now. Empty
            if the user chose it.
        replicas: number of replicas; None if unknown.
        deletes_for_good: whether expired tombstones and markers may be removed: there is no other replica.
        jointly: whether all replicas are cleaned alike, so that tombstones and markers go that have expired in all.
        settings: the configs that the clean uses.
        offset_map: the map that limits each round; None if there is one round without a limit.
        division: how the clean is divided among the tasks of this machine; None if there is no clean.
        notes: further facts for the user.
        hint: suggestion to the user.
        cause: main cause of the size, in a line, see `why`; empty if the user did not choose it.
        is_unreadable: whether the file system failed to read its files, which is not damage.
        broker: name of the broker, if the plan is for the replicas of several brokers.
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
    only_with_retention: tuple[Taken, ...] = ()
    replicas: int | None = None
    deletes_for_good: bool = False
    jointly: bool = False
    settings: tuple[Setting, ...] = ()
    offset_map: OffsetMapSize | None = None
    division: Division | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""
    is_unreadable: bool = False
    cause: str = field(default="", compare=False)
    broker: str = ""

    @property
    def name(self) -> str:
        """The partition's name, or its directory's; with the broker, if there are several."""
        name = self.path if self.topic_partition is None else str(self.topic_partition)
        return f"{name} (broker {self.broker})" if self.broker else name

    @property
    def changes(self) -> bool:
        """Whether the clean or retention changes the partition."""
        return self.decision is Decision.CLEAN or bool(self.retention)

    @property
    def retained_away(self) -> tuple[int, ...]:
        """Base offsets of the segments that retention deletes."""
        return tuple(base for taken in self.retention for base in taken.base_offsets)

    @property
    def bytes_retained_away(self) -> int:
        """Size of the logs of the segments that retention deletes."""
        return sum(taken.size_bytes for taken in self.retention)

    def setting(self, name: str) -> int | float:
        """Return the value of one of the settings."""
        return next(one.value for one in self.settings if one.name == name)


@dataclass(frozen=True, slots=True)
class RetentionTotals:
    """The segments that retention deletes, or would delete, in all partitions of a plan.

    Attributes:
        size_bytes: size of the logs of these segments.
    """

    partitions: int = 0
    segments: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, taken: Sequence[Sequence[Taken]]) -> RetentionTotals:
        """Sum up what the rules delete, given by partition."""
        every = [one for rules in taken for one in rules]
        return cls(
            sum(1 for rules in taken if rules),
            sum(len(one.base_offsets) for one in every),
            sum(one.size_bytes for one in every),
        )


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """Sums over all partitions of a plan.

    Attributes:
        partitions_to_clean, partitions_left_alone, partitions_refused: number of partitions per decision.
        segments, segments_after: number of segments in the ranges of all partitions, before and after a clean of all.
        clean_bytes, cleanable_bytes: sums over all partitions, see `Compaction`.
        records_max, bytes_max: upper bounds on the removals from cleaned partitions, see `Bounds`.
        estimates: names of the sums that include estimates, see `Compaction`.
        only_with_retention: deletions by retention if the user chose it.
    """

    partitions: int
    partitions_to_clean: int
    partitions_left_alone: int
    partitions_refused: int
    segments: int
    segments_after: int
    clean_bytes: int
    cleanable_bytes: int
    records_max: int | None
    bytes_max: int
    retention: RetentionTotals
    only_with_retention: RetentionTotals
    estimates: tuple[str, ...] = ()

    @classmethod
    def of(cls, partitions: Sequence[PartitionPlan]) -> PlanTotals:
        """Sum up some partitions."""
        decisions = [one.decision for one in partitions]
        compactions = [one.compaction for one in partitions if one.compaction is not None]
        cleaned = [
            one.compaction for one in partitions if one.decision is Decision.CLEAN and one.compaction is not None
        ]
        records = [one.bounds.records_max for one in cleaned]
        known = [count for count in records if count is not None]
        return cls(
            partitions=len(partitions),
            partitions_to_clean=decisions.count(Decision.CLEAN),
            partitions_left_alone=decisions.count(Decision.LEAVE),
            partitions_refused=decisions.count(Decision.REFUSE),
            segments=sum(len(group) for one in compactions for group in one.groups),
            segments_after=sum(len(one.groups) for one in compactions),
            clean_bytes=sum(one.clean_bytes for one in compactions),
            cleanable_bytes=sum(one.cleanable_bytes for one in compactions),
            records_max=sum(known) if len(known) == len(records) else None,
            bytes_max=sum(one.bounds.bytes_max for one in cleaned),
            retention=RetentionTotals.of([one.retention for one in partitions]),
            only_with_retention=RetentionTotals.of([one.only_with_retention for one in partitions]),
            estimates=tuple({"records_max" for one in cleaned if "records_max" in one.estimates}),
        )


@dataclass(frozen=True, slots=True)
class Plan(Presentable):
    """The plan for some partitions, all at one time.

    Attributes:
        now_ms: the time on which all decisions are based.
    """

    now_ms: int
    partitions: tuple[PartitionPlan, ...]
    choices: Choices = field(default_factory=Choices)

    def with_decision(self, decision: Decision) -> tuple[PartitionPlan, ...]:
        """Return the partitions with one decision."""
        return tuple(one for one in self.partitions if one.decision is decision)

    @property
    def totals(self) -> PlanTotals:
        """Sums over all partitions."""
        return PlanTotals.of(self.partitions)

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.with_decision(one))} to {one}" for one in Decision)
        return f"Plan of {utc(self.now_ms)}: {counts}"


def utc(timestamp_ms: int) -> str:
    """Format a time for people; outside the calendar, as the bare number."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    fraction = f".{timestamp_ms % 1000:03}" if timestamp_ms % 1000 else ""
    return f"{moment.replace(tzinfo=None).isoformat(' ', 'seconds')}{fraction} UTC"


def config_reason(name: str, value: ConfigValue, why: str = "", until: str = "") -> Reason:
    """Make a reason of a config."""
    source = str(value.source) if value.set_as == name else f"{value.set_as}, {value.source}"
    return Reason(f"{name}={show(value.value) or '(empty)'}" + (f": {why}" if why else ""), source, until)
