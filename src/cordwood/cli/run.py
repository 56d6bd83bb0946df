"""`cordwood run`: keep the logs in directories alive as a broker's storage does: cleaner, retention, checkpoints."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from cordwood.cli import PYTHON_GC_THRESHOLD
from cordwood.cli.main import EXIT_DAMAGE, EXIT_INTERRUPTED, EXIT_OK, named, tell
from cordwood.cli.options import with_options
from cordwood.common.errors import HangingError, KafkaStorageError, LogError, RequestError
from cordwood.common.text import bytes_text, cells_of, cut_off, names_text, number, printable, table
from cordwood.common.types import TopicPartition, override
from cordwood.fs.by_url import local_path
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log_manager import LogManager
from cordwood.live.report import PARTITION_COLUMNS, Health, PartitionStatus, worst_first
from cordwood.storage.check.placement import texts
from cordwood.view.running import LiveNode, LiveOptions, supervised
from cordwood.view.web.http_server import HOST

_REASON_WIDTH_MAX = 100


@with_options
def run(
    directories: Annotated[
        list[str] | None, typer.Argument(metavar="[DIR...]", help="Log directories of one broker that is stopped.")
    ] = None,
    *,
    options: LiveOptions,
    demo: Annotated[
        bool, typer.Option("--demo", help="Make three topics, and write to them, so that there is something to see.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each log line as a JSON document.")] = False,
) -> int:
    """Keep the logs in directories alive until stopped: load them, compact them, delete old segments, as a broker does.

    Locks the directories as a broker does, so no broker can run on them meanwhile. Compacts a topic, or deletes from
    it, only if its policy and limits are set explicitly: in the cluster's metadata, a server.properties or with
    --config. Recovers the logs first if the broker crashed, as its next start would.

    On a terminal, a table shows each log, and the cleaner's work on it or the reason for no work; with --view, pages in
    a browser show the same. These pages, metrics for Prometheus and health are served on 127.0.0.1. SIGTERM or
    Ctrl-C ends it with a clean shutdown, after which a broker starts without recovery; SIGHUP rereads the configs.
    """
    gc.set_threshold(PYTHON_GC_THRESHOLD)
    with _directories(directories or [], demo=demo) as paths:
        if demo:
            # The user's overrides are last, so they win.
            options = replace(options, overrides=(*DEMO_CONFIGS, *options.overrides), retention=True)
        return _run(paths, options, demo=demo, as_json=as_json)


@contextlib.contextmanager
def _directories(given: Sequence[str], *, demo: bool) -> Iterator[list[str]]:
    if given:
        yield [local_path(named(path)) for path in given]
        return
    if not demo:
        raise RequestError("Give the log directories to run on, or --demo for a directory of its own")
    folder = tempfile.mkdtemp(prefix="cordwood-run-")
    try:
        yield [folder]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(paths: Sequence[str], options: LiveOptions, *, demo: bool, as_json: bool) -> int:
    stop, reload = threading.Event(), threading.Event()
    service_manager = ServiceManager()
    node = LiveNode(PosixFileSystem(), paths, options, is_new=demo)
    try:
        with _signals(stop, reload), _Screen(service_manager, as_json=as_json) as screen:

            def live() -> int:
                for line in () if demo else texts(PosixFileSystem(), paths):
                    screen.say(line)
                node.startup(screen.loading)
                count = number(len(node.manager.logs), "partition")
                if options.view:
                    screen.say(f"pages for a browser are at http://{HOST}:{node.port}/")
                screen.say(f"{count} in {names_text(paths)}; http://{HOST}:{node.port}/metrics")
                service_manager.ready(count)
                return _live(node, screen, stop, reload, DemoWriter(node.manager) if demo else None)

            return supervised(live, stop, node.waiting)
    except HangingError as error:
        tell(str(error))
        code = EXIT_DAMAGE
    except KeyboardInterrupt:
        tell("interrupted")
        code = EXIT_INTERRUPTED
    sys.stdout.flush()
    # A regular exit waits for all threads, and some may wait for the disk.
    os._exit(code)


def _live(
    node: LiveNode, screen: _Screen, stop: threading.Event, reload: threading.Event, writer: DemoWriter | None
) -> int:
    """Run from start to shutdown and return the exit code."""
    try:
        if writer is not None:
            writer.start()
        node.run(stop, reload, screen.show)
    except KafkaStorageError as error:
        tell(str(error))
        return EXIT_DAMAGE
    finally:
        if writer is not None:
            writer.stop()
        screen.shutting_down()
        node.shutdown()
    screen.say("clean shutdown")
    return EXIT_OK


@contextlib.contextmanager
def _signals(stop: threading.Event, reload: threading.Event) -> Iterator[None]:
    """Within the block, stop on SIGTERM and SIGINT, reload on SIGHUP; exit at once on a second SIGINT."""

    def end(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {
        number: signal.signal(number, handler)
        for number, handler in (
            (signal.SIGTERM, end),
            (signal.SIGINT, end),
            (signal.SIGHUP, lambda *_: reload.set()),
        )
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- output ----------------------------------------------------------------------------------------------------------


class _Screen:
    """A live table with log lines above it on a terminal; log lines alone elsewhere. Also reports to a service
    manager.
    """

    def __init__(self, service_manager: ServiceManager, *, as_json: bool) -> None:
        self._service_manager = service_manager
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = None if as_json or not sys.stdout.isatty() else Live(Text(), console=self._console, screen=False)
        self._handler = _EventLines(self._print, as_json=as_json)
        self._logger = logging.getLogger("cordwood")
        self._loading: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._logger.removeHandler(self._handler)
        self._logger.propagate = True

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(Text(line))
        else:
            print(line, flush=True)

    def say(self, message: str) -> None:
        """Print one log line."""
        self._logger.info("%s", message)

    def shutting_down(self) -> None:
        """Report the start of the shutdown."""
        self._service_manager.stopping()
        self.say("shutting down: flushing and closing the logs")

    def loading(self, directory: str, done: int, count: int) -> None:
        """Report that `done` of a directory's `count` logs are loaded."""
        self._loading[directory] = done, count
        if self._live is not None:
            lines = [f"loading {path}: {one} of {number(all_, 'log')}" for path, (one, all_) in self._loading.items()]
            self._live.update(Text("\n".join(lines)))
        self._service_manager.status(f"loading {directory}: {done:,} of {number(count, 'log')}")
        if done == count:
            self.say(f"loaded {number(count, 'log')} of {directory}")

    def show(self, statuses: Sequence[PartitionStatus], health: Health) -> None:
        """Show the current activity on each log."""
        self._service_manager.alive(_summary(statuses, health))
        if self._live is not None:
            lines_max = max(3, self._console.size.height - 4 - len(health.problems))
            self._live.update(Text("\n".join(_lines(statuses, health, lines_max)), no_wrap=True, overflow="ellipsis"))


def _summary(statuses: Sequence[PartitionStatus], health: Health) -> str:
    """Summarise the state in one line; if there are several problems, name the first."""
    size = bytes_text(sum(one.size_bytes for one in statuses))
    state = "healthy" if health.is_well else f"NOT HEALTHY: {health.problems[0]}"
    return f"{number(len(statuses), 'partition')}, {size}; {state}"


def _lines(statuses: Sequence[PartitionStatus], health: Health, lines_max: int) -> Iterator[str]:
    size = sum(one.size_bytes for one in statuses)
    yield f"{number(len(statuses), 'partition')}, {bytes_text(size)}; {'healthy' if health.is_well else 'NOT HEALTHY:'}"
    yield from (f"  {printable(problem)}" for problem in health.problems)
    yield ""
    ordered = worst_first(statuses)
    columns, rows = cells_of(PARTITION_COLUMNS, ordered[:lines_max])
    yield from table(columns, [[*cells, cut_off(reason, _REASON_WIDTH_MAX)] for *cells, reason in rows])
    if len(ordered) > lines_max:
        yield f"and {len(ordered) - lines_max:,} more"


class _EventLines(logging.Handler):
    """Prints one line per event: text for people or JSON for programs."""

    def __init__(self, write: Any, *, as_json: bool) -> None:
        super().__init__()
        self._write = write
        self._as_json = as_json

    @override
    def emit(self, record: logging.LogRecord) -> None:
        when = datetime.fromtimestamp(record.created, UTC)
        message = record.getMessage()
        error = "" if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        if self._as_json:
            fields = {
                "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "level": record.levelname.lower(),
                "event": getattr(record, "event", record.name.rpartition(".")[2]),
                "message": message,
                **getattr(record, "fields", {}),
            }
            self._write(json.dumps(fields | ({"error": error} if error else {})))
            return
        self._write(f"{when:%Y-%m-%d %H:%M:%S} {record.levelname} {printable(message)}")
        for line in error.splitlines():
            self._write(f"  {printable(line)}")


# ---- the writer of --demo --------------------------------------------------------------------------------------------

# A writer for `cordwood run --demo`: appends to three topics, one of each policy, without pause.

_USERS, _ORDERS, _SESSIONS = "demo-users", "demo-orders", "demo-sessions"
#: Small limits, so that something happens every few seconds.
DEMO_CONFIGS = (
    f"{_USERS}:cleanup.policy=compact",
    f"{_SESSIONS}:cleanup.policy=compact,delete",
    f"{_ORDERS}:cleanup.policy=delete",
    f"{_ORDERS}:retention.bytes=8388608",
    f"{_SESSIONS}:retention.ms=60000",
    f"{_USERS}:delete.retention.ms=10000",
    "segment.bytes=1048576",
    "file.delete.delay.ms=1000",
    "log.cleaner.backoff.ms=1000",
    "log.initial.task.delay.ms=1000",
    "log.retention.check.interval.ms=2000",
    "log.segment.delete.delay.ms=1000",
)
_PARTITIONS = 2
_USERS_COUNT = 2_000
_PAUSE_SECONDS = 0.1


class DemoWriter:
    """Appends to the demo's topics in its own thread."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="demo-writer", daemon=True)

    def start(self) -> None:
        """Create the topics and start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _write(self) -> None:
        chosen = random.Random(0)
        logs = [
            self._manager.get_or_create_log(TopicPartition(topic, number), is_new=True)
            for topic in (_USERS, _ORDERS, _SESSIONS)
            for number in range(_PARTITIONS)
        ]
        while not self._stopping.wait(_PAUSE_SECONDS):
            for log in logs:
                pairs = [self._pair(chosen) for _ in range(100)]
                try:
                    log.append(pairs)
                except LogError:
                    return  # the disk has failed, and the log reports it

    @staticmethod
    def _pair(chosen: random.Random) -> tuple[str, str | None]:
        key = f"user-{chosen.randrange(_USERS_COUNT)}"
        return key, None if chosen.random() < 0.02 else chosen.randbytes(250).hex()


# ---- a service manager -----------------------------------------------------------------------------------------------

# Notifications from `cordwood run` to a service manager such as systemd: ready, current activity, alive.
#
# A message is a datagram of lines NAME=VALUE to the socket that NOTIFY_SOCKET names. Without that variable nothing is
# sent. A message that cannot be sent is dropped: the logs matter more.
#
# Source: sd_notify(3).

#: Maximum length of a status, which people read as one line.
_STATUS_MAX = 300


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self) -> None:
        # Remove it from the environment: the manager would take messages from child processes for ours.
        path = os.environ.pop("NOTIFY_SOCKET", "")
        # On Linux, an abstract socket name, which is in no file system, begins with a zero byte.
        self._address = "\0" + path[1:] if path.startswith("@") else path

    def ready(self, status: str) -> None:
        """Report that the logs are loaded."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Report the current activity."""
        self._send(_status(status))

    def alive(self, status: str) -> None:
        """Report that the logs were just polled, so neither they nor this program hang."""
        self._send("WATCHDOG=1", _status(status))

    def stopping(self) -> None:
        """Report that the shutdown has begun."""
        self._send("STOPPING=1", _status("shutting down: flushing and closing the logs"))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that does not read must not block us.
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _status(text: str) -> str:
    return f"STATUS={printable(text)[:_STATUS_MAX]}"
