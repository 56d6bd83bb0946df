"""Tasks on a clock that is moved by hand."""

from __future__ import annotations

import threading
import time

import pytest

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler, ThreadScheduler
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS, batch
from tests.live.nodes import ONE, until


class Hand:
    """A clock that the test moves, and the times of the tasks' runs."""

    def __init__(self, *, shortest_period_ms: int = 0) -> None:
        self.now_ms = 0
        self.ran: list[tuple[int, str]] = []
        self.scheduler = SteppedScheduler(lambda: self.now_ms, shortest_period_ms=shortest_period_ms)

    def schedule(self, name: str, *, delay_ms: int = 0, period_ms: int = 0) -> None:
        self.scheduler.schedule(
            name, lambda: self.ran.append((self.now_ms, name)), delay_ms=delay_ms, period_ms=period_ms
        )

    def go_to(self, end_ms: int) -> None:
        """Each task runs when it is due."""
        while (due_ms := self.scheduler.next_due_ms) is not None and due_ms <= end_ms:
            self.now_ms = due_ms
            self.scheduler.run_due()
        self.now_ms = end_ms


def test_from_due_time_to_due_time_each_task_runs_at_its_own() -> None:
    hand = Hand()
    hand.schedule("often", delay_ms=5, period_ms=10)
    hand.schedule("once", delay_ms=12)
    hand.schedule("now")
    hand.go_to(30)
    assert hand.ran == [(0, "now"), (5, "often"), (12, "once"), (15, "often"), (25, "often")]
    assert hand.scheduler.next_due_ms == 35


def test_a_late_periodic_task_runs_once_and_the_next_run_is_a_period_later() -> None:
    hand = Hand()
    hand.schedule("often", period_ms=10)
    hand.now_ms = 95
    hand.scheduler.run_due()
    assert hand.ran == [(95, "often")] and hand.scheduler.next_due_ms == 105


def test_a_shorter_period_than_the_shortest_is_lengthened_and_a_delay_is_not() -> None:
    hand = Hand(shortest_period_ms=50)
    hand.schedule("often", delay_ms=5, period_ms=10)
    hand.schedule("seldom", period_ms=70)
    hand.schedule("once", delay_ms=1)
    hand.go_to(120)
    assert hand.ran == [
        (0, "seldom"),
        (1, "once"),
        (5, "often"),
        (55, "often"),
        (70, "seldom"),
        (105, "often"),
    ]


def test_a_cancelled_task_is_not_due() -> None:
    hand = Hand()
    hand.scheduler.schedule("gone", lambda: None, delay_ms=5).cancel()
    assert hand.scheduler.next_due_ms is None
    hand.schedule("once", delay_ms=7)
    assert hand.scheduler.next_due_ms == 7


# ---- in threads ------------------------------------------------------------------------------------------------------


def test_periods_that_a_task_misses_are_made_up_by_one_run() -> None:
    now_ms, starts = 1_000, [threading.Event() for _ in range(3)]
    ran: list[int] = []
    go_on = threading.Semaphore(0)

    def run() -> None:
        ran.append(now_ms)
        starts[len(ran) - 1].set()
        go_on.acquire()

    scheduler = ThreadScheduler(1, lambda: now_ms)
    scheduler.startup()
    scheduler.schedule("often", run, period_ms=10)
    assert starts[0].wait(20)
    now_ms = 1_095  # nine periods have passed while it ran
    go_on.release()
    assert starts[1].wait(20)
    go_on.release()
    assert not starts[2].wait(0.2), "the next one is due at 1,100"
    now_ms = 1_100
    assert starts[2].wait(20)
    go_on.release()
    scheduler.shutdown()
    assert ran == [1_000, 1_095, 1_100]


def test_tasks_keep_their_pace_when_the_machines_clock_is_set() -> None:
    wall_ms, fs = NOW_MS, MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    configs = ["log.initial.task.delay.ms=0", "replica.high.watermark.checkpoint.interval.ms=20"]
    manager = LogManager(
        fs, ["d"], overrides([*configs, "t:cleanup.policy=delete", "t:retention.ms=3600000"]), clock=lambda: wall_ms
    )
    manager.startup()
    try:
        log = manager.get_or_create_log(ONE, is_new=True)

        def append() -> None:
            log.append_as_leader(batch("a"), 0)
            log.update_high_watermark(log.log_end_offset)

        def written() -> dict[TopicPartition, int]:
            return checkpoints.decode(read_file(fs, f"d/{filenames.HIGH_WATERMARKS}"))

        append()
        until(lambda: written() == {ONE: 1})
        wall_ms -= 3_600_000
        append()
        until(lambda: written() == {ONE: 2})
        assert log.log_start_offset == 0
        wall_ms += 86_400_000
        time.sleep(0.1)
        assert log.log_start_offset == 0, "retention is next in five minutes, by any clock"
    finally:
        manager.shutdown()


def test_a_task_that_fails_ends_neither_itself_nor_the_others() -> None:
    hand = Hand()

    def fail() -> None:
        hand.ran.append((hand.now_ms, "bad"))
        raise OSError("a disk")

    hand.schedule("a", delay_ms=1, period_ms=10)
    hand.scheduler.schedule("bad", fail, delay_ms=1, period_ms=10)
    hand.schedule("c", delay_ms=1, period_ms=10)
    for _ in range(2):
        hand.now_ms += 15
        with pytest.raises(OSError, match="a disk"):
            hand.scheduler.run_due()
    assert [name for _, name in hand.ran] == ["a", "bad", "c"] * 2
