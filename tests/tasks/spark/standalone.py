"""A standalone cluster of Spark on this machine: a master and some workers, each with one core."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from cordwood.tasks.spark.launch import find_java

SPARK_HOME = Path(pyspark.__file__).parent
_SECONDS_MAX = 60


class Cluster:
    """Processes that end with the `with` block, including their children."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"spark://127.0.0.1:{free.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        host, port = self.url.removeprefix("spark://").split(":")
        self._start("master", "master.Master", "--host", host, "--port", port, "--webui-port", "0")
        self._wait_for("I have been elected leader", 1)
        for number in range(self._count):
            self.start_worker(number)
        self._wait_for("Registering worker", self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        executors = self.executors()
        for process in self._processes:
            process.kill()
            process.wait()
        for pid in executors:
            kill(pid)

    def start_worker(self, number: int) -> None:
        """Start one more worker."""
        work = str(self._folder / f"work-{number}")
        options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work)
        self._start(f"worker-{number}", "worker.Worker", *options, self.url)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executor at once, as the loss of a machine does."""
        process = self._processes[1 + number]
        executors = list(children(process.pid))
        process.kill()
        process.wait()
        for pid in executors:
            kill(pid)

    def executors(self) -> list[int]:
        """The processes of executors."""
        return [pid for worker in self._processes[1:] for pid in children(worker.pid)]

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        environment = find_java().environment(os.environ) | {"SPARK_HOME": str(SPARK_HOME)}
        command = [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _wait_for(self, text: str, count: int) -> None:
        began = time.monotonic()
        while (self._folder / "master.log").read_text().count(text) < count:
            assert time.monotonic() - began < _SECONDS_MAX, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        """The output of all processes."""
        return "\n".join(path.read_text()[-5000:] for path in self._folder.glob("**/*") if path.suffix == ".log")


def children(pid: int) -> Iterator[int]:
    """The processes that a process started and that run: a zombie is left of the script that became Spark's Java."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended since
        if int(parent) == pid and state != "Z":
            yield int(name)


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def defaults(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that give all sessions these settings."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {"SPARK_CONF_DIR": str(folder)}
