"""Runs the cleaning tasks on Spark: partitions are packed into tasks, and what each task wrote is checked.

Each Spark task has two Python processes. The first cleans partitions and passes their outcomes to the second, which
checks the files that were written. If either process is killed, Spark runs both again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard

from cordwood.engine import progress
from cordwood.engine.progress import OnProgress
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask
from cordwood.errors import NoSpaceError
from cordwood.fs.base import LocalFileSystem
from cordwood.spark.packing import RESULT_SCHEMA, Worker, checker, pack, run_here, share_memory, worker
from cordwood.spark.session import collect, session
from cordwood.spark.session import cores as cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jobs:
    """Runs tasks on a Spark session, which starts with the first task and stops at the end of the `with` block.

    Attributes:
        location: of the file system that tasks work on.
        progress: folder in which tasks report their progress.
        seconds: how long the tasks took, without the start of the session.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        progress_folder: str,
        spark: SparkSession | None,
        master: str,
        on_progress: OnProgress | None,
    ) -> None:
        """Does not start a session yet.

        Args:
            fs: the file system of the tasks, and of the progress folder.
            progress_folder: where tasks report their progress.
            spark: an existing session to use, which is left running; None: start one.
            master: Spark master for a session started here.
            on_progress: called with the number of bytes read so far.
        """
        self.seconds = 0.0
        self._fs = fs
        self.location = fs.location()
        self.progress = progress_folder
        self._spark = spark
        self._master = master
        self._on_progress = on_progress
        self._running: SparkSession | None = None
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
            running = self._open.enter_context(session(self._spark, master=self._master))
            self._running = running
            self._open.enter_context(progress.Watch(self._fs, self.progress, self._on_progress))
        return self._running

    def clean(
        self, tasks: Sequence[PartitionTask], outputs: str | None, *, discard: bool = False
    ) -> list[Output | Failure]:
        """Run tasks, and check in another process what they wrote.

        On a file system that no other process can open, this process does both, without Spark.

        Args:
            tasks: partitions to clean.
            outputs: see `run_task`.
            discard: count what would be written instead of writing it; then nothing is checked.

        Returns:
            the outcome of each task, in the order of `tasks`.
        """
        if not tasks:
            return []
        here = self.location.in_this_process
        running = None if here else self.session()
        started = time.monotonic()
        cores = 1 if running is None else cores_of(running)
        tasks = share_memory(tasks, cores)
        packs = [[(at, tasks[at]) for at in one] for one in pack(tasks, cores)]
        workers = [worker(packs, outputs, self.progress, at_a_time=self._fs.concurrency, discard=discard)]
        if not discard:
            workers.append(checker(tasks))
        if running is None:
            with progress.Watch(self._fs, self.progress, self._on_progress):
                found = _read(run_here(workers, len(packs)))
        else:
            found = _map(running, workers, len(packs))
        assert len(found) == len(tasks), "every task answers"
        self.seconds += time.monotonic() - started
        return [found[at] for at in range(len(tasks))]


def is_full(outcome: Output | Failure) -> TypeGuard[Failure]:
    """Whether a task failed because the disk was full."""
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.FULL


def stop_if_full(outcomes: Iterable[Output | Failure], consequence: str) -> None:
    """Raise NoSpaceError if a task failed because the disk was full; its message ends with `consequence`."""
    for outcome in outcomes:
        if is_full(outcome):
            raise NoSpaceError(f"{outcome.what}. {consequence}")


def _map(spark: SparkSession, workers: Iterable[Worker], packs: int) -> dict[int, Output | Failure]:
    """Run a chain of workers on Spark; the first gets the pack numbers. Returns the outcomes by task index."""
    rows = spark.range(0, packs, 1, packs)
    for work in workers:
        rows = rows.mapInArrow(work, RESULT_SCHEMA)
    return _read(collect(rows))


def _read(rows: Iterable[Any]) -> dict[int, Output | Failure]:
    return {row["at"]: pickle.loads(row["outcome"]) for row in rows}
