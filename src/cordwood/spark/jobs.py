"""Runs the cleaning tasks on Spark: partitions are packed into tasks, and what each task wrote is checked.

Each Spark task has two Python processes. The first cleans partitions and passes their outcomes to the second, which
checks the files that were written. If either process is killed, Spark runs both again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

from cordwood.engine import progress
from cordwood.engine.division import is_staged
from cordwood.engine.progress import OnProgress
from cordwood.engine.staged import clean_staged
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask
from cordwood.errors import NoSpaceError, StoreError
from cordwood.fs.base import TargetStore
from cordwood.spark.executors import check_executors, paths_on_disk
from cordwood.spark.hanging import given_up_after
from cordwood.spark.packing import (
    RESULT_SCHEMA,
    Worker,
    checker,
    over_rows,
    pack,
    run_here,
    share_memory,
    shared_by,
    worker,
)
from cordwood.spark.session import collect, session
from cordwood.spark.session import cores as cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class Jobs:
    """Runs tasks on a Spark session, which starts with the first task and stops at the end of the `with` block.

    Attributes:
        fs: the file system that tasks work on.
        progress: folder in which tasks report their progress.
        seconds: how long the tasks took, without the start of the session.
    """

    def __init__(
        self,
        fs: TargetStore,
        progress_folder: str,
        spark: SparkSession | None,
        master: str,
        on_progress: OnProgress | None,
        *,
        archive: str | None = None,
        task_timeout: float | None = None,
    ) -> None:
        """Does not start a session yet.

        Args:
            fs: the file system of the tasks, and of the progress folder.
            progress_folder: where tasks report their progress.
            spark: an existing session to use, which is left running; None: start one.
            master: Spark master for a session started here.
            on_progress: called with the number of bytes read so far.
            archive: the environment of executors for such a session; see `session`.
            task_timeout: seconds after which tasks that do nothing are given up; None: never.
        """
        self.seconds = 0.0
        self.fs = fs
        self.location = fs.location()
        self.progress = progress_folder
        self._spark = spark
        self._master = master
        self._archive = archive
        self._task_timeout = task_timeout
        self._on_progress = on_progress
        self._running: SparkSession | None = None
        self._checked = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def session(self) -> SparkSession:
        """Return the session; the first call starts it."""
        if self._running is None:
            running = self._open.enter_context(session(self._spark, master=self._master, archive=self._archive))
            self._running = running
            if self._task_timeout is not None:
                self._open.enter_context(given_up_after(self.fs, self.progress, self._task_timeout))
            self._open.enter_context(progress.Watch(self.fs, self.progress, self._on_progress))
        return self._running

    def clean(
        self, tasks: Sequence[PartitionTask], outputs: str | None, *, discard: bool = False
    ) -> list[Output | Failure]:
        """Run tasks, and check in another process what they wrote.

        On a file system that no other process can open, this process does both, without Spark.

        Args:
            outputs: see `run_task`.
            discard: count what would be written instead of writing it; then nothing is checked.

        Returns:
            the outcome of each task, in the order of `tasks`.
        """
        if not tasks:
            return []
        running = None if self.location.in_this_process else self.session()
        if running is not None and not self._checked:
            check_executors(running, self.fs, self.progress, paths_on_disk(self.fs, (task.path for task in tasks)))
            self._checked = True
        started = time.monotonic()
        cores = 1 if running is None else cores_of(running)
        tasks = share_memory([task.at(self.location) for task in tasks], cores)
        total = sum(task.size_bytes for task in tasks)
        staged = {at for at, task in enumerate(tasks) if is_staged(task, total, cores)}
        with progress.Watch(self.fs, self.progress, self._on_progress if running is None else None):
            found = self._clean_whole(tasks, [at for at in range(len(tasks)) if at not in staged], outputs, discard)
            # A table in memory was too small for them: many records in few bytes.
            staged |= {at for at, one in found.items() if _lacks_memory(one) and _may_be_staged(tasks[at])}
            found |= self._clean_staged(tasks, sorted(staged), outputs, discard, cores)
        assert len(found) == len(tasks), "every task answers"
        self.seconds += time.monotonic() - started
        return [found[at] for at in range(len(tasks))]

    def _clean_whole(
        self, tasks: Sequence[PartitionTask], chosen: Sequence[int], outputs: str | None, discard: bool
    ) -> dict[int, Output | Failure]:
        """Clean the chosen partitions, each by one task."""
        if not chosen:
            return {}
        running = None if self.location.in_this_process else self.session()
        cores = 1 if running is None else cores_of(running)
        own = [tasks[at] for at in chosen]
        packs = [[(at, own[at]) for at in one] for one in pack([task.size_bytes for task in own], cores)]
        workers = [worker(packs, outputs, self.progress, at_a_time=self.fs.concurrency, discard=discard)]
        if not discard:
            workers.append(checker(own))
        found = _run(running, workers, len(packs))
        return {chosen[at]: outcome for at, outcome in found.items()}

    def _clean_staged(
        self, tasks: Sequence[PartitionTask], chosen: Sequence[int], outputs: str | None, discard: bool, cores: int
    ) -> dict[int, Output | Failure]:
        """Clean the chosen partitions, each by many tasks; by one if one is needed after all."""
        if not chosen:
            return {}

        def clean_each(parts: Sequence[PartitionTask]) -> list[Output | Failure]:
            found = self._clean_whole(parts, range(len(parts)), outputs, discard)
            return [found[at] for at in range(len(parts))]

        own = shared_by([tasks[at] for at in chosen], cores)
        outcomes = clean_staged(self.fs, own, outputs, self.progress, self._each, clean_each, cores, discard=discard)
        found = dict(zip(chosen, outcomes, strict=True))
        alone = self._clean_whole(tasks, [at for at, one in found.items() if one is None], outputs, discard)
        return {at: one for at, one in found.items() if one is not None} | alone

    def _each(self, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
        """See `engine.exchange.Each`."""
        return run_each(None if self.location.in_this_process else self.session(), do, items, sizes)


def run_each(spark: SparkSession | None, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
    """Run a function on each item, as tasks of a session, or here without one; see `engine.exchange.Each`."""
    if not items:
        return []
    packs = [[(at, items[at]) for at in one] for one in pack(sizes, 1 if spark is None else cores_of(spark))]
    found = _run(spark, [over_rows(packs, do, lambda _: False, 1)], len(packs))
    return [found[at] for at in range(len(items))]


def _lacks_memory(outcome: Output | Failure) -> bool:
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY


def _may_be_staged(task: PartitionTask) -> bool:
    return task.settings.offset_map_slots is None


def is_full(outcome: Output | Failure) -> TypeGuard[Failure]:
    """Whether a task failed because the disk was full."""
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.FULL


def stop_if_lost(outcomes: Iterable[Output | Failure], consequence: str) -> None:
    """Raise what a task failed with that concerns them all; a message about a full disk ends with `consequence`.

    Raises:
        NoSpaceError: the disk is full.
        StoreError: the object store failed.
    """
    for outcome in outcomes:
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.STORE:
            raise StoreError(outcome.what)
        if is_full(outcome):
            raise NoSpaceError(f"{outcome.what}. {consequence}")


def _run(spark: SparkSession | None, workers: Iterable[Worker], packs: int) -> dict[int, Any]:
    """Run a chain of workers, on Spark if there is a session; the first gets the pack numbers.

    Returns:
        the outcomes by number.
    """
    if spark is None:
        return _read(run_here(workers, packs))
    rows = spark.range(0, packs, 1, packs)
    for work in workers:
        rows = rows.mapInArrow(work, RESULT_SCHEMA)
    return _read(collect(rows))


def _read(rows: Iterable[Any]) -> dict[int, Any]:
    return {row["at"]: pickle.loads(row["outcome"]) for row in rows}
