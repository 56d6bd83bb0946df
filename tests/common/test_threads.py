"""Work in several threads: its order, its errors, and when threads do it."""

from __future__ import annotations

import threading
import time

import pytest

from cordwood.common.threads import in_parallel, in_portions


def test_results_of_threads_are_in_order_and_the_first_error_stops_the_rest() -> None:
    done = list[int]()

    def halve(item: int) -> int:
        time.sleep(0.001)
        done.append(item)
        return 100 // (item - 30)

    assert in_parallel(4, halve, range(20)) == [halve(item) for item in range(20)]
    done.clear()
    with pytest.raises(ZeroDivisionError):
        in_parallel(4, halve, range(1000))
    assert 30 in done and len(done) < 100


def test_results_are_in_order_though_the_disk_is_read_in_another() -> None:
    done = list[int]()

    def note(item: int) -> int:
        done.append(item)
        return item

    portions = list(in_portions(1, note, range(600), disk_order=lambda item: -item))
    assert [len(one) for one in portions] == [4, 16, 64, 256, 256, 4]
    assert [item for one in portions for item in one] == list(range(600))
    assert done[:5] == [3, 2, 1, 0, 19]


def test_threads_work_only_while_calls_wait() -> None:
    def wait(_: int) -> int:
        time.sleep(0.01)
        return threading.get_ident()

    def count(_: int) -> int:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return threading.get_ident()

    mine = {threading.get_ident()}
    first, second = in_portions(8, wait, range(20))
    assert set(first) == mine
    assert len({*second} - mine) > 1
    assert {*next(in_portions(8, count, range(4), is_remote=True))} != mine
