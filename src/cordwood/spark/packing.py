"""Packs many partitions into few Spark tasks.

An empty Spark task costs a few milliseconds, which is more than cleaning a tiny partition takes. About four tasks per
core keep that overhead small, and still balance the load so that no core waits long for the last task.
"""

from __future__ import annotations

import functools
import heapq
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cordwood.cleaning.key_table import MemoryShare
from cordwood.engine.task import PartitionTask, check_output, run_task
from cordwood.threads import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_PER_CORE = 4
#: Fixed cost of a partition (opening, small files, fsync), expressed in bytes.
_PARTITION_COST_BYTES = 500_000
#: Partitions up to this size mostly wait for fsync, so several are processed concurrently.
_SMALL_BYTES = 1_000_000
#: Schema of the rows that tasks return.
RESULT_SCHEMA = "at bigint, outcome binary"

T = TypeVar("T")
#: The kind of function that Spark's `mapInArrow` takes.
Worker = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def share_memory(tasks: Sequence[PartitionTask], cores: int) -> list[PartitionTask]:
    """Return the tasks, each with its share of the total memory; at most one task runs per core."""
    return shared_by(tasks, max(1, min(cores, len(tasks))))


def shared_by(tasks: Sequence[PartitionTask], at_once: int) -> list[PartitionTask]:
    """Return the tasks, each with its share of the total memory if that many run at once."""

    def shared(task: PartitionTask) -> PartitionTask:
        whole = task.settings.memory
        memory = None if whole is None else MemoryShare(whole.size_bytes * whole.tasks // at_once, at_once)
        return replace(task, settings=replace(task.settings, memory=memory))

    return [shared(task) for task in tasks]


def pack(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """Divide items by size: the largest first, each to the Spark task with the smallest load so far.

    Args:
        sizes: of the items, in bytes.
        cores: tasks that run at once.

    Returns:
        for each Spark task, the indexes of its items.
    """
    count = min(len(sizes), TASKS_PER_CORE * max(1, cores))
    packs: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, at) for at in range(count)]
    for index in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        load, at = loads[0]
        packs[at].append(index)
        heapq.heapreplace(loads, (load + sizes[index] + _PARTITION_COST_BYTES, at))
    return packs


def over_rows(
    packs: Sequence[Sequence[tuple[int, T]]], do: Callable[[T], object], is_small: Callable[[T], bool], at_a_time: int
) -> Worker:
    """Make the function that Spark runs over rows of pack numbers. Spark pickles it with all values that it uses.

    Args:
        packs: for each pack, its items, each with its number.
        do: processes an item; its result is pickled.
        is_small: whether an item may be processed concurrently with others.
        at_a_time: how many small items are processed concurrently.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for at, outcome in _outcomes(packs[number], do, is_small, at_a_time):
                    yield row_of(at, pickle.dumps(outcome))

    return run


def row_of(at: int, outcome: bytes) -> pa.RecordBatch:
    """Make one row from buffers. All other ways import pandas first, which takes longer than cleaning a partition."""
    import pyarrow as pa

    ats = [None, pa.py_buffer(struct.pack("=q", at))]
    outcomes = [None, pa.py_buffer(struct.pack("=2i", 0, len(outcome))), pa.py_buffer(outcome)]
    columns = [pa.Array.from_buffers(pa.int64(), 1, ats), pa.Array.from_buffers(pa.binary(), 1, outcomes)]
    return pa.RecordBatch.from_arrays(columns, ["at", "outcome"])


def _outcomes(
    pack: Sequence[tuple[int, T]], do: Callable[[T], object], is_small: Callable[[T], bool], at_a_time: int
) -> Iterator[tuple[int, object]]:
    small = [(at, item) for at, item in pack if is_small(item)]
    # The threads end before the first row is yielded: an abandoned generator must not own running threads.
    outcomes = in_parallel(at_a_time, do, [item for _, item in small])
    yield from zip((at for at, _ in small), outcomes, strict=True)
    yield from ((at, do(item)) for at, item in pack if not is_small(item))


def worker(
    packs: Sequence[Sequence[tuple[int, PartitionTask]]],
    outputs: str | None,
    progress: str,
    *,
    at_a_time: int,
    discard: bool = False,
) -> Worker:
    """Make the function that runs tasks, small ones `at_a_time` concurrently; see `run_task`."""
    do = functools.partial(run_task, outputs=outputs, progress=progress, discard=discard)
    return over_rows(packs, do, lambda task: task.size_bytes <= _SMALL_BYTES, at_a_time)


def checker(tasks: Sequence[PartitionTask]) -> Worker:
    """Make the function that takes a `worker`'s outcomes and checks the files that it wrote; see `check_output`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield row_of(at, pickle.dumps(check_output(tasks[at], pickle.loads(outcome))))

    return run


def run_here(workers: Iterable[Worker], packs: int) -> list[dict[str, Any]]:
    """Run a chain of workers in this process and return the rows; the first worker gets the pack numbers."""
    import pyarrow as pa

    batches: Iterable[pa.RecordBatch] = [pa.RecordBatch.from_pydict({"id": list(range(packs))})]
    for work in workers:
        batches = work(batches)
    return [row for batch in batches for row in batch.to_pylist()]
