"""Packs many partitions into few tasks.

An empty Spark task costs a few milliseconds, which is more than cleaning a tiny partition takes. About four tasks per
core keep that overhead small, and still balance the load so that no core waits long for the last task. One core has
nothing to balance.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cordwood.cleaning.engine.task import PartitionTask, check_output, run_task
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.common.threads import in_parallel
from cordwood.tasks.runner import Numbered, Step

TASKS_PER_CORE = 4
#: Bytes per task on one core: if a task fails, all of it runs again.
_TASK_BYTES = 8 << 30
#: Fixed cost of a partition (opening, small files, fsync), expressed in bytes.
_PARTITION_COST_BYTES = 500_000
#: Partitions up to this size mostly wait for fsync, so several are processed concurrently.
_SMALL_BYTES = 1_000_000


def share_memory(tasks: Sequence[PartitionTask], cores: int) -> list[PartitionTask]:
    """Divide the total memory among the tasks; at most one of them runs per core."""
    return shared_by(tasks, max(1, min(cores, len(tasks))))


def shared_by(tasks: Sequence[PartitionTask], at_once: int) -> list[PartitionTask]:
    """Divide the total memory among `at_once` concurrent tasks."""

    def shared(task: PartitionTask) -> PartitionTask:
        whole = task.settings.memory
        memory = None if whole is None else MemoryShare(whole.size_bytes * whole.tasks // at_once, at_once)
        return replace(task, settings=replace(task.settings, memory=memory))

    return [shared(task) for task in tasks]


def pack(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """Divide items by size: the largest first, each to the task with the smallest load so far.

    Args:
        cores: number of tasks that run concurrently.

    Returns:
        for each task, the indexes of its items.
    """
    # On one core a second task may get a second process, which loads the code and allocates memory once more.
    wanted = TASKS_PER_CORE * cores if cores > 1 else min(-(-sum(sizes) // _TASK_BYTES), TASKS_PER_CORE)
    count = min(len(sizes), max(wanted, 1))
    packs: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, at) for at in range(count)]
    for index in sorted(range(len(sizes)), key=lambda at: -sizes[at]):
        load, at = loads[0]
        packs[at].append(index)
        heapq.heapreplace(loads, (load + sizes[index] + _PARTITION_COST_BYTES, at))
    return packs


def doing(do: Callable[[Any], object]) -> Step:
    """Return a step that calls a function with each item."""
    return functools.partial(_each_done, do)


def _each_done(do: Callable[[Any], object], items: Iterable[Numbered]) -> Iterator[Numbered]:
    for at, item in items:
        yield at, do(item)


def cleaning(outputs: str | None, progress: str, *, at_a_time: int, discard: bool = False) -> Step:
    """Return the step that cleans partitions, small ones `at_a_time` concurrently; see `run_task`."""
    do = functools.partial(run_task, outputs=outputs, progress=progress, discard=discard)
    return functools.partial(_each_cleaned, do, at_a_time)


def _each_cleaned(
    do: Callable[[PartitionTask], object], at_a_time: int, items: Iterable[Numbered]
) -> Iterator[Numbered]:
    tasks: list[tuple[int, PartitionTask]] = list(items)
    small = [(at, task) for at, task in tasks if task.size_bytes <= _SMALL_BYTES]
    # The threads end before the first outcome is yielded: an abandoned generator must not own running threads.
    outcomes = in_parallel(at_a_time, do, [task for _, task in small])
    yield from zip((at for at, _ in small), outcomes, strict=True)
    yield from ((at, do(task)) for at, task in tasks if task.size_bytes > _SMALL_BYTES)


def checking(tasks: Mapping[int, PartitionTask]) -> Step:
    """Return the step that checks the files written by the `cleaning` step; see `check_output`."""
    return functools.partial(_each_checked, tasks)


def _each_checked(tasks: Mapping[int, PartitionTask], outcomes: Iterable[Numbered]) -> Iterator[Numbered]:
    for at, outcome in outcomes:
        yield at, check_output(tasks[at], outcome)
