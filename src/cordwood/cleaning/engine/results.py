"""The results of a clean, partition by partition, as values that can be added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from cordwood.cleaning.engine.partition import Cleaned
from cordwood.cleaning.engine.task import Failure, FailureKind, Output
from cordwood.cleaning.rules.plan import Decision, PartitionPlan, Plan
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.common.text import Paged, Presentable
from cordwood.common.types import TopicPartition
from cordwood.storage.node.node import LocatedPartition


class Fate(StrEnum):
    """Outcome of a partition."""

    CLEANED = "cleaned"
    COPIED = "copied"  # nothing to clean, or no reason to
    LEFT = "left alone"  # like COPIED, in a clean in place
    FAILED = "failed"  # the clean failed; the partition is unchanged, or was copied unchanged


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """Result for one segment.

    Attributes:
        outputs: base offsets of its group's outputs.
        counts: records, batches and bytes read, kept, dropped.
    """

    base_offset: int
    outputs: tuple[int, ...]
    counts: Counts


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Result for one partition.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        why: the plan's reason; for a failed partition the error, with its place.
        counts: records, batches and bytes read, kept, dropped.
        bytes_before, bytes_after: size of all its `.log` files, without zeros behind the last batch.
        end_offset: its new first dirty offset; None if it was not cleaned.
        probed: whether all records were looked up in a table of the dirty keys, as little was dirty.
        segments: results of each rewritten segment, by base offset; they add up to `counts`. Empty if
            Kafka's offset map made several rounds necessary, or a joint clean removed tombstones in a second pass.
        left_out_bytes: size of whole batches that its copy lacks: they are after damage that a crash left, or the log
            ends below its start.
        broker: name of the broker, if the directories of several were cleaned.
        jointly: whether all replicas of the partition were cleaned alike.
    """

    path: str
    topic_partition: TopicPartition | None
    fate: Fate
    why: str
    counts: Counts = field(default_factory=Counts)
    bytes_before: int = 0
    bytes_after: int = 0
    end_offset: int | None = None
    probed: bool = False
    segments_retained_away: int = 0
    bytes_retained_away: int = 0
    segments: tuple[SegmentResult, ...] = ()
    notes: tuple[str, ...] = ()
    failure: Failure | None = None
    left_out_bytes: int = 0
    broker: str = ""
    jointly: bool = False

    @property
    def name(self) -> str:
        """The partition's name, or its directory's; with the broker, if there are several."""
        name = self.path if self.topic_partition is None else str(self.topic_partition)
        return f"{name} (broker {self.broker})" if self.broker else name


@dataclass(frozen=True, slots=True)
class InPlace:
    """Figures of a clean in place only.

    Attributes:
        waves: number of waves.
        work_bytes_max: maximum size of outputs at a time, beside the segments that they replaced.
        proof_bytes_max: maximum size of the proof's temporary files at a time.
        verified: number of compared records, proved to exist or to be dropped rightly; None if not checked.
        kept: folder with the replaced files; empty if they were deleted or nothing was replaced.
        kept_bytes: size of the files in that folder, which take room until it is deleted.
        bytes_read, bytes_written: bytes that tasks read from all files, without the proof, and that they wrote, key
            indexes included.
        proof_bytes_read: bytes that the proof read.
        bytes_new: approximate bytes of the log that no clean had read before.
        index_bytes: size of the key indexes that were made.
        segments_written: how many segments were written, under the same or other names.
        segments_spared: how many kept their files.
    """

    directories: tuple[str, ...]
    waves: int
    work_bytes_max: int
    verified: int | None
    verify_seconds: float
    kept: str
    kept_bytes: int = 0
    proof_bytes_max: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_new: int = 0
    index_bytes: int = 0
    segments_written: int = 0
    segments_spared: int = 0
    proof_bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class InTier:
    """Figures of a clean in a tier only.

    Attributes:
        tier: where the tier is.
        is_done: False for a dry run: the figures are of what would be done.
        segments_written, segments_replaced: number of new remote segments, and of those that they replaced.
        objects_written, bytes_written: the objects of the new segments.
        objects_deleted, bytes_deleted: the objects of replaced segments that were deleted.
        kept: paths of their objects, if they were not to be deleted.
        verified: number of compared records, proved to exist or to be dropped rightly.
    """

    tier: str
    is_done: bool
    segments_written: int
    segments_replaced: int
    objects_written: int
    bytes_written: int
    objects_deleted: int
    bytes_deleted: int
    kept: tuple[str, ...]
    verified: int
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class CleanResult(Paged):
    """Result of a clean.

    Attributes:
        target: the new directory; empty if nothing was written, or all of it in place.
        now_ms: the time on which all decisions are based.
        clean_seconds: duration of the tasks, without the start of the engine that runs them.
        notes: further facts for the user.
        in_place: figures of a clean in place; None for others.
        in_tier: figures of a clean in a tier; None for others.
    """

    target: str
    now_ms: int
    partitions: tuple[PartitionResult, ...]
    seconds: float
    clean_seconds: float
    notes: tuple[str, ...] = ()
    in_place: InPlace | None = None
    in_tier: InTier | None = None

    def with_fate(self, fate: Fate) -> tuple[PartitionResult, ...]:
        """Return the partitions with one outcome."""
        return tuple(one for one in self.partitions if one.fate is fate)

    @property
    def counts(self) -> Counts:
        """Sum up the counts of all partitions."""
        total = Counts()
        for one in self.partitions:
            total.add(one.counts)
        total.check()
        return total

    @property
    def bytes_per_second(self) -> float:
        """Speed of the clean, by bytes read."""
        return self.counts.bytes_read / self.clean_seconds if self.clean_seconds else 0.0

    def __str__(self) -> str:
        where = self.target or ", ".join(self.in_place.directories if self.in_place else ())
        where = self.in_tier.tier if self.in_tier else where
        fates = ", ".join(f"{len(self.with_fate(fate)):,} {fate}" for fate in Fate if self.with_fate(fate))
        counts = self.counts
        return f"{where}: {fates}; {counts.records_read:,} records read, {counts.records_kept:,} kept"


@dataclass(frozen=True, slots=True)
class TrialWork:
    """Reads and writes that a clean would do, as found by a trial clean that wrote nothing.

    Attributes:
        segments_kept: number of segments whose files stay, as nothing in them would change.
        segments_replaced: number of segments that would be replaced, alone or merged.
        segments_written: number of segments that would replace them.
        bytes_read: bytes read by tasks, key indexes included; without a proof and without copying files.
        bytes_written: size of new segments with their indexes, without key indexes.
    """

    segments_kept: int
    segments_replaced: int
    segments_written: int
    bytes_read: int
    bytes_written: int

    @classmethod
    def of(cls, outcomes: Iterable[Output | Failure], bytes_read: int) -> TrialWork:
        """Sum up what tasks would have written, and have read."""
        outputs = [one for one in outcomes if isinstance(one, Output)]
        written = [groups for one in outputs for groups in one.cleaned.written]
        return cls(
            sum(len(one.cleaned.kept) for one in outputs),
            sum(len(replaced) for replaced, _ in written),
            sum(len(new) for _, new in written),
            bytes_read,
            sum(size for one in outputs for _, size in one.files),
        )


@dataclass(frozen=True, slots=True)
class ExactPlan(Presentable):
    """A plan, and the effect of the clean, as found by a trial clean that wrote nothing.

    Attributes:
        plan: the plan; its deletions by retention, if chosen, are as of after the clean.
        result: the result that `clean` would return for the chosen partitions, without a target.
        work: reads and writes.
    """

    plan: Plan
    result: CleanResult
    work: TrialWork

    def __str__(self) -> str:
        counts = self.result.counts
        return f"{self.plan}; {counts.records_read:,} records to read, {counts.records_kept:,} to keep"


def result_of(
    place: LocatedPartition,
    plan: PartitionPlan | None,
    outcome: Output | Cleaned | Failure | None,
    notes: tuple[str, ...],
    *,
    otherwise: Fate = Fate.COPIED,
) -> PartitionResult:
    """Make the result of a partition.

    Args:
        plan: the partition's plan; None if it was not chosen.
        outcome: outcome of its task; None without a task.
        otherwise: the fate of a partition that needs no clean.
    """
    name = None if place.name is None else place.name.topic_partition
    cleaned = outcome.cleaned if isinstance(outcome, Output) else outcome
    if isinstance(cleaned, Cleaned):
        if cleaned.rounds > 1:
            notes = (*notes, f"cleaned in {cleaned.rounds} rounds, as Kafka's offset map was full")
        return PartitionResult(
            place.path, name, Fate.CLEANED, str(plan.reason) if plan else "",
            counts=cleaned.counts, end_offset=cleaned.end_offset, probed=cleaned.probed,
            segments=_segments(cleaned), notes=notes,
        )  # fmt: skip
    if isinstance(outcome, Failure):
        return PartitionResult(place.path, name, Fate.FAILED, outcome.what, notes=notes, failure=outcome)
    if plan is None:
        return PartitionResult(place.path, name, otherwise, "not asked for", notes=notes)
    if plan.decision is Decision.REFUSE:
        failure = Failure(FailureKind.DAMAGE, str(plan.reason))
        return PartitionResult(place.path, name, Fate.FAILED, str(plan.reason), notes=notes, failure=failure)
    hints = (plan.hint,) if plan.hint else ()
    return PartitionResult(place.path, name, otherwise, str(plan.reason), notes=(*notes, *hints))


def _segments(cleaned: Cleaned) -> tuple[SegmentResult, ...]:
    if not cleaned.segments:
        return ()
    return tuple(
        SegmentResult(base, outputs, counts)
        for bases, outputs, parts in zip(cleaned.replaced, cleaned.outputs, cleaned.segments, strict=True)
        for base, counts in zip(bases, parts, strict=True)
    )
