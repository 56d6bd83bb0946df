"""The live logs of many log directories: loaded, kept, and shut down together.

    manager = LogManager(fs, ["/disk1", "/disk2"], layers)
    with manager:  # startup, and shutdown at the end
        log = manager.get_or_create_log(TopicPartition("orders", 0))
        …

A directory is locked as a broker locks it, so a broker and a manager exclude each other. One that fails goes offline,
with its logs; the others live on. What is done again and again (retention, checkpoints, flushing, removal of deleted
logs) are tasks of one scheduler. Compacted logs are cleaned by threads of a `LogCleaner`; with a scheduler that is
passed in, by a task of it.

Three locks, taken in this order: the one for creation is held while a log is made, moved or deleted, and waits for
cleans; a log's own; the one for the maps of logs, which nobody holds while he waits.

Source: Kafka LogManager; high watermarks are kept as by its ReplicaManager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cordwood.clock import Clock, system_clock
from cordwood.config import BrokerConfig, Layer, Source, SourceKind, TopicConfig, resolve, resolve_broker
from cordwood.errors import (
    IllegalStateError,
    InconsistentTopicIdError,
    KafkaStorageError,
    LogDirNotFoundError,
    LogError,
)
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.machine import open_files_max
from cordwood.fs.pooled import PooledFileSystem
from cordwood.service import manager_metrics
from cordwood.service.checkpointing import Checkpoints
from cordwood.service.clean_runner import CleanRunner
from cordwood.service.directory_loading import DirectoryLoads, LoadedFrom, OnProgress
from cordwood.service.failures import LogDirFailure, LogDirFailureChannel
from cordwood.service.log import FetchIsolation, Log, ProducerLimits, load_log
from cordwood.service.log_cleaner import LogCleaner
from cordwood.service.log_directory import LiveDirectory, broker_epoch_at_shutdown
from cordwood.service.metrics import LogStats, MetricName, Reading
from cordwood.service.scheduler import Scheduler, ThreadScheduler
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_COPY_BYTES = 1 << 20
#: Of a follower that takes batches of every leader.
_ANY_EPOCH = 2**31 - 1
#: Of the cordoned directories: all.
_ALL = "*"


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A log whose directory waits for its removal."""

    log: Log
    since_ms: int


class LogManager:
    """The logs of one or more log directories; only one thread at a time may start it up or shut it down.

    Attributes:
        failures: which directories failed, and why.
        config: the broker's configs.
        cleaner: cleans the compacted logs while the manager runs; None: `log.cleaner.enable` is false.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Sequence[str],
        layers: Iterable[Layer] = (),
        *,
        clock: Clock = system_clock,
        scheduler: Scheduler | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            fs: where the directories are.
            log_dirs: paths of the log directories.
            layers: configs of the broker, and of topics.
            clock: the wall clock.
            scheduler: runs what is to be done later; default: threads, for as long as the manager runs.
            spark: the session in which large logs are cleaned; None: one is started with the first of them.

        Raises:
            ConfigError: a config that Kafka would refuse.
        """
        self.failures = LogDirFailureChannel(self._on_failure)
        self._layers = list(layers)
        #: The configs of topics, with the layers that they are made of.
        self._topic_configs: dict[str, tuple[list[Layer], TopicConfig]] = {}
        self.config: BrokerConfig = resolve_broker(self._layers)
        #: Of many logs only some files are open.
        self._fs = PooledFileSystem(fs, open_files_max())
        if isinstance(log_dirs, str):
            raise TypeError(f"log_dirs is a sequence of paths: pass [{log_dirs!r}], not {log_dirs!r}")
        self._paths = [self._fs.absolute_path(path) for path in log_dirs]
        self._is_started = self._is_shut_down = False
        self._clock = clock
        self._own: ThreadScheduler | None = None
        if scheduler is None:
            self._own = ThreadScheduler(self.config.integer("background.threads"))
            scheduler = self._own
        self._scheduler = scheduler
        self._spark = spark
        self._stats = LogStats(scheduler.clock)
        self._recovery_threads = self.config.integer("num.recovery.threads.per.data.dir")
        self.cleaner: LogCleaner | None = None
        self._directories: dict[str, LiveDirectory] = {}
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        self._stray: dict[TopicPartition, str] = {}
        self._deleted: deque[_Deleted] = deque()
        #: Where a new log of a partition is to be made.
        self._preferred: dict[TopicPartition, str] = {}
        #: Partitions whose logs are being made; True: the topic's configs have changed meanwhile.
        self._initializing: dict[TopicPartition, bool] = {}
        #: Partitions that `move_partition` is moving.
        self._moving: set[TopicPartition] = set()
        self._loads = DirectoryLoads(self.failures)
        self._checkpoints = Checkpoints(self._directories, self._current_logs)
        #: Guards the maps of logs.
        self._lock = threading.RLock()
        #: Held, outside the other one, while a log is made or its directory renamed; a clean may be waited for.
        self._creation = threading.RLock()

    # ---- start and end -----------------------------------------------------------------------------------------------

    def startup(
        self, on_progress: OnProgress | None = None, *, is_stray: Callable[[TopicPartition, Log], bool] | None = None
    ) -> None:
        """Lock all directories, load all their logs, begin with the tasks.

        Args:
            on_progress: called with a directory, how many of its logs are loaded, and of how many.
            is_stray: says of a loaded log whether it does not belong here; such a log is set aside.

        Raises:
            LockedError: a broker, or another manager, has a directory.
            KafkaStorageError: no directory is left.
            IllegalStateError: a partition is in two directories; or the manager was started before.
            CordwoodError: a log cannot be loaded, and its disk is not to blame.
        """
        if self._is_started:
            raise IllegalStateError("This LogManager was started before. Start a new one after its shutdown")
        self._is_started = True
        try:
            self._lock_directories()
            with ThreadPoolExecutor(max(1, len(self._directories)), "log-loading") as pool:
                loads = [
                    pool.submit(
                        self._loads.load,
                        directory,
                        self._recovery_threads,
                        lambda found: self._load_one(found, is_stray),
                        on_progress,
                    )
                    for directory in self._directories.values()
                ]
                for done in loads:
                    done.result()
            for failure in self.failures.failures:
                self.handle_log_dir_failure(failure.directory)
            if self.config.flag("log.cleaner.enable"):
                self.cleaner = self._make_cleaner()
        except BaseException:
            self._abandon_logs()
            self._release()
            self._is_started = False
            raise
        finally:
            self._loads.end()
        if self._own is not None:
            self._own.startup()
        self._schedule()
        self._start_cleaner()

    def __enter__(self) -> Self:
        """Start up; the block ends with a shutdown."""
        self.startup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _lock_directories(self) -> None:
        for path in self._paths:
            try:
                directory = LiveDirectory(self._fs, path, self.failures)
            except OSError as error:
                self._fail(path, "Failed to create or validate the data directory", error)
                continue
            if directory.path in self._directories:
                directory.release()
                raise IllegalStateError(f"Duplicate log directory {directory.path}")
            self._directories[directory.path] = directory

    def _make_cleaner(self) -> LogCleaner:
        return LogCleaner(
            self._fs,
            self.config,
            self.live_log_dirs,
            self._current_logs,
            self.failures,
            self._clock,
            self._scheduler.clock,
            CleanRunner(self._fs, self._spark, clock=self._scheduler.clock),
        )

    def _start_cleaner(self) -> None:
        if self.cleaner is None:
            return
        if self._own is not None:
            self.cleaner.startup()
        else:
            backoff_ms = max(1, self.config.integer("log.cleaner.backoff.ms"))
            self._scheduler.schedule("log-cleaner", self._clean_logs, period_ms=backoff_ms)

    def _clean_logs(self) -> None:
        """What the threads of the cleaner do, until nothing is due."""
        while self.cleaner is not None and self.cleaner.clean_filthiest_log():
            pass

    def _current_logs(self) -> Mapping[TopicPartition, Log]:
        with self._lock:
            return dict(self._current)

    def shutdown(self, broker_epoch: int = -1, *, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Flush and close all logs; a directory in which all goes well is marked as shut down properly.

        Without effect unless the manager runs. No file stays open, also none of a log that waits for its removal.

        Args:
            broker_epoch: goes into that mark.
            on_wait: called with what may take long, before each.
        """
        if not self._is_started or self._is_shut_down:
            return
        self._is_shut_down = True
        if self.cleaner is not None:
            on_wait("the cleaner's threads to end")
            self.cleaner.shutdown()
        if self._own is not None:
            running = ", ".join(name for name, _ in self._own.running)
            on_wait(f"tasks to end: {running}" if running else "tasks to end")
            self._own.shutdown()
        on_wait("checkpoints to be written")
        self.checkpoint_high_watermarks()
        try:
            for directory in list(self._directories.values()):
                self._close(directory, broker_epoch, on_wait)
        finally:
            self._release()

    def _close(self, directory: LiveDirectory, broker_epoch: int, on_wait: Callable[[str], None]) -> None:
        """Close the logs of a directory, and say that it was shut down properly."""

        def close(log: Log) -> None:
            log.flush(force_active_segment=True)
            log.close()

        with ThreadPoolExecutor(self._recovery_threads, f"log-closing-{directory.path}") as pool:
            logs = [log for log in self.all_logs if log.parent_directory == directory.path]
            errors = []
            for log, closed in [(log, pool.submit(close, log)) for log in logs]:
                on_wait(f"the log {log.name} to be flushed and closed")
                errors += [] if (error := closed.exception()) is None else [error]
        if errors:
            _log.warning("There was an error in one of the threads during LogManager shutdown", exc_info=errors[0])
            return
        on_wait(f"the checkpoints of {directory.path} to be written")
        self._checkpoint_offsets(directory.path)
        if directory.was_clean or directory.is_loaded:
            try:
                directory.write_clean_shutdown(broker_epoch)
            except OSError as error:
                self._fail(directory.path, "Disk error while writing the clean shutdown file", error)

    def _abandon_logs(self) -> None:
        """Forget all logs: the start has failed."""
        for log in (*self.all_logs, *(one.log for one in self._deleted)):
            log.close_handlers()
        for known in (self._current, self._future, self._stray, self._deleted):
            known.clear()

    def _release(self) -> None:
        self._fs.close()
        for directory in self._directories.values():
            directory.release()
        self._directories.clear()

    def resize_recovery_thread_pool(self, threads: int) -> None:
        """Use another number of threads per directory from the next start or shutdown on."""
        self._recovery_threads = threads

    def read_broker_epoch_from_clean_shutdown_files(self) -> int | None:
        """The broker epoch with which all directories were shut down; None: they do not agree, or were not.

        To be called before `startup`, which removes the marks that say it.
        """
        epochs = {broker_epoch_at_shutdown(self._fs, path) for path in self._paths}
        return epochs.pop() if len(epochs) == 1 else None

    # ---- loading -----------------------------------------------------------------------------------------------------

    def _load_one(self, found: LoadedFrom, is_stray: Callable[[TopicPartition, Log], bool] | None) -> None:
        """Load a log, and put it where it belongs by the name of its directory."""
        path, name, state = found.partition.path, found.partition.name.topic_partition, found.partition.name.state
        if state is DirectoryState.STRAY:
            with self._lock:
                self._stray[name] = path
            return
        log = self._open(
            path,
            name.topic,
            clean_shutdown=found.clean_shutdown,
            recovery_point=found.recovery_point,
            log_start_offset=found.log_start_offset,
            on_recovered=found.on_recovered,
        )
        if state is DirectoryState.DELETED:
            self._deleted.append(_Deleted(log, self._scheduler.clock()))
            return
        if is_stray is not None and state is DirectoryState.CURRENT and is_stray(name, log):
            self._set_aside(found.directory, name, log)
            return
        if found.high_watermark is not None:
            log.update_high_watermark(found.high_watermark)
        with self._lock:
            logs = self._future if state is DirectoryState.FUTURE else self._current
            if name in logs:
                raise IllegalStateError(
                    f"Duplicate log directories for {name} are found in both {logs[name].directory} and {path}. It is "
                    "likely because log directory failure happened while broker was replacing current replica with "
                    "future replica. Recover broker from this failure by manually deleting one of the two directories "
                    "for this partition. It is recommended to delete the partition in the log directory that is known "
                    "to have failed recently."
                )
            logs[name] = log

    def _set_aside(self, directory: LiveDirectory, partition: TopicPartition, log: Log) -> None:
        """A log does not belong here: close it, and rename its directory so that nobody loads it."""
        path = directory.place_for(partition, DirectoryState.STRAY)
        _log.warning("Log of %s is stray, and set aside as %s", partition, path)
        log.rename_directory(path)
        log.close()
        with self._lock:
            self._stray[partition] = path

    def _open(
        self,
        path: str,
        topic: str,
        *,
        clean_shutdown: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        topic_id: uuid.UUID | None = None,
        on_recovered: Callable[[int], None] = lambda _: None,
    ) -> Log:
        number = self.config.integer
        return load_log(
            self._fs,
            path,
            self.topic_config(topic),
            self._clock,
            self._scheduler,
            self.failures,
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            limits=ProducerLimits(
                number("producer.id.expiration.ms"),
                number("producer.id.expiration.check.interval.ms"),
                number("transaction.max.timeout.ms"),
                self.config.flag("transaction.partition.verification.enable"),
            ),
            topic_id=topic_id,
            stats=self._stats,
            on_recovered=on_recovered,
        )

    # ---- logs --------------------------------------------------------------------------------------------------------

    @property
    def all_logs(self) -> tuple[Log, ...]:
        """Current and future logs."""
        with self._lock:
            return (*self._current.values(), *self._future.values())

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """The current logs by their partitions."""
        return dict(self._current_logs())

    @property
    def stray_logs(self) -> dict[TopicPartition, str]:
        """Where the logs are that do not belong here."""
        with self._lock:
            return dict(self._stray)

    @property
    def live_log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return tuple(path for path in list(self._directories) if not self.failures.is_offline(path))

    @property
    def cordoned_log_dirs(self) -> frozenset[str]:
        """The directories that get no new logs: `cordoned.log.dirs`."""
        value = self.config["cordoned.log.dirs"].value
        assert isinstance(value, tuple)
        if value == (_ALL,):
            return frozenset(self._paths)
        return frozenset(self._fs.absolute_path(path) for path in value)

    def is_log_dir_online(self, directory: str) -> bool:
        """Whether a directory works.

        Raises:
            LogDirNotFoundError: it is none of the manager's.
        """
        path = self._fs.absolute_path(directory)
        if path not in self._paths:
            raise LogDirNotFoundError(f"Log dir {directory} is not found in the config.")
        return path in self.live_log_dirs

    def directory_id(self, directory: str) -> uuid.UUID | None:
        """The id of a live directory; None: its `meta.properties` gives it none."""
        found = self._directories.get(self._fs.absolute_path(directory))
        return None if found is None else found.directory_id

    def get_log(self, partition: TopicPartition, *, is_future: bool = False) -> Log | None:
        """The log of a partition, if it is here."""
        with self._lock:
            return (self._future if is_future else self._current).get(partition)

    def maybe_update_preferred_log_dir(self, partition: TopicPartition, directory: str) -> None:
        """Remember where a log of a partition is to be made, unless there is one already."""
        path = self._fs.absolute_path(directory)
        with self._creation, self._lock:
            known = (self._current.get(partition), self._future.get(partition))
            if not any(log is not None and log.parent_directory == path for log in known):
                self._preferred[partition] = path

    def get_or_create_log(
        self,
        partition: TopicPartition,
        *,
        is_new: bool = False,
        is_future: bool = False,
        topic_id: uuid.UUID | None = None,
        target_directory_id: uuid.UUID | None = None,
    ) -> Log:
        """The log of a partition; a missing one is made.

        It is made in the directory that is preferred or assigned, else in the live one with the fewest logs that is not
        cordoned.

        Args:
            partition: which.
            is_new: it was never anywhere. Otherwise it may be in a directory that is offline.
            is_future: the log that is to take the place of the current one; it needs a preferred directory.
            topic_id: of the topic.
            target_directory_id: of the directory that the log is assigned to; one that is not here is passed over.

        Raises:
            KafkaStorageError: no directory is left to make it in, or one is offline that may have it.
            IllegalStateError: a future log without a preferred directory, or into the directory of the current log.
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            BadNameError: Kafka has no topic of that name.
        """
        with self._creation:
            log = self.get_log(partition, is_future=is_future)
            if log is None:
                log = self._create(partition, is_new, is_future, topic_id, target_directory_id)
            elif topic_id is not None:
                if log.topic_id is not None and log.topic_id != topic_id:
                    raise InconsistentTopicIdError(
                        f"Found inconsistent topic id for topic partition {partition}: it is {log.topic_id}, and "
                        f"{topic_id} was asked for"
                    )
                log.assign_topic_id(topic_id)
            return log

    def _create(
        self,
        partition: TopicPartition,
        is_new: bool,
        is_future: bool,
        topic_id: uuid.UUID | None,
        target_directory_id: uuid.UUID | None,
    ) -> Log:
        """Make a log in the first directory that works; the caller holds the lock for creation."""
        offline = [path for path in self._paths if path not in self.live_log_dirs]
        if not is_new and offline:
            raise KafkaStorageError(
                f"Can not create log for {partition} because log directories {', '.join(offline)} are offline"
            )
        filenames.check_topic(partition.topic)
        problems = []
        for path in self._places(partition, is_future, target_directory_id):
            directory = self._directories.get(path)
            if directory is None or self.failures.is_offline(path):
                problems.append(f"{path} is offline")
                continue
            place = directory.place_for(partition, DirectoryState.FUTURE if is_future else DirectoryState.CURRENT)
            try:
                log = self._open(place, partition.topic, topic_id=topic_id)
            except OSError as error:
                self._fail(path, f"Error while creating log for {partition}", error)
                problems.append(f"{path}: {error}")
                continue
            with self._lock:
                (self._future if is_future else self._current)[partition] = log
                self._preferred.pop(partition, None)
            return log
        raise KafkaStorageError(f"No log directory is left to create {partition} in. {'; '.join(problems)}".strip())

    def _places(
        self, partition: TopicPartition, is_future: bool, target_directory_id: uuid.UUID | None
    ) -> Sequence[str]:
        """The directories in which a log may be made, the best one first."""
        assigned = [
            path
            for path, directory in self._directories.items()
            if target_directory_id is not None and directory.directory_id == target_directory_id
        ]
        preferred = assigned[0] if assigned else self._preferred.get(partition)
        if is_future:
            current = self.get_log(partition)
            if preferred is None:
                raise IllegalStateError(
                    f"Can not create the future log for {partition} without having a preferred log directory"
                )
            if current is not None and current.parent_directory == preferred:
                raise IllegalStateError(
                    f"Can not create the future log for {partition} in the current log directory of this partition"
                )
        if preferred is not None:
            return [preferred]
        logs, cordoned, live = self.all_logs, self.cordoned_log_dirs, self.live_log_dirs
        # Where all are cordoned, Kafka takes the first one.
        free = [path for path in live if path not in cordoned] or list(live[:1])
        return sorted(free, key=lambda path: sum(log.parent_directory == path for log in logs))

    # ---- moving ------------------------------------------------------------------------------------------------------

    def move_partition(self, partition: TopicPartition, directory: str) -> Log:
        """Move a log to another log directory, while it is used; goes on with a move that was interrupted.

        A future log there gets all that the log has, then takes its place. From then on the old `Log` refuses every
        call, and its files go as those of a deleted log do.

        Args:
            partition: which; it is not cleaned meanwhile.
            directory: one of the manager's.

        Returns:
            the log as it is now.

        Raises:
            LogDirNotFoundError: the directory is none of the manager's.
            KafkaStorageError: it is offline, or the log is; or there is no such log.
            IllegalStateError: another thread moves it.
        """
        path = self._fs.absolute_path(directory)
        if not self.is_log_dir_online(directory):
            raise KafkaStorageError(f"Log directory {directory} is offline")
        current = self.get_log(partition)
        if current is None:
            raise KafkaStorageError(f"There is no log of {partition}, or it is in a directory that is offline")
        if current.parent_directory == path:
            return current
        with self._moving_alone(partition), self._paused([partition]):
            future = self._future_log(partition, path)
            _copy(current, future)
            with self._creation, current.unchanged():
                _copy(current, future)
                if self.get_log(partition) is not current or self.get_log(partition, is_future=True) is not future:
                    raise KafkaStorageError(f"The log of {partition} was deleted or moved meanwhile")
                self._replace_current_with_future_log(partition, current, future)
                current.close_handlers()
                return future

    @contextlib.contextmanager
    def _moving_alone(self, partition: TopicPartition) -> Iterator[None]:
        """In the block no other thread moves this partition: it would drop the future log that this one fills."""
        with self._lock:
            if partition in self._moving:
                raise IllegalStateError(f"Another thread moves {partition}")
            self._moving.add(partition)
        try:
            yield
        finally:
            with self._lock:
                self._moving.discard(partition)

    def _future_log(self, partition: TopicPartition, path: str) -> Log:
        """The log that is to take a partition's place; one in another directory is dropped."""
        with self._creation:
            future = self.get_log(partition, is_future=True)
            if future is not None and future.parent_directory != path:
                self.async_delete(partition, is_future=True)
            self.maybe_update_preferred_log_dir(partition, path)
            return self.get_or_create_log(partition, is_new=True, is_future=True)

    def replace_current_with_future_log(self, partition: TopicPartition) -> Log:
        """Let the future log of a partition, which has all that the current one has, take its place.

        The caller has paused the partition's cleaning, and sees to it that nobody appends meanwhile. Cleaning is
        resumed. The old log is not closed: its readers may go on until its files are removed.

        Raises:
            KafkaStorageError: one of the two is missing; or the disk.
        """
        with self._creation:
            current, future = self.get_log(partition), self.get_log(partition, is_future=True)
            for log, what in ((current, "current"), (future, "future")):
                if log is None:
                    raise KafkaStorageError(f"The {what} replica for {partition} is offline")
            assert current is not None and future is not None
            self._replace_current_with_future_log(partition, current, future)
            if self.cleaner is not None:
                self.cleaner.resume_cleaning([partition])
            return future

    def _replace_current_with_future_log(self, partition: TopicPartition, current: Log, future: Log) -> None:
        source, target = current.parent_directory, future.parent_directory
        # A crash between the two renames leaves two whole logs, and the next start refuses them. The other way round
        # it would find none, and make an empty one.
        future.rename_directory(self._directories[target].place_for(partition, DirectoryState.CURRENT))
        future.update_high_watermark(current.high_watermark)
        with self._lock:
            self._current[partition] = future
            self._future.pop(partition, None)
        if self.cleaner is not None:
            self.cleaner.alter_checkpoint_dir(partition, source, target)
        try:
            self._delete_later(partition, current)
        except KafkaStorageError:
            current.close_handlers()
            raise
        self._checkpoint_offsets(source, target)

    def recover_abandoned_future_logs(self, directory_of: Callable[[TopicPartition], uuid.UUID | None]) -> None:
        """Finish moves that were cut off after they were decided: a future log in the directory that its partition is
        assigned to takes the place of the current one.

        Args:
            directory_of: the id of the directory to which a partition is assigned; None: nobody says.
        """
        for partition, future in list(self._future.items()):
            wanted = directory_of(partition)
            if wanted is None or self.directory_id(future.parent_directory) != wanted:
                continue
            _log.info("Found abandoned future log of %s in %s; it becomes current", partition, future.directory)
            current = self.get_log(partition)
            with self._creation:
                if current is not None:
                    with self._paused([partition]):
                        self._replace_current_with_future_log(partition, current, future)
                    current.close_handlers()
                else:
                    place = self._directories[future.parent_directory].place_for(partition, DirectoryState.CURRENT)
                    future.rename_directory(place)
                    with self._lock:
                        self._current[partition] = self._future.pop(partition)

    # ---- deleting ----------------------------------------------------------------------------------------------------

    def async_delete(
        self, partition: TopicPartition, *, is_future: bool = False, is_stray: bool = False, checkpoint: bool = True
    ) -> Log | None:
        """Take a log out, and remove its files later; returns it, None if it is not here.

        Args:
            partition: which.
            is_future: the log that was to take its place.
            is_stray: it does not belong here: its directory is set aside, and stays.
            checkpoint: write the checkpoints of its directory.

        Raises:
            KafkaStorageError: it may be in a directory that is offline; or the disk.
            IllegalStateError: somebody else waits until a clean of it has stopped; the log stays.
        """
        with self._creation:
            logs = self._future if is_future else self._current
            with self._lock:
                log = logs.pop(partition, None)
            if log is None:
                if len(self.live_log_dirs) < len(self._paths):
                    raise KafkaStorageError(f"Failed to delete log for {partition} because it may be in an offline dir")
                return None
            if self.cleaner is not None and not is_future:
                try:
                    self.cleaner.abort_cleaning(partition)
                except LogError:  # somebody else waits for an abort
                    with self._lock:
                        logs[partition] = log
                    raise
                self.cleaner.update_checkpoints(log.parent_directory, remove=partition)
                # A later log of the same name is another one: that this one could not be cleaned is forgotten.
                self.cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
            if is_stray:
                self._set_aside(self._directories[log.parent_directory], partition, log)
            else:
                self._delete_later(partition, log)
        if checkpoint:
            self._checkpoint_offsets(log.parent_directory)
        return log

    def async_delete_all(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_stray: bool = False,
        on_error: Callable[[TopicPartition, Exception], None],
    ) -> None:
        """Take many logs out, also the future ones; each directory's checkpoints are written once.

        Args:
            partitions: which; those that are not here are passed over.
            is_stray: see `async_delete`.
            on_error: is given what fails; the others go on.
        """
        touched: set[str] = set()
        for partition in partitions:
            for is_future in (False, True):
                if self.get_log(partition, is_future=is_future) is None:
                    continue
                try:
                    log = self.async_delete(partition, is_future=is_future, is_stray=is_stray, checkpoint=False)
                    touched |= set() if log is None else {log.parent_directory}
                except LogError as error:
                    on_error(partition, error)
        self._checkpoint_offsets(*touched)

    def _delete_later(self, partition: TopicPartition, log: Log) -> None:
        log.rename_directory(self._directories[log.parent_directory].place_for(partition, DirectoryState.DELETED))
        self._deleted.append(_Deleted(log, self._scheduler.clock()))

    # ---- truncating --------------------------------------------------------------------------------------------------

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Truncate logs, and write down where they are flushed to now; partitions that are not here are passed over."""
        affected = []
        for partition, offset in offsets.items():
            log = self.get_log(partition, is_future=is_future)
            if log is not None:
                below = offset < log.active_segment.base_offset
                with self._cleaning_paused(partition, log, when=below and not is_future):
                    if log.truncate_to(offset):
                        affected.append(log)
        self._checkpoints.write({log.parent_directory for log in affected}, filenames.RECOVERY_POINTS)

    def truncate_fully_and_start_at(
        self, partition: TopicPartition, offset: int, *, is_future: bool = False, log_start_offset: int | None = None
    ) -> None:
        """Remove everything in a log, and go on at an offset."""
        log = self.get_log(partition, is_future=is_future)
        if log is not None:
            with self._cleaning_paused(partition, log, when=not is_future):
                log.truncate_fully_and_start_at(offset, log_start_offset)
            self._checkpoints.write([log.parent_directory], filenames.RECOVERY_POINTS)

    @contextlib.contextmanager
    def _cleaning_paused(self, partition: TopicPartition, log: Log, *, when: bool) -> Iterator[None]:
        """In the block, a log that is truncated is not cleaned; afterwards its checkpoint is not above its end."""
        if self.cleaner is None or not when:
            yield
            return
        with self._paused([partition]):
            yield
            base = log.active_segment.base_offset
            self.cleaner.maybe_truncate_checkpoint(log.parent_directory, partition, base)

    # ---- cleaning ----------------------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, and wait until it has stopped; see `LogCleaner.abort_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.abort_cleaning(partition)

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, wait until it has stopped, and let none begin; see `LogCleaner.abort_and_pause_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.abort_and_pause_cleaning(partition)

    def resume_cleaning(self, partition: TopicPartition) -> None:
        """Take one pause back; see `LogCleaner.resume_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.resume_cleaning([partition])

    @contextlib.contextmanager
    def _paused(self, partitions: Sequence[TopicPartition]) -> Iterator[None]:
        """In the block, no clean of these partitions runs."""
        paused: list[TopicPartition] = []
        try:
            for partition in partitions:
                self.abort_and_pause_cleaning(partition)
                paused.append(partition)
            yield
        finally:
            for partition in paused:
                self.resume_cleaning(partition)

    # ---- configs -----------------------------------------------------------------------------------------------------

    def topic_config(self, topic: str) -> TopicConfig:
        """The configs of a topic."""
        layers = self._layers
        known = self._topic_configs.get(topic)
        if known is None or known[0] is not layers:
            known = self._topic_configs[topic] = layers, resolve(topic, layers)
        return known[1]

    def initializing_log(self, partition: TopicPartition) -> None:
        """A log is about to be made: a change of the topic's configs from now on is for it, too."""
        with self._lock:
            self._initializing[partition] = False

    def finished_initializing_log(self, partition: TopicPartition, log: Log | None) -> None:
        """The log is made, or could not be (None): it gets the configs that have changed meanwhile."""
        with self._lock:
            has_changed = self._initializing.pop(partition, False)
        if has_changed and log is not None:
            log.update_config(self.topic_config(partition.topic))

    def update_topic_config(self, topic: str, texts: Mapping[str, str]) -> None:
        """Replace a topic's own configs; its logs use them from now on.

        Raises:
            ConfigError: a value that Kafka would refuse; nothing has changed.
        """
        changed = Layer(Source(SourceKind.TOPIC, "update_topic_config", topic), dict(texts))
        kept = [one for one in self._layers if (one.source.kind, one.source.subject) != (SourceKind.TOPIC, topic)]
        config = resolve(topic, [*kept, changed])
        with self._lock:
            self._layers = [*kept, changed]
            self._note_changed(lambda name: name.topic == topic)
            known = [*self._current.items(), *self._future.items()]
        for partition, log in known:
            if partition.topic == topic:
                self._update(partition, log, config)

    def _note_changed(self, is_meant: Callable[[TopicPartition], bool]) -> None:
        for partition in self._initializing:
            if is_meant(partition):
                self._initializing[partition] = True

    def _update(self, partition: TopicPartition, log: Log, config: TopicConfig) -> None:
        was_compacted = log.config.compact
        log.update_config(config)
        if self.cleaner is not None:
            # A clean that has failed may succeed with other configs.
            self.cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
            if was_compacted and not config.compact:
                self.cleaner.abort_cleaning(partition)

    def reconfigure(self, layers: Iterable[Layer]) -> None:
        """Go on with other configs of the broker and of topics; those of the cleaner and of logs are used at once.

        Raises:
            ConfigError: a value that Kafka would refuse; nothing has changed.
        """
        layers = list(layers)
        config = resolve_broker(layers)
        with self._lock:
            known = [(name, log) for logs in (self._current, self._future) for name, log in logs.items()]
        topics = {topic: resolve(topic, layers) for topic in {name.topic for name, _ in known}}
        cleaner, before = self.cleaner, self.config
        if cleaner is not None:
            cleaner.validate_reconfiguration(config)
            if any(before[name].value != config[name].value for name in cleaner.reconfigurable_configs):
                cleaner.reconfigure(before, config)
        with self._lock:
            self._layers, self.config = layers, config
            self._recovery_threads = config.integer("num.recovery.threads.per.data.dir")
            self._note_changed(lambda _: True)
        for partition, log in known:
            self._update(partition, log, topics[partition.topic])

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        number = self.config.integer
        delay_ms = number("log.initial.task.delay.ms")
        for name, task, period in (
            ("kafka-log-retention", self.cleanup_logs, "log.retention.check.interval.ms"),
            ("kafka-log-flusher", self.flush_dirty_logs, "log.flush.scheduler.interval.ms"),
            (
                "kafka-recovery-point-checkpoint",
                self.checkpoint_log_recovery_offsets,
                "log.flush.offset.checkpoint.interval.ms",
            ),
            (
                "kafka-log-start-offset-checkpoint",
                self.checkpoint_log_start_offsets,
                "log.flush.start.offset.checkpoint.interval.ms",
            ),
        ):
            self._scheduler.schedule(name, task, delay_ms=delay_ms, period_ms=number(period))
        self._scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=delay_ms)
        self._scheduler.schedule(
            "highwatermark-checkpoint",
            self.checkpoint_high_watermarks,
            period_ms=number("replica.high.watermark.checkpoint.interval.ms"),
        )

    def cleanup_logs(self) -> None:
        """Retention of the logs that are not compacted."""
        if self.cleaner is None:
            deleted = sum(log.delete_old_segments() for log in self.all_logs if not log.config.compact)
        else:
            paused = self.cleaner.pause_cleaning_for_non_compacted_partitions()
            try:
                deleted = sum(log.delete_old_segments() for log in paused.values())
                with self._lock:
                    future = [log for partition, log in self._future.items() if partition in paused]
                deleted += sum(log.delete_old_segments() for log in future)
            finally:
                self.cleaner.resume_cleaning(paused)
        if deleted:
            _log.info("Log cleanup deleted %d segments", deleted)

    def flush_dirty_logs(self) -> None:
        """Flush the logs whose `flush.ms` is over."""
        now_ms = self._scheduler.clock()
        for log in self.all_logs:
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                try:
                    log.flush()
                except LogError:
                    _log.exception("Error flushing %s", log.name)

    def delete_logs(self) -> None:
        """Remove the logs that were deleted long enough ago, and come back when the next one is due."""
        delay_ms = self.config.integer("log.segment.delete.delay.ms")
        clock = self._scheduler.clock
        while self._deleted and clock() - self._deleted[0].since_ms >= delay_ms:
            deleted = self._deleted.popleft()
            try:
                deleted.log.delete()
            except LogError:
                _log.exception("Exception while deleting %s", deleted.log.name)
        left_ms = delay_ms - (clock() - self._deleted[0].since_ms) if self._deleted else max(delay_ms, 1)
        self._scheduler.schedule("kafka-delete-logs", self.delete_logs, delay_ms=max(left_ms, 1))

    def checkpoint_log_recovery_offsets(self) -> None:
        """Write down up to where each log is flushed."""
        self._checkpoints.write(self.live_log_dirs, filenames.RECOVERY_POINTS)

    def checkpoint_log_start_offsets(self) -> None:
        """Write down where each log starts, if it does not with its first segment."""
        self._checkpoints.write(self.live_log_dirs, filenames.LOG_START_OFFSETS)

    def checkpoint_high_watermarks(self) -> None:
        """Write down the high watermark of each log."""
        self._checkpoints.write(self.live_log_dirs, filenames.HIGH_WATERMARKS)

    def _checkpoint_offsets(self, *paths: str) -> None:
        """Write the recovery points and start offsets of directories."""
        self._checkpoints.write(paths, filenames.RECOVERY_POINTS, filenames.LOG_START_OFFSETS)

    # ---- failing directories -----------------------------------------------------------------------------------------

    def _on_failure(self, failure: LogDirFailure) -> None:
        """A directory has just failed: drop it soon, in a thread that holds no lock of a log."""
        _log.error("%s: %s; %s goes offline", failure.message, failure.error, failure.directory)

        def handle() -> None:
            try:
                self.handle_log_dir_failure(failure.directory)
            except KafkaStorageError as error:  # there is nothing left to handle
                _log.critical("%s", error)

        self._scheduler.schedule("handle-log-dir-failure", handle, delay_ms=1)

    def handle_log_dir_failure(self, directory: str) -> None:
        """Drop a directory that failed, with its logs; done by a task as soon as the failure is known.

        Raises:
            KafkaStorageError: no directory is left.
        """
        path = self._fs.absolute_path(directory)
        with self._creation:
            gone = self._directories.pop(path, None)
            if self.cleaner is not None:
                self.cleaner.handle_log_dir_failure(path)
            with self._lock:
                dropped = []
                for logs in (self._current, self._future):
                    for partition in [name for name, log in logs.items() if log.parent_directory == path]:
                        dropped.append(logs.pop(partition))
                self._deleted = deque(one for one in self._deleted if one.log.parent_directory != path)
            for log in dropped:
                log.close_handlers()
            if gone is not None:
                gone.release()
        if not self._directories:
            causes = "; ".join(f"{one.directory}: {one.message}: {one.error}" for one in self.failures.failures)
            raise KafkaStorageError(f"No log directory is left: all of them failed. {causes}")

    def _fail(self, directory: str, message: str, error: OSError) -> None:
        self.failures.maybe_add_offline_log_dir(directory, message, error)

    # ---- metrics -----------------------------------------------------------------------------------------------------

    @property
    def running_tasks(self) -> list[tuple[str, int]]:
        """The tasks that run now in the manager's own threads: the name, and since when on the monotonic clock."""
        return [] if self._own is None else self._own.running

    def metrics(self) -> dict[MetricName, Reading]:
        """All metrics as they are now, those of the logs and the cleaner too; see `docs/live-log.md` for the names."""
        with self._lock:
            logs = [(name, log, False) for name, log in self._current.items()]
            logs += [(name, log, True) for name, log in self._future.items()]
        found: dict[MetricName, Reading] = dict(manager_metrics.of_logs(logs))
        live, cordoned = self.live_log_dirs, self.cordoned_log_dirs
        found.update(manager_metrics.of_directories(self._paths, live, cordoned))
        found.update(self._loads.metrics())
        found.update(self._stats.read())
        if self.cleaner is not None:
            found.update(self.cleaner.metrics())
        return found


def _copy(current: Log, future: Log) -> None:
    """Append to a future log all that it lacks, flushed on return."""
    if future.log_end_offset < current.log_start_offset or future.log_end_offset > current.log_end_offset:
        future.truncate_fully_and_start_at(current.log_start_offset)
    while future.log_end_offset < (end := current.log_end_offset):
        data = current.read(future.log_end_offset, _COPY_BYTES, FetchIsolation.LOG_END)
        if data.records:
            future.append_as_follower(data.records, _ANY_EPOCH)
        else:
            future.go_on_at(end)  # a clean has left nothing from there on
    future.maybe_increment_high_watermark(future.log_end_offset)
    future.maybe_increment_log_start_offset(current.log_start_offset)
    future.flush(force_active_segment=True)
