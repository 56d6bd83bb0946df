"""Where cleans run: in the thread of a cleaner, or by tasks of an engine, which all threads share.

The thread itself cleans a small log, however many are due: Spark takes seconds to start, and `log.cleaner.threads` can
add threads. A larger log is cleaned by as many tasks as there are cores, on Spark or, without it, in a pool of
processes. If the engine fails, the thread cleans the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from cordwood.clock import Clock, monotonic_clock
from cordwood.commands.engines import Where
from cordwood.engine.task import PROGRESS, Failure, FailureKind, Output
from cordwood.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check
from cordwood.fs.throttled import Limit, throttled
from cordwood.jobs.hanging import looked_at
from cordwood.jobs.jobs import Jobs
from cordwood.jobs.runner import Runner
from cordwood.service.clean import READ_MEMORY_BYTES, LiveClean, run_here
from cordwood.service.metrics import Meter
from cordwood.spark.runner import SessionRunner, SparkRunner

_log = logging.getLogger(__name__)

#: Logs of this size, and larger ones, are cleaned by tasks: one thread would take longer than a job that starts.
TASKS_BYTES_MIN = 256 << 20


class Traffic:
    """The bytes that cleans have read from the disk or its cache, and written to it.

    Attributes:
        read, written: key indexes included.
        new: what was dirty before these cleans; in the long run, what was appended to compacted logs.
        removed: what they have made logs smaller by.
    """

    def __init__(self) -> None:
        self.read = self.written = self.new = self.removed = 0
        self._adding = threading.Lock()

    def add(self, *, read: int = 0, written: int = 0, new: int = 0, removed: int = 0) -> None:
        """Count more."""
        with self._adding:
            self.read += read
            self.written += written
            self.new += new
            self.removed += removed


class CleanRunner:
    """Runs cleans, for all threads of a cleaner.

    Attributes:
        limit: of what all of them read and write; None: there is none.
        io: counts bytes of batches that are read and written.
        traffic: of all cleans so far.
        index: make key indexes of logs that have none.
        min_dead: how much garbage a clean may leave, as a share of its log; None: none.
        read_memory_bytes: see `run_here`.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        where: Where = Where(),  # noqa: B008 - a frozen value
        tasks_bytes_min: int = TASKS_BYTES_MIN,
        *,
        index: bool = False,
        min_dead: float | None = None,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Starts nothing yet.

        Args:
            where: where tasks run; what runs them starts with the first job.
            tasks_bytes_min: from which size of a log on it is cleaned by tasks.
        """
        self.limit: Limit | None = None
        self.io = Meter(clock)
        self.traffic = Traffic()
        self.index, self.min_dead = index, min_dead
        self.read_memory_bytes = READ_MEMORY_BYTES
        self._fs = fs
        self._where, self._tasks_bytes_min = where, tasks_bytes_min
        self._given: Runner | None = None if where.spark is None else SessionRunner(where.spark)
        self._runner: Runner | None = self._given
        #: Held while the engine starts, and while the broken one is put away.
        self._starting = threading.Lock()
        self._open = ExitStack()
        #: Why there is no engine here; then it is not tried again.
        self._missing = "other processes cannot open this file system" if fs.location().in_this_process else ""

    def close(self) -> None:
        """Stop the engine, unless it is the user's session. No clean may run."""
        self._open.close()
        self._runner = self._given

    def run(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        """Run a clean where its size belongs.

        Args:
            stop: is called again and again; what it raises ends the clean.
            name: of the thread; Spark shows it, and gives each thread its share of the cores.

        Returns:
            the outcome; a clean that was aborted meanwhile has failed.
        """
        outcome: Output | Failure | None = None
        # What may be left is decided by one task that knows all of the log.
        by_tasks = not clean.task.garbage_share and clean.found.total_bytes >= self._tasks_bytes_min
        if by_tasks and not self._missing:
            outcome = self._run_by_tasks(clean, stop, name)
        if outcome is None:
            outcome = self._run_here(clean, stop, name)
        written_bytes = 0 if isinstance(outcome, Failure) else outcome.cleaned.counts.bytes_written
        self.io.mark(self._read_by(clean) + written_bytes)
        if isinstance(outcome, Output):
            sizes = [self._fs.stat(path).size_bytes for path in outcome.indexes]
            self.traffic.add(
                written=sum(sizes, sum(size for _, size in outcome.files)), new=clean.found.cleanable_bytes
            )
        return outcome

    def _read_by(self, clean: LiveClean) -> int:
        """How much a clean has read since this was last asked for; it is counted."""
        read = clean.newly_read_bytes()
        self.traffic.add(read=read)
        return read

    def _run_here(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        def check() -> None:
            stop()
            clean.check()

        outcome = run_here(clean.task, check, self.limit, self.read_memory_bytes)
        stop()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY and not self._missing:
            return self._run_by_tasks(clean, stop, name) or outcome  # in stages, which take less
        return outcome

    def _run_by_tasks(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure | None:
        """Run by tasks of the engine; None: that cannot be done."""
        runner = self._started()
        if runner is None or (self.limit is not None and not runner.is_on_this_machine):
            return None  # other machines do not see the counters of the limit
        what = f"clean {clean.task.path}"
        spark = runner if isinstance(runner, SparkRunner) else None

        def start(_: Sequence[int]) -> AbstractContextManager[Runner]:
            return nullcontext(runner)

        def look(_: object) -> None:
            stop()
            clean.check()
            self.io.mark(self._read_by(clean))

        try:
            with (
                nullcontext() if spark is None else spark.named(name, what),
                looked_at(look),
                Jobs(throttled(self._fs, self.limit), f"{clean.folder}/{PROGRESS}", start, None) as jobs,
            ):
                return jobs.clean([clean.task], None)[0]
        except Exception:
            look(None)  # if that is why, it says so again
            engine = "in other processes" if spark is None else "on Spark"
            _log.exception("%s failed %s; the thread %s does it", what, engine, name)
            self._put_away(runner)
            return None

    def _started(self) -> Runner | None:
        with self._starting:
            if self._runner is None and not self._missing:
                try:
                    self._runner = self._open.enter_context(self._where.start())
                except RequestError as error:
                    self._missing = str(error)
                    _log.warning("Without Spark, cleaner threads clean large logs, too: %s", error)
            return self._runner

    def _put_away(self, runner: Runner) -> None:
        """A job has failed: if its session is gone, the next one starts another, unless it is the user's."""
        if not isinstance(runner, SparkRunner):
            return
        with self._starting:
            if self._runner is runner and self._given is None and not runner.is_alive():
                self._runner = None
                self._open.close()
