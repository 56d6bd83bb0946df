"""Where cleans run: in the thread of a cleaner, or as tasks of an engine, which all threads share.

The thread itself cleans small logs, even if many are due: Spark takes seconds to start, and `log.cleaner.threads` can
add threads. A larger log is cleaned by as many tasks as the machine has cores, on Spark or, without Spark, in a pool of
processes. If the engine fails, the thread cleans the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from cordwood.cleaning.engine.task import PROGRESS, Failure, FailureKind, Output
from cordwood.common.clock import Clock, monotonic_clock
from cordwood.common.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check
from cordwood.fs.throttled import Limit, throttled
from cordwood.live.clean import LiveClean, run_here
from cordwood.live.metrics import Meter
from cordwood.tasks.engines import Where
from cordwood.tasks.hanging import looked_at
from cordwood.tasks.runner import Runner
from cordwood.tasks.spark.runner import SessionRunner, SparkRunner
from cordwood.tasks.tasks import Jobs

_log = logging.getLogger(__name__)

#: Logs of at least this size are cleaned by tasks: one thread would take longer than the start of a job.
TASKS_BYTES_MIN = 256 << 20


class CleanTraffic:
    """The bytes that cleans have read from the disk or its cache, and written to it.

    Attributes:
        read, written: bytes, including key indexes.
        new: dirty bytes at the start of each clean; in the long run, the bytes appended to compacted logs.
        removed: bytes by which the logs shrank.
    """

    def __init__(self) -> None:
        self.read = self.written = self.new = self.removed = 0
        self._adding = threading.Lock()

    def add(self, *, read: int = 0, written: int = 0, new: int = 0, removed: int = 0) -> None:
        """Add to the counts."""
        with self._adding:
            self.read += read
            self.written += written
            self.new += new
            self.removed += removed


class CleanRunner:
    """Runs the cleans of all threads of a cleaner.

    Attributes:
        limit: shared limit on bytes read and written; None: unlimited.
        io: counts bytes of batches that are read and written.
        traffic: totals of all cleans so far.
        index: write key indexes for logs without them.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        where: Where = Where(),  # noqa: B008 - a frozen value
        tasks_bytes_min: int = TASKS_BYTES_MIN,
        *,
        index: bool = False,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Store the settings; start nothing yet.

        Args:
            where: the engine for tasks; it starts with the first job.
            tasks_bytes_min: smallest size of a log that is cleaned by tasks.
        """
        self.limit: Limit | None = None
        self.io = Meter(clock)
        self.traffic = CleanTraffic()
        self.index = index
        self._fs = fs
        self._where, self._tasks_bytes_min = where, tasks_bytes_min
        self._given: Runner | None = None if where.spark is None else SessionRunner(where.spark)
        self._runner: Runner | None = self._given
        #: Held while the engine starts, and while a broken engine is closed.
        self._starting = threading.Lock()
        self._open = ExitStack()
        #: The reason why no engine can run here; once set, the start is not tried again.
        self._missing = "other processes cannot open this file system" if fs.location().in_this_process else ""

    def close(self) -> None:
        """Stop the engine, unless it is the user's session. Call it only while no clean runs."""
        self._open.close()
        self._runner = self._given

    def run(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        """Run a clean in this thread or by tasks, depending on its size.

        Args:
            stop: called repeatedly; an error that it raises ends the clean.
            name: name of the thread; Spark shows it, and gives each thread its share of the cores.

        Returns:
            the outcome; a Failure if the clean was aborted meanwhile.
        """
        outcome: Output | Failure | None = None
        if clean.found.total_bytes >= self._tasks_bytes_min and not self._missing:
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
        """Return the bytes that a clean has read since the last call, and add them to `traffic`."""
        read = clean.newly_read_bytes()
        self.traffic.add(read=read)
        return read

    def _run_here(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        def check() -> None:
            stop()
            clean.check()

        outcome = run_here(clean.task, check, self.limit)
        stop()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY and not self._missing:
            return self._run_by_tasks(clean, stop, name) or outcome  # in stages, which take less memory
        return outcome

    def _run_by_tasks(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure | None:
        """Run the clean as tasks of the engine; return None if no engine is usable or the job failed."""
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
            look(None)  # raises again if the clean must stop
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
        """After a failed job, close a dead session so that the next job starts a new one; keep the user's session."""
        if not isinstance(runner, SparkRunner):
            return
        with self._starting:
            if self._runner is runner and self._given is None and not runner.is_alive():
                self._runner = None
                self._open.close()
