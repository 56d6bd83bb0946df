"""The Java process of a session of our own: how it starts, how it ends, and how a signal ends it at once.

Ctrl-C must work while Java is busy. The thread that waits for a job waits for Java's answer, and every later call of
that thread, clean-up as well, would wait for the same answer: for minutes, while a large log is proved. So a signal
that ends this process kills Java first. Its Python workers end with it, as their standard input closes, and calls to
Java fail at once instead of waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from cordwood.errors import RequestError
from cordwood.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Comma-separated folders for Spark's temporary files, shuffles for the most part; default: the temporary folder.
LOCAL_DIRS = "SPARK_LOCAL_DIRS"

Handler = Callable[[int, FrameType | None], object] | int

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOG_TAIL_BYTES = 4000
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_PATH_MAX = 100
_STOPS_SECONDS_MAX = 20
_GOES_SECONDS_MAX = 0.5


class Gateway:
    """A Java process that runs Spark, and what belongs to it."""

    session: SparkSession

    def __init__(self, settings: Mapping[str, str], worker_python: str = sys.executable) -> None:
        """Start Java and a session.

        Args:
            worker_python: the Python of its workers.

        Raises:
            RequestError: Spark or Java is missing, or does not start.
        """
        from pyspark import SparkContext

        java = find_java()
        self._worker_python = worker_python
        # PySpark keeps the Java of a session that was stopped, and would use it again.
        self._others = SparkContext._gateway, SparkContext._jvm
        SparkContext._gateway = SparkContext._jvm = None
        self._process: subprocess.Popen[bytes] | None = None
        self._handlers = _handlers()
        # Java removes its temporary files when it ends, but not when it is killed: they all are in folders of ours.
        folder = tempfile.mkdtemp(prefix="cordwood-spark-")
        self._folders = [folder]
        try:
            # Spark says much while it starts. It is shown only if it fails.
            with _environment({**java.settings, **self._variables(folder)}), tempfile.TemporaryFile() as log:
                try:
                    sockets = _sockets(folder) if _SOCKETS in settings else {}
                    self._start({**sockets, **settings}, log.fileno())
                except Exception as error:
                    raise_if_ended(error)
                    log.seek(0)
                    said = log.read()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
                    raise RequestError(f"Spark does not start: {error}\n{said}") from error
        except BaseException:
            self.kill()
            raise

    def _variables(self, folder: str) -> dict[str, str]:
        """Environment variables for Java and its Python workers."""
        options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} "-Djava.io.tmpdir={folder}"'
        variables = {"PYSPARK_PYTHON": self._worker_python, "SPARK_SUBMIT_OPTS": options.lstrip()}
        if parents := os.environ.get(LOCAL_DIRS):
            for parent in parents.split(","):
                os.makedirs(parent, exist_ok=True)
                self._folders.append(tempfile.mkdtemp(prefix="cordwood-spark-", dir=parent))
            variables[LOCAL_DIRS] = ",".join(self._folders[1:])
        return variables

    def _start(self, settings: Mapping[str, str], log: int) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        # Until it answers only `launch_gateway` knows its process, so a signal waits for that second.
        with _signals_held(self._handlers):
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
            self._process = getattr(gateway, "proc", None)
        self._take_signals()
        SparkContext(conf=conf, gateway=gateway)
        self.session = SparkSession.builder.getOrCreate()
        # SparkContext has a handler for Ctrl-C, which asks Java to cancel all jobs, and waits for the answer.
        self._take_signals()
        self.session.sparkContext.setLogLevel("OFF")
        _silence_accumulators(self.session.sparkContext)

    def is_gone(self) -> bool:
        """Whether Java has ended or is about to: a socket may tell of its end before the process has ended."""
        if self._process is None:
            return False
        try:
            self._process.wait(_GOES_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Stop the session, then Java. If Java has ended already, there is nothing to stop."""
        from pyspark import SparkContext

        with contextlib.suppress(Exception):
            self.session.stop()
        with contextlib.suppress(Exception):
            gateway: Any = SparkContext._gateway
            gateway.shutdown()
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOPS_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """Kill Java at once, even if it is busy, and remove its temporary files. Its Python workers end by themselves.

        No call to Java may come after this.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _forget(self) -> None:
        """Let PySpark have the gateway that it had before."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        SparkContext._gateway, SparkContext._jvm = self._others
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None

    def _take_signals(self) -> None:
        """From now on a signal whose handler raises an exception, which is to end what runs, kills Java first."""

        def handle(number: int, frame: FrameType | None) -> None:
            try:
                handler = self._handlers[number]
                assert callable(handler), "others stay as they are"
                handler(number, frame)
            except BaseException:
                if self._process is not None:
                    self._process.kill()
                raise

        for number, handler in self._handlers.items():
            if callable(handler):
                signal.signal(number, handle)


def raise_if_ended(error: BaseException) -> None:
    """Raise the exception of a signal, such as that of Ctrl-C, if this one came of it.

    PySpark tidies up when it is interrupted, which fails, as Java is gone; that error is all that its caller sees.
    """
    before = error.__context__
    while before is not None:
        if not isinstance(before, Exception):
            raise before
        before = before.__context__


@contextlib.contextmanager
def without_words_of_py4j() -> Iterator[None]:
    """Silence py4j's log of interrupted calls and of Java's end, which we report ourselves."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


def _handlers() -> dict[int, Handler]:
    """This process's handlers of the signals that may end us; none in a thread that may not set any."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in found.items() if handler is not None}


@contextlib.contextmanager
def _signals_held(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """A signal waits for the end of the block."""
    held: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, _frame: held.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in held[:1]:
            signal.raise_signal(first)


def _sockets(folder: str) -> dict[str, str]:
    """Where Python workers have their sockets: in a folder, unless a socket's path there would be too long."""
    fits = len(f"{folder}/.00000000-0000-0000-0000-000000000000.sock") <= _SOCKET_PATH_MAX
    return {"spark.python.unix.domain.socket.dir": folder if fits else "/tmp"}


def _silence_accumulators(context: object) -> None:
    """The thread that waits for accumulators prints a traceback when Java is gone; they are not needed any more."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


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
