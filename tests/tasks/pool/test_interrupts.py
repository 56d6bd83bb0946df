"""Ctrl-C and SIGTERM while a pool works: all processes end, even if a task hangs, and no file is left behind.

Workers are stopped (SIGSTOP) first, so that waiting for a task never ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.bench.generate import KeyPattern, write_keyed_log
from cordwood.fs.posix import PosixFileSystem
from tests.command import start
from tests.commands.killing import processes, wait_for

pytestmark = [pytest.mark.more, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]

FS = PosixFileSystem()
#: Much longer than the end of a run needs.
WAIT_SECONDS = 60
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
CLEAN = ["--engine", "here", "--ignore-ratio", "--single-copy", "--config", "cleanup.policy=compact"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    for name in ("orders-0", "orders-1"):
        (directory / name).mkdir(parents=True)
        write_keyed_log(FS, str(directory / name), records=100_000, keys=KeyPattern(10_000), segment_bytes=4_000_000)
    (directory / ".kafka_cleanshutdown").write_text("version=0\n")
    return directory


def contents(directory: Path) -> dict[Path, bytes]:
    """All files and folders but the lock, which stays, as that of a broker does."""
    found = [path for path in directory.rglob("*") if path.name != ".lock"]
    return {path: path.read_bytes() if path.is_file() else b"" for path in found}


def workers(running: subprocess.Popen[str]) -> list[int]:
    """Processes of the pool, without its server."""
    found = processes(running.pid)
    servers = {one.pid for one in found if one.parent == running.pid}
    return [one.pid for one in found if one.parent in servers]


def interrupted(words: list[str], sent: signal.Signals, folder: Path) -> tuple[int, str]:
    """Run a command, stop its workers as soon as there are some, and send it a signal; its exit code and errors."""
    folder.mkdir()
    with start(*words, environment={"TMPDIR": str(folder)}, start_new_session=True) as running:
        assert wait_for(lambda: workers(running), running)
        for pid in workers(running):
            os.kill(pid, signal.SIGSTOP)
        # A terminal sends it to all of the group.
        os.killpg(running.pid, sent) if sent is signal.SIGINT else running.send_signal(sent)
        try:
            _, said = running.communicate(timeout=WAIT_SECONDS)
        finally:
            for one in processes(running.pid):
                os.kill(one.pid, signal.SIGKILL)
    assert "Traceback" not in said
    assert wait_for(lambda: not processes(running.pid))
    assert os.listdir(folder) == []
    return running.returncode, said


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_clean_into_a_copy_and_leaves_nothing(log: Path, tmp_path: Path, sent: signal.Signals) -> None:
    words = ["clean", str(log), "--output", str(tmp_path / "copy"), *CLEAN]
    code, said = interrupted(words, sent, tmp_path / "tmp")
    assert code == EXIT_CODES[sent], said
    assert sorted(os.listdir(tmp_path)) == ["logs", "tmp"]


def test_a_signal_ends_a_clean_in_place_and_leaves_the_log(log: Path, tmp_path: Path) -> None:
    before = contents(log)
    code, said = interrupted(["clean", str(log), "--in-place", *CLEAN], signal.SIGINT, tmp_path / "tmp")
    assert code == 130, said
    assert "0 of 2 partitions are cleaned" in said
    assert contents(log) == before


@pytest.mark.slow
def test_a_command_with_tasks_that_hang_all_the_time_gives_up(log: Path, tmp_path: Path) -> None:
    """A stopped server cannot start workers for the tasks, however often they are begun."""
    words = ["clean", str(log), "--output", str(tmp_path / "copy"), *CLEAN, "--task-timeout", "3"]
    with start(*words, start_new_session=True) as running:
        assert wait_for(lambda: workers(running), running)
        for one in processes(running.pid):
            if one.pid != running.pid:
                os.kill(one.pid, signal.SIGSTOP)
        _, said = running.communicate(timeout=WAIT_SECONDS)
    assert running.returncode == 2
    assert "No task has read, written or ended anything for 3 s" in said
    assert wait_for(lambda: not processes(running.pid))
    assert os.listdir(tmp_path) == ["logs"]
