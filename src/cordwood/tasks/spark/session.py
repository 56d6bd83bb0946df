"""The Spark that a clean runs on: our own in this process, or the user's session.

Our own is Spark's local mode with the settings of `settings`. It is a `SparkContext`; its session is created only on
request, as loading it takes seconds. A user's session is used with its own settings, and left running; no
task depends on our settings.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cordwood.common.errors import RequestError, TasksHangError
from cordwood.tasks.spark.archive import make_in_background
from cordwood.tasks.spark.executors import prepare_session
from cordwood.tasks.spark.gateway import Gateway, raise_if_ended, without_words_of_py4j
from cordwood.tasks.spark.settings import LOCAL_MASTER, settings_for, worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Gateways that were started early, and that no one has used yet.
_begun: ContextVar[list[Gateway] | None] = ContextVar("begun", default=None)
#: Our own gateways that are running or starting.
_ours: list[Gateway] = []


@contextlib.contextmanager
def session(given: SparkSession | None = None, *, master: str = LOCAL_MASTER) -> Iterator[SparkSession]:
    """Provide a session: the user's, which stays, or our own, which ends with the block; see `running`."""
    with running(given, master=master) as spark:
        yield spark.session if isinstance(spark, Gateway) else spark


@contextlib.contextmanager
def running(
    given: SparkSession | None = None,
    *,
    master: str = LOCAL_MASTER,
    archive: str | None = None,
    settings: Mapping[str, str] | None = None,
    tasks: int | None = None,
) -> Iterator[SparkSession | Gateway]:
    """Provide Spark: the user's session, which stays, or our own, which ends with the block.

    An exception that ends this process or thread, such as KeyboardInterrupt, ends our own Spark at once.

    Args:
        given: the user's session; None for the active one in this process, if any.
        archive: environment of the executors on a cluster, made by `cordwood pack`; None if they use the Python of
            PYSPARK_PYTHON, or one at the same path as this process's.
        settings: settings of our own Spark, which override `SETTINGS`.
        tasks: number of concurrent tasks of our own Spark if the master is LOCAL_MASTER; None for one per core.

    Raises:
        RequestError: the archive is missing, or was given with a local master; Spark or Java is missing, or does not
            start; or Java ended while in use.
    """
    waiting = _begun.get() if given is None else None
    if not waiting:
        if given is not None:
            prepare_session(given)
        found = given or _active()
        if found is not None:
            try:
                yield found
            except Exception as error:
                raise_if_ended(error)
                raise
            return
    mine = {**settings_for(master, archive), **(settings or {})}
    with without_words_of_py4j(), own(mine, worker_python(master, archive), tasks) as gateway:
        yield gateway
    if gateway.lacks_archive:
        make_in_background()


@contextlib.contextmanager
def begun(master: str = LOCAL_MASTER, archive: str | None = None) -> Iterator[None]:
    """Launch our own Spark, for use by `running` in the block; if it is not used, it ends with the block.

    Modules are loaded and work is planned while Java starts.
    """
    if not master.startswith("local") or archive is not None or find_spec("pyspark") is None or _active() is not None:
        yield
        return
    waiting = [_new(settings_for(master, archive), worker_python(master, archive))]
    token = _begun.set(waiting)
    with without_words_of_py4j():
        try:
            yield
        finally:
            _begun.reset(token)
            for gateway in waiting:
                _end(gateway)


@contextlib.contextmanager
def own(settings: Mapping[str, str], python: str, tasks: int | None = None) -> Iterator[Gateway]:
    """Provide our own Spark: the process that `begun` launched, or a new process.

    Args:
        python: path of the workers' Python.
        tasks: see `running`.
    """
    waiting = _begun.get() or []
    gateway = waiting.pop() if waiting else None
    if gateway is not None and gateway.settings != settings:
        _end(gateway)  # a process has one Spark
        gateway = None
    gateway = gateway or _new(settings, python)
    try:
        gateway.connect(tasks)
        gateway.wait()
    except BaseException:
        _end(gateway)
        raise
    try:
        yield gateway
    except TasksHangError:
        _end(gateway)  # its workers may not react to a regular end
        raise
    except Exception as error:
        gone = gateway.is_gone()
        _end(gateway, at_once=False)
        raise_if_ended(error)
        if gone:
            raise RequestError(
                "Spark's Java process ended in the middle of its work. A user killed it, or the system did when memory "
                "ran out (`dmesg` shows that). If memory ran out, free memory, and run this again"
            ) from error
        raise
    except BaseException:
        _end(gateway)
        raise
    _end(gateway, at_once=False)


def _new(settings: Mapping[str, str], python: str) -> Gateway:
    gateway = Gateway(settings, python)
    _ours.append(gateway)
    return gateway


def _end(gateway: Gateway, *, at_once: bool = True) -> None:
    _ours.remove(gateway)
    if at_once:
        gateway.kill()
    else:
        gateway.stop()


def _active() -> SparkSession | Gateway | None:
    """Return the Spark that is running in this process, which can have only one, or None."""
    if _ours:
        return _ours[-1]
    if "pyspark" not in sys.modules:
        return None  # do not import pyspark, which takes long
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    # Without a context there is no session, and to ask for one would first load Catalyst.
    if not is_remote() and SparkContext._active_spark_context is None:
        return None
    active = SparkSession.getActiveSession()
    if active is None and not is_remote():
        active = SparkSession.builder.getOrCreate()  # created in another thread
    return active


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs concurrently."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception as error:  # Spark Connect does not provide the number
        raise_if_ended(error)
        return os.cpu_count() or 1


def is_on_this_machine(spark: SparkSession) -> bool:
    """Return whether all tasks of a session run on this machine."""
    return (spark.conf.get("spark.master", "") or "").startswith("local")


def runs_here(spark: SparkSession | None, master: str) -> bool:
    """Return whether all tasks of a session, or of our own Spark with this master, run on this machine."""
    return master.startswith("local") if spark is None else is_on_this_machine(spark)
