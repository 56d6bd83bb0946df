"""What Spark's Python workers run."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: The kind of function that Spark's `mapInArrow` takes.
Worker = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def by_number(read: Callable[[int], Iterator[pa.RecordBatch]]) -> Worker:
    """Make the function that gets rows of numbers, and reads for each.

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
    """Exclude all objects that exist now from garbage collections, once in a process.

    Spark's workers collect garbage after each task. With our modules and kernels loaded this takes about a tenth of a
    second, longer than many a task. Workers of our own daemon have it done before they are forked; those of a user's
    session call this behind their first task, when all is loaded.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
