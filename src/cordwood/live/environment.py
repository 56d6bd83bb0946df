"""The inputs for loading a log: its configs, its checkpointed offsets, and objects that all logs of a manager share."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Self

from cordwood.common.config import TOPIC_CONFIGS, TopicConfig
from cordwood.common.types import Clock, Codec
from cordwood.fs.base import LocalFileSystem
from cordwood.live.directories import LogDirFailureChannel
from cordwood.live.metrics import LogStats
from cordwood.live.scheduler import Scheduler

# ---- configs ---------------------------------------------------------------------------------------------------------

#: The config of each codec that has levels.
_LEVELS = {codec: name for codec in Codec if (name := f"compression.{codec.label}.level") in TOPIC_CONFIGS}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The topic configs that a log needs; names and units are Kafka's.

    Attributes:
        codec: compression of stored batches; None: keep the producer's.
        level: compression level; None for a codec without levels.
        max_segment_ms: maximum age of the active segment before it rolls.
        tiered: closed segments may be in a tier.
        copies_to_tier: closed segments are copied to the tier.
        local_retention_bytes, local_retention_ms: limits of the segments on the disk of a tiered log.
    """

    compact: bool
    delete: bool
    delete_retention_ms: int
    codec: Codec | None
    level: int | None
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    log_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    max_segment_ms: int
    tiered: bool
    copies_to_tier: bool
    local_retention_bytes: int
    local_retention_ms: int

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        """Return the values of resolved configs."""
        number, word = config.integer, config.word("compression.type")
        codec = None if word == "producer" else Codec.NONE if word == "uncompressed" else Codec[word.upper()]
        segment_ms = number("segment.ms")
        return cls(
            compact=config.compact,
            delete=config.delete,
            delete_retention_ms=number("delete.retention.ms"),
            codec=codec,
            level=number(_LEVELS[codec]) if codec in _LEVELS else None,
            file_delete_delay_ms=number("file.delete.delay.ms"),
            flush_messages=number("flush.messages"),
            flush_ms=number("flush.ms"),
            index_interval_bytes=number("index.interval.bytes"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            max_message_bytes=number("max.message.bytes"),
            min_cleanable_dirty_ratio=config.real("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            log_append_time=config.word("message.timestamp.type") == "LogAppendTime",
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
            preallocate=config.flag("preallocate"),
            retention_bytes=number("retention.bytes"),
            retention_ms=number("retention.ms"),
            segment_bytes=config.segment_bytes,
            segment_index_bytes=number("segment.index.bytes"),
            segment_jitter_ms=min(number("segment.jitter.ms"), segment_ms),
            segment_ms=segment_ms,
            max_segment_ms=config.max_segment_ms,
            tiered=config.flag("remote.storage.enable"),
            copies_to_tier=config.flag("remote.storage.enable") and not config.flag("remote.log.copy.disable"),
            local_retention_bytes=_local(number("local.retention.bytes"), number("retention.bytes")),
            local_retention_ms=_local(number("local.retention.ms"), number("retention.ms")),
        )


#: A local limit that means the limit of the whole log.
_AS_THE_LOG = -2


def _local(limit: int, of_log: int) -> int:
    return of_log if limit == _AS_THE_LOG else limit


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Limits for producers and transactions."""

    expiration_ms: int = 86_400_000
    expiration_check_interval_ms: int = 600_000
    transaction_max_timeout_ms: int = 900_000
    transaction_verification: bool = True


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """The objects that the logs of a manager share.

    Attributes:
        failures: takes a log directory offline after an I/O error.
        has_tier: tiered logs have their closed segments in a tier.
    """

    fs: LocalFileSystem
    clock: Clock
    scheduler: Scheduler
    failures: LogDirFailureChannel
    limits: ProducerLimits = field(default_factory=ProducerLimits)
    stats: LogStats = field(default_factory=LogStats)
    random: Random = field(default_factory=Random)
    has_tier: bool = False


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A log's entries in the checkpoints of its log directory, and whether it was closed properly."""

    log_start_offset: int = 0
    recovery_point: int = 0
    clean_shutdown: bool = True
