"""The Spark session that a clean runs on: one of our own in this process, or the user's.

Ours is Spark's local mode with the settings below. A user's session is taken as it is, stock or not, and left running;
nothing that a task does depends on our settings.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cordwood.errors import RequestError
from cordwood.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: As many tasks as there are cores. The 4: plain local mode never retries a task, so that a Python worker that is
#: killed (for memory, say) would fail all.
LOCAL_MASTER = "local[*,4]"

SETTINGS: Mapping[str, str] = {
    # Workers fork from a process that has the kernels loaded; loading them takes longer than many a task.
    "spark.python.daemon.module": "cordwood.spark.daemon",
    # Rows go to workers by a socket file: no port, and half the cost of the loopback interface.
    "spark.python.unix.domain.socket.enabled": "true",
    # Windows of a log are let go and taken all the time. Workers keep the memory for the next, as pages that the system
    # takes back and clears again cost as much as reading into them.
    "spark.executorEnv.MALLOC_ARENA_MAX": "1",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    # Nobody looks at its pages, and its port may be taken.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One machine: no name of it needs to be resolved.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver holds plans and results, no data.
    "spark.driver.memory": "512m",
    # It ends before a better compiler would pay, and has next to no garbage to collect.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Every plan is a handful of rows; compiling code for it takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # What becomes of a partition is checked at once, while the next is cleaned.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
_LOG_TAIL_BYTES = 4000
_JAVA_ENDS_SECONDS_MAX = 20
_JAVA_GOES_SECONDS_MAX = 0.5


@contextlib.contextmanager
def session(given: SparkSession | None = None, *, master: str = LOCAL_MASTER) -> Iterator[SparkSession]:
    """A session: the user's, which stays, or one of ours, which ends with the block.

    Args:
        given: the user's; None: the one that is active in this thread, if there is one.
        master: of ours.

    Raises:
        RequestError: Spark or Java is missing, or does not start.
    """
    if given is not None:
        yield given
        return
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise RequestError("Cleaning runs on Spark, which is not installed:  pip install 'cordwood[spark]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    java = find_java()
    with _signals_kept(), _without_words_of_py4j():
        with _environment({**java.settings, "PYSPARK_PYTHON": sys.executable}):
            try:
                with _signals_held():
                    made = _start(SparkSession, master)
            except BaseException:
                _end_java(politely=False)
                raise
        try:
            yield made
        except Exception as error:
            gone = _java_is_gone()
            _stop(made)
            if gone:
                raise RequestError(
                    "Spark's Java process ended in the middle of its work. Somebody killed it, or the machine when it "
                    "ran out of memory (`dmesg` tells); if so, give the rest more room, and run this again"
                ) from error
            raise
        except BaseException:
            # It came in the middle of a conversation with Java, which cannot be taken up again.
            _end_java(politely=False)
            raise
        else:
            _stop(made)


def _start(kind: type[SparkSession], master: str) -> SparkSession:
    """Start Spark with its many words going to a file, which is shown only when it fails."""
    with tempfile.TemporaryFile() as log:
        try:
            with _stderr_to(log.fileno()):
                builder = kind.builder.master(master).appName("cordwood")
                for key, value in SETTINGS.items():
                    builder = builder.config(key, value)
                made = builder.getOrCreate()
                made.sparkContext.setLogLevel("OFF")
                _silence_updates(made.sparkContext)
                return made
        except Exception as error:
            log.seek(0)
            said = log.read()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise RequestError(f"Spark does not start: {error}\n{said}") from error


def _java_is_gone() -> bool:
    """Whether Java has ended, or is about to: we hear of that from a socket, which it closes first."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(_JAVA_GOES_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(made: SparkSession) -> None:
    """Stop a session of ours. That Java may be gone does not matter any more."""
    with contextlib.suppress(Exception):
        made.stop()
    with contextlib.suppress(OSError):
        _end_java()


def _end_java(*, politely: bool = True) -> None:
    """End the Java process and its Python workers: the next session may need another Java or other settings."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if politely:
        gateway.shutdown()
    if process is not None:
        if not politely:
            process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_JAVA_ENDS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _silence_updates(context: object) -> None:
    """The thread that waits for accumulators prints a traceback when Java is gone; nobody waits for them any more."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """What would end us waits for the end of the block: Java, left alone while it starts, would stay for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, lambda number, _frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in held[:1]:
            signal.raise_signal(first)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ctrl-C goes to Spark within the block only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _without_words_of_py4j() -> Iterator[None]:
    """An interrupt reaches py4j in the middle of a sentence; it would log that as an error of its own."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


@contextlib.contextmanager
def _environment(settings: Mapping[str, str | None]) -> Iterator[None]:
    """These environment variables (None: unset), as long as the block runs."""
    before = {name: os.environ.get(name) for name in settings}
    _set(settings)
    try:
        yield
    finally:
        _set(before)


def _set(settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Programs started within the block write their errors to this file, for as long as they run."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def cores(spark: SparkSession) -> int:
    """How many tasks a session runs at a time."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect does not say
        return os.cpu_count() or 1
