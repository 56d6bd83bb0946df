"""Readers beside appenders of one log: which of them wait for each other, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from cordwood.fs.base import File
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem
from cordwood.live import reading
from cordwood.live.log import FetchIsolation, Log
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS, World, batch, read_all

MARKS = {"at the end": 4, "between batches": 2, "inside a batch": 3}


class Stopping(WrappedFileSystem):
    """Blocks each read by a thread `reader` until the test releases it."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem(lambda: NOW_MS * 1_000_000))
        self.is_reading, self.go_on = threading.Event(), threading.Event()

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return StoppingFile(super().create(path, exclusive=exclusive, mode=mode), self)


class StoppingFile(WrappedFile):
    def __init__(self, file: File, fs: Stopping) -> None:
        super().__init__(file)
        self._fs = fs

    def read(self, position: int, size_bytes: int) -> bytes:
        if threading.current_thread().name == "reader":
            self._fs.is_reading.set()
            assert self._fs.go_on.wait(60)
        return super().read(position, size_bytes)


def beside(work: Callable[[], object], name: str = "beside") -> threading.Thread:
    """A thread that does something."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def log_with_mark(mark: int, fs: Stopping | None = None) -> Log:
    """Two batches of two records each."""
    log = World(fs).load()
    for values in (("a0", "b1"), ("c2", "d3")):
        log.append_as_leader(batch(*values), 0)
    log.update_high_watermark(mark)
    return log


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize("isolation", FetchIsolation)
def test_while_a_reader_waits_for_the_disk_appends_go_on(mark: int, isolation: FetchIsolation) -> None:
    fs = Stopping()
    log = log_with_mark(mark, fs)
    found: list[bytes] = []
    reader = beside(lambda: found.append(log.read(0, 1000, isolation).records), "reader")
    assert fs.is_reading.wait(60)
    appender = beside(lambda: (log.append_as_leader(batch("e4"), 0), log.update_high_watermark(5)))
    appender.join(60)
    assert not appender.is_alive() and not found and (log.log_end_offset, log.high_watermark) == (5, 5)
    fs.go_on.set()
    reader.join(60)
    assert len(found[0]) > 0 and read_all(log) == {0: "a0", 1: "b1", 2: "c2", 3: "d3", 4: "e4"}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
@pytest.mark.parametrize("isolation", FetchIsolation)
def test_while_somebody_changes_the_log_readers_read_on(mark: int, isolation: FetchIsolation) -> None:
    log = log_with_mark(mark)
    with log.unchanged():
        for offset in (0, mark, log.log_end_offset):
            reader = beside(partial(log.read, offset, 1000, isolation))
            reader.join(60)
            assert not reader.is_alive(), f"a reader at offset {offset} waits for the lock"
    assert log.high_watermark == (mark if isolation is FetchIsolation.LOG_END else mark // 2 * 2)


def test_a_mark_set_while_a_reader_places_the_last_one_stays() -> None:
    fs = Stopping()
    log = log_with_mark(3, fs)
    reader = beside(lambda: log.read(0, 1000), "reader")
    assert fs.is_reading.wait(60)
    log.update_high_watermark(4)
    fs.go_on.set()
    reader.join(60)
    assert log.high_watermark == 4


# ---- turns -----------------------------------------------------------------------------------------------------------


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
