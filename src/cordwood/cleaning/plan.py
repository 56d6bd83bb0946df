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

from cordwood.config import ConfigValue, show
from cordwood.option import SINGLE_COPY, Option
from cordwood.presentable import Presentable
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint
from cordwood.types import NONE, TopicPartition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# ---- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What planning needs of one segment.

    Attributes:
        index_bytes, time_index_bytes: of its entries, without room for more.
        largest_timestamp: as a load finds it: of its time index, or of its batches where the load rebuilds that; else
            its mtime_ms.
        disk_bytes: of its files, in blocks.
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
    """What the batch headers of one segment add up to.

    Attributes:
        first_timestamp: the largest of its first batch; NONE without any.
        records: that are no markers; a wrapper of magic 0 or 1 counts as one.
        wrappers: it has some, so there are more records.
        legacy: it has batches of magic 0 or 1, which a clean may make larger.
        compressed_bytes: of its batches that are.
        plain_records: in its batches that are not, markers included; each message of magic 0 or 1 is one.
        transactional_batches: markers, and data of transactions.
        expired_batches: whose delete horizon has passed; they may hold tombstones, or are markers, that may go.
        damage: where its batches do not follow each other, in words; empty when they do.
        expired_bytes: of the expired batches.
        waiting_bytes: of batches whose delete horizon is still to come.
        last_horizon_ms: the latest of these horizons; NONE without any.
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
        high_watermark: of the log, within the two.
        checkpoint: the cleaner's first dirty offset; None if it has none.
        own_checkpoint: of a clean with `--min-dead`, if it is of the log as it is now.
        open_transactions: as of the high watermark, by first offset.
        first_unstable_offset: base offset of the first batch that is there of those from the first open transaction
            on, which may have begun below the log start or have lost batches to a clean. None: nothing is open there.
    """

    segments: tuple[SegmentFacts, ...]
    headers: tuple[HeaderFacts, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: HighWatermark
    checkpoint: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()
    first_unstable_offset: int | None = None
    own_checkpoint: CleanCheckpoint | None = None

    @property
    def last_stable_offset(self) -> int:
        """Nothing from here on may be cleaned: all below is replicated, and committed or aborted."""
        if self.first_unstable_offset is None:
            return self.high_watermark.offset
        return min(self.high_watermark.offset, self.first_unstable_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How the user wants partitions to be cleaned.

    `strict_kafka` follows Kafka wherever Cordwood would do better: keys are distinguished by MD5, in a map of the size
    that Kafka gives it even where no config sets one, and a partition fails where Kafka's cleaner fails for good. It
    then stays as it was, though Kafka keeps what it finished before. The guards of other replicas are not part of
    Kafka's cleaner and stay: see `single_copy` and `high_watermark`.
    """

    PANEL: ClassVar[str] = "How partitions are cleaned"

    ignore_ratio: Annotated[bool, Option("Clean even if min.cleanable.dirty.ratio is not reached.")] = False
    first_dirty: Annotated[
        int | None, Option("Clean from this offset on, instead of from the cleaner's checkpoint.", metavar="OFFSET")
    ] = None
    high_watermark: Annotated[
        int | Literal["end"] | None,
        Option(
            "The offset up to which all replicas have the log (end: all of it). Nothing from there on is cleaned. "
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
        bool, Option("Read the whole log, even where key indexes say that parts of it hold nothing to clean.")
    ] = False
    min_dead: Annotated[
        float | None,
        Option(
            "In place, with key indexes: leave superseded records of up to this share of the log, such as 10%, where "
            "they are, and write only segments that are worth it. Default: none are left, as by Kafka.",
            metavar="SHARE",
        ),
    ] = None


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
    def offsets(self) -> int:
        """How many offsets are dirty."""
        return self.first_uncleanable_offset - self.first_dirty_offset

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to clean."""
        return self.first_dirty_offset >= self.first_uncleanable_offset


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds on what a clean removes. Only a clean, or one on trial, knows how much does.

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
        first_dirty_reason: what the start was set by.
        bound_reason: what the end was set by.
        clean_bytes, cleanable_bytes: of segments below and above the first dirty offset, as Kafka counts them: the
            segment it lies in the middle of counts in both.
        overdue_ms: for how long `max.compaction.lag.ms` has been exceeded; 0 when it is not.
        log_bytes: of all segments, those that are not cleaned among them.
        groups: base offsets of the segments that become one.
        group_bytes: the most that the outputs of each group take on disk, see `waves.work_bytes`.
        group_bytes_expected: the same if no record goes, and what is rebuilt compresses as it did. After a clean on
            trial both are exact, and empty where it failed.
        bounds: the most that can go.
        expired_batches: batches in the range whose delete horizon has passed.
        transactional_batches: markers, and data of transactions, in the range.
        garbage_share: how much garbage a clean may leave, as a share of the range; 0: none, as by Kafka.
        garbage_bytes: what an earlier clean left, about.
        restart: where a cleaner begins that knows nothing of garbage, if that is not the first dirty offset.
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
    garbage_share: float = 0.0
    garbage_bytes: int = 0
    restart: int | None = None

    @property
    def total_bytes(self) -> int:
        """What the ratio is of."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float | None:
        """Which part is dirty; None when there is nothing."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else None

    @property
    def dirty_part(self) -> float:
        """Which part of the records is dirty, at most; the ratio counts all of a segment."""
        records = self.bounds.records_max
        return min(1.0, self.range.offsets / records) if records else 1.0

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
        load_factor: the part of them that is filled.
        keys: how many that is, at most, in a round.
    """

    slots: int
    load_factor: float
    keys: int
    source: str


@dataclass(frozen=True, slots=True)
class Division:
    """How the clean of a partition is divided among tasks.

    Attributes:
        staged: many tasks clean it, stage by stage; else one task does.
        run_bytes: about how much of the log each task scans, in bytes; 0: one task.
        runs: about how many such tasks there are.
        reason: why there are many, in words; empty: one task.
        table_keys: how many dirty keys there are at most, if all records are looked up in a table of them; 0: records
            are compared in chunks, or by Kafka's offset map.
    """

    staged: bool = False
    run_bytes: int = 0
    runs: int = 1
    reason: str = ""
    table_keys: int = 0


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What will become of one partition.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        high_watermark: of the log; None where it is not needed.
        compaction: None where there will never be any.
        retention: what old segments are deleted, after the clean. It counts each group as one segment, with the sizes
            and times before the clean.
        only_with_retention: what retention would delete in the same way if it were asked for; nothing deletes it now.
            Empty where it was asked for.
        replicas: how many there are; None when it is not known.
        deletes_for_good: tombstones and markers may go when their time has come: there is no other replica.
        settings: the configs that a clean goes by.
        offset_map: what limits each of its rounds; None: nothing, and there is one round.
        division: how its clean is divided among the tasks of this machine; None where it is not cleaned.
        notes: what else is worth knowing.
        hint: what the user may want to do.
        cause: what keeps it from being smaller, in a line, see `why`; empty where that was not asked for.
        is_unreadable: the file system did not give its files, which is no damage.
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
    settings: tuple[Setting, ...] = ()
    offset_map: OffsetMapSize | None = None
    division: Division | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""
    is_unreadable: bool = False
    cause: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The partition's, or its directory's."""
        return self.path if self.topic_partition is None else str(self.topic_partition)

    @property
    def changes(self) -> bool:
        """Whether the partition will be another one afterwards."""
        return self.decision is Decision.CLEAN or bool(self.retention)

    @property
    def retained_away(self) -> tuple[int, ...]:
        """Base offsets of the segments that retention takes."""
        return tuple(base for taken in self.retention for base in taken.base_offsets)

    @property
    def bytes_retained_away(self) -> int:
        """Bytes of their logs."""
        return sum(taken.size_bytes for taken in self.retention)

    def setting(self, name: str) -> int | float:
        """The value of one of the settings."""
        return next(one.value for one in self.settings if one.name == name)


@dataclass(frozen=True, slots=True)
class RetentionTotals:
    """What retention deletes, or would delete, in all partitions of a plan.

    Attributes:
        size_bytes: of the logs of these segments.
    """

    partitions: int = 0
    segments: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, taken: Sequence[Sequence[Taken]]) -> RetentionTotals:
        """The sums of what the rules take, given by partition."""
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
        partitions_to_clean, partitions_left_alone, partitions_refused: how many there are of each decision.
        segments, segments_after: segments in the ranges of all partitions, and how many a clean of all would leave.
        clean_bytes, cleanable_bytes: of all partitions, see `Compaction`.
        records_max, bytes_max: the most that can go from partitions that are cleaned, see `Bounds`.
        only_with_retention: what it would delete if it were asked for.
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

    @classmethod
    def of(cls, partitions: Sequence[PartitionPlan]) -> PlanTotals:
        """The sums over some partitions."""
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
        )


@dataclass(frozen=True, slots=True)
class Plan(Presentable):
    """What will become of partitions, all at one time.

    Attributes:
        now_ms: the time that everything is decided by.
    """

    now_ms: int
    partitions: tuple[PartitionPlan, ...]
    choices: Choices = field(default_factory=Choices)

    def with_decision(self, decision: Decision) -> tuple[PartitionPlan, ...]:
        """The partitions with one decision."""
        return tuple(one for one in self.partitions if one.decision is decision)

    @property
    def totals(self) -> PlanTotals:
        """Sums over all partitions."""
        return PlanTotals.of(self.partitions)

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.with_decision(one))} to {one}" for one in Decision)
        return f"Plan of {utc(self.now_ms)}: {counts}"


def utc(timestamp_ms: int) -> str:
    """A time for people; one that is no date, as the number it is."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    fraction = f".{timestamp_ms % 1000:03}" if timestamp_ms % 1000 else ""
    return f"{moment.replace(tzinfo=None).isoformat(' ', 'seconds')}{fraction} UTC"


def config_reason(name: str, value: ConfigValue, why: str = "", until: str = "") -> Reason:
    """A reason that is a config."""
    source = str(value.source) if value.set_as == name else f"{value.set_as}, {value.source}"
    return Reason(f"{name}={show(value.value) or '(empty)'}" + (f": {why}" if why else ""), source, until)
