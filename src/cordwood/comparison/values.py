"""Replicas to compare, and the result: differences by kind, and sums of the harmless differences that timing explains.

Only the first differences of each kind are named; all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from cordwood.cleaning.proof.pairs import Side
from cordwood.common.types import TopicPartition
from cordwood.storage.formats.leader_epochs import LeaderEpochs

#: Number of differences of one kind that are named per pair of replicas; all are counted.
NAMED_MAX = 20


class PairRole(IntEnum):
    """The two replicas of a pair."""

    NEWEST = 0
    OTHER = 1

    @property
    def opposite(self) -> PairRole:
        """The other role."""
        return PairRole(1 - self)


class DifferenceKind(StrEnum):
    """Kinds of differences. Each value is used in `--json`; `MEANINGS` has the text."""

    TOPIC = "other-topic"
    DIVERGED = "diverged"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    MISSING = "missing"
    CHANGED = "changed"
    RESURRECTED = "resurrected"
    LOST = "lost"
    DIFFERENT = "different"
    ABORTED = "aborted-served"
    HIDDEN = "committed-hidden"
    MARKER = "marker-missing"
    CHECKPOINT = "checkpoint"


MEANINGS: Mapping[DifferenceKind, str] = {
    DifferenceKind.TOPIC: "the directory belongs to another topic of this name, so no records were compared",
    DifferenceKind.DIVERGED: "different leaders wrote the two logs from this offset on",
    DifferenceKind.TRUNCATED: "the log ends below its own high watermark or log start: it lost acknowledged records",
    DifferenceKind.DAMAGED: "unreadable; see `cordwood check`",
    DifferenceKind.MISSING: "records are missing, and no cleaner can have removed them",
    DifferenceKind.CHANGED: "the replicas have different records at these offsets",
    DifferenceKind.RESURRECTED: "a deleted key has a value",
    DifferenceKind.LOST: "the last value of a key is missing",
    DifferenceKind.DIFFERENT: "a key has an older value",
    DifferenceKind.ABORTED: "readers of committed data get an aborted transaction",
    DifferenceKind.HIDDEN: "readers of committed data do not get a committed transaction",
    DifferenceKind.MARKER: "the marker that ends a transaction is missing, so readers of committed data stop here",
    DifferenceKind.CHECKPOINT: "a checkpoint does not fit the log",
}
assert set(MEANINGS) == set(DifferenceKind)


class Sum(StrEnum):
    """Sums over a pair: equal batches, records and keys, and differences that timing explains."""

    BATCHES_EQUAL = "batches_equal"
    BYTES_EQUAL = "bytes_equal"
    RECORDS_EQUAL = "records_equal"
    KEYS_EQUAL = "keys_equal"
    OFFSETS_BELOW = "offsets_below_start"
    OFFSETS_ABOVE = "offsets_above_end"
    OFFSETS_UNCOMMITTED = "offsets_uncommitted"
    RECORDS_CLEANED = "records_cleaned_on_one_side"
    BATCHES_REWRITTEN = "batches_rewritten"
    MARKERS_CLEANED = "markers_cleaned_on_one_side"
    TOMBSTONES = "tombstones_on_one_side"
    KEYS_ABOVE = "keys_with_newer_records"
    UNJUDGED_BYTES = "bytes_not_judged"


@dataclass(frozen=True, slots=True)
class ComparedReplica:
    """One replica of a partition: its files, and its checkpoints. All fields can be pickled.

    Attributes:
        name: its broker, as shown to users.
        high_watermark: None if its directory has no entry; then the log's end takes its place.
        clean_below: first dirty offset of its cleaner; None without an entry.
        recovery_point: None without an entry.
        topic_id: None if unknown.
    """

    name: str
    side: Side
    high_watermark: int | None = None
    clean_below: int | None = None
    recovery_point: int | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The facts about a replica that need no look at its records.

    Attributes:
        start, end: log start offset and log end offset.
        epochs: empty if the checkpoint is missing or unreadable.
        size_bytes: size of all segments.
    """

    replica: ComparedReplica
    start: int
    end: int
    epochs: LeaderEpochs
    size_bytes: int

    @property
    def committed(self) -> int:
        """The high watermark of its directory, or the log's end without one."""
        high_watermark = self.replica.high_watermark
        return self.end if high_watermark is None else high_watermark


@dataclass(frozen=True, slots=True)
class ReplicaPair:
    """Two replicas of a partition, and facts about their topic.

    Attributes:
        compacted: whether a cleaner may have removed records; None: unknown, so the logs decide.
        cleaned_below: no cleaner of any replica has removed a record from this offset on; None: unknown.
    """

    newest: ComparedReplica
    other: ComparedReplica
    compacted: bool | None = None
    cleaned_below: int | None = None

    def of(self, role: PairRole) -> ComparedReplica:
        """Return the replica of a role."""
        return (self.newest, self.other)[role]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference that consumers could see, or an impossible checkpoint.

    Attributes:
        role: the wrong replica: consumers see the difference once it leads. A message calls it `replica`.
        offset: first offset of the records or batch.
        end_offset: the offset after the last one.
        records: number of records; for a divergence, number of offsets of this replica from there on.
        other_records: for a divergence, number of offsets of the other replica from there on.
        key: of the record; None if the difference does not concern one key.
        offsets: for a key, the offset of its last record in the newest and in the other replica; None: no record.
        tombstones: for a key, whether these records are tombstones.
        what: details in words; empty without any.
    """

    kind: DifferenceKind
    role: PairRole
    offset: int
    end_offset: int
    records: int = 1
    other_records: int = 0
    key: bytes | None = None
    offsets: tuple[int | None, int | None] | None = None
    tombstones: tuple[bool, bool] = (False, False)
    what: str = ""


@dataclass(slots=True)
class PairFindings:
    """Differences and sums of a part of a pair."""

    sums: dict[str, int] = field(default_factory=dict)
    totals: dict[DifferenceKind, int] = field(default_factory=dict)
    named: list[Difference] = field(default_factory=list)

    def sum(self, what: Sum, number: int) -> None:
        """Add to a sum."""
        if number:
            self.sums[what] = self.sums.get(what, 0) + int(number)

    def differ(self, one: Difference, count: int = 1) -> None:
        """Report a difference, and count it as `count` differences of its kind."""
        self.totals[one.kind] = self.totals.get(one.kind, 0) + count
        if sum(other.kind is one.kind for other in self.named) < NAMED_MAX:
            self.named.append(one)

    def add(self, others: PairFindings) -> None:
        """Add the findings of another part."""
        for what, number in others.sums.items():
            self.sums[what] = self.sums.get(what, 0) + number
        for kind, number in others.totals.items():
            self.totals[kind] = self.totals.get(kind, 0) + number
        self.named += others.named

    def first_named(self) -> list[Difference]:
        """Return the differences to name: the first of each kind by offset, in the order of the kinds."""
        found = sorted(self.named, key=lambda one: (one.offset, one.role))
        return [one for kind in DifferenceKind for one in [one for one in found if one.kind is kind][:NAMED_MAX]]


@dataclass(frozen=True, slots=True)
class PairResult:
    """The comparison of two replicas.

    Attributes:
        start, end: the compared offsets [start, end).
        differences: up to `NAMED_MAX` of each kind.
        totals: number of differences of each kind.
        sums: by `Sum`.
    """

    newest: ReplicaState
    other: ReplicaState
    start: int
    end: int
    differences: tuple[Difference, ...]
    totals: Mapping[DifferenceKind, int]
    sums: Mapping[str, int]

    @property
    def agrees(self) -> bool:
        """Whether no consumer can see a difference after an election."""
        return not self.totals


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The comparison of each replica of a partition with the newest one.

    Attributes:
        name: None if the directories are not named like a partition.
        newest: name of the broker of the newest replica.
        pairs: one per other replica.
        checkpoints: impossible checkpoints, by the name of their replica.
    """

    name: TopicPartition | None
    newest: str
    states: tuple[ReplicaState, ...]
    pairs: tuple[PairResult, ...]
    checkpoints: tuple[tuple[str, Difference], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether no consumer can see a difference after an election."""
        return all(pair.agrees for pair in self.pairs) and not any(
            one.kind is not DifferenceKind.CHECKPOINT for _, one in self.checkpoints
        )
