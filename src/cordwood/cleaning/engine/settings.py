"""The configs of one partition that its clean applies."""

from __future__ import annotations

from dataclasses import dataclass, field

from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.cleaning.rules.plan import Choices, PartitionPlan, Threshold
from cordwood.common.types import NONE
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.recovery.replay import DEFAULT_EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class CleanSettings:
    """The configs that the clean of one partition applies.

    Attributes:
        delete_retention_ms: `delete.retention.ms`.
        segment_bytes: `segment.bytes`.
        index: `segment.index.bytes` and `index.interval.bytes`.
        producer_expiration_ms: `producer.id.expiration.ms`.
        deletes_for_good: see `Elision`.
        offset_map_slots: size of Kafka's offset map, which ends a round when it is full; None for no limit.
        offset_map_load_factor: share of the slots that may be filled; `log.cleaner.io.buffer.load.factor`.
        threshold: how dirty the log must still be for a further round.
        strict_kafka: see `Rules`; also, a clean fails if an index of an output is full, as in Kafka.
        memory: limit of the key table; None for no limit.
    """

    delete_retention_ms: int = 86_400_000
    segment_bytes: int = 1 << 30
    index: IndexLimits = field(default_factory=IndexLimits)
    producer_expiration_ms: int = DEFAULT_EXPIRATION_MS
    deletes_for_good: bool = True
    offset_map_slots: int | None = None
    offset_map_load_factor: float = 0.9
    threshold: Threshold = field(default_factory=Threshold)
    strict_kafka: bool = False
    memory: MemoryShare | None = None


def clean_settings(partition: PartitionPlan, choices: Choices | None = None) -> CleanSettings:
    """Return the settings of a task that cleans a planned partition."""
    choices = choices or Choices()
    size = partition.offset_map
    ratio = NONE if choices.ignore_ratio else partition.setting("min.cleanable.dirty.ratio")
    return CleanSettings(
        delete_retention_ms=int(partition.setting("delete.retention.ms")),
        segment_bytes=int(partition.setting("segment.bytes")),
        index=IndexLimits(
            interval_bytes=int(partition.setting("index.interval.bytes")),
            size_bytes=int(partition.setting("segment.index.bytes")),
        ),
        deletes_for_good=partition.deletes_for_good,
        offset_map_slots=None if size is None else size.slots,
        offset_map_load_factor=0.9 if size is None else size.load_factor,
        threshold=Threshold(
            cleanable_ratio=ratio,
            min_compaction_lag_ms=int(partition.setting("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(partition.setting("max.compaction.lag.ms")),
        ),
        strict_kafka=choices.strict_kafka,
    )
