"""The settings of our own session, for Spark and Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from cordwood.common.errors import RequestError
from cordwood.tasks.forks import MALLOC

#: One task per core. The 4 allows retries: plain local mode never retries a task, so one killed Python worker (out of
#: memory, say) would fail the whole job.
LOCAL_MASTER = "local[*,4]"
#: The same, with a given number of tasks.
LOCAL_TASKS = "local[{},4]"

SETTINGS: Mapping[str, str] = {
    # Workers fork from a process that has loaded the kernels; loading them takes longer than many a task.
    "spark.python.daemon.module": "cordwood.tasks.spark.daemon",
    # Rows are sent to workers through a Unix socket: no port, and half the cost of the loopback interface.
    "spark.python.unix.domain.socket.enabled": "true",
    **{f"spark.executorEnv.{name}": value for name, value in MALLOC.items()},
    # The UI's pages are not used, and its port may be in use.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Use addresses, so that the machine's host name need not be resolved.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver holds plans and results, but no data.
    "spark.driver.memory": "512m",
    # Jobs of several threads share the cores; with FIFO, a small job would wait for all tasks of a large one.
    "spark.scheduler.mode": "FAIR",
    # Java ends before the second compiler would pay off, and has next to no garbage to collect.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Every plan handles only a few rows; compiling code for it takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # Pass each outcome on at once, so that a partition is checked while the next one is cleaned.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
#: Settings for local masters only: addresses of the driver, and Unix sockets.
_LOCAL_ONLY = ("spark.driver.host", "spark.driver.bindAddress", "spark.python.unix.domain.socket.enabled")
#: Name of the unpacked environment archive in an executor's folder.
_ENVIRONMENT = "environment"


def settings_for(master: str, archive: str | None) -> dict[str, str]:
    """Return the configuration of our own session.

    Raises:
        RequestError: the archive is missing, or was given with a local master.
    """
    settings = {**SETTINGS, "spark.master": master, "spark.app.name": "cordwood"}
    if master.startswith("local"):
        if archive is not None:
            raise RequestError(f"--archive is for executors on other machines, and --master {master} is this one")
        return settings
    # A cluster on the loopback interface reaches the driver there, too.
    local_only = _LOCAL_ONLY[2:] if "://127.0.0.1" in master else _LOCAL_ONLY
    settings = {name: value for name, value in settings.items() if name not in local_only}
    if archive is not None:
        if not os.path.isfile(archive):
            raise RequestError(f"--archive {archive}: there is no such file; `cordwood pack` makes one")
        settings["spark.archives"] = f"{os.path.abspath(archive)}#{_ENVIRONMENT}"
    return settings


def worker_python(master: str, archive: str | None) -> str:
    """Return the Python that workers of our own session run."""
    if archive is not None:
        return f"./{_ENVIRONMENT}/bin/python"
    # On this machine only this Python has our packages.
    return sys.executable if master.startswith("local") else os.environ.get("PYSPARK_PYTHON", sys.executable)
