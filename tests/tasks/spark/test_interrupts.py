"""Ctrl-C and SIGTERM while Spark works: all processes end, even if a task hangs, and no file is left behind.

Python workers are stopped (SIGSTOP) first, so that waiting for a task never ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.bench.generate import KeyPattern, write_keyed_log
from cordwood.cleaning.engine import progress
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.tasks.spark.gateway import LOCAL_DIRS
from tests.command import CORDWOOD, ENVIRONMENT
from tests.commands.killing import Process, java, processes, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's processes in /proc"),
]

FS = PosixFileSystem()
#: Much longer than the end of a run needs.
WAIT_SECONDS = 60
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
#: Enough that a proof has not ended when its folder is seen.
RECORDS = 480_000

USERS_SESSION = """
import os, sys, time
from cordwood import verify
from cordwood.tasks.spark.launch import find_java
from pyspark.sql import SparkSession
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ |= {name: value for name, value in find_java().settings.items() if value is not None}
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print("started", flush=True)
try:
    while True:  # a proof may be done before the signal is there
        verify(sys.argv[1], sys.argv[1])
except KeyboardInterrupt:
    # Spark tells its tracker of a job's end a moment later.
    end = time.monotonic() + 2
    while spark.sparkContext.statusTracker().getActiveJobsIds() and time.monotonic() < end:
        time.sleep(0.05)
    print(spark.sparkContext.statusTracker().getActiveJobsIds(), spark.range(3).count())
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("interrupts") / "logs"
    for name in ("orders-0", "orders-1"):
        (directory / name).mkdir(parents=True)
        write_keyed_log(FS, str(directory / name), records=RECORDS, keys=KeyPattern(10_000), segment_bytes=20_000_000)
    (directory / ".kafka_cleanshutdown").write_text("version=0\n")
    return directory


def python(session: int) -> list[Process]:
    """Spark's Python workers, without the daemon that they are forks of, and the server that it is a fork of."""
    found = processes(session)
    jvms = {one.pid for one in java(session)}
    # A daemon is a child of Java, or of the server, which is a child of the command.
    servers = {one.pid for one in found if one.parent == session} - jvms
    daemons = {one.pid for one in found if one.parent in jvms | servers}
    return [one for one in found if one.parent in daemons]


def interrupt(running: subprocess.Popen[str], sent: signal.Signals, *, stop_workers: bool = True) -> tuple[str, str]:
    """Stop the workers, then end it all; returns output and errors."""
    for one in python(running.pid) if stop_workers else ():
        os.kill(one.pid, signal.SIGSTOP)
    # A terminal sends it to all of the group.
    os.killpg(running.pid, sent) if sent is signal.SIGINT else running.send_signal(sent)
    try:
        # Java has the same output: a process that stayed behind would keep it open.
        out, said = running.communicate(timeout=WAIT_SECONDS)
    finally:
        for one in processes(running.pid):
            os.kill(one.pid, signal.SIGKILL)
    return out, said


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**ENVIRONMENT, "TMPDIR": str(folder), LOCAL_DIRS: str(folder)}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def contents(directory: Path) -> dict[Path, bytes]:
    """All files and folders but the lock, which stays, as that of a broker does."""
    found = [path for path in directory.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else b"" for path in found}


def cleans(mine: Path) -> bool:
    """Whether tasks have read data, by their progress files."""
    return any(progress.total(FS, str(found)) > 0 for found in mine.glob(f"*/{WORK_FOLDER}/progress"))


def proves(folder: Path) -> bool:
    """Whether a proof runs, which has a folder of its own."""
    return any(folder.glob("cordwood-proof-*"))


def test_a_signal_ends_a_proof_at_once_and_leaves_nothing(log: Path, tmp_path: Path) -> None:
    with started([*CORDWOOD, "verify", str(log), str(log)], tmp_path) as running:
        assert wait_for(lambda: proves(tmp_path), running)
        _, said = interrupt(running, signal.SIGTERM)
    assert running.returncode == EXIT_CODES[signal.SIGTERM], said
    assert "Traceback" not in said
    assert wait_for(lambda: not processes(running.pid))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_start_of_spark_and_leaves_nothing(sent: signal.Signals, log: Path, tmp_path: Path) -> None:
    with started([*CORDWOOD, "verify", str(log), str(log)], tmp_path) as running:
        assert wait_for(lambda: java(running.pid), running)
        _, said = interrupt(running, sent)
    assert running.returncode == EXIT_CODES[sent], said
    assert ("cordwood: interrupted" in said) == (sent is signal.SIGINT)
    assert "Traceback" not in said
    assert wait_for(lambda: not processes(running.pid))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("part", ["cleaning", "proving"])
def test_a_signal_ends_a_clean_in_place_at_once_and_leaves_the_log(part: str, log: Path, tmp_path: Path) -> None:
    mine = tmp_path / "logs"
    subprocess.run(["cp", "-a", log, mine], check=True)
    before = contents(mine)
    words = [*CORDWOOD, "clean", str(mine), "--in-place", "--ignore-ratio", "--single-copy"]
    with started([*words, "--config", "cleanup.policy=compact"], tmp_path) as running:
        assert wait_for(lambda: cleans(mine) if part == "cleaning" else proves(tmp_path), running)
        _, said = interrupt(running, signal.SIGINT)
    assert running.returncode == 130, said
    assert "no partition was cleaned" in said or "0 of 2 partitions are cleaned" in said
    assert "Traceback" not in said
    assert wait_for(lambda: not processes(running.pid))
    assert contents(mine) == before


def test_tasks_that_hang_are_given_up_and_leave_the_log(log: Path, tmp_path: Path) -> None:
    mine = tmp_path / "logs"
    subprocess.run(["cp", "-a", log, mine], check=True)
    before = contents(mine)
    words = [*CORDWOOD, "clean", str(mine), "--in-place", "--ignore-ratio", "--single-copy", "--task-timeout", "12"]
    with started([*words, "--config", "cleanup.policy=compact"], tmp_path) as running:
        assert wait_for(lambda: cleans(mine), running)
        for one in python(running.pid):
            os.kill(one.pid, signal.SIGSTOP)
        try:
            _, said = running.communicate(timeout=WAIT_SECONDS)
        finally:
            for one in processes(running.pid):
                os.kill(one.pid, signal.SIGKILL)
    assert running.returncode == 2, said
    assert "No task has read, written or ended anything for 12 s" in said and "Traceback" not in said
    assert contents(mine) == before


def test_ctrl_c_in_a_users_session_cancels_the_proof_and_the_session_goes_on(log: Path, tmp_path: Path) -> None:
    with started([sys.executable, "-c", USERS_SESSION, str(log)], tmp_path) as running:
        assert running.stdout is not None and running.stdout.readline() == "started\n"
        assert wait_for(lambda: proves(tmp_path), running)
        # The same workers serve the session afterwards.
        out, said = interrupt(running, signal.SIGINT, stop_workers=False)
    # Spark's own workers print that they were ended.
    assert (running.returncode, out.splitlines()[-1:]) == (0, ["[] 3"]), out + said
