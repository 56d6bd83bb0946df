"""Where cleans run: in the thread of a cleaner, or on Spark, in one session for all threads.

The thread itself cleans a small log, however many are due: a session takes seconds to start, and
`log.cleaner.threads` can add threads. A larger log is cleaned on Spark, by as many tasks as there are cores. If Spark
fails, the thread cleans the log.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cordwood.clock import Clock, monotonic_clock
from cordwood.engine.task import PROGRESS, Failure, FailureKind, Output
from cordwood.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check
from cordwood.fs.throttled import Limit, throttled
from cordwood.jobs.hanging import looked_at
from cordwood.jobs.jobs import Jobs
from cordwood.service.clean import LiveClean, run_here
from cordwood.service.metrics import Meter
from cordwood.spark.runner import running_on_spark
from cordwood.spark.session import LOCAL_MASTER, is_alive, is_on_this_machine, named_jobs, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: Logs of this size, and larger ones, are cleaned on Spark: one thread would take longer than a job that starts.
SPARK_BYTES_MIN = 256 << 20


class CleanRunner:
    """Runs cleans, for all threads of a cleaner.

    Attributes:
        limit: of what all of them read and write; None: there is none.
        io: counts bytes of batches that are read and written.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        spark: SparkSession | None = None,
        master: str = LOCAL_MASTER,
        spark_bytes_min: int = SPARK_BYTES_MIN,
        *,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Starts nothing yet.

        Args:
            spark: the session, which is left running; None: one is started with the first job.
            master: where such a session runs.
            spark_bytes_min: from which size of a log on Spark is used.
        """
        self.limit: Limit | None = None
        self.io = Meter(clock)
        self._fs = fs
        self._given = self._spark = spark
        self._master, self._spark_bytes_min = master, spark_bytes_min
        #: Held while a session starts, and while the broken one is put away.
        self._starting = threading.Lock()
        self._open = ExitStack()
        #: Why there is no Spark here; then it is not tried again.
        self._missing = "other processes cannot open this file system" if fs.location().in_this_process else ""

    def close(self) -> None:
        """Stop the session, if it was started here. No clean may run."""
        self._open.close()
        self._spark = self._given

    def run(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        """Run a clean where its size belongs.

        Args:
            stop: is called again and again; what it raises ends the clean.
            name: of the thread; Spark shows it, and gives each thread its share of the cores.

        Returns:
            the outcome; a clean that was aborted meanwhile has failed.
        """
        outcome: Output | Failure | None = None
        if not self._missing and clean.found.total_bytes >= self._spark_bytes_min:
            outcome = self._run_on_spark(clean, stop, name)
        if outcome is None:
            outcome = self._run_here(clean, stop, name)
        written_bytes = 0 if isinstance(outcome, Failure) else outcome.cleaned.counts.bytes_written
        self.io.mark(clean.newly_read_bytes() + written_bytes)
        return outcome

    def _run_here(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        def check() -> None:
            stop()
            clean.check()

        outcome = run_here(clean.task, check, self.limit)
        stop()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY and not self._missing:
            return self._run_on_spark(clean, stop, name) or outcome  # in stages, which take less
        return outcome

    def _run_on_spark(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure | None:
        """Run on Spark; None: that cannot be done."""
        spark = self._session()
        if spark is None or (self.limit is not None and not is_on_this_machine(spark)):
            return None  # other machines do not see the counters of the limit
        what = f"clean {clean.task.path}"
        start = functools.partial(running_on_spark, spark)

        def look(_: object) -> None:
            stop()
            clean.check()
            self.io.mark(clean.newly_read_bytes())

        try:
            with (
                named_jobs(spark, name, what),
                looked_at(look),
                Jobs(throttled(self._fs, self.limit), f"{clean.folder}/{PROGRESS}", start, None) as jobs,
            ):
                return jobs.clean([clean.task], None)[0]
        except Exception:
            look(None)  # if that is why, it says so again
            _log.exception("%s failed on Spark; the thread %s does it", what, name)
            self._put_away(spark)
            return None

    def _session(self) -> SparkSession | None:
        with self._starting:
            if self._spark is None and not self._missing:
                try:
                    self._spark = self._open.enter_context(session(None, master=self._master))
                except RequestError as error:
                    self._missing = str(error)
                    _log.warning("Without Spark, cleaner threads clean large logs, too: %s", error)
            return self._spark

    def _put_away(self, spark: SparkSession) -> None:
        """A job has failed: if its session is gone, the next one starts another, unless it is the user's."""
        with self._starting:
            if self._spark is spark and self._given is None and not is_alive(spark):
                self._spark = None
                self._open.close()
