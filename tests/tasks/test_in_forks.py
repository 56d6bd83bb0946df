"""Work that is divided among forks of this process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from cordwood.common.errors import CorruptFileError, RequestError
from cordwood.tasks.in_forks import in_forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


@pytest.mark.parametrize("forks", [1, 2, 3])
def test_results_are_in_the_order_of_the_items(forks: int) -> None:
    large = "x" * 200_000  # more than a pipe holds
    found = list(in_forks(forks, lambda item: (item, large, os.getpid()), range(7)))
    assert [(item, text) for item, text, _ in found] == [(item, large) for item in range(7)]
    assert len({pid for *_, pid in found}) == forks


def test_an_error_of_a_fork_is_raised_here() -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise CorruptFileError("no number", path="a/b")
        return item

    results = in_forks(2, fail, range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(CorruptFileError, match="no number") as caught:
        next(results)
    assert caught.value.path == "a/b"


def test_a_fork_that_is_killed_is_an_error() -> None:
    with pytest.raises(RequestError, match="a process was killed"):
        list(in_forks(2, lambda _: os.kill(os.getpid(), signal.SIGKILL), range(2)))


def test_forks_end_once_no_result_is_read() -> None:
    def wait(item: int) -> int:
        if item > 1:
            time.sleep(600)
        return os.getpid()

    results: Iterator[int] = in_forks(2, wait, range(4))
    children = [next(results), next(results)]
    results.close()  # type: ignore[attr-defined]
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
