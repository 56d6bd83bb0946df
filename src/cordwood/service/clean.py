"""Cleans one live log: the engine writes new segments beside it, then they take the places of the old ones.

    task      the segments of the range are closed, and nobody changes them; producers are those in memory
    run       in this process, or on Spark: see `Run`. Outputs are in the partition's work folder
    check     what was written is read once more
    swap      group by group, under the log's lock; between groups an abort is noticed

An abort or a failure leaves the log as it was, or with some groups swapped in, each of which is whole.

Source: Kafka Cleaner.doClean, LogCleaner.CleanerThread.cleanLog.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from cordwood.cleaning.rewrite import Counts
from cordwood.config import LONG_MAX
from cordwood.engine.settings import CleanSettings
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask, check_output, run_task
from cordwood.errors import CleanFailedError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.checked import Check, CheckedFileSystem
from cordwood.fs.throttled import Limit, throttled
from cordwood.service.cleaner_manager import LogToClean
from cordwood.service.log import Log
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.storage.log.files import remove_tree
from cordwood.storage.log.producers import Producers
from cordwood.storage.log.segment_writer import IndexLimits

_log = logging.getLogger(__name__)
#: The folder, in that of the outputs, in which a task says how far it is.
PROGRESS = "progress"


class Run(Protocol):
    """Runs the task of a clean."""

    def __call__(self, task: PartitionTask, outputs: str, check: Check) -> Output | Failure:
        """Clean, and look at what was written.

        Args:
            task: what to clean.
            outputs: folder for what is written.
            check: to be called at least every few MiB.
        """
        ...


@dataclass(frozen=True, slots=True)
class CleanedLog:
    """What a clean of a live log did.

    Attributes:
        end_offset: the new first dirty offset.
        counts: of records, batches and bytes.
    """

    end_offset: int
    counts: Counts


def clean_log(
    fs: LocalFileSystem, found: LogToClean, now_ms: int, run: Run, check: Check, *, strict_kafka: bool = False
) -> CleanedLog:
    """Clean a live log.

    Args:
        fs: where the log is.
        found: what the clean goes over; the log is in progress.
        now_ms: the time of the clean.
        run: runs the task.
        check: raises once the clean has to stop.
        strict_kafka: fail where Kafka's cleaner fails for good.

    Raises:
        LogCleaningAbortedError: `check` raised it.
        CleanFailedError: the log cannot be cleaned, with the reason.
        KafkaStorageError: the disk failed while the new segments were swapped in.
    """
    log = found.log
    folder = f"{log.directory}/{WORK_FOLDER}"
    with contextlib.suppress(FileNotFoundError):
        remove_tree(fs, folder)  # what a clean left that was killed
    fs.make_directory(folder)
    try:
        check()
        outcome = run(task_of(fs, found, now_ms, strict_kafka=strict_kafka), folder, check)
        check()
        if isinstance(outcome, Failure):
            if outcome.detail:
                _log.error("%s", outcome.detail)
            raise CleanFailedError(outcome.what, is_disk_full=outcome.kind is FailureKind.FULL)
        for replacement in outcome.by_group():
            check()
            log.swap_in(replacement)
        return CleanedLog(outcome.cleaned.end_offset, outcome.cleaned.counts)
    finally:
        # Tasks that still run find their folder gone, and end.
        with contextlib.suppress(OSError):
            remove_tree(fs, folder)


def run_here(task: PartitionTask, outputs: str, check: Check, limit: Limit | None = None) -> Output | Failure:
    """Run a task in this thread; see `Run`.

    Args:
        task, outputs, check: see there.
        limit: of what is read and written.
    """
    fs = CheckedFileSystem(throttled(task.location.open(), limit), check)
    progress = f"{outputs}/{PROGRESS}"
    fs.make_directory(progress)
    task = replace(task, location=fs.location())
    return check_output(task, run_task(task, outputs, progress))


def task_of(fs: LocalFileSystem, found: LogToClean, now_ms: int, *, strict_kafka: bool = False) -> PartitionTask:
    """The clean as a task; see `clean_log`."""
    log = found.log
    config = log.config
    return PartitionTask(
        location=fs.location(),
        path=log.directory,
        log_start_offset=log.log_start_offset,
        first_dirty=found.first_dirty_offset,
        first_uncleanable=found.first_uncleanable_offset,
        now_ms=now_ms,
        settings=CleanSettings(
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index=IndexLimits(interval_bytes=config.index_interval_bytes, size_bytes=config.segment_index_bytes),
            deletes_for_good=log.deletes_for_good,
            strict_kafka=strict_kafka,
        ),
        size_bytes=2 * found.total_bytes,
        producers=producers_of(log),
    )


def producers_of(log: Log) -> Producers:
    """The producers that may write again, as they are now."""
    # None has expired: a task of the log forgets those.
    return Producers.of(log.producer_entries(), now_ms=0, expiration_ms=LONG_MAX)
