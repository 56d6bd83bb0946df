"""What of a clean runs on Spark: partitions packed into tasks, and a second look at what each wrote.

A task has two Python processes. One cleans partitions; what it says of each goes to the other, who looks at files.
Should either be killed, Spark begins both anew.
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
    """Runs tasks on a session that is begun with the first of them, and ends with the `with` block.

    Attributes:
        location: of the file system that tasks work on.
        progress: folder in which tasks say how far they are.
        seconds: how long they took, without the start of a session.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        progress_folder: str,
        spark: SparkSession | None,
        master: str,
        on_progress: OnProgress | None,
    ) -> None:
        """Nothing happens yet.

        Args:
            fs: of the tasks, and of the folder.
            progress_folder: where tasks say how far they are.
            spark: a session to use; it is left running.
            master: where a session of our own runs.
            on_progress: called with the bytes read so far.
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
        """The session."""
        if self._running is None:
            running = self._open.enter_context(session(self._spark, master=self._master))
            self._running = running
            self._open.enter_context(progress.Watch(self._fs, self.progress, self._on_progress))
        return self._running

    def clean(
        self, tasks: Sequence[PartitionTask], outputs: str | None, *, discard: bool = False
    ) -> list[Output | Failure]:
        """What came of each task; what was written was looked at by another process.

        On a file system that no other process can open, this process does both, without Spark.

        Args:
            tasks: what to do.
            outputs: see `run_task`.
            discard: count what would be written instead of writing it.
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
    """Whether a task found no room for what it was to write."""
    return isinstance(outcome, Failure) and outcome.kind is FailureKind.FULL


def stop_if_full(outcomes: Iterable[Output | Failure], consequence: str) -> None:
    """Raise NoSpaceError if a task found no room, and say what came of that."""
    for outcome in outcomes:
        if is_full(outcome):
            raise NoSpaceError(f"{outcome.what}. {consequence}")


def _map(spark: SparkSession, workers: Iterable[Worker], packs: int) -> dict[int, Output | Failure]:
    """Chain workers, the first of which is given pack numbers; what the last says of each task, by its index."""
    rows = spark.range(0, packs, 1, packs)
    for work in workers:
        rows = rows.mapInArrow(work, RESULT_SCHEMA)
    return _read(collect(rows))


def _read(rows: Iterable[Any]) -> dict[int, Output | Failure]:
    return {row["at"]: pickle.loads(row["outcome"]) for row in rows}
