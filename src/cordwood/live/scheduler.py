"""Delayed tasks, on a monotonic clock that is passed in: no change of the wall clock alters a delay."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cordwood.common.types import Clock, monotonic_clock, override

Task = Callable[[], None]
#: The longest wait that a condition supports.
_WAIT_MS_MAX = 3_600_000
#: Limit on threads, because all of them start at once and a config may set two billion. Kafka starts them on demand.
_THREADS_MAX = 100

_log = logging.getLogger(__name__)


@dataclass(order=True, slots=True)
class Scheduled:
    """A task that waits for its time; sorted by time, then by the order of the calls.

    Attributes:
        period_ms: milliseconds to the next run; 0: it runs once.
    """

    due_ms: int
    order: int
    name: str = field(compare=False)
    task: Task = field(compare=False)
    period_ms: int = field(compare=False, default=0)
    is_cancelled: bool = field(compare=False, default=False)

    def cancel(self) -> None:
        """Never run it again."""
        self.is_cancelled = True


class Scheduler(Protocol):
    """Runs tasks after a delay, once or periodically."""

    clock: Clock

    @abstractmethod
    def schedule(self, name: str, task: Task, *, delay_ms: int = 0, period_ms: int = 0) -> Scheduled:
        """Run a task.

        Args:
            period_ms: time between runs; 0: one run.
        """


class ThreadScheduler(Scheduler):
    """Runs tasks in its own threads.

    A task never runs twice at the same time. An error in a task is logged, and ends only that run. Tasks scheduled
    before `startup` or after `shutdown` are dropped, as are tasks that still wait at the shutdown. If a task misses
    periods, because it ran for long or the machine was suspended, one run makes up for all of them.
    """

    def __init__(self, threads: int = 10, clock: Clock = monotonic_clock) -> None:
        self.clock = clock
        self._threads = [
            threading.Thread(target=self._work, name=f"kafka-scheduler-{number}", daemon=True)
            for number in range(min(threads, _THREADS_MAX))
        ]
        self._changed = threading.Condition()
        self._queue: list[Scheduled] = []
        self._count = itertools.count()
        self._running: dict[int, tuple[str, int]] = {}
        self._is_running = False

    def startup(self) -> None:
        """Start to accept tasks."""
        self._is_running = True
        for thread in self._threads:
            thread.start()

    def shutdown(self) -> None:
        """Accept no more tasks, and wait for running tasks."""
        with self._changed:
            self._is_running = False
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @override
    def schedule(self, name: str, task: Task, *, delay_ms: int = 0, period_ms: int = 0) -> Scheduled:
        scheduled = Scheduled(self.clock() + max(0, delay_ms), next(self._count), name, task, period_ms)
        with self._changed:
            if self._is_running:
                heapq.heappush(self._queue, scheduled)
                self._changed.notify()
        return scheduled

    @property
    def running(self) -> list[tuple[str, int]]:
        """Running tasks: each name with its start on the clock."""
        return list(self._running.values())

    def _work(self) -> None:
        while (scheduled := self._next()) is not None:
            self._running[threading.get_ident()] = scheduled.name, self.clock()
            try:
                scheduled.task()
            except Exception:
                _log.exception("the task %s failed", scheduled.name)
            finally:
                del self._running[threading.get_ident()]
            if scheduled.period_ms > 0:
                with self._changed:
                    if self._is_running:
                        heapq.heappush(self._queue, scheduled)
                        self._changed.notify()

    def _next(self) -> Scheduled | None:
        """Wait for a task that is due; return None once the scheduler is shut down."""
        with self._changed:
            while self._is_running:
                if self._queue and self._queue[0].is_cancelled:
                    heapq.heappop(self._queue)
                elif self._queue and self._queue[0].due_ms <= (now_ms := self.clock()):
                    scheduled = heapq.heappop(self._queue)
                    if scheduled.period_ms > 0:
                        # Skip to the next period that has not begun: this run makes up for all missed periods.
                        late_ms = now_ms - scheduled.due_ms
                        scheduled.due_ms = now_ms + scheduled.period_ms - late_ms % scheduled.period_ms
                    return scheduled
                else:
                    wait_ms = self._queue[0].due_ms - now_ms if self._queue else _WAIT_MS_MAX
                    self._changed.wait(min(wait_ms, _WAIT_MS_MAX) / 1000)
            return None


class SteppedScheduler(Scheduler):
    """Runs tasks in the caller's thread: tasks without a delay at once, the others when `run_due` is called.

    With a clock that moves by hand, months pass in seconds.
    """

    def __init__(self, clock: Clock, *, shortest_period_ms: int = 0) -> None:
        """Begin without tasks.

        Args:
            shortest_period_ms: replaces shorter periods: a test that simulates a month in steps of minutes needs no
                checkpoint every five seconds.
        """
        self.clock = clock
        self._shortest_period_ms = shortest_period_ms
        self._queue: list[Scheduled] = []
        self._count = itertools.count()

    @override
    def schedule(self, name: str, task: Task, *, delay_ms: int = 0, period_ms: int = 0) -> Scheduled:
        if period_ms > 0:
            period_ms = max(period_ms, self._shortest_period_ms)
        scheduled = Scheduled(self.clock() + delay_ms, next(self._count), name, task, period_ms)
        if delay_ms <= 0 and period_ms <= 0:
            task()
        else:
            heapq.heappush(self._queue, scheduled)
        return scheduled

    def run_due(self) -> None:
        """Run the due tasks in order of their time; a periodic task runs once, however late it is.

        An error ends only that run; the first error is raised after all tasks have run.
        """
        again: list[Scheduled] = []
        errors: list[Exception] = []
        while self._queue and self._queue[0].due_ms <= self.clock():
            scheduled = heapq.heappop(self._queue)
            if scheduled.is_cancelled:
                continue
            try:
                scheduled.task()
            except Exception as error:
                errors.append(error)
            if scheduled.period_ms > 0:
                scheduled.due_ms = self.clock() + scheduled.period_ms
                again.append(scheduled)
        for scheduled in again:
            heapq.heappush(self._queue, scheduled)
        if errors:
            raise errors[0]

    @property
    def next_due_ms(self) -> int | None:
        """The time of the next task; None if no task waits."""
        while self._queue and self._queue[0].is_cancelled:
            heapq.heappop(self._queue)
        return self._queue[0].due_ms if self._queue else None

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of waiting tasks, the next one first."""
        return tuple(one.name for one in sorted(self._queue) if not one.is_cancelled)
