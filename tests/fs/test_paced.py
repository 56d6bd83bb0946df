"""A rate for all processes together: Kafka's ThrottlerTest for one process, and the same for several."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import RequestError
from cordwood.fs.base import File, TargetStore
from cordwood.fs.paced import Limit, Throttle, WantedLocation, checked, throttled, throttled_store
from cordwood.fs.posix import PosixFileSystem
from cordwood.testing.memory import MemoryFileSystem
from tests.fs import contract
from tests.fs.contract import target_outcome

RATE = 1_000_000
PIECE = RATE // 50


@dataclass
class Time:
    """A clock that only moves while a caller sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def memory() -> MemoryFileSystem:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("/throttle")
    return fs


class Processes:
    """Several processes that share one clock; the longest waiting process continues."""

    def __init__(self, count: int, fs: MemoryFileSystem | None = None, rate: int = RATE) -> None:
        self.fs = fs or memory()
        self.rate = rate
        self.now = 0.0
        self.moved: list[tuple[float, int]] = []
        self.ready = [0.0] * count
        self._throttles = [self._throttle(at) for at in range(count)]

    def _throttle(self, at: int) -> Throttle:
        def sleep(seconds: float) -> None:
            self.ready[at] = self.now + seconds

        return Throttle(self.fs, "/throttle", self.rate, lambda: self.now, sleep)

    def move(self, at: int, size_bytes: int) -> None:
        """A process moves bytes as soon as it may."""
        self.now = max(self.now, self.ready[at])
        self._throttles[at].wait_for(size_bytes)
        self.moved.append((max(self.now, self.ready[at]), size_bytes))

    def bytes_between(self, start: float, end: float) -> int:
        return sum(size for at, size in self.moved if start <= at < end)


def test_bytes_take_their_time_at_the_rate() -> None:
    time = Time()
    throttle = Throttle(memory(), "/throttle", RATE, time.clock, time.sleep)
    for _ in range(200):
        throttle.wait_for(PIECE)
    assert time.now - 1000 == pytest.approx(4.0)


def test_a_slow_reader_never_waits() -> None:
    time = Time()
    throttle = Throttle(memory(), "/throttle", RATE, time.clock, time.sleep)
    for _ in range(200):
        time.now += 1.01 * PIECE / RATE
        throttle.wait_for(PIECE)
    assert time.slept == []


def test_unused_time_allows_no_burst() -> None:
    time = Time()
    throttle = Throttle(memory(), "/throttle", RATE, time.clock, time.sleep)
    time.now += 3600
    for _ in range(100):
        throttle.wait_for(PIECE)
    assert time.now - 4600 == pytest.approx(1.9, abs=2 * PIECE / RATE)  # 2 s, less the tenth that counts


def test_small_reads_are_counted_together() -> None:
    time, fs = Time(), memory()
    throttle = Throttle(fs, "/throttle", RATE, time.clock, time.sleep)
    for _ in range(10_000):
        throttle.wait_for(100)
    assert time.now - 1000 == pytest.approx(1.0)
    assert len(fs.operations) < 200


@pytest.mark.parametrize("count", [2, 7])
def test_processes_share_one_rate(count: int) -> None:
    processes = Processes(count)
    for _ in range(100 * count):
        processes.move(min(range(count), key=lambda at: processes.ready[at]), PIECE)
    took = max(processes.ready)
    assert 100 * count * PIECE / RATE <= took <= 100 * count * PIECE / RATE + 0.1


def test_a_process_that_is_left_alone_has_the_whole_rate() -> None:
    processes = Processes(4)
    for at in (*(0, 1, 2, 3) * 10, *(0,) * 500):
        processes.move(at, PIECE)
    end = processes.ready[0]
    assert processes.bytes_between(end - 5, end) == pytest.approx(5 * RATE, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_no_second_has_more_than_the_rate_and_a_moment(seed: int) -> None:
    draw = random.Random(seed)
    processes = Processes(draw.randint(1, 6))
    for _ in range(1000):
        if draw.random() < 0.02:
            processes.now += draw.choice([0.1, 1, 30])
        processes.move(draw.randrange(len(processes.ready)), draw.randint(1, PIECE))
    allowed = RATE * 1.1 + 2 * PIECE * len(processes.ready)
    for start, _ in processes.moved:
        assert processes.bytes_between(start, start + 1) <= allowed


def test_a_process_that_starts_late_waits_only_for_what_moves_then() -> None:
    fs, time = memory(), Time()
    first = Throttle(fs, "/throttle", RATE, time.clock, time.sleep)
    for _ in range(500):
        first.wait_for(PIECE)
    began = time.now
    Throttle(fs, "/throttle", RATE, time.clock, time.sleep).wait_for(PIECE)
    assert time.now - began == pytest.approx(PIECE / RATE)


def test_a_counter_that_is_half_written_counts_as_last_seen() -> None:
    fs, time = memory(), Time()
    first, second = (Throttle(fs, "/throttle", RATE, time.clock, time.sleep) for _ in range(2))
    first.wait_for(5 * PIECE)
    second.wait_for(PIECE)
    for info in fs.list("/throttle"):
        with fs.create(f"/throttle/{info.name}", exclusive=False) as file:
            file.write(0, b"\xff" * 6)
    began = time.now
    second.wait_for(PIECE)
    assert time.now - began == pytest.approx(PIECE / RATE)


def test_a_task_whose_run_has_ended_stops() -> None:
    fs, time = memory(), Time()
    throttle = Throttle(fs, "/throttle", RATE, time.clock, time.sleep)
    for info in fs.list("/throttle"):
        fs.unlink(f"/throttle/{info.name}")
    fs.remove_directory("/throttle")
    with pytest.raises(FileNotFoundError):
        throttle.wait_for(PIECE)


def test_a_full_disk_stops_no_task() -> None:
    fs, time = memory(), Time()
    throttle = Throttle(fs, "/throttle", RATE, time.clock, time.sleep)
    fs.capacity_bytes = 0
    throttle.wait_for(50 * PIECE)
    assert time.now - 1000 == pytest.approx(1.0)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_no_rate_leaves_the_file_system_as_it_is() -> None:
    fs = memory()
    assert throttled(fs, Limit.of(None, fs, "/")) is fs
    assert throttled_store(fs, None) is fs
    assert fs.list("/throttle") == []


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_that_is_not_positive_is_refused(rate: int) -> None:
    with pytest.raises(RequestError, match=f"A rate of {rate} bytes per second"):
        Limit.of(rate, memory(), "/")


def limited(folder: Path, rate: int = 50 * 1000) -> TargetStore:
    fs = PosixFileSystem()
    return throttled(fs, Limit.of(rate, fs, str(folder)))


def test_a_throttled_file_is_read_and_written_in_pieces(tmp_path: Path) -> None:
    fs = limited(tmp_path, rate=50 << 20)
    data = random.Random(1).randbytes(3 << 20)
    with fs.create(f"{tmp_path}/a.log") as file:
        file.write(7, data)
        assert file.size() == 7 + len(data)
        target = bytearray(len(data) + 100)
        assert file.read_into(7, memoryview(target)) == len(data)
        assert bytes(target[: len(data)]) == data
        assert file.read(0, 1 << 40) == bytes(7) + data
        assert file.read(len(data) + 7, 10) == b""
    fs.copy(f"{tmp_path}/a.log", f"{tmp_path}/b.log")
    assert (tmp_path / "b.log").read_bytes() == bytes(7) + data


def test_of_a_window_that_is_larger_than_its_file_only_the_file_counts(tmp_path: Path) -> None:
    fs = limited(tmp_path, rate=50 * 1000)
    (tmp_path / "a.log").write_bytes(bytes(2000))
    with fs.open(f"{tmp_path}/a.log") as file:
        for position, size in ((0, 2000), (1500, 500), (2000, 0), (5000, 0)):
            assert file.read_into(position, memoryview(bytearray(1 << 20))) == size
    (counter,) = (tmp_path / "throttle").iterdir()
    assert int.from_bytes(counter.read_bytes()[:8], "little") == 2000, "the other 500 are less than a piece"


def test_tasks_in_other_processes_share_the_limit(tmp_path: Path) -> None:
    fs = limited(tmp_path)
    for again in (fs, pickle.loads(pickle.dumps(fs.location())).open()):
        with again.create(f"{tmp_path}/{id(again)}") as file:
            file.write(0, bytes(2000))
    # The same process has one counter.
    assert len(os.listdir(f"{tmp_path}/throttle")) == 1
    store = throttled_store(PosixFileSystem(), Limit.of(None, fs, str(tmp_path)))
    assert store.location().in_this_process is fs.location().in_this_process is False


@given(st.lists(contract.target_steps, max_size=20))
def test_a_throttled_file_system_behaves_as_the_one_below(steps: list[tuple[Any, ...]]) -> None:
    plain, below = memory(), memory()
    fs = throttled(below, Limit.of(1 << 40, below, "/throttle"))
    for fs_or_below in (plain, fs):
        fs_or_below.make_directory("/folder")
    for step in steps:
        assert target_outcome(fs, "/folder", *step) == target_outcome(plain, "/folder", *step)


# ---- checked ---------------------------------------------------------------------------------------------------------


MIB = 1 << 20


class StoppedError(Exception):
    """The user has to stop."""


def in_memory() -> MemoryFileSystem:
    return MemoryFileSystem(lambda: 0)


@pytest.mark.parametrize(
    "act",
    [
        lambda fs: fs.open("/f").read_into(0, memoryview(bytearray(10 * MIB))),
        lambda fs: fs.open("/f").read(0, 10 * MIB),
        lambda fs: fs.create("/g").write(0, bytes(10 * MIB)),
    ],
)
def test_reads_and_writes_are_asked_for_every_four_mib(act: Callable[[TargetStore], object]) -> None:
    below, asked = in_memory(), 0
    with below.create("/f") as file:
        file.write(0, bytes(10 * MIB))

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked > stops_after:
            raise StoppedError

    fs, stops_after = checked(below, check), 100
    act(fs)
    assert asked == 3
    for stops_after in range(3):
        asked = 0
        if below.exists("/g"):
            below.unlink("/g")
        with pytest.raises(StoppedError):
            act(fs)
        if below.exists("/g"):
            assert below.stat("/g").size_bytes == stops_after * 4 * MIB


@given(st.lists(contract.target_steps, max_size=20))
def test_while_all_is_well_it_behaves_as_the_one_below(steps: list[tuple[Any, ...]]) -> None:
    plain, below = in_memory(), in_memory()
    fs = checked(below, lambda: None)
    for either in (plain, fs):
        either.make_directory("/folder")
    for step in steps:
        assert target_outcome(fs, "/folder", *step) == target_outcome(plain, "/folder", *step)


def test_blocks_of_a_file_are_shared_as_the_one_below_shares_them() -> None:
    below, stopped = in_memory(), False

    def check() -> None:
        if stopped:
            raise StoppedError

    fs = checked(below, check)
    source, target = fs.create("/f"), fs.create("/g")
    source.write(0, bytes(MIB))
    target.write_shared(0, bytes(MIB), source, 0)
    assert (below.shared_bytes, target.size()) == (MIB, MIB)
    stopped = True
    with pytest.raises(StoppedError):
        target.write_shared(MIB, bytes(MIB), source, 0)


def read_on(file: File) -> None:
    """Read again and again: there is not a look at the folder before each read."""
    while True:
        file.read(0, 100)


def test_a_task_in_another_process_ends_soon_after_its_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "f").write_bytes(bytes(100))
    below = throttled(PosixFileSystem(), Limit.of(1 << 40, PosixFileSystem(), str(tmp_path)))
    location = WantedLocation(below.location(), str(tmp_path / "made"))
    assert not location.in_this_process
    fs = pickle.loads(pickle.dumps(location)).open()
    file, made = fs.open(f"{tmp_path}/f"), fs.create(f"{tmp_path}/made/g")
    assert file.read(0, 100) == bytes(100)
    made.write(0, bytes(10))
    made.close()
    (tmp_path / "made" / "g").unlink()
    (tmp_path / "made").rmdir()
    with pytest.raises(FileNotFoundError, match="is unwanted"):
        read_on(file)
    with pytest.raises(FileNotFoundError):
        fs.create(f"{tmp_path}/made/h")
