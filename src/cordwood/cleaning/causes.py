"""The values of `why`: the facts about a partition, and what keeps it from being smaller; the rules are in `why`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cordwood.cleaning.plan import LogFacts, PartitionPlan, Reason, config_reason
from cordwood.config import ConfigValue, TopicConfig
from cordwood.presentable import Presentable
from cordwood.storage.index.key_sample import KeyCounts
from cordwood.storage.node.disk_usage import DiskUsage
from cordwood.storage.node.transactions import OpenTransaction
from cordwood.types import NONE, TopicPartition


class CauseKind(StrEnum):
    """What keeps a partition from being smaller. Of two that hold back as many bytes, the first in this list leads."""

    # What the partition is.
    NO_PARTITION = "no partition"
    TO_BE_DELETED = "to be deleted"
    STRAY = "stray"
    FUTURE = "copy in the making"
    MOVING = "being moved"
    DUPLICATE = "duplicate"
    METADATA_LOG = "metadata log"
    UNREADABLE = "unreadable"
    OFFLINE = "directory offline"
    WRONG_CONFIG = "wrong config"
    UNKNOWN_POLICY = "unknown policy"
    TIERED = "remote copies"
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
    # What the cleaner waits for.
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
    """How bytes can go."""

    FILES = "files"
    COMPACTION = "compaction"
    RETENTION = "retention"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact that a cause follows from, and where it stands: a config's source, a file, an offset."""

    what: str
    source: str = ""

    @classmethod
    def of(cls, reason: Reason) -> Evidence:
        """What a reason says."""
        return cls(reason.what, reason.source)

    def __str__(self) -> str:
        return f"{self.what} ({self.source})" if self.source else self.what


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that keeps a partition from being smaller.

    Attributes:
        what: in words.
        bytes_max: that it holds back at most; of logs their sizes, of other files their blocks.
        disk_bytes_max: the same in blocks, with those of the indexes, as `du` counts them.
        next_step: what a person can do.
        by_itself: when that changes without anybody; empty: never, as far as is known.
    """

    kind: CauseKind
    what: str
    bytes_max: int
    next_step: str = ""
    by_itself: str = ""
    evidence: tuple[Evidence, ...] = ()
    way: Way = Way.COMPACTION
    disk_bytes_max: int = NONE


@dataclass(frozen=True, slots=True)
class CleanerFacts:
    """What is known of a broker's cleaner and its runs.

    Attributes:
        enabled: `log.cleaner.enable`.
        live: the broker runs now.
        alive_ms: the last sign of life of a broker on the directory; None: there is none.
        checkpoint_path: of the cleaner's checkpoint.
        checkpoint_ms: when it was written last; None: it is not there.
        failure: why the checkpoint cannot be read; else empty.
        in_store: the directory is in an object store: no broker runs on it, and its files are as old as their upload.
    """

    enabled: ConfigValue
    live: bool = False
    alive_ms: int | None = None
    checkpoint_path: str = ""
    checkpoint_ms: int | None = None
    failure: str = ""
    in_store: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """All that causes are made from.

    Attributes:
        kind: why the partition is never cleaned; None: it may be.
        log: None where it was not looked at, or could not be.
        config: of the topic; None: unknown.
        active_first_ms: the largest time of the active segment's first batch; NONE: it has none.
        transaction: the one that holds back the last stable offset, if that bounds what is cleaned.
        keys: None: not counted.
        old_bytes: by base offset, bytes of records that are older than `retention.ms`, in segments that hold younger
            ones, too; only of segments that retention may wait for.
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

    def of_config(self, name: str) -> Evidence:
        """One of the topic's configs, and where it was set."""
        assert self.config is not None, "it is asked for logs whose topics are known"
        return Evidence.of(config_reason(name, self.config[name]))

    def if_set(self, name: str) -> tuple[Evidence, ...]:
        """One of the topic's configs, unless it is only Kafka's default."""
        assert self.config is not None, "it is asked for logs whose topics are known"
        return (self.of_config(name),) if self.config[name].explicit else ()

    @property
    def removable_share(self) -> float:
        """What part of the log compaction could remove, as far as that is known."""
        return 1.0 if self.keys is None else self.keys.removable_share

    def compactable(self, size_bytes: int) -> int:
        """How many of some bytes of the log compaction could remove."""
        return round(self.removable_share * size_bytes)


@dataclass(frozen=True, slots=True)
class WhyPartition:
    """Why a partition is as large as it is.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        usage: what it takes on the disk.
        could_lose_bytes: the most that could go if nothing of all this held it back, as the sizes of logs.
        could_lose_disk_bytes: the same in blocks, with those of the indexes, as `du` counts them.
        causes: what keeps it from being smaller; the first is the main one.
        broker: what a broker will do with it, and when.
        offline: what a clean without a broker could do now.
        keys: what is known of its keys; None: they were not counted.
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

    @property
    def name(self) -> str:
        """Its directory's: of a partition its topic and number, and its state if it has one."""
        return posixpath.basename(self.path)

    @property
    def cause(self) -> Cause:
        """The main one."""
        return self.causes[0]

    def __str__(self) -> str:
        return f"{self.name}: {self.cause.what}"


def could_lose(partitions: Iterable[WhyPartition], *, on_disk: bool = True) -> int:
    """The most bytes that partitions could lose together: of duplicates, each of which could go, one stays.

    Args:
        on_disk: in blocks, as `could_lose_disk_bytes`; else as `could_lose_bytes`.
    """
    most, copies = 0, dict[TopicPartition | None, list[int]]()
    for one in partitions:
        size = one.could_lose_disk_bytes if on_disk else one.could_lose_bytes
        most += size
        if one.cause.kind is CauseKind.DUPLICATE:
            copies.setdefault(one.topic_partition, []).append(size)
    return most - sum(min(sizes) for sizes in copies.values() if len(sizes) > 1)


def sums(partitions: Sequence[WhyPartition]) -> tuple[int, int]:
    """The blocks that partitions take on the disk, and the most that they could lose together."""
    return sum(one.usage.total_bytes for one in partitions), could_lose(partitions)


@dataclass(frozen=True, slots=True)
class WhyResult(Presentable):
    """Why partitions are as large as they are, those first that could lose most.

    Attributes:
        keys_not_counted: names of compacted partitions for which the reading that was allowed was not enough.
    """

    now_ms: int
    partitions: tuple[WhyPartition, ...]
    keys_not_counted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.partitions))
