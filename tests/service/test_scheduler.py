"""Tasks on a clock that is moved by hand."""

from __future__ import annotations

from cordwood.service.scheduler import SteppedScheduler


class Hand:
    """A clock that is moved by hand, and what ran at which time."""

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
