"""Workers are forks of the command, which has the kernels, and end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ENVIRONMENT
from tests.commands.killing import processes, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks a process with one thread, and looks into /proc"),
]

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


def test_workers_are_forks_of_the_process_that_starts_spark() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True True\n"), done.stderr


def test_workers_are_forks_where_temporary_files_have_long_paths(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True True\n"), done.stderr


def test_given_other_threads_workers_are_forks_of_a_new_python() -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n" + RUN
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 1 True False\n"), done.stderr


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
