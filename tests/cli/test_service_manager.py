"""Messages of `cordwood run` to the service manager that started it, over a real socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cordwood.cli.run import ServiceManager
from cordwood.common.config import overrides
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log_manager import LogManager
from tests.command import start
from tests.live.live_logs import batch
from tests.live.nodes import ONE

pytestmark = pytest.mark.more

SECONDS_MAX = 120


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """The socket of the service manager, systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address.startswith("@") else address)
        receiver.settimeout(SECONDS_MAX)
        yield receiver


def message(receiver: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in receiver.recv(4096).decode().splitlines())


def logs(path: Path) -> Path:
    manager = LogManager(PosixFileSystem(), [str(path)], overrides(["log.cleaner.enable=false"]))
    manager.startup()
    log = manager.get_or_create_log(ONE, is_new=True)
    log.append_as_leader(batch("a1", "b1"), 0)
    manager.shutdown()
    return path


@pytest.mark.parametrize("kind", ["a path", "an abstract name"])
def test_it_is_told_of_the_start_of_each_look_and_of_the_end(kind: str, tmp_path: Path) -> None:
    address = str(tmp_path / "notify") if kind == "a path" else f"@cordwood-test-{os.getpid()}"
    path = logs(tmp_path / "logs")
    with (
        listening(address) as receiver,
        start("run", path, "--port", "0", environment={"NOTIFY_SOCKET": address}, stdout=subprocess.DEVNULL) as process,
    ):
        try:
            assert message(receiver) == {"STATUS": f"loading {path}: 1 of 1 log"}
            assert message(receiver) == {"READY": "1", "STATUS": "1 partition"}
            for _ in range(2):
                look = message(receiver)
                assert look["WATCHDOG"] == "1"
                assert look["STATUS"].startswith("1 partition, ") and look["STATUS"].endswith("; healthy")
            process.send_signal(signal.SIGTERM)
            while "STOPPING" not in (end := message(receiver)):
                assert "WATCHDOG" in end
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()


def test_without_one_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", None)
    ServiceManager().ready("all is well")


def test_children_do_not_inherit_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ


def test_one_that_is_gone_or_reads_nothing_delays_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    manager = ServiceManager()
    manager.ready("nobody is there")
    with listening(str(tmp_path / "notify")) as receiver:
        for _ in range(2_000):
            manager.alive("nobody reads")
        assert message(receiver) == {"WATCHDOG": "1", "STATUS": "nobody reads"}


def test_a_status_is_one_line_of_text_whatever_a_name_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    manager = ServiceManager()
    with listening(str(tmp_path / "notify")) as receiver:
        manager.alive("a\nMAINPID=1\n" + "b" * 5_000)
        assert receiver.recv(9_000).decode() == "WATCHDOG=1\nSTATUS=a\\nMAINPID=1\\n" + "b" * 286
        manager.alive("\udcff")
        assert receiver.recv(9_000).decode() == "WATCHDOG=1\nSTATUS=\\udcff"
