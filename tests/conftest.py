"""Shared by all tests: Hypothesis' settings and seed, Kafka as a fixture, and the number of tests that a run left out.

Tests that use `kafka_oracle` or `kafka_broker` get the marker `kafka`, and the latter also `broker`, automatically.
`make test` leaves out `more`, which `make test-all` runs, and `kafka` and `slow`, which `make check-kafka` runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from cordwood.tasks.pool import runner
from cordwood.tasks.spark.launch import find_java
from tests import crashes, kafka_tools, knobs, summary, warm_pool
from tests.cleaning import mutants
from tests.damage.summary import lines_for

# A kernel's first call compiles it, so the time of one example means little. A derandomized test derives its examples
# from its own source.
settings.register_profile(
    "cordwood",
    deadline=None,
    derandomize=not knobs.IS_FRESH,
    print_blob=True,
    max_examples=knobs.scaled(100, 1000),
)
settings.load_profile("cordwood")

# Options of Spark's Java, in every process of a test: no process runs for long, so code is compiled quickly rather than
# well.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tests leave up to this in memory at a time, most of it in fixtures of modules.
MEMORY_BYTES_MIN = 8 << 30
_left_out = pytest.StashKey[int]()
#: Markers of tests that only `.ci/full` runs: they take an hour, or much memory or disk.
LONG = ("large", "month", "soak")
_left_to_test_all = pytest.StashKey[int]()
#: Number of tests that wait for their turn.
_waiting = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw by the run's seed, too, before its plugin reads the option; and let Ctrl-C reach tests."""
    # A shell without job control starts a command before `&` with SIGINT ignored, which all children would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if knobs.IS_FRESH and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(knobs.SEED)
    if not knobs.IS_FULL:
        _keep_files_in_memory()


def _keep_files_in_memory() -> None:
    """Let `tmp_path` be in memory if there is room. There a copy of a fixture takes a sixth of its time on a disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_BYTES_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.fixture(scope="session")
def kafka_oracle() -> kafka_tools.Oracle:
    """Kafka's own log classes; the test is skipped where they cannot run, or fails with CORDWOOD_REQUIRE_KAFKA=1."""
    _need_kafka()
    return kafka_tools.Oracle()


@pytest.fixture
def kafka_broker() -> Iterator[kafka_tools.Broker]:
    """A real broker; like `kafka_oracle`. All processes that it started end with the test."""
    _need_kafka()
    broker = kafka_tools.Broker()
    yield broker
    broker.kill_all()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as a user makes it, with none of our settings, in a folder of its own. It starts within seconds."""
    from pyspark.sql import SparkSession

    os.environ |= {name: value for name, value in find_java().settings.items() if value is not None}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # On a disk: examples in docs run in this folder, and show sizes there.
    folder = tempfile.mkdtemp(prefix="cordwood-spark-")
    with contextlib.chdir(folder):
        made = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def warm_pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pools start warm; those of `tests/tasks/pool` start as a user's."""
    if sys.platform == "linux" and "tests/tasks/pool/" not in request.node.nodeid:
        monkeypatch.setattr(runner, "_start", warm_pool.start)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A new folder on a disk, for tests of reads and writes that memory does not have; see `_keep_files_in_memory`."""
    with tempfile.TemporaryDirectory(prefix="cordwood-") as folder:
        yield Path(folder)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A new folder on another file system than `tmp_path`'s; the test is skipped if there is no other file system."""
    disks = [disk for disk in map(Path, ("/dev/shm", "/var/tmp")) if disk.is_dir()]
    other = next((disk for disk in disks if disk.stat().st_dev != tmp_path.stat().st_dev), None)
    if other is None:
        pytest.skip("there is one file system only")
    with tempfile.TemporaryDirectory(prefix="cordwood-", dir=other) as folder:
        yield Path(folder)


def _need_kafka() -> None:
    if reason := kafka_tools.missing():
        needs = f"needs a Java 17 JDK and Kafka's jars ({reason}); tests/kafka/README.md says how to get them"
        (pytest.fail if kafka_tools.required() else pytest.skip)(needs)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they use, before `-m` selects."""
    for item in items:
        used = getattr(item, "fixturenames", ())
        if "kafka_oracle" in used or "kafka_broker" in used:
            item.add_marker("kafka")
        if any(map(item.get_closest_marker, ("cluster", *LONG))):
            item.add_marker("slow")
        if "kafka_broker" in used:
            item.add_marker("broker")
    _wait_for_their_turn(items)


def _wait_for_their_turn(items: list[pytest.Item]) -> None:
    """Leave out the tests whose turn it is not; see knobs.py."""

    def is_taken(item: pytest.Item) -> bool:
        if item.get_closest_marker("cluster"):
            return True
        if item.get_closest_marker("slow"):
            return knobs.has_its_turn(item.nodeid)
        is_half = item.get_closest_marker("more") and not item.get_closest_marker("kafka")
        return not is_half or knobs.has_its_turn(item.nodeid, 2)

    taken = list(filter(is_taken, items))
    if len(taken) < len(items):
        items[0].config.stash[_waiting] = len(items) - len(taken)
        items[:] = taken


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that `-m` left out."""
    for item in items:
        if item.get_closest_marker("kafka") or item.get_closest_marker("slow"):
            item.config.stash[_left_out] = item.config.stash.get(_left_out, 0) + 1
        elif item.get_closest_marker("more"):
            item.config.stash[_left_to_test_all] = item.config.stash.get(_left_to_test_all, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the count over when this is one of several processes (pytest-xdist)."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, 0)
        session.config.workeroutput["left_to_test_all"] = session.config.stash.get(_left_to_test_all, 0)
        session.config.workeroutput["waiting"] = session.config.stash.get(_waiting, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the count from a process that ended; every one collects all tests, so their counts are equal."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", 0)
    node.config.stash[_left_to_test_all] = getattr(node, "workeroutput", {}).get("left_to_test_all", 0)
    node.config.stash[_waiting] = getattr(node, "workeroutput", {}).get("waiting", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the tests' cases and counts, the number of slow tests that did not run, and the command that repeats the
    run.
    """
    for lines in (lines_for, crashes.lines_for, mutants.lines_for, summary.lines_for):
        for line in lines(terminalreporter):
            terminalreporter.write_line(line)
    counts = {name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "error", "skipped")}
    terminalreporter.write_line(
        ", ".join(f"{counts[name]:,} {name}" for name in counts if counts[name] or name == "passed")
    )
    if knobs.IS_FRESH:
        terminalreporter.write_line(f"to repeat:  CORDWOOD_SEED={knobs.SEED}")
    if count := config.stash.get(_waiting, 0):
        terminalreporter.write_line(
            f"{count:,} tests have another turn than this run's, CORDWOOD_TURN={knobs.TURN}/{knobs.TURNS}"
        )
    if count := config.stash.get(_left_to_test_all, 0):
        terminalreporter.write_line(f"{count:,} tests left out; to run them:  make test-all")
    if count := config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            f"{count} slow tests and comparisons with Kafka left out; to run them:  make check-kafka"
        )
