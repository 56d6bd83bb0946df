"""The settings of a session of our own: what Spark and Java are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from cordwood.errors import RequestError
from cordwood.forks import MALLOC

#: As many tasks as there are cores. The 4: plain local mode never retries a task, so that a Python worker that is
#: killed (for memory, say) would fail all.
LOCAL_MASTER = "local[*,4]"
#: The same, with so many tasks.
LOCAL_TASKS = "local[{},4]"

SETTINGS: Mapping[str, str] = {
    # Workers fork from a process that has the kernels loaded; loading them takes longer than many a task.
    "spark.python.daemon.module": "cordwood.spark.daemon",
    # Rows go to workers by a socket file: no port, and half the cost of the loopback interface.
    "spark.python.unix.domain.socket.enabled": "true",
    **{f"spark.executorEnv.{name}": value for name, value in MALLOC.items()},
    # Its pages are not used, and its port may be taken.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One machine: no name of it needs to be resolved.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver holds plans and results, no data.
    "spark.driver.memory": "512m",
    # Jobs of several threads share the cores; one after the other, a small one would wait for all tasks of a large one.
    "spark.scheduler.mode": "FAIR",
    # It ends before a better compiler would pay, and has next to no garbage to collect.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Every plan is a handful of rows; compiling code for it takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # What becomes of a partition is checked at once, while the next is cleaned.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
#: Settings for this machine alone: the address of the driver, and sockets that are files.
_LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress", "spark.python.unix.domain.socket.enabled")
#: What executors call the unpacked archive of their environment.
_ENVIRONMENT = "environment"


def settings_for(master: str, archive: str | None) -> dict[str, str]:
    """The configuration of a session of our own.

    Raises:
        RequestError: the archive is missing, or of no use to a local master.
    """
    settings = {**SETTINGS, "spark.master": master, "spark.app.name": "cordwood"}
    if master.startswith("local"):
        if archive is not None:
            raise RequestError(f"--archive is for executors on other machines, and --master {master} is this one")
        return settings
    # A master on the loopback interface finds the driver there, too.
    local_only = _LOCAL_ONLY[2:] if "://127.0.0.1" in master else _LOCAL_ONLY
    settings = {name: value for name, value in settings.items() if name not in local_only}
    if archive is not None:
        if not os.path.isfile(archive):
            raise RequestError(f"--archive {archive}: there is no such file; `cordwood pack` makes one")
        settings["spark.archives"] = f"{os.path.abspath(archive)}#{_ENVIRONMENT}"
    return settings


def worker_python(master: str, archive: str | None) -> str:
    """The Python that workers of a session of our own run."""
    if archive is not None:
        return f"./{_ENVIRONMENT}/bin/python"
    # On this machine nothing else has our packages.
    return sys.executable if master.startswith("local") else os.environ.get("PYSPARK_PYTHON", sys.executable)
