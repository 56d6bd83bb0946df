"""Readers let appends go first, and never wait for long."""

from __future__ import annotations

import threading

from cordwood.service import turns
from tests.service.live_logs import World, batch, read_all


def test_a_reader_sleeps_once_if_an_append_is_in_progress_and_not_otherwise() -> None:
    slept: list[float] = []
    turns.give_way(slept.append)
    assert slept == []
    with turns.Appending(), turns.Appending():
        turns.give_way(slept.append)
        assert len(slept) == 1
    turns.give_way(slept.append)
    assert len(slept) == 1


def test_while_an_append_hangs_readers_read_on() -> None:
    log = World().load()
    log.append_as_leader(batch("a0"), 0)
    appender = threading.Thread(target=log.append_as_leader, args=(batch("b1"), 0), daemon=True)
    with log.unchanged():  # what the append waits for
        appender.start()
        assert [read_all(log) for _ in range(3)] == [{0: "a0"}] * 3
    appender.join(60)
    assert read_all(log) == {0: "a0", 1: "b1"}
