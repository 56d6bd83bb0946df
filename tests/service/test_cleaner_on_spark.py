"""Live logs that are cleaned on Spark: which ones, many in one job, each with its own state; and without Spark."""

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

from cordwood.config import overrides
from cordwood.errors import RequestError
from cordwood.fs.memory import MemoryFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.service import clean_runner
from cordwood.service.clean_runner import CLEAN_COST_BYTES, CleanRunner, cost_bytes
from cordwood.service.cleaner_manager import LogToClean, Paused
from cordwood.service.log import Log
from cordwood.service.log_cleaner import LogCleaner
from cordwood.service.log_manager import LogManager
from cordwood.spark.executors import check_executors
from cordwood.types import TopicPartition
from tests.service.cleaner_nodes import layers, newest, send
from tests.service.live_logs import read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SRC = Path(__file__).parents[2] / "src"
MIB = 1 << 20


# ---- which ones ------------------------------------------------------------------------------------------------------


def runner(fs: Any = None, line: int = 100 * MIB) -> CleanRunner:
    return CleanRunner(fs or PosixFileSystem(), None, "local[2]", line)


def due(*megabytes: int) -> list[LogToClean]:
    """Logs that cost so much."""
    return [
        LogToClean(TopicPartition("t", at), None, 0, 1, 1, False, 0, size * MIB - CLEAN_COST_BYTES, 0)  # type: ignore[arg-type]
        for at, size in enumerate(megabytes)
    ]


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([], []),
        ([10], [0]),
        ([10, 20, 30], [0]),  # together not worth a job
        ([10, 20, 30, 40], [0, 1, 2, 3]),
        ([200, 50, 50], [0]),  # worth a job of its own
        ([50, 200, 60], [0, 2]),
        ([50, 200, 40], [0]),
        ([100, 1], [0]),
    ],
)
def test_small_logs_are_chosen_together_if_they_are_worth_a_job(sizes: list[int], chosen: list[int]) -> None:
    logs = due(*sizes)
    assert [logs.index(one) for one in runner().choose(logs)] == chosen
    assert runner(MemoryFileSystem(lambda: 0)).choose(logs) == logs[:1], "no other process can open it"


def test_no_thread_takes_more_at_once_than_others_can_wait_for() -> None:
    logs = due(*[90] * 100)
    cost = sum(map(cost_bytes, runner().choose(logs)))
    assert clean_runner._TOGETHER_BYTES_MAX - 90 * MIB < cost <= clean_runner._TOGETHER_BYTES_MAX


# ---- on Spark --------------------------------------------------------------------------------------------------------


class Dirty:
    """A manager without a cleaner, and some dirty logs of it."""

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

    def cleaner(self, spark: Any, line: int = 2 * CLEAN_COST_BYTES) -> LogCleaner:
        """A cleaner of these logs, to which two of them are worth a job."""
        manager = self.manager
        return LogCleaner(
            *(PosixFileSystem(), manager.config, manager.live_log_dirs, lambda: self.logs, manager.failures),
            runner=CleanRunner(PosixFileSystem(), spark, spark_bytes_min=line),
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


@pytest.mark.slow
def test_many_small_logs_are_cleaned_in_one_job_each_with_its_own_checkpoint(dirty: Dirty, spark: SparkSession) -> None:
    context = spark.sparkContext
    check_executors(spark, None, "", ())  # once for a user's session, by a job of its own
    context.setJobDescription("the user's")
    cleaner = dirty.cleaner(spark)
    assert cleaner.clean_filthiest_log()
    assert dirty.clean_ones() == [True] * 5
    name = threading.current_thread().name
    assert len(context.statusTracker().getJobIdsForGroup(name)) == 1
    assert context.getLocalProperty("spark.job.description") == "the user's"
    assert context.getLocalProperty("spark.jobGroup.id") is None
    ends = {one: log.active_segment.base_offset for one, log in dirty.logs.items()}
    assert cleaner.manager.all_cleaner_checkpoints() == ends
    assert not cleaner.clean_filthiest_log()
    dirty.check()
    read = sum(one.size_bytes for log in dirty.logs.values() for one in log.log_segments)
    assert cleaner._runner.io.read().count > read, "what tasks in other processes read counts, too"


@pytest.mark.slow
def test_one_log_of_a_job_is_aborted_and_paused_at_once_and_others_are_cleaned(
    tmp_path: Path, spark: SparkSession
) -> None:
    # Each log is 50 KB, of which all is read twice; so the job takes about three seconds.
    dirty = Dirty(tmp_path / "logs", 3, 40, "log.cleaner.io.max.bytes.per.second=100000", value_bytes=1000)
    cleaner = dirty.cleaner(spark)
    aborted, *others = dirty.logs
    cleaning = threading.Thread(target=cleaner.clean_filthiest_log, name="kafka-log-cleaner-thread-0")
    cleaning.start()
    while not os.path.exists(f"{dirty.logs[aborted].directory}/.cordwood"):
        time.sleep(0.01)
    cleaner.abort_and_pause_cleaning(aborted)
    assert cleaner.manager.cleaning_state(aborted) == Paused(1)
    assert [cleaner.manager.cleaning_state(one) for one in others] == ["in progress"] * 2
    dirty.logs[aborted].truncate_to(60)  # whatever still reads it
    cleaning.join()
    assert dirty.clean_ones() == [False, True, True]
    assert cleaner.manager.all_cleaner_checkpoints().keys() == set(others)
    assert [cleaner.manager.uncleanable(one) for one in dirty.logs] == [None] * 3
    limit = cleaner._runner.limit
    assert limit is not None
    counted = [int.from_bytes(path.read_bytes()[:8], "little") for path in Path(limit.folder).iterdir()]
    moved = sum(2 * stats.bytes_read + stats.bytes_written for stats in cleaner.last_stats)
    assert len(counted) > 1 and sum(counted) > moved, "all processes share the limit"
    cleaner.resume_cleaning([aborted])
    cleaner.shutdown()
    dirty.manager.shutdown()


@pytest.mark.slow
def test_a_job_of_which_all_logs_are_aborted_ends(tmp_path: Path, spark: SparkSession) -> None:
    dirty = Dirty(tmp_path / "logs", 2, 40, "log.cleaner.io.max.bytes.per.second=1", value_bytes=1000)
    cleaner = dirty.cleaner(spark)
    cleaning = threading.Thread(target=cleaner.clean_filthiest_log, name="kafka-log-cleaner-thread-7")
    cleaning.start()
    tracker = spark.sparkContext.statusTracker()
    while not tracker.getJobIdsForGroup("kafka-log-cleaner-thread-7"):
        time.sleep(0.01)
    for one in dirty.logs:
        cleaner.abort_and_pause_cleaning(one)
    cleaning.join(60)
    assert not cleaning.is_alive()
    job = tracker.getJobInfo(tracker.getJobIdsForGroup("kafka-log-cleaner-thread-7")[0])
    assert job is not None and job.status != "RUNNING"
    dirty.check()
    cleaner.shutdown()
    dirty.manager.shutdown()


#: Two threads with a job each, in a session of our own.
POOLS = """
import os, sys, threading, time
from pathlib import Path
from tests.service.test_cleaner_on_spark import Dirty
from cordwood.service.clean_runner import CleanRunner
from cordwood.spark.session import session

dirty = Dirty(Path(sys.argv[1]), 2)
with session(master="local[2]") as spark:
    cleaner = dirty.cleaner(spark, line=0)  # each log is worth a job
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


# ---- without Spark ---------------------------------------------------------------------------------------------------


class Broken:
    """A session whose Java is gone."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"Java is gone, and cannot say what {name} is")


def test_logs_are_cleaned_by_the_thread_if_spark_fails(dirty: Dirty, caplog: pytest.LogCaptureFixture) -> None:
    cleaner = dirty.cleaner(Broken())
    assert cleaner.clean_filthiest_log()
    assert dirty.clean_ones() == [True] * 5
    assert "clean 5 logs failed on Spark; the thread MainThread does it" in caplog.text
    assert cleaner.manager.all_cleaner_checkpoints().keys() == set(dirty.logs)
    dirty.check()


def test_logs_are_cleaned_by_the_thread_if_spark_does_not_start(
    dirty: Dirty, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise RequestError("there is no Java")

    monkeypatch.setattr(clean_runner, "session", fail)
    cleaner = dirty.cleaner(None)
    while cleaner.clean_filthiest_log():
        pass
    assert dirty.clean_ones() == [True] * 5
    assert caplog.text.count("there is no Java") == 1
    dirty.check()
