"""Modules that Spark's Python workers start with: the kernels, a compiled pyspark, and no slow import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from cordwood.tasks.spark.daemon import without_zips
from tests.command import ENVIRONMENT
from tests.commands.killing import processes, wait_for

pytestmark = pytest.mark.more


def test_only_zips_beside_an_installed_pyspark_are_left_out() -> None:
    site = "/venv/lib/python3.11/site-packages"
    zips = [f"{site}/pyspark/python/lib/pyspark.zip", f"{site}/pyspark/python/lib/py4j-0.10.9.9-src.zip"]
    others = ["/job", "/opt/spark/python/lib/pyspark.zip", "/usr/lib/python311.zip", "a.zip"]
    assert without_zips([*zips, *others, site]) == [*others, site]
    # A pyspark that exists as a zip only.
    assert without_zips([*zips, *others]) == [*zips, *others]


#: The modules in a worker, from a task of a session of our own.
ASKED = """
import json
from cordwood.tasks.tasks import run_each
from cordwood.tasks.spark.runner import running_on_spark

def modules(names):
    import sys
    return [getattr(sys.modules.get(name), "__file__", None) for name in names]

asked = ("cordwood.kernels.scan", "pyspark", "pandas")
with running_on_spark() as runner:
    # Twice: what a row that is sent back makes a worker load is there the second time.
    for _ in range(2):
        found = run_each(runner, modules, [asked], [1])
print(json.dumps(found[0]))
"""


@pytest.mark.slow
def test_workers_have_the_kernels_and_the_installed_pyspark_and_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    kernels, package, pandas = json.loads(done.stdout.splitlines()[-1])
    assert kernels is not None
    assert Path(package).parent == Path(pyspark.__file__).parent
    assert pandas is None


# ---- forking ---------------------------------------------------------------------------------------------------------


linux = pytest.mark.skipif(sys.platform != "linux", reason="forks a process with one thread, and looks into /proc")

RUN = """
import os, sys, time
import cordwood.cli
from cordwood.tasks.tasks import run_each
from cordwood.tasks.spark.runner import running_on_spark

def about(_):
    import os
    with open("/proc/self/cmdline") as file:
        return os.getpgrp(), os.environ["SPARK_REUSE_WORKER"], sys.argv[0], file.read()

with open("/proc/self/cmdline") as file:
    mine = file.read()
with running_on_spark() as runner:
    group, reuse, argument, command = run_each(runner, about, [0], [1])[0]
    print(group != os.getpgrp(), reuse, argument.endswith("daemon.py"), command == mine, flush=True)
    if len(sys.argv) > 1:
        time.sleep(600)
"""


@linux
@pytest.mark.slow
def test_workers_are_forks_of_the_process_that_starts_spark() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True True\n"), done.stderr


@linux
@pytest.mark.slow
def test_workers_are_forks_where_temporary_files_have_long_paths(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True True\n"), done.stderr


@linux
@pytest.mark.slow
def test_given_other_threads_workers_are_forks_of_a_new_python() -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n" + RUN
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True False\n"), done.stderr


@linux
@pytest.mark.slow
def test_nothing_stays_when_the_process_that_starts_spark_is_killed(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", RUN, "wait"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "True 1 True True\n"
        assert len(processes(running.pid)) > 3
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        assert wait_for(lambda: not processes(running.pid))
