"""Readers let appends go first, and never wait for long."""

from __future__ import annotations

import threading
import time

from cordwood.live import reading
from tests.live.live_logs import World, batch, read_all


def compute() -> None:
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass


def test_a_reader_that_has_computed_sleeps_only_if_an_append_is_in_progress() -> None:
    slept: list[float] = []
    compute()
    reading.give_way(slept.append)
    assert slept == []
    reading.begin_append(None)
    reading.begin_append(None)
    reading.give_way(slept.append)
    reading.give_way(slept.append)  # has computed almost nothing since
    assert len(slept) == 1
    reading.end_append()
    compute()
    reading.give_way(slept.append)
    assert len(slept) == 2
    reading.end_append()
    compute()
    reading.give_way(slept.append)
    assert len(slept) == 2


def test_a_reader_sleeps_longer_the_more_readers_sleep() -> None:
    slept: list[float] = []

    def sleep_beside_another(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) < 3:
            another = threading.Thread(target=compute_and_give_way)
            another.start()
            another.join()

    def compute_and_give_way() -> None:
        compute()
        reading.give_way(sleep_beside_another)

    reading.begin_append(None)
    compute_and_give_way()
    reading.end_append()
    assert slept == [slept[0], 2 * slept[0], 3 * slept[0]] and 0.01 < slept[0] < 0.02


def test_while_an_append_hangs_readers_read_on() -> None:
    log = World().load()
    log.append_as_leader(batch("a0"), 0)
    appender = threading.Thread(target=log.append_as_leader, args=(batch("b1"), 0), daemon=True)
    with log.unchanged():  # the append waits for this block
        appender.start()
        assert [read_all(log) for _ in range(3)] == [{0: "a0"}] * 3
    appender.join(60)
    assert read_all(log) == {0: "a0", 1: "b1"}
