"""Work that mostly waits for a disk, done by some threads; and whether the process is about to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Set once a signal told the process to end: nothing may wait for long from then on.
ending = Event()


def in_parallel(at_a_time: int, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Do something with each item, several at a time. The first error stops the rest.

    Args:
        at_a_time: what the file system is good for (`Store.concurrency`); 1: this thread takes one after the other.
        work: what to do with an item.
    """
    threads = min(at_a_time, len(items))
    if threads <= 1:
        return [work(item) for item in items]
    # Imported late: a command that starts needs only `ending`.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
