"""Forks of this process."""

from __future__ import annotations

import sys
import threading

import pytest

from cordwood.tasks.forks import can_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


def test_given_threads_that_end_while_they_are_counted_then_they_do_not_count() -> None:
    done = threading.Event()

    def start_threads() -> None:
        while not done.is_set():
            threads = [threading.Thread(target=int) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    starting = threading.Thread(target=start_threads)
    starting.start()
    try:
        assert not any(can_fork() for _ in range(5000))
    finally:
        done.set()
        starting.join()
