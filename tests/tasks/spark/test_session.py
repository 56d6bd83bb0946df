"""Sessions: ours is made with our settings and ends; a user's is used and stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cordwood.tasks.runner import looked_at
from cordwood.tasks.spark.gateway import raise_if_ended
from cordwood.tasks.spark.runner import collect
from cordwood.tasks.spark.session import cores, session
from tests.live.nodes import until

pytestmark = pytest.mark.more

SRC = Path(__file__).parents[3] / "src"

OURS = """
import os, sys
from cordwood.tasks.spark.session import session
from cordwood.tasks.spark.settings import SETTINGS
from pyspark import SparkContext
from pyspark.sql import SparkSession

def pids(batches):
    import os, sys, pyarrow
    for batch in batches:
        loaded = pyarrow.array(['cordwood.cleaning.engine.partition' in sys.modules])
        yield pyarrow.RecordBatch.from_arrays([loaded], ['loaded'])

for _ in range(2):
    with session() as spark:
        # Spark puts options of its own before those of Java.
        assert all(spark.conf.get(key).endswith(value) for key, value in SETTINGS.items())
        assert spark.sparkContext.master == "local[*,4]"
        loaded = [row.loaded for row in spark.range(0, 3, 1, 3).mapInArrow(pids, 'loaded boolean').collect()]
        assert loaded == [True] * 3, loaded
    assert SparkSession.getActiveSession() is None and SparkContext._gateway is None
print("done")
"""


AFTER_A_USERS = """
from cordwood.tasks.spark.launch import find_java
from cordwood.tasks.spark.session import session
from pyspark import SparkContext
from pyspark.sql import SparkSession
import os
os.environ |= {name: value for name, value in find_java().settings.items() if value is not None}

def users():
    return SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

users().stop()
java = SparkContext._gateway
with session() as spark:
    assert SparkContext._gateway is not java
    assert spark.sparkContext.master == "local[*,4]"
    assert spark.range(3).count() == 3
assert SparkContext._gateway is java
assert users().range(3).count() == 3
print("done")
"""


JAVA_ENDS = """
from cordwood.common.errors import RequestError
from cordwood.tasks.spark import gateway
from cordwood.tasks.spark.settings import SETTINGS

class OfJavaError(Exception):
    def __str__(self):  # an error of py4j asks Java for its text
        raise ConnectionRefusedError("Java is gone")

def connect(*_):
    raise OfJavaError

gateway.connect = connect
starting = gateway.Gateway({**SETTINGS, "spark.master": "local[1]"})
try:
    starting.wait()
except RequestError as error:
    print(str(error).partition("\\n")[0])
starting.kill()
"""


JAVA_ENDS_AS_A_JOB_BEGINS = """
import os, signal, threading, time
from pathlib import Path
from cordwood.tasks.spark.runner import collect_rdd
from cordwood.tasks.spark.gateway import Gateway, without_words_of_py4j
from cordwood.tasks.spark.settings import settings_for
from pyspark import InheritableThread

start = threading.Thread.start
def end_java_and_start(thread):
    if isinstance(thread, InheritableThread):
        for child in Path("/proc/self/task", str(os.getpid()), "children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        while not ours.is_gone():
            time.sleep(0.01)
    start(thread)

with without_words_of_py4j():
    ours = Gateway(settings_for("local[1]", None))
    items = ours.context.parallelize(range(3), 1)
    threading.Thread.start = end_java_and_start
    try:
        collect_rdd(items)
    except Exception:
        print("it has failed")
    ours.kill()
"""


def run_alone(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, which has no session yet."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_ours_has_a_java_of_its_own_and_a_users_is_there_again_afterwards() -> None:
    done = run_alone(AFTER_A_USERS)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_users_session_of_another_thread_is_taken_and_left_running(spark: SparkSession) -> None:
    found = []

    def take() -> None:
        with session() as taken:
            found.append(taken.sparkContext.applicationId)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert found == [spark.sparkContext.applicationId]
    assert spark.range(3).count() == 3


@pytest.mark.slow
def test_ours_has_workers_with_kernels_says_nothing_and_can_be_followed_by_another() -> None:
    done = run_alone(OURS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_users_session_is_taken_as_it_is_and_left_running(spark: SparkSession) -> None:
    for given in (spark, None):
        with session(given) as found:
            assert found is spark
    assert spark.range(3).count() == 3


def test_a_job_in_a_users_session_ends_at_once_when_the_call_that_waits_for_it_fails(spark: SparkSession) -> None:
    def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(600)
        yield from batches

    tracker = spark.sparkContext.statusTracker()

    def stop_once_it_runs(_: object) -> None:
        if tracker.getActiveStageIds():
            raise TimeoutError

    began = time.monotonic()
    with looked_at(stop_once_it_runs), pytest.raises(TimeoutError):
        collect(spark.range(0, 1, 1, 1).mapInArrow(sleep, "id long"))
    assert time.monotonic() - began < 60
    until(lambda: tracker.getActiveJobsIds() == [])
    assert spark.range(3).count() == 3


def an_error_of_tidying_up(ends: BaseException) -> Exception:
    """The exception of PySpark when it is interrupted and Java has ended."""
    try:
        try:
            try:
                raise ends
            finally:
                raise ConnectionRefusedError("Java is gone")
        except OSError as error:
            raise RuntimeError("it could not be tidied up") from error
    except RuntimeError as error:
        return error


def test_a_java_that_ends_while_spark_starts_is_told_in_words() -> None:
    done = run_alone(JAVA_ENDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Spark does not start: Java has ended\n", "")


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), SystemExit(143)])
def test_an_error_of_tidying_up_does_not_hide_the_signal_that_it_came_of(ends: BaseException) -> None:
    with pytest.raises(type(ends)) as raised:
        raise_if_ended(an_error_of_tidying_up(ends))
    assert raised.value is ends


def test_a_users_session_passes_on_the_signal_that_an_error_came_of(spark: SparkSession) -> None:
    with pytest.raises(KeyboardInterrupt), session(spark):
        raise an_error_of_tidying_up(KeyboardInterrupt())
    assert spark.range(3).count() == 3


def test_a_signal_while_a_session_is_asked_for_its_cores_is_passed_on() -> None:
    class Interrupted:
        @property
        def sparkContext(self) -> None:  # noqa: N802
            raise an_error_of_tidying_up(KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        cores(cast(SparkSession, Interrupted()))


def test_a_java_that_ends_as_a_job_begins_is_told_to_the_caller_alone() -> None:
    done = run_alone(JAVA_ENDS_AS_A_JOB_BEGINS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "it has failed\n", "")


def test_an_error_of_its_own_is_no_signal() -> None:
    try:
        raise ConnectionRefusedError("Java is gone")
    except OSError as error:
        raise_if_ended(error)
