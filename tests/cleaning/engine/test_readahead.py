"""Tests of the threads that read and work ahead."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.engine.readahead import TrackedWindow, read_ahead
from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import BATCH_ROW
from cordwood.record.columns import BatchWindow
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView

pytestmark = pytest.mark.more

_LARGE_BYTES = 33 << 20


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    partition = tmp_path_factory.mktemp("log") / "t-0"
    partition.mkdir()
    Path(partition, f"{0:020}.log").touch()
    return LogView(str(partition), fs=PosixFileSystem(), log_start_offset=0).segments[0]


def window(segment: Segment, number: int, *, size: int = 10, codec: int = 0) -> TrackedWindow:
    batches = np.zeros(1, BATCH_ROW)
    batches["attributes"] = codec
    read = BatchWindow(number, np.empty(size, np.uint8), batches, lambda _position, _size: iter(()))
    return TrackedWindow(segment, read, np.zeros(1, np.bool_), [])


@given(st.lists(st.tuples(st.sampled_from([10, 10, 10, _LARGE_BYTES]), st.sampled_from([0, 1]), st.integers(0, 2))))
def test_windows_come_in_order_each_with_its_own_result(
    segment: Segment, kinds: Sequence[tuple[int, int, int]]
) -> None:
    def windows() -> Iterator[TrackedWindow]:
        for number, (size, codec, _) in enumerate(kinds):
            yield window(segment, number, size=size, codec=codec)

    def work(shown: TrackedWindow) -> int:
        number = shown.window.position
        time.sleep(0.001 * kinds[number][2])
        return number

    with ThreadPoolExecutor(3) as threads:
        found = [(shown.window.position, result) for shown, result in read_ahead(threads, windows(), work)]
    assert found == [(number, number) for number in range(len(kinds))]


def test_a_large_window_is_worked_on_while_no_other_is_in_memory(segment: Segment) -> None:
    alive: list[weakref.ref[np.ndarray]] = []
    seen = []

    def windows() -> Iterator[TrackedWindow]:
        for number in range(9):
            coming = window(segment, number, size=_LARGE_BYTES if number in (3, 4, 8) else 10)
            alive.append(weakref.ref(coming.window.batches))
            yield coming
            del coming

    def work(shown: TrackedWindow) -> int:
        if shown.window.data.size == _LARGE_BYTES:
            time.sleep(0.02)  # a reader that continues does so now
            seen.append((shown.window.position, sum(one() is not None for one in alive), len(alive)))
        return 0

    with ThreadPoolExecutor(3) as threads:
        for shown, result in read_ahead(threads, windows(), work):
            del shown, result
    assert seen == [(3, 1, 4), (4, 1, 5), (8, 1, 9)]


def test_while_the_caller_uses_a_result_the_next_windows_are_worked_on(segment: Segment) -> None:
    worked = [threading.Event() for _ in range(3)]

    def work(shown: TrackedWindow) -> int:
        worked[shown.window.position].set()
        return 0

    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, iter([window(segment, number) for number in range(3)]), work)
        next(found)
        assert worked[1].wait(10) and worked[2].wait(10)
        assert len(list(found)) == 2


@pytest.mark.parametrize("fails_in", ["reading", "work"])
def test_what_fails_is_raised_behind_the_results_before_it(segment: Segment, fails_in: str) -> None:
    def windows() -> Iterator[TrackedWindow]:
        yield from (window(segment, number) for number in range(3))
        if fails_in == "reading":
            raise ValueError("here")
        yield from (window(segment, number) for number in range(3, 6))

    def work(shown: TrackedWindow) -> int:
        if fails_in == "work" and shown.window.position == 3:
            raise ValueError("here")
        return shown.window.position

    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, windows(), work)
        assert [next(found)[1] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="here"):
            next(found)


def test_a_caller_that_leaves_is_not_waited_for(segment: Segment) -> None:
    with ThreadPoolExecutor(3) as threads:
        found = read_ahead(threads, iter([window(segment, number) for number in range(9)]), lambda _: 0)
        next(found)  # it is held while the threads end, as by a traceback
