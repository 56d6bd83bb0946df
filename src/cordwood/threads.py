"""Work that mostly waits for a disk, done by some threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Partitions copied at a time; most of it is waiting for the disk.
THREADS = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Do something with each item, several at a time. What fails first stops the rest."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
