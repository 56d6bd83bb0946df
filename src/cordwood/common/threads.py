"""Run many pieces of work at once, in threads or as tasks; and record that the process is about to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Set once a signal requests the end of the process: from then on no code may wait for long.
ending = Event()


class Each(Protocol):
    """Runs a function on each item, as tasks; the results are in the order of the items.

    Larger items are started first. The function and the items are pickled.
    """

    def __call__(self, do: Callable[[_T], Any], items: Sequence[_T], sizes: Sequence[int]) -> list[Any]:
        """Run the tasks."""
        ...


def in_parallel(at_a_time: int, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Call a function with each item, several at a time. The first error stops the rest.

    Args:
        at_a_time: number of concurrent calls that suit the file system (`Store.concurrency`); 1 for this thread only.
        work: function to call with an item.
    """
    threads = min(at_a_time, len(items))
    if threads <= 1:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor, wait

    results: list[Any] = [None] * len(items)
    left = iter(range(len(items)))

    def run() -> None:
        # A future per item would cost more than the work on it. `next` of this iterator needs no lock.
        try:
            for at in left:
                results[at] = work(items[at])
        finally:
            _use_up(left)  # after an error

    with ThreadPoolExecutor(threads) as pool:
        try:
            running = [pool.submit(run) for _ in range(threads)]
            wait(running)
        finally:
            _use_up(left)  # after an error of this thread, such as KeyboardInterrupt
    for one in running:
        one.result()
    return results


def _use_up(items: Iterator[object]) -> None:
    for _ in items:
        pass


#: Number of items in the first portion of `in_portions`, and in the largest ones.
_FIRST_PORTION, _LARGEST_PORTION = 4, 256


def in_portions(
    at_a_time: int,
    work: Callable[[_T], _R],
    items: Sequence[_T],
    *,
    disk_order: Callable[[_T], int] = lambda _: 0,
    is_remote: bool = False,
) -> Iterator[list[_R]]:
    """Call a function with each item, and yield the results in the order of the items, in portions that grow.

    The first results appear at once. Threads work on a portion only if the calls wait for a device: if all bytes are in
    memory, Python's threads would only wait for each other.

    Args:
        at_a_time: as for `in_parallel`.
        disk_order: returns the place of an item on the disk; the items of a portion are read in this order.
        is_remote: each call waits for requests, so threads work on all portions.
    """
    start, size, waits = 0, _FIRST_PORTION, is_remote
    while start < len(items):
        portion = range(start, min(start + size, len(items)))
        order = sorted(portion, key=lambda index: disk_order(items[index]))
        began, cpu = time.monotonic(), time.process_time()
        found = in_parallel(at_a_time if waits else 1, lambda index: work(items[index]), order)
        waits = is_remote or time.process_time() - cpu < (time.monotonic() - began) / 2
        by_index = dict(zip(order, found, strict=True))
        yield [by_index[index] for index in portion]
        start, size = portion.stop, min(4 * size, _LARGEST_PORTION)


def in_background(work: Callable[[], _R], name: str) -> Future[_R]:
    """Run a function in a thread of its own and return its future. The process can end without waiting for it."""
    from concurrent.futures import Future

    future: Future[_R] = Future()
    future.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
