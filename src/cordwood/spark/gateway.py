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
from cordwood.forks import can_fork
from cordwood.spark import daemon
from cordwood.spark.forking import VARIABLE, ForkServer, socket_in
from cordwood.spark.java import find_java
from cordwood.spark.launch import archive_for, command_for, connect, spark_home, start_java
from cordwood.spark.requirements import NOT_INSTALLED, check_version
from cordwood.spark.settings import LOCAL_MASTER, LOCAL_TASKS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Comma-separated folders for Spark's temporary files, shuffles for the most part; default: the temporary folder.
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
    """A Java process that runs Spark, and what belongs to it.

    Java begins to start when this is made, and takes a second or two. `connect` begins with what this process has to do
    then, in a thread of its own; who needs Spark waits for `context`.
    """

    def __init__(self, settings: Mapping[str, str], worker_python: str = sys.executable) -> None:
        """Begin to start Java.

        Args:
            settings: of Spark.
            worker_python: the Python of its workers.
        """
        self._settings, self._worker_python = settings, worker_python
        self._process: subprocess.Popen[bytes] | None = None
        self._start_again: Callable[[], subprocess.Popen[bytes]] | None = None
        self._context: SparkContext | None = None
        self._error: Exception | None = None
        self._is_killed = False
        #: Whether Java would start sooner with a class archive, which is not there.
        self.lacks_archive = False
        self._others: tuple[Any, Any] | None = None
        # Java removes its temporary files when it ends, but not when it is killed: they all are in folders of ours.
        self._folders = [tempfile.mkdtemp(prefix="cordwood-spark-")]
        self._all_settings = {**(_sockets(self._folders[0]) if _SOCKETS in settings else {}), **settings}
        # Spark says much while it starts. It is shown only if it fails.
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
        """Begin to connect to Java, and to start Spark there.

        Args:
            tasks: see `session.running`.
        """
        with self._lock:
            if self._connecting is not None:
                return
            if tasks is not None and self._settings["spark.master"] == LOCAL_MASTER:
                self._all_settings["spark.master"] = LOCAL_TASKS.format(tasks)
            # While this process has one thread: a fork has no other.
            if self._has_forks and self._error is None and can_fork():
                daemon.load()
                self._forks = ForkServer(self._folders[0], daemon.be_daemon)
            self._connecting = threading.Thread(
                target=self._try, args=(self._connect,), name="start of Spark", daemon=True
            )
            self._connecting.start()

    def wait(self) -> None:
        """Wait until Spark runs.

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
        """Spark; see `wait`."""
        self.wait()
        assert self._context is not None, "it runs"
        return self._context

    @property
    def session(self) -> SparkSession:
        """The session of Spark, which takes seconds to load the first time."""
        from pyspark.sql import SparkSession

        self.wait()
        return SparkSession.builder.getOrCreate()

    @property
    def settings(self) -> Mapping[str, str]:
        """What it was started with."""
        return self._settings

    def _try(self, part: Callable[[], None]) -> None:
        """Do a part of the start, unless an earlier one failed."""
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
            except Exception:  # an error of py4j asks Java for its text
                what = "Java has ended"
            self._error = RequestError(f"Spark does not start: {what}\n{said}")
            self._error.__cause__ = error

    def _launch(self) -> None:
        folder, settings = self._folders[0], self._all_settings
        spark_home()  # the extra that brings Spark brings Java, too; without both it is Spark that is missing
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
        # Java starts while this is imported.
        from pyspark import SparkConf, SparkContext, __version__

        check_version(__version__)
        # PySpark keeps the Java of a session that was stopped, and would use it again.
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
        # Items go to the next step one by one.
        context = SparkContext(conf=conf, gateway=gateway, batchSize=1)
        context.pythonExec = self._worker_python
        context.setLogLevel("OFF")
        _silence_accumulators(context)
        self._context = context

    def _variables(self, folder: str) -> dict[str, str]:
        """Environment variables for Java and its Python workers."""
        options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} "-Djava.io.tmpdir={folder}"'
        variables = {"PYSPARK_PYTHON": self._worker_python, "SPARK_SUBMIT_OPTS": options.lstrip()}
        if self._has_forks:
            variables[VARIABLE] = socket_in(folder)
        if parents := os.environ.get(LOCAL_DIRS):
            for parent in parents.split(","):
                os.makedirs(parent, exist_ok=True)
                self._folders.append(tempfile.mkdtemp(prefix="cordwood-spark-", dir=parent))
            variables[LOCAL_DIRS] = ",".join(self._folders[1:])
        return variables

    def is_gone(self) -> bool:
        """Whether Java has ended or is about to: a socket may tell of its end before the process has ended."""
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
            at_once: without what Spark does when it is stopped, which takes a second; None: on this machine, where
                nobody needs it. A cluster is told.
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

        No call to Java may come after this.
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
        """Let PySpark have the gateway that it had before."""
        if self._others is None:
            return
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        gateway: Any = SparkContext._gateway
        if gateway is not None:
            with contextlib.suppress(Exception):
                gateway.shutdown()
        if self._context is not None:
            # It looks only now and then whether it is to end.
            threading.Thread(target=self._context._accumulatorServer.shutdown, daemon=True).start()
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
                self._end_java()
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


def _convert_no_arrays(gateway: Any) -> None:
    """Java is given no arrays of numpy, and to look whether a value is one, PySpark imports pandas, for a second."""
    client = gateway._gateway_client
    client.converters = [one for one in client.converters or () if not type(one).__name__.startswith("Numpy")]


def _sockets(folder: str) -> dict[str, str]:
    """Where Python workers have their sockets: in a folder, unless a socket's path there would be too long."""
    fits = len(f"{folder}/.00000000-0000-0000-0000-000000000000.sock") <= _SOCKET_PATH_MAX
    return {"spark.python.unix.domain.socket.dir": folder if fits else "/tmp"}


def _silence_accumulators(context: object) -> None:
    """The thread that waits for accumulators prints a traceback when Java is gone; they are not needed any more."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
