"""The state of each live log, with its reason: for people, and for the health of the whole.

The words about a compacted log are those of `plan`: the same rules decide, applied to the segments in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from cordwood.cleaning import selection
from cordwood.cleaning.plan import (
    Choices,
    Decision,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    OpenTransaction,
    Reason,
    SegmentFacts,
)
from cordwood.config import TopicConfig, show
from cordwood.errors import LogError
from cordwood.service.cleaner_manager import LogCleanerManager, Uncleanable
from cordwood.service.log import Log
from cordwood.service.log_manager import LogManager
from cordwood.types import NONE, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One live log, as it is now.

    Attributes:
        policy: `cleanup.policy`; empty: everything is kept.
        dirty_ratio: the part of a compacted log that could be cleaned; None: it is not compacted.
        state: what the cleaner does to it: `in progress`, `aborted`, `paused(1)`; None: nothing.
        is_due: it is to be cleaned as soon as a thread is free.
        uncleanable: its last clean has failed; None: it has not.
        reason: why it is due, or why it is not, or what has failed.
    """

    partition: TopicPartition
    directory: str
    policy: str
    segments: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    dirty_ratio: float | None
    state: str | None
    is_due: bool
    uncleanable: Uncleanable | None
    reason: Reason


def statuses(
    manager: LogManager,
    now_ms: int,
    left_alone: Mapping[str, Reason],
    only_compacted: Mapping[str, Reason],
    waiting_for: Callable[[str], None] = lambda _: None,
) -> list[PartitionStatus]:
    """The status of each current log, by partition.

    Args:
        left_alone: why a topic is neither compacted nor deleted from; see `ExplicitConfigs`.
        only_compacted: why a topic's limits of time and size do not count.
        waiting_for: called with what may take long, before each.
    """
    waiting_for("the cleaner's checkpoints")
    cleaner = None if manager.cleaner is None else manager.cleaner.manager
    known = {} if cleaner is None else cleaner.all_cleaner_checkpoints()
    configs: dict[str, TopicConfig] = {}
    found = []
    for partition, log in sorted(manager.logs.items()):
        if partition.topic not in configs:
            configs[partition.topic] = manager.topic_config(partition.topic)
        config = configs[partition.topic]
        waiting_for(f"the log {partition}")
        one = _status(partition, log, config, cleaner, left_alone.get(partition.topic))
        if log.config.compact and cleaner is not None:
            one = _with_compaction(one, log, config, cleaner, known.get(partition), now_ms)
        elif log.config.delete and partition.topic in only_compacted:
            one = replace(one, reason=only_compacted[partition.topic])
        found.append(one)
    return found


def worst_first(found: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Logs whose clean failed, then those that are due or being cleaned, then the others; each by the dirty part."""

    def rank(status: PartitionStatus) -> tuple[object, ...]:
        waits = status.is_due or status.state is not None
        return status.uncleanable is None, not waits, -(status.dirty_ratio or 0), status.partition

    return sorted(found, key=rank)


def _status(
    partition: TopicPartition,
    log: Log,
    config: TopicConfig,
    cleaner: LogCleanerManager | None,
    left_alone: Reason | None,
) -> PartitionStatus:
    policy = config["cleanup.policy"]
    reason = left_alone
    if reason is None and log.config.compact:
        reason = Reason("log.cleaner.enable is false: no log is compacted")
    if reason is None:
        reason = Reason("old segments are deleted" if log.config.delete else "everything is kept", str(policy.source))
    state = None if cleaner is None else cleaner.cleaning_state(partition)
    return PartitionStatus(
        partition=partition,
        directory=log.directory,
        policy=show(policy.value),
        segments=len(log.log_segments),
        size_bytes=log.size_bytes,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        dirty_ratio=None,
        state=None if state is None else str(state),
        is_due=False,
        uncleanable=None if cleaner is None else cleaner.uncleanable(partition),
        reason=reason,
    )


def _with_compaction(
    status: PartitionStatus,
    log: Log,
    config: TopicConfig,
    cleaner: LogCleanerManager,
    checkpoint: int | None,
    now_ms: int,
) -> PartitionStatus:
    try:
        own = None if cleaner.garbage is None else cleaner.garbage.checkpoint(log)
        facts = replace(_facts(log, checkpoint), own_checkpoint=own)
    except LogError as error:  # its directory has failed, or it is just being deleted
        return replace(status, reason=Reason(str(error)))
    choices = Choices(min_dead=None if cleaner.garbage is None else cleaner.garbage.share)
    compaction = selection.plan_compaction(facts, config, choices, now_ms)
    decision, reason = selection.decide(compaction, facts, config, choices, now_ms)
    if status.uncleanable is not None:
        seconds = cleaner.seconds_to_retry(status.uncleanable)
        until = "" if seconds is None else f"tried again in {seconds} s"
        reason = Reason(f"the last clean failed: {status.uncleanable.reason}", until=until)
    if "--" in reason.until:  # an option of another command
        reason = replace(reason, until="")
    ratio = compaction.cleanable_ratio
    return replace(status, dirty_ratio=ratio or 0.0, is_due=decision is Decision.CLEAN, reason=reason)


def _facts(log: Log, checkpoint: int | None) -> LogFacts:
    """A live log as planning wants it: its headers only as far as they decide when it is due."""
    segments = log.log_segments
    first_dirty, _ = selection.first_dirty_offset(checkpoint, log.log_start_offset, log.log_end_offset)
    first = max([one.base_offset for one in segments if one.base_offset <= first_dirty], default=0)
    is_dirty = {one.base_offset: one.base_offset >= first for one in segments}
    asks = log.config.min_compaction_lag_ms > 0
    return LogFacts(
        segments=tuple(
            SegmentFacts(
                *(one.base_offset, one.size_bytes, 0, 0, 0),
                one.largest_timestamp if asks and is_dirty[one.base_offset] else NONE,
            )
            for one in segments
        ),
        headers=tuple(
            HeaderFacts(first_timestamp=one.first_timestamp if is_dirty[one.base_offset] else NONE) for one in segments
        ),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=HighWatermark(log.high_watermark, ""),
        checkpoint=checkpoint,
        open_transactions=tuple(
            OpenTransaction(offset, producer_id) for offset, producer_id in log.open_transactions()
        ),
        first_unstable_offset=log.first_unstable_offset,
    )
