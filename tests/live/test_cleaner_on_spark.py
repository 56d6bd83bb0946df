"""Live logs that are cleaned on Spark: which ones, and how jobs end; and without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cordwood.common.config import overrides
from cordwood.common.errors import RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.clean import CleanRunner
from cordwood.live.cleaner_manager import Paused
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.metrics import MeterReading
from cordwood.tasks.engines import Where
from cordwood.tasks.spark import runner
from cordwood.tasks.spark.executors import check_executors
from cordwood.tasks.spark.runner import SessionRunner
from tests.live.cleaner_nodes import layers, newest, send
from tests.live.live_logs import read_all
from tests.live.nodes import until

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SRC = Path(__file__).parents[2] / "src"


# ---- on Spark --------------------------------------------------------------------------------------------------------


class Dirty:
    """A manager without a cleaner, and some dirty logs in it."""

    def __init__(self, path: Path, logs: int, rounds: int = 40, *more: str, value_bytes: int = 1) -> None:
        path.mkdir()
        segments = {"internal.segment.bytes": str(200 + 3 * value_bytes)}
        configs = layers("log.cleaner.enable=false", *more, **segments)
        self.manager = LogManager(PosixFileSystem(), [str(path)], overrides(configs))
        self.manager.startup()
        self.logs: dict[TopicPartition, Log] = {}
        for number in range(logs):
            partition = TopicPartition("t", number)
            log = self.logs[partition] = self.manager.get_or_create_log(partition, is_new=True)
            for at in range(rounds):
                send(log, f"a{at}" + "x" * value_bytes, f"b{at}")

    def cleaner(self, spark: Any, line: int = 0, engine: str | None = None) -> LogCleaner:
        """A cleaner of these logs, for which `line` bytes are enough for a job."""
        manager = self.manager
        return LogCleaner(
            *(PosixFileSystem(), manager.config, manager.live_log_dirs, lambda: self.logs, manager.failures),
            runner=CleanRunner(PosixFileSystem(), Where(engine=engine, spark=spark), tasks_bytes_min=line),
        )

    def clean_ones(self) -> list[bool]:
        """Which logs are clean."""
        return [len(read_all(log)) < 20 for log in self.logs.values()]

    def check(self) -> None:
        """No log has lost a last value, and no clean has left a file."""
        for log in self.logs.values():
            assert {key: value.rstrip("x") for key, value in newest(log).items()} == {"a": "a39", "b": "b39"}
            assert not os.path.exists(f"{log.directory}/.cordwood")
        assert self.manager.failures.failures == ()


@pytest.fixture
def dirty(tmp_path: Path) -> Iterator[Dirty]:
    found = Dirty(tmp_path / "logs", 5)
    yield found
    found.manager.shutdown()


def test_small_logs_are_cleaned_by_the_thread_however_many_and_take_their_own_time(
    dirty: Dirty, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [log.size_bytes for log in dirty.logs.values()]
    assert max(sizes) < sum(sizes) // 2
    cleaner, seconds = dirty.cleaner(Broken(), line=sum(sizes) // 2), []
    cleaner.on_clean = lambda _, stats: seconds.append(stats.seconds)
    began = time.monotonic()
    while cleaner.clean_filthiest_log():
        pass
    assert len(seconds) == 5 and sum(seconds) < time.monotonic() - began
    assert dirty.clean_ones() == [True] * 5
    assert "Spark" not in caplog.text
    dirty.check()


@pytest.mark.slow
def test_a_large_log_is_cleaned_in_a_job_of_the_users_session(dirty: Dirty, spark: SparkSession) -> None:
    context = spark.sparkContext
    check_executors(SessionRunner(spark), None, "", ())  # once for a user's session, by a job of its own
    context.setJobDescription("the user's")
    cleaner = dirty.cleaner(spark)
    assert cleaner.clean_filthiest_log()
    assert dirty.clean_ones() == [True, False, False, False, False]
    name = threading.current_thread().name
    assert len(context.statusTracker().getJobIdsForGroup(name)) == 1
    assert context.getLocalProperty("spark.job.description") == "the user's"
    assert context.getLocalProperty("spark.jobGroup.id") is None
    (first, log), *_ = dirty.logs.items()
    assert cleaner.manager.all_cleaner_checkpoints() == {first: log.active_segment.base_offset}
    dirty.check()
    (io,) = [reading for metric, reading in cleaner.metrics().items() if metric.type == "Throttler"]
    assert isinstance(io, MeterReading)
    assert io.count > sum(one.size_bytes for one in log.log_segments), "what tasks in other processes read counts, too"


@pytest.mark.slow
def test_a_log_is_aborted_and_paused_at_once_while_its_job_runs(tmp_path: Path, spark: SparkSession) -> None:
    check_executors(SessionRunner(spark), None, "", ())  # once for a user's session, by a job of its own
    # The log is 50 KB and is read twice, so the job takes about ten seconds.
    dirty = Dirty(tmp_path / "logs", 1, 40, "log.cleaner.io.max.bytes.per.second=10000", value_bytes=1000)
    cleaner, ((aborted, log),) = dirty.cleaner(spark), dirty.logs.items()
    cleaning = threading.Thread(target=cleaner.clean_filthiest_log, name="kafka-log-cleaner-thread-7")
    cleaning.start()
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getJobIdsForGroup("kafka-log-cleaner-thread-7"):
        time.sleep(0.01)
    cleaner.abort_and_pause_cleaning(aborted)
    assert cleaner.manager.cleaning_state(aborted) == Paused(1)
    log.truncate_to(60)  # even while the job reads it
    cleaning.join(60)
    assert not cleaning.is_alive()
    (number,) = tracker.getJobIdsForGroup("kafka-log-cleaner-thread-7")
    until(lambda: (job := tracker.getJobInfo(number)) is not None and job.status != "RUNNING")
    assert dirty.clean_ones() == [False]
    assert cleaner.manager.all_cleaner_checkpoints() == {} and cleaner.manager.uncleanable(aborted) is None
    cleaner.resume_cleaning([aborted])
    cleaner.shutdown()
    dirty.manager.shutdown()


#: Two threads with a job each, in a session of our own.
POOLS = """
import os, sys, threading, time
from pathlib import Path
from tests.live.test_cleaner_on_spark import Dirty
from cordwood.tasks.engines import Where
from cordwood.live.clean import CleanRunner
from cordwood.tasks.spark.session import session

dirty = Dirty(Path(sys.argv[1]), 2)
with session(master="local[2]") as spark:
    cleaner = dirty.cleaner(spark)
    threads = [threading.Thread(target=cleaner.clean_filthiest_log, name=f"cleaner-{at}") for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pools = spark.sparkContext._jsc.sc().getAllPools()
    print(sorted(pools.apply(at).name() for at in range(pools.size())))
    print([len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"cleaner-{at}")) for at in range(2)])
dirty.check()
print(dirty.clean_ones())
dirty.manager.shutdown()
"""


@pytest.mark.slow
def test_in_a_session_of_our_own_each_thread_has_a_pool_and_a_group_of_jobs(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{SRC}:{SRC.parent}"}
    command = [sys.executable, "-c", POOLS, str(tmp_path / "logs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    expected = "['cleaner-0', 'cleaner-1', 'default']\n[1, 1]\n[True, True]\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


# ---- in a pool of processes ------------------------------------------------------------------------------------------


def test_large_logs_are_cleaned_in_a_pool_that_all_threads_share(dirty: Dirty) -> None:
    cleaner = dirty.cleaner(None, engine="here")
    cleaner.startup()
    until(lambda: dirty.clean_ones() == [True] * 5)
    cleaner.shutdown()
    dirty.check()
    (io,) = [reading for metric, reading in cleaner.metrics().items() if metric.type == "Throttler"]
    assert isinstance(io, MeterReading)
    assert io.count > sum(log.size_bytes for log in dirty.logs.values()), "what is read in other processes counts, too"


def test_a_log_is_aborted_and_paused_at_once_while_a_pool_cleans_it(tmp_path: Path) -> None:
    # The log is 50 KB and is read twice, so the job takes about ten seconds.
    dirty = Dirty(tmp_path / "logs", 1, 40, "log.cleaner.io.max.bytes.per.second=10000", value_bytes=1000)
    cleaner, ((aborted, log),) = dirty.cleaner(None, engine="here"), dirty.logs.items()
    cleaning = threading.Thread(target=cleaner.clean_filthiest_log)
    cleaning.start()
    until(lambda: any(Path(f"{log.directory}/.cordwood").rglob("progress/*")))
    cleaner.abort_and_pause_cleaning(aborted)
    assert cleaner.manager.cleaning_state(aborted) == Paused(1)
    log.truncate_to(60)  # even while the job reads it
    cleaning.join(60)
    assert not cleaning.is_alive()
    assert dirty.clean_ones() == [False]
    assert cleaner.manager.uncleanable(aborted) is None
    cleaner.resume_cleaning([aborted])
    assert cleaner.clean_filthiest_log(), "the pool works on"
    cleaner.shutdown()
    dirty.manager.shutdown()


# ---- without Spark ---------------------------------------------------------------------------------------------------


class Broken:
    """A session whose Java process has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Java is gone, and cannot say what {name} is")


def test_logs_are_cleaned_by_the_thread_if_spark_fails(dirty: Dirty, caplog: pytest.LogCaptureFixture) -> None:
    cleaner = dirty.cleaner(Broken())
    while cleaner.clean_filthiest_log():
        pass
    assert dirty.clean_ones() == [True] * 5
    for log in dirty.logs.values():
        assert f"clean {log.directory} failed on Spark; the thread MainThread does it" in caplog.text
    assert cleaner.manager.all_cleaner_checkpoints().keys() == set(dirty.logs)
    dirty.check()


def test_logs_are_cleaned_by_the_thread_if_spark_does_not_start(
    dirty: Dirty, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise RequestError("there is no Java")

    monkeypatch.setattr(runner, "running", fail)
    cleaner = dirty.cleaner(None)
    while cleaner.clean_filthiest_log():
        pass
    assert dirty.clean_ones() == [True] * 5
    assert caplog.text.count("there is no Java") == 1
    dirty.check()
