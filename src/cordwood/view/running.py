"""The live logs of `cordwood run`, in directories from another program: from the start to the shutdown.

open      find the node's directories and the configs of its topics; only explicit settings count
start     lock, load, recover; set high watermarks and replica counts as `plan` does
serve     metrics and health over HTTP; pages, if requested
run       until a stop is requested; a reload request reads the configs again
stop      a clean shutdown, as a broker does it; skipped if the disk hangs
"""

from __future__ import annotations

import logging
import posixpath
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from cordwood.cleaning.rules import selection
from cordwood.common.arguments import METADATA, SERVER_PROPERTIES, SINGLE_COPY, Option
from cordwood.common.errors import HangingError, KafkaStorageError, RequestError
from cordwood.common.text import number
from cordwood.common.threads import in_background
from cordwood.common.types import Clock, TopicPartition, monotonic_clock, system_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.live.creation import OnProgress
from cordwood.live.gauges import PARTITIONS_MAX, DiskSpace, disk_spaces, of_disks, of_partitions
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.manager_configs import ExplicitConfigs, explicit_configs
from cordwood.live.metrics import MetricName, Reading
from cordwood.live.report import Health, PartitionStatus
from cordwood.live.status import HealthWatch, Waiting, statuses
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.node.directory import PathKind, look
from cordwood.storage.node.node import Node
from cordwood.view.live_view import LiveView, guard, routes
from cordwood.view.web.http_server import HEADERS, HOST, HttpServer

_log = logging.getLogger(__name__)
#: Time between two looks at health.
LOOK_SECONDS = 2.0
#: Length of the pause after a look, as a multiple of the look's duration: looks take at most 1/20 of the time.
_LOOK_SHARE = 20
#: Longest time that a shutdown waits for one step, such as the flush of one log.
PATIENCE_MS = 15_000
_POLL_SECONDS = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """The options of `run`."""

    overrides: Annotated[
        Sequence[str],
        Option(
            "Set a topic's or the broker's config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other "
            "sources.",
            flag="--config",
            metavar="KEY=VALUE",
        ),
    ] = ()
    server_properties: Annotated[str | None, SERVER_PROPERTIES] = None
    metadata: Annotated[str | None, METADATA] = None
    high_watermark: Annotated[
        Literal["end"] | None,
        Option(
            "All replicas have the logs up to their ends. Default: up to their checkpoint; nothing from there on is "
            "cleaned.",
            metavar="end",
        ),
    ] = None
    retention: Annotated[
        bool, Option("Also delete by retention.ms and retention.bytes, where they are set explicitly.")
    ] = False
    single_copy: Annotated[bool, SINGLE_COPY] = False
    index: Annotated[
        bool,
        Option(
            "Make key indexes of compacted logs, so that the cleaner reads only the parts that may change. Default: "
            "only of partitions that have some."
        ),
    ] = False
    engine: Annotated[
        str | None,
        Option(
            "What cleans large logs: spark, or here, which is a pool of processes. Default: spark if it is installed, "
            "else here.",
            metavar="here|spark",
        ),
    ] = None
    tier: Annotated[
        str | None,
        Option(
            "Where topics with remote.storage.enable keep their closed segments: a folder, or a bucket and key prefix.",
            metavar="DIR|URL",
        ),
    ] = None
    port: Annotated[
        int,
        Option("Port on 127.0.0.1 for /metrics and /health; 0: any free one. Default: 9404.", metavar="PORT"),
    ] = 9404
    view: Annotated[
        bool,
        Option("Also serve pages with current and past activity, at the same port, for a browser on this machine."),
    ] = False


class LiveNode:
    """The logs of one broker's directories, run by this program."""

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Sequence[str],
        options: LiveOptions,
        *,
        is_new: bool = False,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Look at the directories; lock nothing yet.

        Args:
            clock: measures the time between looks for the pages of live logs.

        Raises:
            NotFoundError: a path does not exist.
            RequestError: a path is a file or a partition; or the directories belong to different brokers.
            ConfigError: Kafka would refuse a config.
        """
        self._fs = fs
        self._log_dirs = list(log_dirs)
        self._options = options
        self._is_new = is_new
        if not is_new:
            self._log_dirs = _log_directories(fs, log_dirs)
        self._node, self._explicit = self._read_configs()
        self.manager = LogManager(
            fs,
            self._log_dirs,
            self._explicit.layers,
            engine=options.engine,
            remember_configs=False,
            tier=options.tier,
        )
        self._watch = HealthWatch(period_ms=int(LOOK_SECONDS * 1_000))
        self._view: LiveView | None = None
        if options.view:
            self._view = LiveView(self._log_dirs, self._watch.health, lambda: str(self.waiting), clock)
        self._server: HttpServer | None = None
        self._seen: Sequence[PartitionStatus] = ()
        self._disks: Mapping[str, DiskSpace] = {}

    def _read_configs(self) -> tuple[Node, ExplicitConfigs]:
        options = self._options
        paths = self._log_dirs
        if self._is_new:
            paths = [path for path in paths if self._fs.exists(path) and self._fs.list(path)]
        node = Node.open(self._fs, paths, options.metadata, options.server_properties, options.overrides)
        node = replace(node, opens_tier=options.tier is not None)
        return node, explicit_configs(node, retention=options.retention)

    @property
    def port(self) -> int:
        """Port for metrics and health."""
        assert self._server is not None, "after the start"
        return self._server.port

    def startup(self, on_progress: OnProgress | None = None) -> None:
        """Bind the port, lock the directories, load the logs, start to clean; health reports the progress.

        Raises:
            RequestError: the port is in use.
            LockedError: a broker, or another manager, has a directory.
            CordwoodError: a log cannot be loaded; see `LogManager.startup`.
        """
        server = HttpServer(self._options.port)
        try:
            self._serve(server)
            self.waiting.begin("the logs to be loaded")

            def loaded(directory: str, done: int, count: int) -> None:
                self.waiting.begin(f"the logs of {directory} to be loaded, {done} of {count} are")
                if on_progress is not None:
                    on_progress(directory, done, count)

            options = self._options
            self.manager.startup(loaded, on_loaded=self._adopt, index=options.index)
            self._warn_if_idle()
            try:
                self.look()
            except BaseException:
                self.manager.shutdown()
                raise
        except BaseException:
            server.close()
            raise
        self._server = server

    def _serve(self, server: HttpServer) -> None:
        """Start to answer requests."""
        for_programs = routes(self.metrics, self._watch.health)
        if self._view is None:
            server.start(for_programs)
        else:
            pages = self._view.routes()
            server.start({**pages, **for_programs}, guard(server.port, HOST, for_programs), HEADERS)

    @property
    def waiting(self) -> Waiting:
        """The current wait of the thread that starts, looks or shuts down."""
        return self._watch.waiting

    def _adopt(self) -> None:
        """Apply facts from the metadata and the options to each log; pause the cleans of partitions being moved."""
        for partition, log in self.manager.logs.items():
            replicas = self._node.replica_count(partition)
            log.deletes_for_good = self._options.single_copy or replicas == 1
            self._set_high_watermark(partition, log, replicas)
            if self.manager.get_log(partition, is_future=True) is not None:
                self.manager.abort_and_pause_cleaning(partition)

    def _set_high_watermark(self, partition: TopicPartition, log: Log, replicas: int | None) -> None:
        holder = next(one for one in self._node.directories if self._fs.absolute_path(one.path) == log.parent_directory)
        mark = selection.high_watermark(
            holder.high_watermarks.get(partition),
            log.log_start_offset,
            log.log_end_offset,
            brokers=holder.info(META_PROPERTIES) is not None,
            replicas=replicas,
            asked=self._options.high_watermark,
        )
        log.update_high_watermark(mark.offset)

    def reload(self) -> None:
        """Read the configs again, and use them.

        Raises:
            CordwoodError: the new configs cannot be used; the old ones stay.
        """
        node, explicit = self._read_configs()
        self.manager.reconfigure(explicit.layers)
        self._node, self._explicit = node, explicit
        self._warn_if_idle()

    def _warn_if_idle(self) -> None:
        """Warn if no config allows any clean or deletion."""
        logs = self.manager.logs
        if not logs or any(_may_shrink(log) for log in logs.values()):
            return
        reasons = Counter(map(str, (*self._explicit.left_alone.values(), *self._explicit.only_compacted.values())))
        why = reasons.most_common(1)[0][0] if reasons else "their cleanup.policy is empty"
        _log.warning("nothing of %s will ever be cleaned or deleted: %s", number(len(logs), "log"), why)

    def look(self) -> tuple[list[PartitionStatus], Health]:
        """Look at the state of each log and the health of all; pages and metrics show the last look."""
        now_ms, explicit = system_clock(), self._explicit
        found = statuses(self.manager, now_ms, explicit.left_alone, explicit.only_compacted, self.waiting.begin)
        health = self._watch.look(self.manager, found, now_ms)
        self._seen = found
        self.waiting.begin("the free space of the disks")
        self._disks = disk_spaces(self._fs, self.manager.live_log_dirs)
        if self._view is not None:
            self.waiting.begin("the progress of cleans")
            self._view.note(self.manager, found, health, now_ms)
        self.waiting.begin("the next look")
        return found, health

    def metrics(self) -> dict[MetricName, Reading]:
        """Return the metrics of `/metrics`: Kafka's are current, partition and disk metrics are from the last look."""
        seen = self._seen
        of_all = max(len(seen), len(self.manager.logs)) <= PARTITIONS_MAX
        return self.manager.metrics(of_logs=of_all) | {
            **dict(of_partitions(seen, self._watch.longest_due_ms)),
            **dict(of_disks(self._disks)),
        }

    def run(
        self,
        stop: threading.Event,
        reload: threading.Event,
        show: Callable[[Sequence[PartitionStatus], Health], None] = lambda _statuses, _health: None,
    ) -> None:
        """Run until `stop` is set.

        Args:
            reload: set by the caller to read the configs again; cleared here.

        Raises:
            KafkaStorageError: all log directories have failed.
        """
        wait_seconds = LOOK_SECONDS
        while not stop.wait(wait_seconds):
            if reload.is_set():
                reload.clear()
                self.waiting.begin("the configs to be read anew")
                self._try_reload()
            began = time.monotonic()
            show(*self.look())
            # With very many logs a look takes long; leave the time to the cleaner.
            took_seconds = time.monotonic() - began
            wait_seconds = max(LOOK_SECONDS, _LOOK_SHARE * took_seconds)
            self._watch.period_ms = int(1_000 * (wait_seconds + took_seconds))
            if not self.manager.live_log_dirs:
                raise KafkaStorageError("No log directory is left: all of them failed")

    def _try_reload(self) -> None:
        try:
            self.reload()
            _log.info("configs were read anew")
        except Exception as error:
            _log.error("configs were not read anew, the old ones stay: %s", error)

    def shutdown(self) -> None:
        """Flush and close all logs; mark each directory without errors as shut down properly."""
        if self._server is not None:
            self._server.close()
        self.manager.shutdown(on_wait=self.waiting.begin)


def _may_shrink(log: Log) -> bool:
    """Return whether a config allows compaction or deletion by a limit."""
    config = log.config
    return config.compact or (config.delete and (config.retention_ms >= 0 or config.retention_bytes >= 0))


def _log_directories(fs: LocalFileSystem, paths: Sequence[str]) -> list[str]:
    """Return the log directories to run on: the given ones, and the disks in a given folder of disks."""
    directories: list[str] = []
    for found in [look(fs, path) for path in paths]:
        if not found.directories:
            is_file = found.kind is PathKind.FILE
            advice = "" if is_file else f" Give the log directory that it is in: {posixpath.dirname(found.path) or '.'}"
            raise RequestError(f"{found.path} is a {found.kind}, and run needs a log directory.{advice}")
        directories += found.directories
    return directories


def supervised(work: Callable[[], T], stop: threading.Event, waiting: Waiting, patience_ms: int = PATIENCE_MS) -> T:
    """Run work in a separate thread, because a disk may block it forever; abandon the thread if it hangs after `stop`.

    Args:
        patience_ms: longest time that a single step may take after `stop`.

    Raises:
        HangingError: the thread is abandoned. It still runs, and so do the threads that it started; the process must
            exit without waiting for them.
    """
    future = in_background(work, "cordwood-run")
    asked_ms: int | None = None
    while not wait([future], _POLL_SECONDS).done:
        now_ms = monotonic_clock()
        if asked_ms is None and stop.is_set():
            asked_ms = now_ms
        if asked_ms is not None and now_ms - max(asked_ms, waiting.since_ms) > patience_ms:
            raise HangingError(f"gave up waiting for {waiting}; this is no clean shutdown, the next start recovers")
    return future.result()
