"""The live logs of many log directories: loaded, kept, and shut down together.

    manager = LogManager(fs, ["/disk1", "/disk2"], layers)
    with manager:  # startup, and shutdown at the end
        log = manager.get_or_create_log(TopicPartition("orders", 0))
        …

A directory is locked as a broker locks it, so a broker and a manager exclude each other. A directory that fails goes
offline with its logs; the others stay online. The threads of a `LogCleaner` clean compacted logs; if a scheduler is
passed in, one of its tasks cleans them instead.

    pool         the logs by partition, and the locks       creation     loads and creates logs
    directories  locked, live, offline, cordoned            deletion     removes logs, and their files later
    configs      of the broker and of topics                moves        moves logs between directories
    tiering      copies closed segments to a tier
    tasks        retention, flushing, checkpoints           cleaner      compacts

Source: Kafka LogManager; high watermarks are kept as by its ReplicaManager.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Self

from cordwood.common.arguments import AnyPath, checked, text_paths
from cordwood.common.config import BrokerConfig, Layer, resolve, resolve_broker
from cordwood.common.errors import IllegalStateError, KafkaStorageError, LogError, StoreError
from cordwood.common.types import Clock, TopicPartition, system_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.by_url import file_system_for
from cordwood.fs.machine import open_files_max
from cordwood.fs.pooled import PooledFileSystem
from cordwood.live import gauges
from cordwood.live.clean import CleanRunner
from cordwood.live.creation import Creation, DirectoryLoads, LoadedFrom, OnProgress
from cordwood.live.deletion import Deletion
from cordwood.live.directories import LiveDirectory, LogDirectories, LogDirFailure, LogDirFailureChannel
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.manager_configs import Configs
from cordwood.live.manager_tasks import Checkpoints, ManagerTasks
from cordwood.live.metrics import LogStats, MetricName, Reading
from cordwood.live.moves import Moves
from cordwood.live.pool import LogPool
from cordwood.live.scheduler import Scheduler, ThreadScheduler
from cordwood.live.tiering import Tiering
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.index.history import KeyRecord
from cordwood.tasks.engines import Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class LogManager:
    """The logs of one or more log directories; only one thread at a time may start it up or shut it down."""

    def __init__(
        self,
        fs: LocalFileSystem,
        log_dirs: Sequence[AnyPath],
        layers: Iterable[Layer] = (),
        *,
        clock: Clock = system_clock,
        scheduler: Scheduler | None = None,
        spark: SparkSession | None = None,
        engine: str | None = None,
        random: Random | None = None,
        remember_configs: bool = True,
        tier: AnyPath | None = None,
    ) -> None:
        """Prepare the manager; open nothing yet.

        Args:
            scheduler: runs later and periodic tasks; default: threads, while the manager runs.
            spark: session that cleans large logs; None: a session starts with the first large log.
            engine: `spark`, or `here` for a pool of processes; None: Spark if it is installed.
            random: source of the random jitter of segments.
            remember_configs: keep the explicit configs of each log in a file beside it, and use them where `layers` set
                nothing.
            tier: folder or URL for the closed segments of tiered logs (`remote.storage.enable`).

        Raises:
            ConfigError: Kafka would refuse a config.
            ValueError: there is no directory, or a path is empty.
        """
        if isinstance(log_dirs, str):
            raise TypeError(f"log_dirs is a sequence of paths: pass [{log_dirs!r}], not {log_dirs!r}")
        paths = text_paths(log_dirs)
        if not all(paths) or not paths:
            raise ValueError("log_dirs has to name at least one directory, and none may be empty; . is the current one")
        self.failures = LogDirFailureChannel(self._on_failure)
        self._configs = Configs(layers, compacts_tiered=tier is not None)
        self._own: ThreadScheduler | None = None
        if scheduler is None:
            self._own = scheduler = ThreadScheduler(self.config.integer("background.threads"))
        self._scheduler = scheduler
        self._where = Where(engine=engine, spark=spark)
        self._is_started = self._is_shut_down = False
        pooled = PooledFileSystem(fs, open_files_max())
        self._directories = LogDirectories(pooled, paths, self.failures)
        stats = LogStats(scheduler.clock)
        self._pool = LogPool(pooled, self._directories, self._configs, clock, scheduler, stats, random or Random())
        self._pool.remembers_configs = remember_configs
        self.tiering: Tiering | None = None
        self._tier = None if tier is None else text_paths([tier])[0]
        self._pool.has_tier = tier is not None
        self._loads = DirectoryLoads(self.failures)
        self._checkpoints = Checkpoints(self._directories.locked, self._pool.current_logs)
        self._tasks = ManagerTasks(self._pool, self._checkpoints)
        self._creation = Creation(self._pool)
        self._deletion = Deletion(self._pool, self._checkpoints)
        self._deletion.on_deleted = self._delete_from_tier
        moves = Moves(self._pool, self._creation, self._deletion, self._checkpoints)
        # The manager offers these methods of its parts as its own.
        self.topic_config = self._configs.topic
        self.get_log = self._pool.get
        self.get_or_create_log = self._creation.get_or_create_log
        self.maybe_update_preferred_log_dir = self._creation.maybe_update_preferred_log_dir
        self.async_delete = self._deletion.async_delete
        self.async_delete_all = self._deletion.async_delete_all
        self.move_partition = moves.move_partition
        self.is_log_dir_online = self._directories.is_live
        self.directory_id = self._directories.directory_id
        self.read_broker_epoch_from_clean_shutdown_files = self._directories.broker_epoch
        self.checkpoint_high_watermarks = self._tasks.checkpoint_high_watermarks
        self.cleanup_logs = self._tasks.cleanup_logs
        self.checkpoint_log_recovery_offsets = self._tasks.checkpoint_log_recovery_offsets
        self.checkpoint_log_start_offsets = self._tasks.checkpoint_log_start_offsets

    def get(self, partition: TopicPartition, key: bytes | str, *, last: bool = False) -> list[KeyRecord]:
        """Return all records of a key in a partition, in order; empty without this partition. See `Log.get`."""
        log = self.get_log(partition)
        return [] if log is None else log.get(key, last=last)

    # ---- contents ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The broker's configs."""
        return self._configs.broker

    @property
    def cleaner(self) -> LogCleaner | None:
        """Cleans the compacted logs while the manager runs; None if `log.cleaner.enable` is false."""
        return self._pool.cleaner

    @property
    def all_logs(self) -> tuple[Log, ...]:
        """Current and future logs."""
        return self._pool.all

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        """The current logs by their partitions."""
        return dict(self._pool.current_logs())

    @property
    def stray_logs(self) -> dict[TopicPartition, str]:
        """Directories that a broker has set aside because they do not belong on it; they are not loaded."""
        return dict(self._deletion.stray)

    @property
    def live_log_dirs(self) -> tuple[str, ...]:
        """The directories that have not failed."""
        return self._directories.live

    def _delete_from_tier(self, partition: TopicPartition) -> None:
        """Delete a removed log from the tier soon; a failure leaves objects there, and is only logged."""
        if (tiering := self.tiering) is None:
            return

        def delete() -> None:
            try:
                tiering.delete(partition)
            except (OSError, StoreError, LogError):
                _log.exception("%s was not deleted from its tier", partition)

        self._scheduler.schedule("remote-log-delete", delete)

    # ---- start and end -----------------------------------------------------------------------------------------------

    def startup(
        self,
        on_progress: OnProgress | None = None,
        *,
        on_loaded: Callable[[], None] = lambda: None,
        index: bool = False,
    ) -> None:
        """Lock all directories, load all their logs, start the tasks.

        Args:
            on_progress: called with a directory, the number of its loaded logs, and the number of all its logs.
            on_loaded: called when all logs are loaded, before any task changes them.
            index: cleans write key indexes of compacted logs, so that later cleans read only segments that may change.
                Without it they only update existing indexes.

        Raises:
            LockedError: a broker, or another manager, has a directory.
            RequestError, StoreError: the tier cannot be used, or its server does not answer.
            KafkaStorageError: all directories have failed.
            IllegalStateError: a partition is in two directories; or the manager was started before.
            CordwoodError: a log cannot be loaded although its disk works.
        """
        if self._is_started:
            raise IllegalStateError("This LogManager was started before. Start a new one after its shutdown")
        self._is_started = True
        try:
            self._directories.lock_all()
            if self._tier is not None:
                store = file_system_for([self._tier])
                self.tiering = Tiering(self._pool, store, store.absolute_path(self._tier))
                self.tiering.restore(self._directories.live)
            self._load_all(on_progress)
            if self.tiering is not None:
                self.tiering.open_all()
            for failure in self.failures.failures:
                self.handle_log_dir_failure(failure.directory)
            if self.config.flag("log.cleaner.enable"):
                self._pool.cleaner = self._make_cleaner(index=index)
            on_loaded()
        except BaseException:
            self._abandon_logs()
            self._release()
            self._is_started = False
            raise
        if self._own is not None:
            self._own.startup()
        self._tasks.schedule()
        if self.tiering is not None:
            period_ms = self.config.integer("remote.log.manager.task.interval.ms")
            self._scheduler.schedule("remote-log-manager", self.tiering.run, delay_ms=period_ms, period_ms=period_ms)
        initial_delay_ms = self.config.integer("log.initial.task.delay.ms")
        self._scheduler.schedule("kafka-delete-logs", self._deletion.delete_logs, delay_ms=initial_delay_ms)
        if self.cleaner is not None:
            self._start_cleaner(self.cleaner)

    def __enter__(self) -> Self:
        """Start up; the end of the block shuts down."""
        self.startup()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _load_all(self, on_progress: OnProgress | None) -> None:
        threads, directories = self._recovery_threads, list(self._directories.locked.values())

        def load(directory: LiveDirectory) -> None:
            self._loads.load(directory, threads, self._load_one, on_progress)

        try:
            with ThreadPoolExecutor(max(1, len(directories)), "log-loading") as threads_of_directories:
                list(threads_of_directories.map(load, directories))
        finally:
            self._loads.end()
        for partition, log in self._pool.items():
            # Another partition of the topic may have supplied newer configs after this log was loaded.
            log.update_config(self._configs.topic(partition.topic))
            with contextlib.suppress(KafkaStorageError):  # the directory is offline
                self._pool.remember_configs(partition.topic, log)

    def _load_one(self, found: LoadedFrom) -> None:
        """Load a log, and add or delete it, depending on its directory's name; leave a stray one alone."""
        path, name, state = found.partition.path, found.partition.name.topic_partition, found.partition.name.state
        if state is DirectoryState.STRAY:
            self._deletion.stray[name] = path
            return
        if state is not DirectoryState.DELETED:
            self._pool.recall_configs(path, name.topic)
        log = self._creation.open(path, name.topic, found.checkpointed, on_recovered=found.on_recovered)
        if state is DirectoryState.DELETED:
            self._deletion.wait(log)
            return
        if not self._directories.locked[log.parent_directory].is_brokers:
            # This replica is the only one: all its records are committed, as for a broker that leads without followers.
            log.update_high_watermark(log.log_end_offset)
        elif found.high_watermark is not None:
            log.update_high_watermark(found.high_watermark)
        self._pool.add(name, log, is_future=state is DirectoryState.FUTURE)

    @property
    def _recovery_threads(self) -> int:
        return self.config.integer("num.recovery.threads.per.data.dir")

    def _make_cleaner(self, *, index: bool) -> LogCleaner:
        pool, monotonic = self._pool, self._scheduler.clock
        runner = CleanRunner(pool.fs, self._where, index=index, clock=monotonic)
        live = self._directories.live
        return LogCleaner(
            pool.fs,
            self.config,
            live,
            pool.current_logs,
            self.failures,
            pool.clock,
            monotonic,
            runner,
            lambda partition: None if self.tiering is None else self.tiering.status(partition),
        )

    def _start_cleaner(self, cleaner: LogCleaner) -> None:
        def clean() -> None:
            while cleaner.clean_filthiest_log():  # until nothing is due, as in a thread of the cleaner
                pass

        if self._own is not None:
            cleaner.startup()
        else:
            backoff_ms = max(1, self.config.integer("log.cleaner.backoff.ms"))
            self._scheduler.schedule("log-cleaner", clean, period_ms=backoff_ms)

    def shutdown(self, broker_epoch: int = -1, *, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Flush and close all logs; mark each directory without errors as shut down properly.

        Without effect unless the manager runs. Closes all files, including those of deleted logs that wait for removal.

        Args:
            on_wait: called before each step that may take long, with the step's name.
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
        self._tasks.checkpoint_high_watermarks()
        try:
            for directory in list(self._directories.locked.values()):
                self._close(directory, broker_epoch, on_wait)
        finally:
            self._release()
            if self.tiering is not None:
                self.tiering.close()

    def _close(self, directory: LiveDirectory, broker_epoch: int, on_wait: Callable[[str], None]) -> None:
        """Close the logs of a directory, and mark it as shut down properly if all of them succeed."""

        def close(log: Log) -> None:
            log.flush(force_active_segment=True)
            log.close()

        with ThreadPoolExecutor(self._recovery_threads, f"log-closing-{directory.path}") as pool:
            logs = [log for log in self.all_logs if log.parent_directory == directory.path and not log.is_closed]
            errors = []
            for log, closed in [(log, pool.submit(close, log)) for log in logs]:
                on_wait(f"the log {log.name} to be flushed and closed")
                errors += [] if (error := closed.exception()) is None else [error]
        if errors:
            _log.warning("There was an error in one of the threads during LogManager shutdown", exc_info=errors[0])
            return
        on_wait(f"the checkpoints of {directory.path} to be written")
        self._checkpoints.write_offsets(directory.path)
        if directory.was_clean or directory.is_loaded:
            try:
                directory.write_clean_shutdown(broker_epoch)
            except OSError as error:
                self._directories.fail(directory.path, "Disk error while writing the clean shutdown file", error)

    def _abandon_logs(self) -> None:
        """Forget all logs after a failed start."""
        for log in (*self.all_logs, *(deleted.log for deleted in self._deletion.waiting)):
            log.close_handlers()
        for known in (self._pool.current, self._pool.future, self._deletion.stray, self._deletion.waiting):
            known.clear()

    def _release(self) -> None:
        self._pool.fs.close()
        self._directories.release_all()

    # ---- failing directories -----------------------------------------------------------------------------------------

    def _on_failure(self, failure: LogDirFailure) -> None:
        """Schedule the removal of a directory that has just failed, in a thread that holds no lock of a log."""
        _log.error("%s: %s; %s goes offline", failure.message, failure.error, failure.directory)

        def handle() -> None:
            try:
                self.handle_log_dir_failure(failure.directory)
            except KafkaStorageError as error:  # all directories have failed
                _log.critical("%s", error)

        self._scheduler.schedule("handle-log-dir-failure", handle, delay_ms=1)

    def handle_log_dir_failure(self, directory: str) -> None:
        """Drop a failed directory with its logs; a task calls this soon after the failure.

        Raises:
            KafkaStorageError: all directories have failed.
        """
        path = self._pool.fs.absolute_path(directory)
        with self._pool.creation:
            if self.cleaner is not None:
                self.cleaner.manager.handle_log_dir_failure(path)
            self._deletion.forget_all_in(path)
            for log in self._pool.pop_all_in(path):
                log.close_handlers()
            self._directories.drop(path)
        self._directories.check_some_left()

    # ---- truncating --------------------------------------------------------------------------------------------------

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Truncate logs, and write the recovery points of their directories; unknown partitions are skipped."""
        touched = set()
        for partition, offset in offsets.items():
            log = self.get_log(partition, is_future=is_future)
            if log is not None:
                below = offset < log.active_segment.base_offset
                with self._cleaning_paused(partition, log, when=below and not is_future):
                    if log.truncate_to(offset):
                        touched.add(log.parent_directory)
        self._checkpoints.write(touched, filenames.RECOVERY_POINTS)

    def truncate_fully_and_start_at(
        self, partition: TopicPartition, offset: int, *, is_future: bool = False, log_start_offset: int | None = None
    ) -> None:
        """Remove all records of a log, and continue at an offset."""
        log = self.get_log(partition, is_future=is_future)
        if log is not None:
            with self._cleaning_paused(partition, log, when=not is_future):
                log.truncate_fully_and_start_at(offset, log_start_offset)
            self._checkpoints.write([log.parent_directory], filenames.RECOVERY_POINTS)

    @contextlib.contextmanager
    def _cleaning_paused(self, partition: TopicPartition, log: Log, *, when: bool) -> Iterator[None]:
        """Pause the cleans of a log that is truncated in the block; then lower its checkpoint to the active segment."""
        if not when:
            yield
            return
        with self._pool.paused(partition) as cleaner:
            yield
            if cleaner is not None:
                base = log.active_segment.base_offset
                cleaner.manager.maybe_truncate_checkpoint(log.parent_directory, partition, base)

    # ---- cleaning ----------------------------------------------------------------------------------------------------

    def abort_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, which can no longer change its log on return; see `LogCleanerManager.abort_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.abort_cleaning(partition)

    def abort_and_pause_cleaning(self, partition: TopicPartition) -> None:
        """Stop a clean, and prevent further cleans; see `LogCleanerManager.abort_and_pause_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.abort_and_pause_cleaning(partition)

    def resume_cleaning(self, partition: TopicPartition) -> None:
        """Undo one pause; see `LogCleanerManager.resume_cleaning`."""
        if self.cleaner is not None:
            self.cleaner.resume_cleaning([partition])

    # ---- configs -----------------------------------------------------------------------------------------------------

    def update_topic_config(self, topic: str, texts: Mapping[str, str | int]) -> None:
        """Replace a topic's own configs; its logs use them at once. They take precedence over the manager's `layers`.

        Remembered configs of this topic are forgotten.

        Raises:
            TypeError: a value is neither text nor a whole number.
            ConfigError: Kafka would refuse a name or a value; nothing has changed.
        """
        checked("texts", Mapping[str, str | int], texts)
        with self._pool.lock:
            layers = self._configs.with_topic(topic, {name: str(value) for name, value in texts.items()})
            resolve(topic, layers, compacts_tiered=self._tier is not None)
            self._configs.forget(topic)
            self._configs.use(layers)
            known = [(partition, log) for partition, log in self._pool.items() if partition.topic == topic]
        self._update(known)

    def reconfigure(self, layers: Iterable[Layer]) -> None:
        """Replace the configs of the broker and of topics; the cleaner and the logs use theirs at once.

        Raises:
            ConfigError: Kafka would refuse a value; nothing has changed.
        """
        layers = list(layers)
        broker, before = resolve_broker(layers), self.config
        topics = {partition.topic for partition, _ in self._pool.items()}
        for topic in topics:
            self._configs.resolved(topic, layers)
        if self.cleaner is not None:
            self.cleaner.validate_reconfiguration(broker)
            if any(before[name].value != broker[name].value for name in self.cleaner.reconfigurable_configs):
                self.cleaner.reconfigure(before, broker)
        with self._pool.lock:
            self._configs.forget_given(topics)
            self._configs.use(layers, broker)
            known = self._pool.items()
        self._update(known)

    def _update(self, logs: Iterable[tuple[TopicPartition, Log]]) -> None:
        """Apply the current topic configs to logs."""
        for partition, log in logs:
            was_compacted, config = log.config.compact, self._configs.topic(partition.topic)
            log.update_config(config)
            if self.cleaner is not None:
                # A clean that has failed may succeed with new configs.
                self.cleaner.manager.mark_partition_cleanable(log.parent_directory, partition)
                if was_compacted and not config.compact:
                    self.cleaner.abort_cleaning(partition)
            self._pool.remember_configs(partition.topic, log)

    # ---- metrics -----------------------------------------------------------------------------------------------------

    @property
    def running_tasks(self) -> list[tuple[str, int]]:
        """Running tasks in the manager's own threads: each name with its start on the monotonic clock."""
        return [] if self._own is None else self._own.running

    def metrics(self, *, of_logs: bool = True) -> dict[MetricName, Reading]:
        """Return all current metrics, including the cleaner's; for the names see `docs/run.md`.

        Args:
            of_logs: include the gauges of each log.
        """
        pool, directories = self._pool, self._directories
        with pool.lock:
            logs = [(name, log, False) for name, log in pool.current.items()]
            logs += [(name, log, True) for name, log in pool.future.items()]
        found: dict[MetricName, Reading] = dict(gauges.of_logs(logs if of_logs else ()))
        cordoned = directories.cordoned(self.config)
        found.update(gauges.of_directories(directories.paths, directories.live, cordoned))
        found.update(self._loads.metrics())
        found.update(pool.stats.read())
        if self.cleaner is not None:
            found.update(self.cleaner.metrics())
        if self.tiering is not None:
            found.update(self.tiering.metrics())
        return found
