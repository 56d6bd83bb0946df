"""Live logs on directories that somebody else made, as `cordwood run` has them: from the start to the shutdown.

open      whose directories, and what is said of their topics; what nobody has set does not count
start     lock, load, recover; high watermarks and replicas as `plan` sees them
serve     metrics and health over HTTP
go on     until asked to stop; configs are read anew when asked to
stop      a clean shutdown, as a broker does it
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from cordwood.cleaning import selection
from cordwood.clock import Clock, system_clock
from cordwood.errors import KafkaStorageError
from cordwood.fs.base import LocalFileSystem
from cordwood.option import Option
from cordwood.service.directory_loading import OnProgress
from cordwood.service.explicit_configs import ExplicitConfigs, explicit_configs
from cordwood.service.exporter import Exporter
from cordwood.service.health import Health, HealthWatch
from cordwood.service.log import Log
from cordwood.service.log_manager import LogManager
from cordwood.service.status import PartitionStatus, statuses
from cordwood.storage.formats.filenames import META_PROPERTIES
from cordwood.storage.node.node import Node
from cordwood.types import TopicPartition

_log = logging.getLogger(__name__)
#: How often health is looked at.
LOOK_SECONDS = 2.0
#: Looking takes at most one part in so many.
_LOOK_SHARE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What `run` is asked for."""

    overrides: Annotated[
        Sequence[str],
        Option(
            "Set a topic's or the broker's config: KEY=VALUE, or TOPIC:KEY=VALUE for one topic. Overrides all other "
            "sources.",
            flag="--config",
            metavar="KEY=VALUE",
        ),
    ] = ()
    server_properties: Annotated[
        str | None,
        Option("The broker's server.properties file, for configs that topics do not set.", metavar="FILE"),
    ] = None
    metadata: Annotated[
        str | None,
        Option("The directory that contains __cluster_metadata-0. Default: one of the given paths.", metavar="DIR"),
    ] = None
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
    single_copy: Annotated[
        bool, Option("I confirm that there is no other replica: also remove expired tombstones and markers.")
    ] = False
    port: Annotated[
        int,
        Option("Port on 127.0.0.1 for /metrics and /health; 0: any free one. Default: 9404.", metavar="PORT"),
    ] = 9404


class LiveNode:
    """The logs of one broker's directories, kept alive by this program.

    Attributes:
        manager: of the logs.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Sequence[str],
        options: LiveOptions,
        *,
        is_new: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        """Look at the directories; nothing is locked yet.

        Args:
            fs: where they are.
            log_dirs: paths of the log directories.
            options: see there.
            is_new: they may be empty.
            clock: the time.

        Raises:
            NotFoundError: nothing is there.
            RequestError: a path is a file; or the directories belong to different brokers.
            ConfigError: a config that Kafka would refuse.
        """
        self._fs = fs
        self._log_dirs = list(log_dirs)
        self._options = options
        self._is_new = is_new
        self._clock = clock
        self._node, self._explicit = self._read_configs()
        self.manager = LogManager(fs, self._log_dirs, self._explicit.layers, clock=clock)
        self._watch = HealthWatch()
        self._health = Health(())
        self._statuses: list[PartitionStatus] = []
        self._looking = threading.Lock()
        self._exporter: Exporter | None = None

    def _read_configs(self) -> tuple[Node, ExplicitConfigs]:
        options = self._options
        paths = self._log_dirs
        if self._is_new:
            paths = [path for path in paths if self._fs.exists(path) and self._fs.list(path)]
        node = Node.open(self._fs, paths, options.metadata, options.server_properties, options.overrides)
        return node, explicit_configs(node, retention=options.retention)

    @property
    def port(self) -> int:
        """Where metrics and health are."""
        assert self._exporter is not None, "after the start"
        return self._exporter.port

    def startup(self, on_progress: OnProgress | None = None) -> None:
        """Lock the directories, load the logs, begin to clean and to answer.

        Raises:
            LockedError: a broker, or another manager, has a directory.
            CordwoodError: a log cannot be loaded; see `LogManager.startup`.
        """
        self.manager.startup(on_progress)
        try:
            self._adopt()
            self._exporter = Exporter(self.manager.metrics, lambda: self._health, self._options.port)
        except BaseException:
            self.manager.shutdown()
            raise

    def _adopt(self) -> None:
        """Give each log what only the metadata and the user know; let none be cleaned that is being moved."""
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
        """Read the configs anew, and use them.

        Raises:
            CordwoodError: they cannot be used; the old ones stay.
        """
        node, explicit = self._read_configs()
        self.manager.reconfigure(explicit.layers)
        self._node, self._explicit = node, explicit

    def look(self) -> tuple[list[PartitionStatus], Health]:
        """What is being done to each log, and whether all is well; `/health` answers with the last look."""
        with self._looking:
            now_ms = self._clock()
            self._statuses = statuses(self.manager, now_ms, self._explicit.left_alone, self._explicit.only_compacted)
            self._health = self._watch.look(self.manager, self._statuses, now_ms)
            return self._statuses, self._health

    def run(
        self,
        stop: threading.Event,
        reload: threading.Event,
        show: Callable[[Sequence[PartitionStatus], Health], None] = lambda _statuses, _health: None,
    ) -> None:
        """Go on until asked to stop.

        Args:
            stop: set once it has to end.
            reload: set when configs are to be read anew; cleared here.
            show: is given each look.

        Raises:
            KafkaStorageError: all log directories have failed.
        """
        wait_seconds = LOOK_SECONDS
        while not stop.wait(wait_seconds):
            if reload.is_set():
                reload.clear()
                self._try_reload()
            began = time.monotonic()
            show(*self.look())
            # Of very many logs a look takes long; the cleaner is to have the time.
            wait_seconds = max(LOOK_SECONDS, _LOOK_SHARE * (time.monotonic() - began))
            if not self.manager.live_log_dirs:
                raise KafkaStorageError("No log directory is left: all of them failed")

    def _try_reload(self) -> None:
        try:
            self.reload()
            _log.info("configs were read anew")
        except Exception as error:
            _log.error("configs were not read anew, the old ones stay: %s", error)

    def shutdown(self) -> None:
        """Flush and close all logs; directories in which all goes well are marked as shut down properly."""
        if self._exporter is not None:
            self._exporter.close()
        self.manager.shutdown()
