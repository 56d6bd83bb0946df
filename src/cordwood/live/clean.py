"""Cleans one live log: the engine writes new segments beside it, and they replace the old ones.

    task      the segments of the range are closed and do not change; the producers come from memory
    run       in this thread, or as tasks of an engine: `CleanRunner`. All output is in this clean's own folder
    check     reads the output once more
    replace   group by group, under the log's lock, with the key indexes: `put_in_place`; an abort takes effect between
              groups

An abort or a failure leaves the log unchanged, or with some groups swapped in, each of them whole. Then the folder is
removed, which ends tasks that still write there. Every clean of a log has a new folder.

Source: Kafka Cleaner.doClean, LogCleaner.CleanerThread.cleanLog.

The thread itself cleans small logs, even if many are due: Spark takes seconds to start, and `log.cleaner.threads` can
add threads. A larger log is cleaned by as many tasks as the machine has cores, on Spark or, without Spark, in a pool of
processes. If the engine fails, the thread cleans the log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Self

from cordwood.cleaning.engine.division import with_probing
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.progress import total
from cordwood.cleaning.engine.task import (
    PROGRESS,
    Failure,
    FailureKind,
    Output,
    PartitionTask,
    check_output,
    put_in_place,
    run_task,
)
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.cleaning.rules.offset_map import SLOT_BYTES, slots_of
from cordwood.cleaning.rules.plan import Threshold
from cordwood.cleaning.rules.rewrite import Counts
from cordwood.common.config import LONG_MAX, BrokerConfig
from cordwood.common.errors import CleanFailedError, RequestError
from cordwood.common.types import Clock, monotonic_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.machine import memory_bytes
from cordwood.fs.paced import Check, Limit, checked, throttled
from cordwood.live import work_folder
from cordwood.live.log import Log
from cordwood.live.log_to_clean import LogToClean
from cordwood.live.metrics import Meter
from cordwood.live.tiered_clean import put_in_tier
from cordwood.live.tiered_log import TieredLog
from cordwood.storage.index.build import new_secret
from cordwood.storage.index.files import secret_of_most
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.recovery.replay import Producers
from cordwood.tasks.engines import Where
from cordwood.tasks.runner import Runner, looked_at
from cordwood.tasks.spark.runner import SessionRunner, SparkRunner
from cordwood.tasks.tasks import Jobs

_log = logging.getLogger(__name__)

#: Bytes of a log that a clean in a thread keeps in memory between its two passes, so that it reads them only once; at
#: most a quarter of the memory for keys.
_READ_MEMORY_BYTES = 64 << 20

#: Returns a context manager for a `with` block in which the clean cannot be aborted.
Changing = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """The memory limit for the keys of one clean.

    Attributes:
        load_factor: fill limit of Kafka's offset map, which ends a round once this share of it is full. Set only if
            `log.cleaner.dedupe.buffer.size` is set explicitly; None: a key table without a limit on the number of keys.
    """

    size_bytes: int = 1 << 62
    load_factor: float | None = None

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Return the memory of one cleaner thread; by default, all threads share a quarter of the machine's memory."""
        threads, buffer = config.integer("log.cleaner.threads"), config["log.cleaner.dedupe.buffer.size"]
        if not buffer.explicit:
            return cls(memory_bytes() // 4 // threads)
        slots = slots_of(config.integer("log.cleaner.dedupe.buffer.size") // threads)
        return cls(SLOT_BYTES * slots, config.real("log.cleaner.io.buffer.load.factor"))

    def applied_to(self, settings: CleanSettings) -> CleanSettings:
        """Return the settings with this memory as their limit."""
        if self.load_factor is None:
            return replace(settings, memory=MemoryShare(self.size_bytes))
        slots = self.size_bytes // SLOT_BYTES
        return replace(settings, offset_map_slots=slots, offset_map_load_factor=self.load_factor)


@dataclass(frozen=True, slots=True)
class CleanedLog:
    """The result of a clean of a live log.

    Attributes:
        end_offset: the new first dirty offset.
        key_share: the used part of the memory for keys, at most 1.0.
    """

    end_offset: int
    counts: Counts
    key_share: float


class LiveClean:
    """One clean of a live log, for a `with` block: its folder, its task, and the swap of its output.

    Attributes:
        found: the range of the clean; the log's state is "in progress".
        check: raises an error once the clean must stop.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        found: LogToClean,
        now_ms: int,
        check: Check,
        memory: KeyMemory = KeyMemory(),
        *,
        strict_kafka: bool = False,
        index: bool = False,
        tiered: TieredLog | None = None,
    ) -> None:
        """Prepare the task; create no files yet.

        Args:
            tiered: the log in its tier; None if it has none.
            strict_kafka: fail where every clean of Kafka's cleaner fails; see `Rules`.
            index: write key indexes even if the log has none.
        """
        self.found = found
        self.check = check
        self._fs = fs
        self._memory = memory
        self._now_ms = now_ms
        self._tiered = tiered
        self.folder = work_folder.new_folder(found.log.directory)
        self.task = replace(
            _task_of(fs, found, now_ms, memory, strict_kafka=strict_kafka, index=index),
            work=self.folder,
        )
        self._counted_bytes = 0

    def __enter__(self) -> Self:
        work_folder.make(self._fs, self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Remove the folder; tasks that still run fail because it is missing."""
        work_folder.remove(self._fs, self.folder)

    def newly_read_bytes(self) -> int:
        """Return the bytes of the log that the tasks have read since the last call."""
        before, self._counted_bytes = self._counted_bytes, max(self._counted_bytes, self.bytes_read())
        return self._counted_bytes - before

    def bytes_read(self) -> int:
        """Return the bytes of the log that the tasks have reported as read; 0 once the folder is removed."""
        with contextlib.suppress(FileNotFoundError):
            return total(self._fs, f"{self.folder}/{PROGRESS}")
        return 0

    def finish(self, outcome: Output | Failure, changing: Changing = nullcontext) -> CleanedLog:
        """Swap in the output of the task.

        Args:
            changing: wraps the change of each group; raises once the clean must stop.

        Raises:
            LogCleaningAbortedError: the clean must stop. The task may have failed for this reason.
            CleanFailedError: the log cannot be cleaned, with the reason.
            KafkaStorageError: the disk failed while the new segments were swapped in.
        """
        self.check()
        if isinstance(outcome, Failure):
            if outcome.detail:
                _log.error("%s", outcome.detail)
            raise CleanFailedError(outcome.what, outcome.kind)
        fs, swap_in, rest = self._fs, self.found.log.swap_in, outcome
        # No segment that is about to be replaced on the disk may be copied meanwhile.
        with nullcontext() if (tiered := self._tiered) is None else tiered.lock:
            if tiered is not None:
                rest = put_in_tier(fs, tiered, self.task, outcome, self._now_ms, self.check, changing)
                rest = replace(rest, indexes=tiered.key_indexes.take_over(rest.indexes, tiered.state.segments))
            put_in_place(fs, self.task, rest, swap_in, changing=changing)
            if tiered is not None:
                tiered.key_indexes.adopt(tiered.state.segments)
                tiered.key_indexes.sweep(tiered.state.segments)
        cleaned = outcome.cleaned
        share = min(1.0, cleaned.key_bytes / max(self._memory.size_bytes, 1))
        return CleanedLog(cleaned.end_offset, cleaned.counts, share)


def run_here(task: PartitionTask, check: Check, limit: Limit | None = None) -> Output | Failure:
    """Run the task of a clean in this thread, and check its output.

    Args:
        check: called at least every few MiB; an error that it raises fails the task.
    """
    work = task.work
    assert work is not None, "a clean has a folder"
    fs = checked(throttled(task.location.open(), limit), check)
    settings, read_memory_bytes = task.settings, _READ_MEMORY_BYTES
    if settings.offset_map_slots is not None:
        read_memory_bytes = 0  # each round reads other files
    elif settings.memory is not None:
        read_memory_bytes = min(read_memory_bytes, settings.memory.size_bytes // 4)
    task = replace(task, location=fs.location(), read_memory_bytes=read_memory_bytes)
    return check_output(task, run_task(task, None, work), work)


def _task_of(
    fs: LocalFileSystem,
    found: LogToClean,
    now_ms: int,
    memory: KeyMemory,
    *,
    strict_kafka: bool = False,
    index: bool = False,
) -> PartitionTask:
    """Return the clean as a task; see `LiveClean`."""
    log = found.log
    config = log.config
    settings = CleanSettings(
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index=IndexLimits(interval_bytes=config.index_interval_bytes, size_bytes=config.segment_index_bytes),
        deletes_for_good=log.deletes_for_good,
        threshold=Threshold(
            cleanable_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
        ),
        strict_kafka=strict_kafka,
    )
    known = secret_of_most(fs, log.directory)
    store = fs if log.remote is None else log.remote.beside(fs, log.directory)
    task = PartitionTask(
        location=store.location(),
        path=log.directory,
        log_start_offset=log.log_start_offset,
        first_dirty=settings.precedence.first_superseding(found.first_dirty_offset, log.log_start_offset),
        first_uncleanable=found.first_uncleanable_offset,
        now_ms=now_ms,
        settings=memory.applied_to(settings),
        size_bytes=2 * found.total_bytes,
        dirty_part=found.cleanable_ratio,
        index_secret=known,
        fresh_secret=new_secret() if index or known is not None else None,
        producers=_producers_of(log),
    )
    return with_probing(task, 1)


def _producers_of(log: Log) -> Producers:
    """Return the current producers of the log, except expired ones."""
    # At time 0 no producer is expired: a periodic task of the log has removed the expired ones.
    return Producers.of_snapshot(log.producer_rows(), now_ms=0, expiration_ms=LONG_MAX)


# ---- runner ----------------------------------------------------------------------------------------------------------

#: Logs of at least this size are cleaned by tasks: one thread would take longer than the start of a job.
TASKS_BYTES_MIN = 256 << 20


class CleanTraffic:
    """The bytes that cleans have read from the disk or its cache, and written to it.

    Attributes:
        read, written: bytes, including key indexes.
        new: dirty bytes at the start of each clean; in the long run, the bytes appended to compacted logs.
        removed: bytes by which the logs shrank.
    """

    def __init__(self) -> None:
        self.read = self.written = self.new = self.removed = 0
        self._adding = threading.Lock()

    def add(self, *, read: int = 0, written: int = 0, new: int = 0, removed: int = 0) -> None:
        """Add to the counts."""
        with self._adding:
            self.read += read
            self.written += written
            self.new += new
            self.removed += removed


class CleanRunner:
    """Runs the cleans of all threads of a cleaner.

    Attributes:
        limit: shared limit on bytes read and written; None: unlimited.
        io: counts bytes of batches that are read and written.
        traffic: totals of all cleans so far.
        index: write key indexes for logs without them.
    """

    def __init__(
        self,
        fs: LocalFileSystem,
        where: Where = Where(),  # noqa: B008 - a frozen value
        tasks_bytes_min: int = TASKS_BYTES_MIN,
        *,
        index: bool = False,
        clock: Clock = monotonic_clock,
    ) -> None:
        """Store the settings; start nothing yet.

        Args:
            where: the engine for tasks; it starts with the first job.
            tasks_bytes_min: smallest size of a log that is cleaned by tasks.
        """
        self.limit: Limit | None = None
        self.io = Meter(clock)
        self.traffic = CleanTraffic()
        self.index = index
        self._fs = fs
        self._where, self._tasks_bytes_min = where, tasks_bytes_min
        self._given: Runner | None = None if where.spark is None else SessionRunner(where.spark)
        self._runner: Runner | None = self._given
        #: Held while the engine starts, and while a broken engine is closed.
        self._starting = threading.Lock()
        self._open = ExitStack()
        #: The reason why no engine can run here; once set, the start is not tried again.
        self._missing = "other processes cannot open this file system" if fs.location().in_this_process else ""

    def close(self) -> None:
        """Stop the engine, unless it is the user's session. Call it only while no clean runs."""
        self._open.close()
        self._runner = self._given

    def run(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        """Run a clean in this thread or by tasks, depending on its size.

        Args:
            stop: called repeatedly; an error that it raises ends the clean.
            name: name of the thread; Spark shows it, and gives each thread its share of the cores.

        Returns:
            the outcome; a Failure if the clean was aborted meanwhile.
        """
        outcome: Output | Failure | None = None
        if clean.found.total_bytes >= self._tasks_bytes_min and not self._missing:
            outcome = self._run_by_tasks(clean, stop, name)
        if outcome is None:
            outcome = self._run_here(clean, stop, name)
        written_bytes = 0 if isinstance(outcome, Failure) else outcome.cleaned.counts.bytes_written
        self.io.mark(self._read_by(clean) + written_bytes)
        if isinstance(outcome, Output):
            sizes = [self._fs.stat(path).size_bytes for path in outcome.indexes]
            self.traffic.add(
                written=sum(sizes, sum(size for _, size in outcome.files)), new=clean.found.cleanable_bytes
            )
        return outcome

    def _read_by(self, clean: LiveClean) -> int:
        """Return the bytes that a clean has read since the last call, and add them to `traffic`."""
        read = clean.newly_read_bytes()
        self.traffic.add(read=read)
        return read

    def _run_here(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure:
        def check() -> None:
            stop()
            clean.check()

        outcome = run_here(clean.task, check, self.limit)
        stop()
        if isinstance(outcome, Failure) and outcome.kind is FailureKind.MEMORY and not self._missing:
            return self._run_by_tasks(clean, stop, name) or outcome  # in stages, which take less memory
        return outcome

    def _run_by_tasks(self, clean: LiveClean, stop: Check, name: str) -> Output | Failure | None:
        """Run the clean as tasks of the engine; return None if no engine is usable or the job failed."""
        runner = self._started()
        if runner is None or (self.limit is not None and not runner.is_on_this_machine):
            return None  # other machines do not see the counters of the limit
        what = f"clean {clean.task.path}"
        spark = runner if isinstance(runner, SparkRunner) else None

        def start(_: Sequence[int]) -> AbstractContextManager[Runner]:
            return nullcontext(runner)

        def look(_: object) -> None:
            stop()
            clean.check()
            self.io.mark(self._read_by(clean))

        try:
            with (
                nullcontext() if spark is None else spark.named(name, what),
                looked_at(look),
                # Tasks see the segments that are in a tier, too.
                Jobs(
                    throttled(clean.task.location.open(), self.limit), f"{clean.folder}/{PROGRESS}", start, None
                ) as jobs,
            ):
                return jobs.clean([clean.task], None)[0]
        except Exception:
            look(None)  # raises again if the clean must stop
            engine = "in other processes" if spark is None else "on Spark"
            _log.exception("%s failed %s; the thread %s does it", what, engine, name)
            self._put_away(runner)
            return None

    def _started(self) -> Runner | None:
        with self._starting:
            if self._runner is None and not self._missing:
                try:
                    self._runner = self._open.enter_context(self._where.start())
                except RequestError as error:
                    self._missing = str(error)
                    _log.warning("Without Spark, cleaner threads clean large logs, too: %s", error)
            return self._runner

    def _put_away(self, runner: Runner) -> None:
        """After a failed job, close a dead session so that the next job starts a new one; keep the user's session."""
        if not isinstance(runner, SparkRunner):
            return
        with self._starting:
            if self._runner is runner and self._given is None and not runner.is_alive():
                self._runner = None
                self._open.close()
