"""Checks that the cleaner keeps up, nothing has failed and the disk responds; otherwise gives the reasons.

Source: none in Kafka, which leaves this to readers of its metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from cordwood.common.clock import Clock, monotonic_clock
from cordwood.common.types import TopicPartition
from cordwood.live.log_manager import LogManager
from cordwood.live.report import Health, PartitionStatus

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


def _uncleanable(statuses: Sequence[PartitionStatus]) -> Iterator[str]:
    for one in statuses:
        if one.failures:
            yield f"{one.partition} cannot be cleaned, tried {one.failures} times: {one.reason}"
