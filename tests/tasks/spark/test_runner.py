"""Tasks on our own Spark: without a session, a process for each step, and workers that end on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"

STEPS = """
import json
from pyspark.sql import SparkSession
from cordwood.tasks.spark.runner import running_on_spark

def first(items):
    import os
    for at, item in items:
        yield at, [item, os.getpid()]

def second(outcomes):
    import os
    for at, outcome in outcomes:
        yield at, [*outcome, os.getpid()]

with running_on_spark() as runner:
    found = runner.run([[(0, "a"), (1, "b")], [(2, "c")]], [first, second])
    with running_on_spark() as inner:
        assert inner.gateway is runner.gateway
        assert inner.is_alive()
    assert runner.is_alive()
    print(json.dumps([found, SparkSession._instantiatedSession is None]))
    assert runner.session.range(3).count() == 3
    assert runner.run([[(0, "a")]], [first])[0][0] == "a"
"""

ORDERED = """
import sys
from cordwood.tasks.tasks import run_each
from cordwood.tasks.spark.runner import running_on_spark

path = sys.argv[1]
with running_on_spark(master="local[1]") as runner:
    run_each(runner, lambda item: open(path, "a").write(item), ["c", "a", "b"], [1, 3, 2])
with running_on_spark(master="local[2]", tasks=3) as runner:
    print(runner.cores)
with running_on_spark(tasks=3) as runner:
    print(runner.cores)
"""

CANCELLED = """
import os, sys, time
from cordwood.tasks.runner import looked_at
from cordwood.tasks.spark.runner import running_on_spark

path = sys.argv[1]

def sleep(items):
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    time.sleep(600)
    yield from items

def look(_):
    if os.path.exists(path):
        raise TimeoutError("enough")

with running_on_spark() as runner:
    try:
        with looked_at(look):
            runner.run([[(0, 0)]], [sleep])
    except TimeoutError:
        pass
    else:
        raise AssertionError("it ended by itself")
    with open(path) as file:
        process = f"/proc/{file.read()}"
    end = time.monotonic() + 20
    while os.path.exists(process) and time.monotonic() < end:
        time.sleep(0.05)
    print(os.path.exists(process), runner.is_alive())
"""

BORROWED = """
import json, os, sys
from pyspark.sql import SparkSession
from cordwood.tasks.spark.launch import find_java
from cordwood.tasks.spark.runner import running_on_spark

os.environ.update({name: value for name, value in find_java().settings.items() if value is not None})
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

def left_out(items):
    import gc
    for at, _ in items:
        yield at, gc.get_freeze_count()

with running_on_spark(spark) as runner:
    print(json.dumps([runner.run([[(0, "a")]], [left_out])[0] for _ in range(3)]))
"""


def run(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_each_step_has_a_process_of_its_own_and_no_session_is_made() -> None:
    found, without_session = json.loads(run(STEPS))
    assert without_session
    assert sorted(found) == ["0", "1", "2"]
    assert [found[at][0] for at in sorted(found)] == ["a", "b", "c"]
    assert all(first != second for _, first, second in found.values())


@pytest.mark.slow
def test_as_many_tasks_run_as_are_told_or_as_there_are_cores_the_largest_first(tmp_path: Path) -> None:
    assert run(ORDERED, str(tmp_path / "begun")) == "2\n3\n"
    assert (tmp_path / "begun").read_text() == "abc"


@pytest.mark.slow
def test_workers_of_a_users_session_leave_what_is_loaded_out_of_collections() -> None:
    at_first, *later = json.loads(run(BORROWED))
    assert at_first == 0
    assert len(set(later)) == 1
    assert later[0] > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for a process in /proc")
def test_the_worker_of_a_cancelled_job_ends_at_once(tmp_path: Path) -> None:
    assert run(CANCELLED, str(tmp_path / "pid")) == "False True\n"
