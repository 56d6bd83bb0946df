"""The facts about a partition that explain its size, and the values for its causes; `reasons` derives these."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from cordwood.cleaning.engine.facts import first_timestamp, old_bytes
from cordwood.cleaning.rules.plan import Decision, LogFacts, PartitionPlan, Reason, SegmentFacts, config_reason
from cordwood.cleaning.rules.selection import Obstacle, ObstacleKind
from cordwood.commands.opening import broker_config
from cordwood.common.config import ConfigValue, SourceKind, TopicConfig
from cordwood.common.errors import CorruptMessageError
from cordwood.common.text import Presentable
from cordwood.common.types import NONE, TopicPartition
from cordwood.storage.formats.filenames import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    DirectoryState,
)
from cordwood.storage.log.view import LogView
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.disk_usage import DiskUsage, usage_of
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.node.transactions import OpenTransaction
from cordwood.storage.tier.aiven import AivenLayout, decode_custom_metadata
from cordwood.storage.tier.remote_log import RemoteLog
from cordwood.storage.tier.segments import RemoteSegment
from cordwood.storage.tier.store import RemotePart, TierStore

if TYPE_CHECKING:
    # A plan shows causes, too, and counts no keys.
    from cordwood.storage.index.key_sample import KeyCounts


class CauseKind(StrEnum):
    """Cause of a partition's size. Of two causes that hold back equally many bytes, the earlier in this list leads."""

    # Kind of partition.
    NO_PARTITION = ObstacleKind.NO_PARTITION.value
    TO_BE_DELETED = ObstacleKind.TO_BE_DELETED.value
    STRAY = ObstacleKind.STRAY.value
    FUTURE = ObstacleKind.FUTURE.value
    MOVING = ObstacleKind.MOVING.value
    DUPLICATE = ObstacleKind.DUPLICATE.value
    METADATA_LOG = ObstacleKind.METADATA_LOG.value
    UNREADABLE = "unreadable"
    OFFLINE = "directory offline"
    WRONG_CONFIG = ObstacleKind.WRONG_CONFIG.value
    UNKNOWN_POLICY = ObstacleKind.UNKNOWN_POLICY.value
    NO_TIER = "broker without its tier"
    TIERED = ObstacleKind.TIERED.value
    # A tiered topic.
    LOG_START = "log start without an epoch"
    EMPTIED = "a deletion that empties the log"
    COPIES_FAIL = "copies fail"
    DELETION_FAILS = "deletion in the tier fails"
    NOT_COPIED = "not copied"
    REMOTE_DUE = "remote retention due"
    UNFINISHED_COPY = "unfinished copies"
    REPLACED_COPY = "replaced copies"
    ABANDONED_BRANCH = "abandoned branch"
    LOCAL_COPIES = "local copies"
    # The policy does not fit the records.
    NULL_KEYS = "records without a key"
    UNIQUE_KEYS = "keys that never repeat"
    # The cleaner.
    CLEANER_OFF = "cleaner off"
    DAMAGED = "damage"
    CLEANER_CHECKPOINT = "cleaner's checkpoint"
    DOUBT = "configs in doubt"
    CLEANER_DEAD = "cleaner dead"
    GIVEN_UP = "cleaner has given up"
    NO_BROKER = "no broker"
    DUE = "due"
    # Conditions that the cleaner waits for.
    HANGING_TRANSACTION = "hanging transaction"
    LONG_TRANSACTION = "long transaction"
    UNKNOWN_TRANSACTION = "transaction of unknown outlook"
    OPEN_TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"
    DIRTY_RATIO = "dirty ratio"
    ACTIVE_SEGMENT = "active segment"
    EXPIRED_TOMBSTONES = "expired tombstones"
    TOMBSTONES = "tombstones"
    # Retention.
    KEPT_FOREVER = "no cleanup"
    RETENTION_OFF = "retention off"
    FUTURE_TIMES = "times in the future"
    RETENTION_DUE = "retention due"
    YOUNGER_RECORD = "younger record"
    NOT_REPLICATED = "not replicated"
    RETENTION_FAR = "retention far away"
    BELOW_START = "below the log start"
    # Files.
    LEFTOVERS = "leftovers"
    FOREIGN_FILES = "foreign files"
    DELETING = "being deleted"
    INDEXES = "indexes"
    KEY_INDEXES = "key indexes"
    # Nothing.
    WITHIN_RETENTION = "within its retention"
    LIVE_DATA = "live data"
    EMPTY = "empty"


class Way(StrEnum):
    """Means to free bytes."""

    FILES = "files"
    COMPACTION = "compaction"
    RETENTION = "retention"
    TIER = "tier"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact that proves a cause, and its source: a config's source, a file, an offset."""

    what: str
    source: str = ""

    @classmethod
    def of(cls, reason: Reason) -> Evidence:
        """Make evidence of a plan's reason."""
        return cls(reason.what, reason.source)

    def __str__(self) -> str:
        return f"{self.what} ({self.source})" if self.source else self.what


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a partition's size.

    Attributes:
        what: the cause in words.
        bytes_max: upper bound of the bytes that the cause holds back: sizes of logs, blocks of other files. In the
            tier: sizes of logs before compression and encryption by the tier, without indexes.
        disk_bytes_max: the same in blocks, including the indexes, as `du` counts them.
        next_step: action that a person can take.
        by_itself: when this changes without any action; empty if no such time is known.
        is_estimate: whether the bytes come from a sample of the headers, so that they bound nothing.
    """

    kind: CauseKind
    what: str
    bytes_max: int
    next_step: str = ""
    by_itself: str = ""
    evidence: tuple[Evidence, ...] = ()
    way: Way = Way.COMPACTION
    disk_bytes_max: int = NONE
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class CleanerFacts:
    """State of a broker's cleaner and its runs.

    Attributes:
        enabled: `log.cleaner.enable`.
        live: whether the broker runs now.
        holder: the program that holds the directory's lock, a broker or another one; empty if there is none.
        alive_ms: time of a broker's last sign of life in the directory; None without any.
        checkpoint_path: path of the cleaner's checkpoint.
        checkpoint_ms: time when the checkpoint was last written; None if it is missing.
        failure: why the checkpoint is unreadable; empty if it is readable.
        in_store: whether the directory is in an object store: no broker runs on it, and file times are upload times.
    """

    enabled: ConfigValue
    live: bool = False
    holder: str = ""
    alive_ms: int | None = None
    checkpoint_path: str = ""
    checkpoint_ms: int | None = None
    failure: str = ""
    in_store: bool = False


@dataclass(frozen=True, slots=True)
class TierFacts:
    """The remote part of a tiered partition.

    Attributes:
        stored_bytes: size of its objects, indexes included, as far as the brokers' metadata has it; else of its logs.
        has_requests: whether the tier is an object store, or a copy of one.
    """

    part: RemotePart
    stored_bytes: int = 0
    has_requests: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The inputs of all causes.

    Attributes:
        kind: why the partition is never cleaned; None if it may be.
        log: None if the log was not scanned or is unreadable.
        config: the topic's config; None if unknown.
        active_first_ms: the largest timestamp of the active segment's first batch; NONE without one.
        transaction: the transaction that holds back the last stable offset, if that bounds the clean.
        keys: key statistics; None if keys were not counted.
        old_bytes: bytes of records older than `retention.ms`, by base offset of their segment. Only for two segments:
            the first with a younger record, which makes retention wait, and the active one.
        tier: the remote part of a tiered partition; None if its topic is not tiered, or no tier is given.
        tier_system: `remote.log.storage.system.enable` of its broker; None if it is unknown, or the topic not tiered.
    """

    plan: PartitionPlan
    usage: DiskUsage
    cleaner: CleanerFacts
    now_ms: int
    kind: CauseKind | None = None
    log: LogFacts | None = None
    config: TopicConfig | None = None
    active_first_ms: int = NONE
    transaction: OpenTransaction | None = None
    keys: KeyCounts | None = None
    old_bytes: Mapping[int, int] = field(default_factory=dict)
    tier: TierFacts | None = None
    tier_system: ConfigValue | None = None

    @property
    def local_segments(self) -> Sequence[SegmentFacts]:
        """The segments on the disk, by base offset: of a log without a tier all; the last is active."""
        if self.log is None:
            return ()
        if self.tier is None:
            return self.log.segments
        return [one for one in self.log.segments if one.base_offset >= self.tier.part.local_start]

    def of_config(self, name: str) -> Evidence:
        """Return one of the topic's configs and its source as evidence."""
        assert self.config is not None, "it is asked for logs whose topics are known"
        return Evidence.of(config_reason(name, self.config[name]))

    def if_set(self, name: str) -> tuple[Evidence, ...]:
        """Return one of the topic's configs as evidence, or nothing if it is only Kafka's default."""
        assert self.config is not None, "it is asked for logs whose topics are known"
        return (self.of_config(name),) if self.config[name].explicit else ()

    @property
    def removable_share(self) -> float:
        """Return the share of the log that compaction could remove; 1 if keys were not counted."""
        return 1.0 if self.keys is None else self.keys.removable_share

    def compactable(self, size_bytes: int) -> int:
        """Return how many of the log's `size_bytes` compaction could remove."""
        return round(self.removable_share * size_bytes)


@dataclass(frozen=True, slots=True)
class RetentionOutlook:
    """The next round of retention, in the tier or on the disk.

    Attributes:
        segments, size_bytes: the segments that it deletes.
        rules: the limits that they exceed.
        stops_at: start offset of the first segment that stays; None without one.
        stays: the reason why that segment stays, and its end.
    """

    segments: int
    size_bytes: int
    rules: tuple[str, ...]
    stops_at: int | None
    stays: str


@dataclass(frozen=True, slots=True)
class Month:
    """The use of a tier in a month, and its price: storage as it is now, requests as in the last 30 days.

    Attributes:
        since_ms: start of the known requests, if that is less than 30 days ago; otherwise None.
        puts, deletes: estimates from the copies and deletions that began: three objects each, and parts of 25 MiB.
        price: at the given prices; None without any.
    """

    storage_bytes: int
    copies: int
    copied_bytes: int
    puts: int
    deletes: int
    since_ms: int | None
    price: float | None = None


@dataclass(frozen=True, slots=True)
class TierOutlook:
    """The part of a partition that is in a tier.

    Attributes:
        segments, size_bytes: segments whose copies were finished, and their logs.
        unfinished_bytes: logs of copies and deletions that did not end; their objects may be there, whole or in part.
        could_lose_bytes: upper bound of the bytes that could be freed in the tier.
        copies: the state of copying, in words.
    """

    segments: int
    size_bytes: int
    unfinished_bytes: int
    could_lose_bytes: int
    remote_retention: RetentionOutlook
    local_retention: RetentionOutlook
    copies: str
    month: Month


@dataclass(frozen=True, slots=True)
class WhyPartition:
    """Why a partition is as large as it is.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        usage: disk usage.
        could_lose_bytes: upper bound of the bytes that could be freed if no cause held them back, as sizes of logs.
        could_lose_disk_bytes: the same in blocks, including the indexes, as `du` counts them.
        causes: causes of its size, the main one first.
        broker: what a broker will do with it, and when.
        offline: what a clean without a broker could do now.
        keys: key statistics; None if keys were not counted.
        tier: its part in a tier; None if its topic is not tiered, or no tier is given.
        on_broker: name of the broker that has this replica; empty if unknown.
        replicas: the same for the partition's other replicas in the directories.
    """

    path: str
    topic_partition: TopicPartition | None
    usage: DiskUsage
    could_lose_bytes: int
    could_lose_disk_bytes: int
    causes: tuple[Cause, ...]
    broker: str
    offline: str
    keys: KeyCounts | None = None
    notes: tuple[str, ...] = ()
    tier: TierOutlook | None = None
    on_broker: str = ""
    replicas: tuple[WhyPartition, ...] = ()

    @property
    def all_replicas(self) -> tuple[WhyPartition, ...]:
        """This replica and all other replicas."""
        return (self, *self.replicas)

    def differs_from(self, other: WhyPartition) -> bool:
        """Return whether another replica has other causes, or could lose at least a tenth more or less."""
        if [one.kind for one in self.causes] != [one.kind for one in other.causes]:
            return True
        sizes = self.could_lose_disk_bytes, other.could_lose_disk_bytes
        return max(sizes) - min(sizes) > max(sizes) * _DIFFERENCE_MIN

    @property
    def name(self) -> str:
        """Return the directory's name: topic, partition number, and the state suffix if there is one."""
        return posixpath.basename(self.path)

    @property
    def cause(self) -> Cause:
        """The main cause."""
        return self.causes[0]

    @property
    def is_estimate(self) -> bool:
        """Whether the bytes of a cause, and so the bytes that could be freed, are estimates from sampled headers."""
        return any(one.is_estimate for one in self.causes)

    def __str__(self) -> str:
        return f"{self.name}: {self.cause.what}"


#: Replicas that could lose bytes in about the same number are alike: their segments rolled at different times.
_DIFFERENCE_MIN = 0.1


def could_lose(partitions: Iterable[WhyPartition], *, on_disk: bool = True) -> int:
    """Return an upper bound of the bytes that partitions, with all replicas, could lose together.

    One copy of each duplicate on a broker stays.

    Args:
        on_disk: sum up `could_lose_disk_bytes` (blocks) instead of `could_lose_bytes`.
    """
    most, copies = 0, dict[tuple[str, TopicPartition | None], list[int]]()
    for one in (replica for partition in partitions for replica in partition.all_replicas):
        size = one.could_lose_disk_bytes if on_disk else one.could_lose_bytes
        most += size
        if one.cause.kind is CauseKind.DUPLICATE:
            copies.setdefault((one.on_broker, one.topic_partition), []).append(size)
    return most - sum(min(sizes) for sizes in copies.values() if len(sizes) > 1)


def sums(partitions: Sequence[WhyPartition]) -> tuple[int, int]:
    """Return the blocks that partitions, with all replicas, take on disk, and could lose together at most."""
    total = sum(one.usage.total_bytes for partition in partitions for one in partition.all_replicas)
    return total, could_lose(partitions)


@dataclass(frozen=True, slots=True)
class WhyResult(Presentable):
    """Why partitions are as large as they are, in descending order of the bytes they could lose.

    Of several replicas, the leader's by the metadata represents the partition, else the first; its `replicas` has the
    other ones.

    Attributes:
        brokers: names of the brokers; an unknown name is empty.
        keys_not_counted: names of compacted partitions whose keys were not counted, as the read limit was too low.
    """

    now_ms: int
    partitions: tuple[WhyPartition, ...]
    keys_not_counted: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.partitions))


# ---- collect the facts of a partition --------------------------------------------------------------------------------

#: Files that a running broker keeps rewriting.
_SIGNS_OF_LIFE = (HIGH_WATERMARKS, RECOVERY_POINTS, LOG_START_OFFSETS)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A plan and the facts behind it.

    Attributes:
        log: None if it could not be opened.
        facts: None if the plan needed no facts, or they could not be read.
        obstacle: the reason why it is never cleaned, or None.
    """

    plan: PartitionPlan
    log: LogView | None = None
    facts: LogFacts | None = None
    obstacle: Obstacle | None = None


#: Plans one partition; returns None if the partition was deleted.
Planner = Callable[[LocatedPartition], PlannedPartition | None]


def cleaner_enabled(node: Node) -> ConfigValue:
    """Return the config that enables the broker's cleaner."""
    return broker_config(node, ["log.cleaner.enable"])["log.cleaner.enable"]


def collect_facts(
    node: Node, place: LocatedPartition, planned: PlannedPartition, enabled: ConfigValue, now_ms: int
) -> PartitionFacts:
    """Collect the facts that explain a partition's size, except for keys and transactions.

    Raises:
        FileNotFoundError: a running broker deleted the partition.
    """
    log, facts = planned.log, planned.facts
    config = None if facts is None or place.topic is None else node.config_of(place.topic)
    is_tiered = planned.obstacle is not None and planned.obstacle.kind is ObstacleKind.TIERED
    is_tiered = is_tiered or (config is not None and config.flag("remote.storage.enable"))
    return PartitionFacts(
        plan=planned.plan,
        usage=DiskUsage() if log is None else usage_of(node.fs, log),
        cleaner=_cleaner(node, place.directory, enabled),
        now_ms=now_ms,
        kind=_kind(place, planned),
        log=facts,
        config=config,
        active_first_ms=NONE if log is None or facts is None else _first_timestamp(log),
        old_bytes=(
            {}
            if log is None or facts is None or config is None or is_tiered
            else _old_bytes(log, facts, config, now_ms)
        ),
        tier=None if facts is None or not is_tiered else _tier(node, place, facts),
        tier_system=_tier_system(node) if is_tiered else None,
    )


def _tier(node: Node, place: LocatedPartition, facts: LogFacts) -> TierFacts | None:
    if not isinstance(node.fs, TierStore):
        return None
    part = node.fs.remote_part(place.path)
    if part is None:  # nothing was copied yet
        return TierFacts(RemotePart(RemoteLog(), (), (), facts.log_start_offset, facts.segments[0].base_offset))
    in_store = isinstance(node.fs.layout, AivenLayout)
    sizes = [_stored_bytes(one) if in_store else None for one in part.copied]
    stored = sum(one.size_bytes if size is None else size for one, size in zip(part.copied, sizes, strict=True))
    return TierFacts(part, stored, in_store)


def _stored_bytes(segment: RemoteSegment) -> int | None:
    try:
        return decode_custom_metadata(segment.custom_metadata).stored_bytes if segment.custom_metadata else None
    except CorruptMessageError:
        return None


def _tier_system(node: Node) -> ConfigValue | None:
    """Return whether a broker uses its tier; None if no server.properties is known."""
    name = "remote.log.storage.system.enable"
    if not any(layer.source.kind is SourceKind.SERVER_PROPERTIES for layer in node.broker_layers()):
        return None
    return broker_config(node, [name])[name]


def _old_bytes(log: LogView, facts: LogFacts, config: TopicConfig, now_ms: int) -> Mapping[int, int]:
    """Return the old bytes of the first segment with a record that retention by time keeps, and of the active segment.

    See `PartitionFacts`.
    """
    limit_ms = config.integer("retention.ms")
    if not config.delete or limit_ms < 0 or log.fs.reads_by_request(log.path):
        return {}
    horizon_ms = now_ms - limit_ms
    young = [one.base_offset for one in facts.segments if one.largest_timestamp >= horizon_ms]
    asked = {*young[:1], *(base for base in young[-1:] if base == facts.segments[-1].base_offset)}
    try:
        return {one.base_offset: old_bytes(one, horizon_ms) for one in log.segments if one.base_offset in asked}
    except OSError:
        return {}


def _cleaner(node: Node, directory: LogDirectory, enabled: ConfigValue) -> CleanerFacts:
    failure = directory.cleaner_failure
    facts = CleanerFacts(
        enabled=enabled,
        live=directory.live,
        holder=str(directory.holder or ""),
        checkpoint_path=f"{directory.path}/{CLEANER_OFFSETS}",
        failure=f"its checkpoint cannot be read: {failure}" if failure is not None else node.cleaner_twin or "",
        in_store=directory.fs.reads_by_request(directory.path),
    )
    if facts.in_store:
        return facts
    written = [info.mtime_ns // 1_000_000 for name in _SIGNS_OF_LIFE if (info := directory.info(name)) is not None]
    checkpoint = directory.info(CLEANER_OFFSETS)
    checkpoint_ms = None if checkpoint is None else checkpoint.mtime_ns // 1_000_000
    return replace(facts, alive_ms=max(written, default=None), checkpoint_ms=checkpoint_ms)


def _kind(place: LocatedPartition, planned: PlannedPartition) -> CauseKind | None:
    if planned.obstacle is not None:
        return CauseKind(planned.obstacle.kind)
    is_current = place.name is not None and place.name.state is DirectoryState.CURRENT
    if is_current and planned.plan.decision is Decision.REFUSE and not place.directory.live and place.directory.failure:
        return CauseKind.OFFLINE
    return None


def _first_timestamp(log: LogView) -> int:
    """Return `engine.facts.first_timestamp` of the active segment; NONE also if it cannot be read."""
    segment = log.segments[-1]
    if log.fs.reads_by_request(segment.path):
        return NONE  # the roll time is not worth a request per partition
    try:
        return first_timestamp(segment)
    except OSError:
        return NONE
