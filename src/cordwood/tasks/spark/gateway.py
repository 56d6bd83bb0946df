"""The Java process of our own session: how it starts, how it ends, and how a signal ends it at once.

Ctrl-C must work while Java is busy. The thread that waits for a job waits for Java's answer, and every later call of
that thread, including clean-up, would wait for the same answer: for minutes, while a large log is proved. So a signal
that ends this process kills Java first. Java's Python workers then end, as their standard input closes, and calls to
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

from cordwood.common.errors import RequestError
from cordwood.tasks.forks import ForkServer, can_fork, load
from cordwood.tasks.spark import daemon
from cordwood.tasks.spark.executors import NOT_INSTALLED, check_version
from cordwood.tasks.spark.launch import archive_for, command_for, connect, find_java, spark_home, start_java
from cordwood.tasks.spark.settings import LOCAL_MASTER, LOCAL_TASKS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Comma-separated folders for Spark's temporary files, mostly shuffle files; default: the temporary folder.
LOCAL_DIRS = "SPARK_LOCAL_DIRS"

Handler = Callable[[int, FrameType | None], object] | int

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOG_TAIL_BYTES = 4000
_DAEMON = "spark.python.daemon.module"
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_PATH_MAX = 100
_STOPS_SECONDS_MAX = 20
_GOES_SECONDS_MAX = 0.5


class Gateway:
    """A Java process that runs Spark, with its temporary folders, signal handlers and fork server.

    The constructor launches Java, which takes a second or two to start. `connect` continues the start in a thread of
    its own, and `context` waits for its end.
    """

    def __init__(self, settings: Mapping[str, str], worker_python: str = sys.executable) -> None:
        """Launch Java without waiting for it.

        Args:
            settings: Spark's settings.
            worker_python: path of the workers' Python.
        """
        self._settings, self._worker_python = settings, worker_python
        self._process: subprocess.Popen[bytes] | None = None
        self._start_again: Callable[[], subprocess.Popen[bytes]] | None = None
        self._context: SparkContext | None = None
        self._error: Exception | None = None
        self._is_killed = False
        #: Whether Java would start faster with a class archive, which does not exist yet.
        self.lacks_archive = False
        self._others: tuple[Any, Any] | None = None
        # Java removes its temporary files at a regular end, but not when it is killed, so they are all in our folders.
        self._folders = [tempfile.mkdtemp(prefix="cordwood-spark-")]
        self._all_settings = {**(_sockets(self._folders[0]) if _SOCKETS in settings else {}), **settings}
        # Spark's output during the start, shown only if the start fails.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._handlers = _handlers()
        self._take_signals()
        is_local = settings["spark.master"].startswith("local")
        self._has_forks = is_local and settings.get(_DAEMON) == daemon.__name__
        self._forks: ForkServer | None = None
        self._connecting: threading.Thread | None = None
        self._lock = threading.Lock()
        try:
            self._try(self._launch)
        except BaseException:
            self.kill()
            raise

    def connect(self, tasks: int | None = None) -> None:
        """Start connecting to Java and starting Spark in a thread.

        Args:
            tasks: see `session.running`.
        """
        with self._lock:
            if self._connecting is not None:
                return
            if tasks is not None and self._settings["spark.master"] == LOCAL_MASTER:
                self._all_settings["spark.master"] = LOCAL_TASKS.format(tasks)
            # Fork before this process has a second thread: a fork copies only the calling thread.
            if self._has_forks and self._error is None and can_fork():
                load()
                self._forks = daemon.fork_daemons(self._folders[0])
            self._connecting = threading.Thread(
                target=self._try, args=(self._connect,), name="start of Spark", daemon=True
            )
            self._connecting.start()

    def wait(self) -> None:
        """Wait until Spark is running.

        Raises:
            RequestError: Spark or Java is missing, or does not start.
        """
        self.connect()
        assert self._connecting is not None, "it has begun"
        self._connecting.join()
        if self._error is not None:
            raise self._error

    @property
    def context(self) -> SparkContext:
        """The Spark context; waits for the start, see `wait`."""
        self.wait()
        assert self._context is not None, "it runs"
        return self._context

    @property
    def session(self) -> SparkSession:
        """The Spark session, which takes seconds to load at the first use."""
        from pyspark.sql import SparkSession

        self.wait()
        return SparkSession.builder.getOrCreate()

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings given to the constructor."""
        return self._settings

    def _try(self, part: Callable[[], None]) -> None:
        """Run one stage of the start and keep its error; skip it if an earlier stage failed."""
        try:
            if self._error is None:
                part()
        except RequestError as error:
            self._error = error
        except ImportError:
            self._error = RequestError(NOT_INSTALLED)
        except Exception as error:
            self._log.seek(0)
            said = self._log.read()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
            try:
                what = str(error)
            except Exception:  # an error of py4j gets its text from Java
                what = "Java has ended"
            self._error = RequestError(f"Spark does not start: {what}\n{said}")
            self._error.__cause__ = error

    def _launch(self) -> None:
        folder, settings = self._folders[0], self._all_settings
        spark_home()  # the extra installs both Spark and Java; if both are missing, report Spark
        java = find_java()
        environment = java.environment({**os.environ, **self._variables(folder)})
        archive = archive_for(java, settings, environment)
        command = command_for(java, settings, environment, archive)
        with_archive = any("SharedArchiveFile" in word for word in command)
        self.lacks_archive = archive is not None and not with_archive and archive.is_wanted
        self._process = start_java(command, environment, folder, self._log)

        def start_again() -> subprocess.Popen[bytes]:
            assert archive is not None, "the first command names it"
            archive.drop()
            return start_java(command_for(java, settings, environment, None), environment, folder, self._log)

        self._start_again = start_again if with_archive else None

    def _connect(self) -> None:
        assert self._process is not None, "it was launched"
        # Java starts while Python imports this.
        from pyspark import SparkConf, SparkContext, __version__

        check_version(__version__)
        # PySpark keeps the Java process of a stopped session, and would reuse it.
        self._others = SparkContext._gateway, SparkContext._jvm
        SparkContext._gateway = SparkContext._jvm = None
        try:
            gateway = connect(self._process, self._folders[0])
        except ChildProcessError:
            if self._start_again is None or self._is_killed:
                raise
            self._process = self._start_again()
            if self._is_killed:
                self._process.kill()
            gateway = connect(self._process, self._folders[0])
        _convert_no_arrays(gateway)
        conf = SparkConf(loadDefaults=False).setAll(list(self._all_settings.items()))
        # Batch size 1: each item is passed to the next step immediately.
        context = SparkContext(conf=conf, gateway=gateway, batchSize=1)
        context.pythonExec = self._worker_python
        context.setLogLevel("OFF")
        _silence_accumulators(context)
        self._context = context

    def _variables(self, folder: str) -> dict[str, str]:
        """Return the environment variables for Java and its Python workers."""
        options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} "-Djava.io.tmpdir={folder}"'
        variables = {"PYSPARK_PYTHON": self._worker_python, "SPARK_SUBMIT_OPTS": options.lstrip()}
        if self._has_forks:
            variables[daemon.VARIABLE] = daemon.socket_in(folder)
        if parents := os.environ.get(LOCAL_DIRS):
            for parent in parents.split(","):
                os.makedirs(parent, exist_ok=True)
                self._folders.append(tempfile.mkdtemp(prefix="cordwood-spark-", dir=parent))
            variables[LOCAL_DIRS] = ",".join(self._folders[1:])
        return variables

    def is_gone(self) -> bool:
        """Return whether Java has ended or is about to: its sockets may close before the process has ended."""
        if self._process is None:
            return False
        try:
            self._process.wait(_GOES_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, *, at_once: bool | None = None) -> None:
        """End Spark and Java.

        Args:
            at_once: skip Spark's regular shutdown, which takes a second; None: skip it for a local master, where it has
                no use. A cluster is notified.
        """
        if at_once is None:
            at_once = self._settings["spark.master"].startswith("local")
        if self._context is not None and not at_once:
            with contextlib.suppress(Exception):
                self._context.stop()
            self._context = None
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOPS_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """Kill Java at once, even if it is busy, and remove its temporary files. Its Python workers end by themselves.

        Do not call Java after this.
        """
        self._end_java()
        if self._connecting is not None:
            self._connecting.join()
        if self._process is not None:
            self._process.wait()
        if self._forks is not None:
            self._forks.end()
            self._forks = None
        self._forget()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._log.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _end_java(self) -> None:
        self._is_killed = True
        if self._process is not None:
            self._process.kill()

    def _forget(self) -> None:
        """Restore PySpark's previous gateway."""
        if self._others is None:
            return
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway: Any = SparkContext._gateway
        if gateway is not None:
            with contextlib.suppress(Exception):
                gateway.shutdown()
        if self._context is not None:
            # In a thread, as the accumulator server checks only at intervals whether it has to end.
            threading.Thread(target=self._context._accumulatorServer.shutdown, daemon=True).start()
        SparkContext._gateway, SparkContext._jvm = self._others
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None

    def _take_signals(self) -> None:
        """Install signal handlers that call the previous ones and, if these raise an exception, kill Java first."""

        def handle(number: int, frame: FrameType | None) -> None:
            try:
                handler = self._handlers[number]
                assert callable(handler), "others stay as they are"
                handler(number, frame)
            except BaseException:
                self._end_java()
                raise

        for number, handler in self._handlers.items():
            if callable(handler):
                signal.signal(number, handle)


def raise_if_ended(error: BaseException) -> None:
    """Raise the exception of a signal, such as KeyboardInterrupt, if it caused this error.

    When PySpark is interrupted, its clean-up fails because Java has ended, and only that error reaches the caller.
    """
    before = error.__context__
    while before is not None:
        if not isinstance(before, Exception):
            raise before
        before = before.__context__


@contextlib.contextmanager
def without_words_of_py4j() -> Iterator[None]:
    """Hide py4j's log messages about interrupted calls and Java's end, which we report ourselves."""

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)


def _handlers() -> dict[int, Handler]:
    """Return this process's handlers of the signals that may end us; empty in a thread that cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in found.items() if handler is not None}


def _convert_no_arrays(gateway: Any) -> None:
    """Remove py4j's numpy converters: Java gets no arrays, and to detect them PySpark would import pandas, for 1 s."""
    client = gateway._gateway_client
    client.converters = [one for one in client.converters or () if not type(one).__name__.startswith("Numpy")]


def _sockets(folder: str) -> dict[str, str]:
    """Return the setting of the folder for the workers' sockets: /tmp if paths in `folder` would be too long."""
    fits = len(f"{folder}/.00000000-0000-0000-0000-000000000000.sock") <= _SOCKET_PATH_MAX
    return {"spark.python.unix.domain.socket.dir": folder if fits else "/tmp"}


def _silence_accumulators(context: object) -> None:
    """Hide the traceback that the accumulator thread prints when Java ends; accumulators are not needed any more."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
