"""The Spark session that a clean runs on: one of our own in this process, or the user's.

Ours is Spark's local mode with the settings below. A user's session is taken as it is, stock or not, and left running;
nothing that a task does depends on our settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from cordwood.errors import RequestError, StoreError, TasksHangError
from cordwood.jobs.hanging import looking
from cordwood.spark.gateway import Gateway, raise_if_ended, without_words_of_py4j
from cordwood.spark.requirements import check_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

#: As many tasks as there are cores. The 4: plain local mode never retries a task, so that a Python worker that is
#: killed (for memory, say) would fail all.
LOCAL_MASTER = "local[*,4]"

SETTINGS: Mapping[str, str] = {
    # Workers fork from a process that has the kernels loaded; loading them takes longer than many a task.
    "spark.python.daemon.module": "cordwood.spark.daemon",
    # Rows go to workers by a socket file: no port, and half the cost of the loopback interface.
    "spark.python.unix.domain.socket.enabled": "true",
    # Windows of a log are let go and taken all the time. Workers keep the memory for the next, as pages that the system
    # takes back and clears again cost as much as reading into them.
    "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    # Its pages are not used, and its port may be taken.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One machine: no name of it needs to be resolved.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver holds plans and results, no data.
    "spark.driver.memory": "512m",
    # Jobs of several threads share the cores; one after the other, a small one would wait for all tasks of a large one.
    "spark.scheduler.mode": "FAIR",
    # It ends before a better compiler would pay, and has next to no garbage to collect.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Every plan is a handful of rows; compiling code for it takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # What becomes of a partition is checked at once, while the next is cleaned.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
#: Settings for this machine alone: the address of the driver, and sockets that are files.
_LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress", "spark.python.unix.domain.socket.enabled")
#: What executors call the unpacked archive of their environment.
_ENVIRONMENT = "environment"
_CANCELLED_SECONDS_MAX = 5
_POOL = "spark.scheduler.pool"
#: The properties of a thread that name its jobs.
_NAMES_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", _POOL)
_WAIT_SECONDS = 0.2


@contextlib.contextmanager
def session(
    given: SparkSession | None = None,
    *,
    master: str = LOCAL_MASTER,
    archive: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session: the user's, which stays, or our own, which ends with the block.

    An exception that ends this process or thread, such as that of Ctrl-C, ends our own session at once.

    Args:
        given: the user's; None: the one that is active in this process, if there is one.
        archive: the environment of executors on a cluster, as `cordwood pack` makes it; None: they have the Python of
            PYSPARK_PYTHON, or one at the same path as this process.
        settings: of our own, in place of some of `SETTINGS`.

    Raises:
        RequestError: the archive is missing, or of no use to a local master; Spark or Java is missing, or does not
            start, or Java ended in the middle.
    """
    if given is not None:
        check_version(given.version)
        yield given
        return
    try:
        from pyspark import SparkContext, __version__
        from pyspark.sql import SparkSession
    except ImportError:
        raise RequestError("This runs on Spark, which is not installed:  pip install 'cordwood[spark]'") from None
    check_version(__version__)
    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()  # of another thread; a process has one Spark
    if active is not None:
        yield active
        return
    with without_words_of_py4j():
        gateway = Gateway({**_settings(master, archive), **(settings or {})}, _worker_python(master, archive))
        try:
            yield gateway.session
        except TasksHangError:
            gateway.kill()  # its workers may be beyond listening
            raise
        except Exception as error:
            gone = gateway.is_gone()
            gateway.stop()
            raise_if_ended(error)
            if gone:
                raise RequestError(
                    "Spark's Java process ended in the middle of its work. Somebody killed it, or the machine when it "
                    "ran out of memory (`dmesg` tells); if so, give the rest more room, and run this again"
                ) from error
            raise
        except BaseException:
            gateway.kill()
            raise
        gateway.stop()


def _settings(master: str, archive: str | None) -> dict[str, str]:
    """The configuration of a session of our own."""
    settings = {**SETTINGS, "spark.master": master, "spark.app.name": "cordwood"}
    if master.startswith("local"):
        if archive is not None:
            raise RequestError(f"--archive is for executors on other machines, and --master {master} is this one")
        return settings
    # A master on the loopback interface finds the driver there, too.
    local_only = _LOCAL_ONLY[2:] if "://127.0.0.1" in master else _LOCAL_ONLY
    settings = {name: value for name, value in settings.items() if name not in local_only}
    if archive is not None:
        if not os.path.isfile(archive):
            raise RequestError(f"--archive {archive}: there is no such file; `cordwood pack` makes one")
        settings["spark.archives"] = f"{os.path.abspath(archive)}#{_ENVIRONMENT}"
    return settings


def _worker_python(master: str, archive: str | None) -> str:
    """The Python that workers of a session of our own run."""
    if archive is not None:
        return f"./{_ENVIRONMENT}/bin/python"
    # On this machine nothing else has our packages.
    return sys.executable if master.startswith("local") else os.environ.get("PYSPARK_PYTHON", sys.executable)


def cores(spark: SparkSession) -> int:
    """How many tasks a session runs at a time."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect does not say
        return os.cpu_count() or 1


def is_on_this_machine(spark: SparkSession) -> bool:
    """Whether all tasks of a session run on this machine."""
    return (spark.conf.get("spark.master", "") or "").startswith("local")


def runs_here(spark: SparkSession | None, master: str) -> bool:
    """Whether all tasks run on this machine: those of a session, or of one that is started with a master."""
    return master.startswith("local") if spark is None else is_on_this_machine(spark)


def is_alive(spark: SparkSession) -> bool:
    """Whether a session still answers."""
    try:
        spark.range(1).collect()
    except Exception:
        return False
    return True


@contextlib.contextmanager
def named_jobs(spark: SparkSession, name: str, what: str) -> Iterator[None]:
    """In the block, jobs of this thread have a name, and where jobs share the cores fairly, a share of their own.

    Args:
        name: of the jobs' group, and of their pool.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has none
        yield
        return
    before = {key: context.getLocalProperty(key) for key in _NAMES_OF_JOBS}
    context.setJobGroup(name, what, interruptOnCancel=True)
    if context.getConf().get("spark.scheduler.mode", "FIFO") == "FAIR":
        context.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # Java may be gone
            for key, value in before.items():
                context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it


def collect(rows: DataFrame) -> list[Row]:
    """All rows, as `rows.collect()` returns them. An exception in this thread, such as that of Ctrl-C, ends the job.

    The job is waited for in another thread. A thread that is interrupted in the middle of a call to Java cannot make
    another one before the first has its answer; this one makes no long ones, so that it can cancel the job.

    Raises:
        StoreError: an object store failed in a task.
    """
    from pyspark import InheritableThread

    spark = rows.sparkSession
    tag = f"cordwood-{uuid4().hex}"
    done: list[list[Row]] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(rows.collect())
        except BaseException as error:
            failed.append(error)

    add, remove, cancel = _tagging(spark)
    add(tag)  # the thread inherits it
    try:
        thread = InheritableThread(run, session=spark, daemon=True)
        thread.start()
        try:
            look = looking()
            while look is not None and thread.is_alive():
                thread.join(_WAIT_SECONDS)
                look(lambda: _tasks_ended(spark))
            thread.join()
        except BaseException:
            end = time.monotonic() + _CANCELLED_SECONDS_MAX
            # Again and again: a query that has just ended one job begins its next one.
            while thread.is_alive() and time.monotonic() < end:
                with contextlib.suppress(Exception):  # Java may be gone
                    cancel(tag)
                thread.join(_WAIT_SECONDS)
            raise
    finally:
        with contextlib.suppress(Exception):
            remove(tag)
    for error in failed:
        # Spark has made words of the error of its worker. It has them only as long as it runs.
        if (words := re.search(r"cordwood\.errors\.Store(?:Access)?Error: (.+)", str(error))) is not None:
            raise StoreError(words[1]) from error
        raise error
    return done[0]


def _tasks_ended(spark: SparkSession) -> int:
    """Of the session's running jobs."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # Spark Connect does not say
        return 0
    jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def _tagging(spark: SparkSession) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[str], object]]:
    """How jobs of this thread, and of threads that it starts, get a tag; how they lose it; how jobs with it end.

    A session of Spark Classic adds the id of its Java thread to each tag, and every Python thread has a Java thread of
    its own. So one thread cannot end the jobs of another by a tag of the session, but by one of the context it can.
    """
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has none
        return spark.addTag, spark.removeTag, spark.interruptTag
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
