"""Pack partitions into tasks, run the tasks of a command, and let another process check the output of each.

An empty Spark task costs a few milliseconds, which is more than cleaning a tiny partition takes. About four tasks per
core keep that overhead small, and still balance the load so that no core waits long for the last task. One core has
nothing to balance.
"""

from __future__ import annotations

import functools
import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeGuard, TypeVar

from cordwood.cleaning.engine import progress
from cordwood.cleaning.engine.division import is_staged, with_probing
from cordwood.cleaning.engine.progress import OnProgress
from cordwood.cleaning.engine.stages import clean_staged
from cordwood.cleaning.engine.task import (
    Failure,
    FailureKind,
    Output,
    PartitionTask,
    check_output,
    run_small_tasks,
    run_task,
)
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.common.errors import NoSpaceError, StoreError
from cordwood.common.threads import in_parallel
from cordwood.fs.base import Store, TargetStore, waits_for_each_read
from cordwood.fs.wrapped import is_small, synced_together
from cordwood.tasks.runner import InThisProcess, Numbered, Runner, Start, Step, given_up_after

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What becomes of outputs, see `Jobs.clean`; `folder`: None for the partitions' work folders."""

    folder: str | None
    discard: bool
    proved: bool


class Jobs:
    """Runs tasks with a runner, which starts with the first task and ends with the `with` block.

    Attributes:
        seconds: total duration of the tasks, without the start of the runner.
    """

    def __init__(
        self,
        fs: TargetStore,
        progress_folder: str,
        start: Start,
        on_progress: OnProgress | None,
        *,
        task_timeout: float | None = None,
    ) -> None:
        """Set up without starting the runner.

        Args:
            fs: the file system of the tasks, and of the progress folder.
            start: starts the runner. If no other process can open the file system, this process runs the tasks.
            on_progress: called with the number of bytes read so far.
            task_timeout: seconds without progress after which tasks are cancelled; None for no limit.
        """
        self.seconds = 0.0
        self.fs = fs
        self.location = fs.location()
        self.progress = progress_folder
        self._start = start
        self._task_timeout = task_timeout
        self._on_progress = on_progress
        self._runner: Runner | None = InThisProcess() if self.location.in_this_process else None
        self._is_checked = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def runner(self, sizes: Sequence[int] = ()) -> Runner:
        """Return the runner; the first call starts it, for tasks that read `sizes` bytes."""
        if self._runner is None:
            self._runner = self._open.enter_context(self._start(sizes))
            if self._task_timeout is not None:
                self._open.enter_context(given_up_after(self.fs, self.progress, self._task_timeout))
            self._open.enter_context(progress.ProgressWatch(self.fs, self.progress, self._on_progress))
        return self._runner

    def each(self, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
        """See `threads.Each`."""
        return run_each(self.runner(sizes), do, items, sizes) if items else []

    def clean(
        self, tasks: Sequence[PartitionTask], outputs: str | None, *, discard: bool = False, proved: bool = False
    ) -> list[Output | Failure]:
        """Run tasks, and check their output in another process.

        If no other process can open the file system, this process does both.

        Args:
            proved: the caller will prove the output, so only names and sizes of its files are checked here.
            discard: count the bytes of the output instead of writing it; then nothing is checked.
        """
        if not tasks:
            return []
        runner = self.runner([task.size_bytes for task in tasks])
        if not self._is_checked:
            runner.check(self.fs, self.progress, paths_on_disk(self.fs, (task.path for task in tasks)))
            self._is_checked = True
        started = time.monotonic()
        cores = runner.cores
        tasks = share_memory([with_probing(task.at(self.location), cores) for task in tasks], cores)
        total = sum(task.size_bytes for task in tasks)
        staged = {at for at, task in enumerate(tasks) if is_staged(task, total, cores)}
        with progress.ProgressWatch(
            self.fs, self.progress, self._on_progress if self.location.in_this_process else None
        ):
            how = _Outputs(outputs, discard, proved)
            found = self._clean_whole(tasks, [at for at in range(len(tasks)) if at not in staged], how)
            # Divide partitions with many records in few bytes: their key table did not fit in one task's memory.
            staged |= {at for at, one in found.items() if _lacks_memory(one) and _may_be_staged(tasks[at])}
            found |= self._clean_staged(tasks, sorted(staged), how, cores)
        assert len(found) == len(tasks), "every task answers"
        self.seconds += time.monotonic() - started
        return [found[at] for at in range(len(tasks))]

    def _clean_whole(
        self, tasks: Sequence[PartitionTask], chosen: Sequence[int], how: _Outputs
    ) -> dict[int, Output | Failure]:
        """Clean the chosen partitions, each by one task."""
        if not chosen:
            return {}
        runner = self.runner()
        sizes = [tasks[at].size_bytes for at in chosen]
        packs = [[(chosen[at], tasks[chosen[at]]) for at in one] for one in pack(sizes, runner.cores)]
        steps = [cleaning(how.folder, self.progress, discard=how.discard)]
        if not how.discard:
            steps.append(functools.partial(_each_checked, self.progress, not how.proved))
        return runner.run(packs, steps)

    def _clean_staged(
        self, tasks: Sequence[PartitionTask], chosen: Sequence[int], how: _Outputs, cores: int
    ) -> dict[int, Output | Failure]:
        """Clean the chosen partitions, each by many tasks, or by one task where staging turns out impossible."""
        if not chosen:
            return {}

        def clean_each(parts: Sequence[PartitionTask]) -> list[Output | Failure]:
            found = self._clean_whole(parts, range(len(parts)), how)
            return [found[at] for at in range(len(parts))]

        own = shared_by([tasks[at] for at in chosen], cores)
        outcomes = clean_staged(
            self.fs, own, how.folder, self.progress, self.each, clean_each, cores, discard=how.discard
        )
        found = dict(zip(chosen, outcomes, strict=True))
        alone = self._clean_whole(tasks, [at for at, one in found.items() if one is None], how)
        return {at: one for at, one in found.items() if one is not None} | alone


def run_each(runner: Runner, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
    """Run a function on each item, as tasks of a runner; see `threads.Each`."""
    if not items:
        return []
    packs = [[(at, items[at]) for at in one] for one in pack(sizes, runner.cores)]
    found = runner.run(packs, [doing(do)])
    return [found[at] for at in range(len(items))]


def paths_on_disk(store: Store, paths: Iterable[str]) -> list[str]:
    """Return the paths that are on a disk, as other programs see them; drop the other paths."""
    return [found for path in paths if (found := store.path_on_disk(path)) is not None]


def _lacks_memory(outcome: Output | Failure) -> bool:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY


def _may_be_staged(task: PartitionTask) -> bool:
    return task.settings.offset_map_slots is None


def is_full(outcome: Output | Failure) -> TypeGuard[Failure]:
    """Return whether a task failed because the disk was full."""
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.FULL


def stop_if_lost(outcomes: Iterable[Output | Failure], consequence: str) -> None:
    """Raise the first failure that concerns all tasks; a message about a full disk ends with `consequence`.

    Raises:
        NoSpaceError: the disk is full.
        StoreError: the object store failed.
    """
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.STORE:
            raise StoreError(outcome.what)
        if is_full(outcome):
            raise NoSpaceError(f"{outcome.what}. {consequence}")


# ---- packing ---------------------------------------------------------------------------------------------------------

TASKS_PER_CORE = 4
#: Bytes per task on one core: if a task fails, all of it runs again.
_TASK_BYTES = 8 << 30
#: Fixed cost of a partition (opening, small files, fsync), expressed in bytes.
_PARTITION_COST_BYTES = 500_000


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


def cleaning(outputs: str | None, progress: str, *, discard: bool = False) -> Step:
    """Return the step that cleans partitions; see `run_task`. For the check, it passes on each task with its outcome,
    unless the output is discarded.
    """
    return functools.partial(_each_cleaned, {"outputs": outputs, "progress": progress, "discard": discard})


def _each_cleaned(options: Mapping[str, Any], items: Iterable[Numbered]) -> Iterator[Numbered]:
    tasks: list[tuple[int, PartitionTask]] = list(items)
    passed_on = (lambda _, outcome: outcome) if options["discard"] else (lambda task, outcome: (task, outcome))
    for portion in synced_together([task.size_bytes for _, task in tasks]):
        some = [tasks[index] for index in portion]
        outcomes = _small_cleaned([task for _, task in some], options)
        yield from ((at, passed_on(task, outcome)) for (at, task), outcome in zip(some, outcomes, strict=True))
    for at, task in tasks:
        if not is_small(task.size_bytes):
            yield at, passed_on(task, run_task(task, **options))


def _small_cleaned(tasks: Sequence[PartitionTask], options: Mapping[str, Any]) -> list[Output | Failure]:
    """Clean small partitions: in one thread on a disk; in several threads if each read is a request to a server."""
    fs = tasks[0].location.open()
    if any(waits_for_each_read(fs, path) for path in (tasks[0].path, tasks[0].folder(options["outputs"]))):
        # The threads end before the first outcome is yielded: an abandoned generator must not own running threads.
        return in_parallel(fs.concurrency, functools.partial(run_task, **options), tasks)
    return run_small_tasks(tasks, **options)


def _each_checked(progress: str, with_batches: bool, cleaned: Iterable[Numbered]) -> Iterator[Numbered]:
    """Check the files that the step `cleaning` wrote; see `check_output`."""
    for at, (task, outcome) in cleaned:
        # A report for each small partition would cost as much as its check.
        reports = None if is_small(task.size_bytes) else progress
        yield at, check_output(task, outcome, reports, with_batches=with_batches)
