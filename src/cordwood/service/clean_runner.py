"""Where cleans run: in the thread of a cleaner, or on Spark, in one session for all threads.

A log that is small is cleaned by the thread itself. A larger one is cleaned on Spark, by as many tasks as there are
cores. If many small logs are due, they are cleaned together, in one job. Whatever Spark has to do with fails only the
job: its cleans are then done here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cordwood.clock import Clock, monotonic_clock
from cordwood.engine.task import PROGRESS, Failure, FailureKind, Output
from cordwood.errors import LogCleaningAbortedError, RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check
from cordwood.fs.throttled import Limit, throttled
from cordwood.service.clean import LiveClean, run_here
from cordwood.service.cleaner_manager import LogToClean
from cordwood.service.metrics import Meter
from cordwood.spark.hanging import looked_at
from cordwood.spark.jobs import Jobs
from cordwood.spark.session import LOCAL_MASTER, is_alive, is_on_this_machine, named_jobs, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: From this cost on cleans run on Spark. Below it, one thread is done before a job has handed out its tasks.
SPARK_BYTES_MIN = 256 << 20
#: What a clean costs beside its bytes: files are opened, synced and renamed. As bytes that are cleaned in that time.
CLEAN_COST_BYTES = 4 << 20
#: The most that is cleaned together, by its cost: others wait meanwhile, and what one thread has taken no other takes.
_TOGETHER_BYTES_MAX = 1 << 30


def cost_bytes(found: LogToClean) -> int:
    """What a clean costs."""
    return found.total_bytes + CLEAN_COST_BYTES


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
            fs: where the logs are.
            spark: the session, which is left running; None: one is started with the first job.
            master: where such a session runs.
            spark_bytes_min: from which cost on Spark is used.
            clock: a monotonic one.
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

    def choose(self, due: Sequence[LogToClean]) -> Sequence[LogToClean]:
        """What is cleaned next of the logs that are due, the filthiest of which comes first: that one, or many small
        ones, if all together are worth a job.
        """
        if not due or self._missing or cost_bytes(due[0]) >= self._spark_bytes_min:
            return due[:1]
        together, cost = [], 0
        for one in due:
            if cost_bytes(one) < self._spark_bytes_min and cost + cost_bytes(one) <= _TOGETHER_BYTES_MAX:
                together.append(one)
                cost += cost_bytes(one)
        return together if cost >= self._spark_bytes_min else due[:1]

    def run(self, cleans: Sequence[LiveClean], stop: Check, name: str) -> list[Output | Failure]:
        """Run what was chosen.

        Args:
            cleans: of `choose`.
            stop: is called again and again; what it raises ends all of them.
            name: of the thread; Spark shows it, and gives each thread its share of the cores.

        Returns:
            the outcome of each; one that was aborted meanwhile has failed.
        """
        outcomes: list[Output | Failure] | None = None
        if not self._missing and sum(cost_bytes(clean.found) for clean in cleans) >= self._spark_bytes_min:
            outcomes = self._run_on_spark(cleans, stop, name)
        if outcomes is None:
            outcomes = [self._run_here(clean, stop, name) for clean in cleans]
        for clean, outcome in zip(cleans, outcomes, strict=True):
            written_bytes = 0 if isinstance(outcome, Failure) else outcome.cleaned.counts.bytes_written
            self.io.mark(clean.newly_read_bytes() + written_bytes)
        return outcomes

    def _run_here(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        def check() -> None:
            stop()
            clean.check()

        outcome = run_here(clean.task, check, self.limit)
        stop()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY and not self._missing:
            again = self._run_on_spark([clean], stop, name)  # in stages, which take less
            return outcome if again is None else again[0]
        return outcome

    def _run_on_spark(self, cleans: Sequence[LiveClean], stop: Check, name: str) -> list[Output | Failure] | None:
        """Run on Spark; None: that cannot be done."""
        spark = self._session()
        if spark is None or (self.limit is not None and not is_on_this_machine(spark)):
            return None  # other machines do not see the counters of the limit
        what = f"clean {cleans[0].task.path}" if len(cleans) == 1 else f"clean {len(cleans)} logs"

        def look(_: object) -> None:
            stop()
            wanted = [clean for clean in cleans if clean.is_wanted()]
            for clean in cleans:
                if clean not in wanted:
                    clean.give_up()
            if not wanted:
                raise LogCleaningAbortedError(f"{what}: aborted")
            self.io.mark(sum(clean.newly_read_bytes() for clean in wanted))

        progress = f"{cleans[0].folder}/{PROGRESS}"
        try:
            with (
                named_jobs(spark, name, what),
                looked_at(look),
                Jobs(throttled(self._fs, self.limit), progress, spark, self._master, None) as jobs,
            ):
                return jobs.clean([clean.task for clean in cleans], None)
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
