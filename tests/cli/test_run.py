"""`cordwood run` as a process: what it prints, how signals end it, and what it leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordwood.config import overrides
from cordwood.fs.posix import PosixFileSystem
from cordwood.service.log_manager import LogManager
from cordwood.storage.formats import filenames
from tests.service.live_logs import batch
from tests.service.nodes import ONE

CORDWOOD = [sys.executable, "-m", "cordwood"]
RUN = [*CORDWOOD, "run"]
SECONDS_MAX = 120


def directory(tmp_path: Path) -> Path:
    """A directory with a log of which most can go."""
    path = tmp_path / "logs"
    manager = LogManager(PosixFileSystem(), [str(path)], overrides(["log.cleaner.enable=false"]))
    manager.startup()
    log = manager.get_or_create_log(ONE, is_new=True)
    for number in range(20):
        log.append_as_leader(batch(f"a{number}"), 0)
        if number % 5 == 4:
            log.roll()
    log.update_high_watermark(log.log_end_offset)
    manager.shutdown()
    return path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CORDWOOD, *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The JSON lines up to one that is wanted."""
    found: list[dict[str, Any]] = []
    assert process.stdout is not None
    for line in process.stdout:
        found.append(json.loads(line))
        if wanted(found[-1]):
            return found
    assert process.stderr is not None
    raise AssertionError(f"it ended before: {found} {process.stderr.read()}")


def test_a_log_is_cleaned_configs_are_read_anew_and_a_signal_shuts_down(tmp_path: Path) -> None:
    path = directory(tmp_path)
    properties = tmp_path / "server.properties"
    properties.write_text("")
    words = [str(path), "--json", "--port", "0", "--server-properties", str(properties)]
    with started(*words, "--config", "log.cleaner.backoff.ms=100") as process:
        *_, ready = lines_until(process, lambda line: "/metrics" in line["message"])
        url = ready["message"].rpartition(" ")[2]
        assert b"kafka_log_log_size" in urllib.request.urlopen(url, timeout=SECONDS_MAX).read()
        properties.write_text("log.cleanup.policy=compact\n")
        process.send_signal(signal.SIGHUP)
        *_, clean = lines_until(process, lambda line: line["event"] == "clean")
        assert clean["partition"] == "t-0" and clean["level"] == "info"
        assert (clean["first_dirty_offset"], clean["end_offset"]) == (0, 20)
        assert (clean["messages_read"], clean["messages_written"]) == (20, 1)
        assert clean["bytes_written"] < clean["bytes_read"] and 0 < clean["size_reduction"] < 1
        process.send_signal(signal.SIGTERM)
        rest = lines_until(process, lambda line: line["message"] == "clean shutdown")
        assert process.wait(SECONDS_MAX) == 0, rest
    assert (path / filenames.CLEAN_SHUTDOWN).exists()
    again = command("dump", str(path / "t-0"), "--format", "%o %s\n")
    assert again.stdout == "19 a19\n"


def test_a_directory_that_somebody_else_has_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path)
    with started(str(path), "--port", "0", "--json") as process:
        lines_until(process, lambda line: "/metrics" in line["message"])
        other = command("run", str(path), "--port", "0")
        assert other.returncode == 3
        assert f"pid {process.pid}" in other.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0


def test_without_a_directory_it_says_what_to_give() -> None:
    done = command("run")
    assert done.returncode == 2
    assert done.stderr == "cordwood: Give the log directories to run on, or --demo for a directory of its own\n"


def test_a_terminal_shows_a_table_of_the_logs_of_the_demo(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    environment = os.environ | {"COLUMNS": "160", "LINES": "40", "TERM": "xterm", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*RUN, "--demo", "--port", "0"], stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        shown, end = "", time.monotonic() + SECONDS_MAX
        while "demo-users-1" not in shown and time.monotonic() < end:
            if select.select([leader], [], [], 1)[0]:
                shown += os.read(leader, 1 << 16).decode(errors="replace")
        process.send_signal(signal.SIGTERM)
        while select.select([leader], [], [], 1)[0]:
            try:
                shown += os.read(leader, 1 << 16).decode(errors="replace")
            except OSError:
                break
        assert process.wait(SECONDS_MAX) == 0
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"PARTITION +POLICY +SIZE +SEGMENTS +DIRTY +CLEANER +WHY", text)
    assert "6 partitions" in text and "healthy" in text
    assert os.listdir(tmp_path) == [], "its directory is gone"
