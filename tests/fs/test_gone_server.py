"""A command is interrupted while the server of an object store does not answer, or has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordwood.bench.generate import KeyPattern, write_keyed_log
from cordwood.fs.manifest import RUN
from cordwood.fs.posix import PosixFileSystem
from tests.command import start
from tests.commands.killing import processes, wait_for
from tests.fs.object_server import BUCKET, environment, running_server

pytestmark = pytest.mark.more

#: Maximum time to end; otherwise a request to such a server is repeated for three minutes.
END_SECONDS = 10
CLEAN = ["--engine", "here", "--ignore-ratio", "--single-copy", "--config", "cleanup.policy=compact"]


@contextlib.contextmanager
def started(words: list[str], address: str) -> Iterator[subprocess.Popen[str]]:
    with start(*words, environment=environment(address), start_new_session=True) as running:
        try:
            yield running
        finally:
            for one in processes(running.pid):
                os.kill(one.pid, signal.SIGKILL)


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert time.monotonic() - began < END_SECONDS, said
    assert "Traceback" not in said
    return running.returncode, said


def test_a_listing_that_no_server_answers_ends_with_sigterm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with started(["ls", f"s3://{BUCKET}/logs"], f"http://127.0.0.1:{port}") as running:
            silent.accept()
            assert ended(running) == (143, "")


@pytest.mark.parametrize(
    "records", [100_000, pytest.param(800_000, marks=pytest.mark.slow)], ids=["by one task", "by many tasks"]
)
def test_a_clean_into_a_bucket_whose_server_is_gone_ends_with_sigterm(tmp_path: Path, records: int) -> None:
    log = tmp_path / "logs/orders-0"
    log.mkdir(parents=True)
    write_keyed_log(PosixFileSystem(), str(log), records=records, keys=KeyPattern(10_000), segment_bytes=4_000_000)
    with contextlib.ExitStack() as served:
        server = served.enter_context(running_server())
        words = ["clean", str(log.parent), "--output", f"s3://{BUCKET}/new", *CLEAN, "--rate", "1m"]
        with started(words, server.address) as running:
            assert wait_for(lambda: RUN in server.objects("new"), running)
            served.close()
            code, said = ended(running)
    assert code == 143
    assert f"s3://{BUCKET}/new has objects of this run; they do not count, and the next run removes them" in said
