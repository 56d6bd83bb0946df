"""Functions that run in Spark's Python workers."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: The type of functions for Spark's `mapInArrow`.
Worker = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def by_number(read: Callable[[int], Iterator[pa.RecordBatch]]) -> Worker:
    """Return a function that reads rows of numbers, and calls `read` with each number.

    Spark pickles it with all values that it uses.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(number)
        keep_loaded()

    return run


@functools.cache
def keep_loaded() -> None:
    """Exclude all objects that exist now from garbage collection, once in a process.

    Spark's workers run the garbage collector after each task. With our modules and kernels loaded this takes about a
    tenth of a second, longer than many a task. Our own daemon does this before it forks workers; workers of a user's
    session call this function after their first task, when everything is loaded.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
