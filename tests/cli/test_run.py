"""`cordwood run` as a process: its output, its end by signals, and its files."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cordwood.storage.formats import filenames
from tests.command import CORDWOOD, run
from tests.live.nodes import ONE, made_dirty

pytestmark = pytest.mark.more

RUN = [*CORDWOOD, "run"]
SECONDS_MAX = 120
#: A lower limit is too small for the libraries of this program.
FILES = 256


def directory(tmp_path: Path) -> Path:
    """A directory with a log of mostly superseded records."""
    path = tmp_path / "logs"
    made_dirty(path, ONE.topic)
    return path


@contextmanager
def started(
    *words: str, files: int | None = None, program: Sequence[str] = ("-m", "cordwood", "run")
) -> Iterator[subprocess.Popen[str]]:
    """A process with this limit on open files."""
    limit = [] if files is None else ["prlimit", f"--nofile={files}"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*limit, sys.executable, *program, *words], stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The JSON lines up to the wanted one."""
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
        loaded, warned, ready = lines_until(process, lambda line: "/metrics" in line["message"])
        assert loaded["message"] == f"loaded 1 log of {path}"
        assert warned["message"].startswith("nothing of 1 log will ever be cleaned")
        assert ready["message"].startswith(f"1 partition in {path}; ")
        url = ready["message"].rpartition(" ")[2]
        assert b"kafka_log_log_size" in urllib.request.urlopen(url, timeout=SECONDS_MAX).read()
        properties.write_text("log.cleanup.policy=compact\n")
        process.send_signal(signal.SIGHUP)
        *_, clean = lines_until(process, lambda line: line["event"] == "clean")
        assert (clean["topic"], clean["partition"]) == ("t", 0) and clean["level"] == "info"
        assert (clean["first_dirty_offset"], clean["end_offset"]) == (0, 20)
        assert (clean["messages_read"], clean["messages_written"]) == (20, 1)
        assert clean["bytes_written"] < clean["bytes_read"] and 0 < clean["size_reduction"] < 1
        process.send_signal(signal.SIGTERM)
        rest = lines_until(process, lambda line: line["message"] == "clean shutdown")
        assert process.wait(SECONDS_MAX) == 0, rest
    assert (path / filenames.CLEAN_SHUTDOWN).exists()
    again = run("dump", path / "t-0", "--format", "%o %s\n")
    assert again.stdout == "19 a19\n"


def test_with_view_it_says_where_its_pages_are(tmp_path: Path) -> None:
    with started(str(directory(tmp_path)), "--json", "--port", "0", "--view") as process:
        *_, said, ready = lines_until(process, lambda line: "/metrics" in line["message"])
        url = said["message"].removeprefix("pages for a browser are at ")
        assert ready["message"].endswith(f"{url}metrics")
        page = urllib.request.urlopen(url, timeout=SECONDS_MAX).read().decode()
        assert "Live logs" in page and "t-0" in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0


def test_a_thousand_idle_slow_and_resetting_clients_change_nothing(tmp_path: Path) -> None:
    path = directory(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))  # for our ends
    words = ["--json", "--port", "0", "--config", "replica.high.watermark.checkpoint.interval.ms=100"]
    with started(str(path), *words, files=FILES) as process, ExitStack() as clients:
        clients.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        *_, ready = lines_until(process, lambda line: "/metrics" in line["message"])
        url = ready["message"].rpartition(" ")[2]
        port = int(url.split(":")[2].partition("/")[0])
        for number in range(1_000):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX))
            if number % 4 == 1:
                client.sendall(b"GET /metrics HT")
            elif number % 4 == 2:
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            elif number % 4 == 3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()  # with a reset
            if number % 200 == 199:
                assert urllib.request.urlopen(url.replace("metrics", "health"), timeout=SECONDS_MAX).status == 200
                assert b"kafka_log_log_size" in urllib.request.urlopen(url, timeout=SECONDS_MAX).read()
                assert len(os.listdir(f"/proc/{process.pid}/fd")) < FILES // 2
        process.send_signal(signal.SIGTERM)
        lines = lines_until(process, lambda line: line["message"] == "clean shutdown")
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr is not None and process.stderr.read() == ""
        assert [line for line in lines if line["level"] != "info"] == []
    assert (path / filenames.CLEAN_SHUTDOWN).exists()


#: `cordwood run` on a disk where writing recovery points blocks without an error.
ON_A_DISK_THAT_HANGS = f"""
import sys, time
from cordwood.cli import main, run
from cordwood.fs.posix import PosixFileSystem

class Hanging(PosixFileSystem):
    def create(self, path, **options):
        while {filenames.RECOVERY_POINTS!r} in path:
            time.sleep(1)
        return super().create(path, **options)

run.PosixFileSystem = Hanging
main.app(sys.argv[1:])
"""


@pytest.mark.slow
def test_when_the_disk_hangs_a_signal_ends_it_in_time_without_a_clean_shutdown(tmp_path: Path) -> None:
    path = directory(tmp_path)
    with started(str(path), "--json", "--port", "0", program=["-c", ON_A_DISK_THAT_HANGS, "run"]) as process:
        lines_until(process, lambda line: "/metrics" in line["message"])
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 1
        assert time.monotonic() - began < 20
        assert process.stderr is not None
        said = process.stderr.read()
    assert re.fullmatch(
        rf"cordwood: gave up waiting for the checkpoints of {path} to be written, for 1\d s \(since .* UTC\); "
        r"this is no clean shutdown, the next start recovers\n",
        said,
    )
    assert not (path / filenames.CLEAN_SHUTDOWN).exists()


def test_a_directory_that_somebody_else_has_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path)
    with started(str(path), "--port", "0", "--json") as process:
        lines_until(process, lambda line: "/metrics" in line["message"])
        other = run("run", path, "--port", "0", exits=3)
        assert f"pid {process.pid}" in other.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0


def test_without_a_directory_it_says_what_to_give() -> None:
    assert (
        run("run", exits=2).stderr
        == "cordwood: Give the log directories to run on, or --demo for a directory of its own\n"
    )


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
