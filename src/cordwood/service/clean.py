"""Cleans one live log: the engine writes new segments beside it, and they replace the old ones.

    task      the segments of the range are closed and do not change; producers are those in memory
    run       in this thread, or on Spark: see `clean_runner`. All output goes to a folder of this clean alone
    check     the output is read once more
    swap      group by group, under the log's lock; between groups an abort is noticed
    index     key indexes of the segments as they are now, for the next clean; see `key_indexes`
    remember  what the clean left, if it may leave garbage; see `garbage`

An abort or a failure leaves the log as it was, or with some groups swapped in, each of which is whole. Then the folder
is removed, which ends tasks that still write there. Every clean of a log has another folder.

Source: Kafka Cleaner.doClean, LogCleaner.CleanerThread.cleanLog.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Self

from cordwood.cleaning.key_table import MemoryShare
from cordwood.cleaning.offset_map import SLOT_BYTES, slots_of
from cordwood.cleaning.plan import Threshold
from cordwood.cleaning.rewrite import Counts
from cordwood.config import LONG_MAX, BrokerConfig
from cordwood.engine.division import with_probing
from cordwood.engine.progress import total
from cordwood.engine.settings import CleanSettings
from cordwood.engine.task import PROGRESS, Failure, Output, PartitionTask, check_output, run_task
from cordwood.errors import CleanFailedError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check, checked
from cordwood.fs.machine import memory_bytes
from cordwood.fs.throttled import Limit, throttled
from cordwood.service import garbage, key_indexes, work_folder
from cordwood.service.log import Log
from cordwood.service.log_to_clean import LogToClean
from cordwood.storage.formats.clean_checkpoint import CleanCheckpoint
from cordwood.storage.index.build import new_secret
from cordwood.storage.index.files import remember_clean, secret_of_most
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.recovery.replay import Producers

_log = logging.getLogger(__name__)

#: So much of a log stays in memory between the two passes of a clean in a thread, beside its keys.
READ_MEMORY_BYTES = 64 << 20

#: In the block, the clean cannot be aborted.
Changing = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class KeyMemory:
    """The memory that the keys of one clean may take.

    Attributes:
        load_factor: `log.cleaner.dedupe.buffer.size` is set explicitly, so keys go to Kafka's offset map, which ends a
            round once this part of it is full; None: any number of keys.
    """

    size_bytes: int = 1 << 62
    load_factor: float | None = None

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """The memory that a broker's configs give to each thread; by default a quarter of the machine's in all."""
        threads, buffer = config.integer("log.cleaner.threads"), config["log.cleaner.dedupe.buffer.size"]
        if not buffer.explicit:
            return cls(memory_bytes() // 4 // threads)
        slots = slots_of(config.integer("log.cleaner.dedupe.buffer.size") // threads)
        return cls(SLOT_BYTES * slots, config.real("log.cleaner.io.buffer.load.factor"))

    def applied_to(self, settings: CleanSettings) -> CleanSettings:
        """The settings, with this memory as their limit."""
        if self.load_factor is None:
            return replace(settings, memory=MemoryShare(self.size_bytes))
        slots = self.size_bytes // SLOT_BYTES
        return replace(settings, offset_map_slots=slots, offset_map_load_factor=self.load_factor)


@dataclass(frozen=True, slots=True)
class CleanedLog:
    """The result of a clean of a live log.

    Attributes:
        checkpoint: the first dirty offset for a cleaner that knows nothing of what was left; else the end.
        key_share: the part of the memory for keys that it used; 1.0 at most.
        left: where the next clean begins, and what was left; None: nothing.
    """

    end_offset: int
    checkpoint: int
    counts: Counts
    key_share: float
    left: CleanCheckpoint | None = None


class LiveClean:
    """One clean of a live log, for a `with` block: its folder, its task, and the swap of its output.

    Attributes:
        found: the range of the clean; the log is in progress.
        check: raises once the clean must stop.
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
    ) -> None:
        """Nothing is made yet.

        Args:
            strict_kafka: fail where Kafka's cleaner fails for good.
            index: make key indexes even if the log has none.
        """
        self.found = found
        self.check = check
        self._fs = fs
        self._memory = memory
        self.folder = work_folder.new_folder(found.log.directory)
        self.task = replace(
            task_of(fs, found, now_ms, memory, strict_kafka=strict_kafka, index=index),
            work=self.folder,
        )
        self._counted_bytes = 0

    def __enter__(self) -> Self:
        work_folder.make(self._fs, self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Remove the folder; tasks that still run find it gone, and end."""
        work_folder.remove(self._fs, self.folder)

    def newly_read_bytes(self) -> int:
        """How much its tasks have read of the log since this was last asked for."""
        before, self._counted_bytes = self._counted_bytes, max(self._counted_bytes, self.bytes_read())
        return self._counted_bytes - before

    def bytes_read(self) -> int:
        """How much its tasks have read of the log, as far as they have said so; 0 once its folder is gone."""
        with contextlib.suppress(FileNotFoundError):
            return total(self._fs, f"{self.folder}/{PROGRESS}")
        return 0

    def finish(self, outcome: Output | Failure, changing: Changing = nullcontext) -> CleanedLog:
        """Swap in what the task wrote.

        Args:
            changing: for each group; it raises once the clean must stop.

        Raises:
            LogCleaningAbortedError: the clean must stop. Its task may have failed because of that.
            CleanFailedError: the log cannot be cleaned, with the reason.
            KafkaStorageError: the disk failed while the new segments were swapped in.
        """
        self.check()
        if isinstance(outcome, Failure):
            if outcome.detail:
                _log.error("%s", outcome.detail)
            raise CleanFailedError(outcome.what, outcome.kind)
        log = self.found.log
        with changing():
            garbage.forget(self._fs, log.directory)
        for replacement in outcome.by_group():
            with changing():
                key_indexes.forget(self._fs, log.directory, replacement.replaced)
                log.swap_in(replacement)
        if self.task.makes_index:
            with changing():
                bases = [segment.base_offset for segment in log.log_segments]
                key_indexes.take_over(self._fs, log.directory, outcome.indexes, bases)
        cleaned = outcome.cleaned
        with changing():
            left = remember_clean(self._fs, log.directory, cleaned.own_checkpoint)
        share = min(1.0, cleaned.key_bytes / max(self._memory.size_bytes, 1))
        return CleanedLog(cleaned.end_offset, cleaned.checkpoint, cleaned.counts, share, left)


def run_here(
    task: PartitionTask, check: Check, limit: Limit | None = None, read_memory_bytes: int = READ_MEMORY_BYTES
) -> Output | Failure:
    """Run the task of a clean in this thread, and look at what it wrote.

    Args:
        check: is called at least every few MiB; what it raises is the reason why the task fails.
        read_memory_bytes: so much of the log is read once, at most a quarter of what the keys may take. None with
            Kafka's offset map, whose rounds read other files.
    """
    work = task.work
    assert work is not None, "a clean has a folder"
    fs = checked(throttled(task.location.open(), limit), check)
    settings = task.settings
    if settings.offset_map_slots is not None:
        read_memory_bytes = 0
    elif settings.memory is not None:
        read_memory_bytes = min(read_memory_bytes, settings.memory.size_bytes // 4)
    task = replace(task, location=fs.location(), read_memory_bytes=read_memory_bytes)
    return check_output(task, run_task(task, None, work))


def task_of(
    fs: LocalFileSystem,
    found: LogToClean,
    now_ms: int,
    memory: KeyMemory,
    *,
    strict_kafka: bool = False,
    index: bool = False,
) -> PartitionTask:
    """The clean as a task; see `LiveClean`."""
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
    task = PartitionTask(
        location=fs.location(),
        path=log.directory,
        log_start_offset=log.log_start_offset,
        first_dirty=found.first_dirty_offset,
        first_uncleanable=found.first_uncleanable_offset,
        now_ms=now_ms,
        settings=memory.applied_to(settings),
        size_bytes=2 * found.total_bytes,
        dirty_part=found.cleanable_ratio,
        index_secret=known,
        fresh_secret=new_secret() if index or known is not None else None,
        garbage_share=found.garbage_share,
        restart=found.restart,
        producers=producers_of(log),
    )
    may_leave = task.makes_index and task.settings.offset_map_slots is None
    return with_probing(task if may_leave else task.leaving_no_garbage(), 1)


def producers_of(log: Log) -> Producers:
    """The producers that may write again, as they are now."""
    # None has expired: a task of the log forgets those.
    return Producers.of_snapshot(log.producer_rows(), now_ms=0, expiration_ms=LONG_MAX)
