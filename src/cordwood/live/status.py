"""The state of each live log, with its reason: for users, and for the health of all logs.

The reasons for a compacted log are the same as in `plan`: the same rules decide, applied to the segments in memory.

All logs together are healthy if the cleaner keeps up, nothing has failed and the disk responds; otherwise the health
has the reasons. Kafka leaves this to readers of its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from cordwood.cleaning.rules import selection
from cordwood.cleaning.rules.plan import (
    BlockingTransaction,
    Choices,
    Decision,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    Reason,
    SegmentFacts,
)
from cordwood.common.config import TopicConfig, show
from cordwood.common.errors import LogError
from cordwood.common.types import NONE, Clock, TopicPartition, monotonic_clock
from cordwood.live.cleaner_manager import LogCleanerManager
from cordwood.live.log import Log
from cordwood.live.log_cleaner import CleanerThread, LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.report import Health, PartitionStatus, ThreadState, ThreadStatus
from cordwood.live.segment import SegmentGoneError


def statuses(
    manager: LogManager,
    now_ms: int,
    left_alone: Mapping[str, Reason],
    only_compacted: Mapping[str, Reason],
    waiting_for: Callable[[str], None] = lambda _: None,
) -> list[PartitionStatus]:
    """Return the status of each current log, sorted by partition.

    Args:
        left_alone: reasons by topic, for topics without any compaction or retention; see `ExplicitConfigs`.
        only_compacted: reasons by topic, for topics whose limits of time and size are ignored.
        waiting_for: called before each step that may take long, with the step's name.
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
        one = _with_tier(_status(partition, log, config, cleaner, left_alone.get(partition.topic)), manager)
        if log.config.compact and cleaner is not None:
            one = _with_compaction(one, log, config, cleaner, known.get(partition), now_ms)
        elif log.config.delete and partition.topic in only_compacted:
            one = replace(one, reason=only_compacted[partition.topic])
        found.append(one)
    return found


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
    uncleanable = None if cleaner is None else cleaner.uncleanable(partition)
    if cleaner is not None and uncleanable is not None:
        seconds = cleaner.seconds_to_retry(uncleanable)
        until = "" if seconds is None else f"tried again in {seconds} s"
        reason = Reason(f"the last clean failed: {uncleanable.reason}", until=until)
    return PartitionStatus(
        partition=partition,
        directory=log.directory,
        policy=show(policy.value),
        segments=len(log.log_segments),
        size_bytes=log.size_bytes,
        appended_bytes=log.appended_bytes,
        deleted_bytes=log.deleted_bytes,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        cleanable_ratio=None,
        state=None if state is None else str(state),
        is_due=False,
        failures=0 if uncleanable is None else uncleanable.failures,
        failure_kind="" if uncleanable is None else uncleanable.kind,
        reason=reason,
    )


def _with_tier(status: PartitionStatus, manager: LogManager) -> PartitionStatus:
    tiered = None if manager.tiering is None else manager.tiering.status(status.partition)
    if tiered is None:
        return status
    waiting = sum(segment.size_bytes for segment, _ in tiered.waiting())
    remote = sum(one.segment.size_bytes for one in tiered.state.segments)
    return replace(status, remote_bytes=remote, copy_lag_bytes=waiting, tier_error=tiered.last_error)


def _with_compaction(
    status: PartitionStatus,
    log: Log,
    config: TopicConfig,
    cleaner: LogCleanerManager,
    checkpoint: int | None,
    now_ms: int,
) -> PartitionStatus:
    status = replace(status, seconds_since_clean=cleaner.seconds_since_clean(status.partition))
    try:
        facts = _facts(log, checkpoint)
    except LogError as error:  # its directory has failed, or it is just being deleted
        return replace(status, reason=Reason(str(error)))
    except SegmentGoneError:
        return replace(status, reason=Reason("its segments are just being replaced"))
    except OSError as error:
        return replace(status, reason=Reason(f"cannot be read: {error}"))
    choices = Choices()
    compaction = selection.plan_compaction(facts, config, choices, now_ms)
    decision, reason = selection.decide(compaction, facts, config, choices, now_ms)
    if status.failures:
        reason = status.reason
    if "--" in reason.until:  # an option of another command
        reason = replace(reason, until="")
    return replace(
        status,
        cleanable_ratio=compaction.cleanable_ratio or 0.0,
        dirty_bytes=compaction.cleanable_bytes,
        is_due=decision is Decision.CLEAN,
        reason=reason,
    )


def _facts(log: Log, checkpoint: int | None) -> LogFacts:
    """Return a live log's facts for planning, with the headers only of segments that decide when it is due."""
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
            BlockingTransaction(offset, producer_id) for offset, producer_id in log.open_transactions()
        ),
        first_unstable_offset=log.first_unstable_offset,
    )


def thread_statuses(cleaner: LogCleaner | None) -> tuple[ThreadStatus, ...]:
    """Return the current work of each thread of a cleaner, with its progress."""
    return () if cleaner is None else tuple(_thread_status(thread) for thread in cleaner.threads)


def _thread_status(thread: CleanerThread) -> ThreadStatus:
    record, running = thread.record, thread.record.running
    last = "" if record.stats is None else str(record.stats)
    if thread.is_dead:
        return ThreadStatus(thread.name, ThreadState.DEAD, last=last)
    if running is None:
        return ThreadStatus(thread.name, ThreadState.WAITING, last=last)
    return ThreadStatus(
        *(thread.name, ThreadState.CLEANING, running.clean.found.partition, running.seconds),
        *(running.clean.bytes_read(), running.clean.task.size_bytes, last),
    )


# ---- health ----------------------------------------------------------------------------------------------------------

#: A log waits too long if it is due for longer than this, and for longer than `_TURNS` turns of the cleaner.
PATIENCE_MS = 60_000
_TURNS = 4
#: A task, such as retention or a checkpoint, that runs for longer than this hangs.
_TASK_PATIENCE_MS = 300_000


class Waiting:
    """A thread's current wait, as it last reported it, and its duration; any thread may read it."""

    def __init__(self, what: str, clock: Clock = monotonic_clock) -> None:
        self._clock = clock
        self._now = what, clock()

    def begin(self, what: str) -> None:
        """Report that the thread now waits for `what`."""
        self._now = what, self._clock()

    @property
    def since_ms(self) -> int:
        """Start of the wait, on the monotonic clock."""
        return self._now[1]

    def __str__(self) -> str:
        what, since_ms = self._now
        seconds = (self._clock() - since_ms) / 1_000
        return f"{what}, for {seconds:.0f} s (since {datetime.now(UTC) - timedelta(seconds=seconds):%H:%M:%S} UTC)"


class HealthWatch:
    """Looks at a manager repeatedly, and keeps the time since which each log has been due.

    A look waits for the logs, and the logs wait for the disk. So if the last look is old, a disk may hang.

    Attributes:
        period_ms: planned time between two looks.
    """

    def __init__(self, period_ms: int = 2_000, clock: Clock = monotonic_clock) -> None:
        self.waiting = Waiting("the first look", clock)
        self.period_ms = period_ms
        self._clock = clock
        self._due_since_ms: dict[TopicPartition, int] = {}
        self._last = Health(("the logs are being loaded",)), clock()

    def health(self) -> Health:
        """Return the problems of the last look, and add one if that look is too old; never wait."""
        health, looked_ms = self._last
        age_ms = self._clock() - looked_ms
        if age_ms <= 2 * self.period_ms:
            return health
        old = f"the logs were last looked at {age_ms / 1_000:.0f} s ago: the look waits for {self.waiting}"
        return Health((old, *health.problems))

    @property
    def longest_due_ms(self) -> int:
        """The longest time that any log has been due; 0 if no log is due."""
        since_ms = self._due_since_ms.values()  # another thread may replace the dictionary
        now_ms = self._clock()
        return now_ms - min(since_ms, default=now_ms)

    def look(self, manager: LogManager, statuses: Sequence[PartitionStatus], now_ms: int) -> Health:
        """Look at the logs now, keep the problems for `health`, and return them."""
        time_ms = self._clock()
        due = {one.partition for one in statuses if one.is_due and not one.failures}
        self._due_since_ms = {one: self._due_since_ms.get(one, time_ms) for one in due}
        found = [
            *_failed_directories(manager),
            *self._behind(manager, time_ms),
            *_hanging_tasks(manager, time_ms),
            *_uncleanable(statuses),
            *_not_in_tier(manager),
            *self._late_transactions(manager, now_ms),
        ]
        self._last = Health(tuple(found)), self._clock()
        return self._last[0]

    def _behind(self, manager: LogManager, time_ms: int) -> Iterator[str]:
        """Yield one problem for all logs that have waited too long for their clean."""
        if manager.cleaner is None or not self._due_since_ms:
            return
        longest_ms = max((int(one.seconds * 1_000) for one in manager.cleaner.last_stats), default=0)
        backoff_ms = manager.config.integer("log.cleaner.backoff.ms")
        patience_ms = max(PATIENCE_MS, _TURNS * (longest_ms + backoff_ms))
        waiting = sorted((since, one) for one, since in self._due_since_ms.items() if time_ms - since > patience_ms)
        if not waiting:
            return
        since, first = waiting[0]
        others = f", and {len(waiting) - 1} other logs" if len(waiting) > 1 else ""
        threads = manager.config.integer("log.cleaner.threads")
        yield (
            f"the cleaner does not keep up: {first} has been due for {(time_ms - since) // 1_000} s{others}; "
            f"log.cleaner.threads={threads}, the longest of the last cleans took {longest_ms / 1_000:.1f} s. More "
            "threads, a higher log.cleaner.io.max.bytes.per.second or a higher min.cleanable.dirty.ratio help"
        )

    def _late_transactions(self, manager: LogManager, now_ms: int) -> Iterator[str]:
        for partition, log in manager.logs.items():
            self.waiting.begin(f"the log {partition}")
            if log.has_late_transaction(now_ms):
                offset, producer_id = log.open_transactions()[0]
                yield (
                    f"a transaction in {partition}, of producer {producer_id} from offset {offset} on, is open for "
                    "longer than any may be: nothing behind it is committed or cleaned"
                )


def _hanging_tasks(manager: LogManager, time_ms: int) -> Iterator[str]:
    for name, since_ms in manager.running_tasks:
        if time_ms - since_ms > _TASK_PATIENCE_MS:
            yield f"the task {name} has been running for {(time_ms - since_ms) // 1_000} s: does the disk answer?"


def _failed_directories(manager: LogManager) -> Iterator[str]:
    for failure in manager.failures.failures:
        yield f"log directory {failure.directory} is offline: {failure.message}: {failure.error}"


def _not_in_tier(manager: LogManager) -> Iterator[str]:
    for partition, error in () if manager.tiering is None else manager.tiering.errors().items():
        yield f"{partition} is not copied to its tier, and its segments stay on the disk: {error}"


def _uncleanable(statuses: Sequence[PartitionStatus]) -> Iterator[str]:
    for one in statuses:
        if one.failures:
            yield f"{one.partition} cannot be cleaned, tried {one.failures} times: {one.reason}"
