"""How work is cut: one partition is one task's work, and many small ones are packed into one task.

An empty Spark task costs some milliseconds, so a task per tiny partition would cost more than its work. About four
tasks per core are few enough, and many enough that no core waits long for the last one.
"""

from __future__ import annotations

import heapq
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import uuid4

from cordwood.cleaning.plan import Decision, Plan
from cordwood.errors import CordwoodError, DataError
from cordwood.fs.base import FileSystem, is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.planning import clean_settings
from cordwood.spark.progress import Counted
from cordwood.spark.tasks import Cleaned, CleanSettings, clean_partition, load_producers
from cordwood.storage.log import Log

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_PER_CORE = 4
#: What a partition costs besides its bytes, in bytes: opening, small files, fsync.
_PARTITION_COST_BYTES = 500_000
#: Of the rows that tasks return.
RESULT_SCHEMA = "at bigint, outcome binary"


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """All that a task needs to clean a partition.

    Attributes:
        path: of the partition's directory.
        log_start_offset: of the log.
        first_dirty, first_uncleanable: the range that keys are taken from.
        now_ms: the time of the clean.
        settings: the configs that it goes by.
        size_bytes: what will be read, about.
    """

    path: str
    log_start_offset: int
    first_dirty: int
    first_uncleanable: int
    now_ms: int
    settings: CleanSettings
    size_bytes: int = 0


class FailureKind(StrEnum):
    """Why a partition was not cleaned."""

    DAMAGE = "damage"
    FULL = "full"  #: no space on the disk that is written to
    OTHER = "other"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Failure:
    """A partition that could not be cleaned. Nothing that was written for it counts.

    Attributes:
        kind: of failure.
        what: in words, with the place.
        detail: where in our code, for a bug.
    """

    kind: FailureKind
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """A partition that was cleaned.

    Attributes:
        cleaned: what was done.
        folder: where the new segments are.
        files: (name, bytes) of them.
    """

    cleaned: Cleaned
    folder: str
    files: tuple[tuple[str, int], ...]


def tasks_of(plan: Plan) -> list[PartitionTask]:
    """The partitions of a plan that are to be cleaned."""
    tasks = []
    for one in plan.of(Decision.CLEAN):
        assert one.compaction is not None, "or there would be nothing to clean"
        compaction = one.compaction
        tasks.append(
            PartitionTask(
                path=one.path,
                log_start_offset=one.log_start_offset,
                first_dirty=compaction.range.first_dirty_offset,
                first_uncleanable=compaction.range.first_uncleanable_offset,
                now_ms=plan.now_ms,
                settings=clean_settings(one),
                # The dirty part twice: for its keys, and to be copied.
                size_bytes=compaction.total_bytes + compaction.cleanable_bytes,
            )
        )
    return tasks


def pack(tasks: Sequence[PartitionTask], cores: int) -> list[list[int]]:
    """Share out partitions by their bytes: the largest first, each to whom has the least.

    Returns:
        per Spark task the indexes of its partitions.
    """
    count = min(len(tasks), TASKS_PER_CORE * max(1, cores))
    packs: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, at) for at in range(count)]
    for index in sorted(range(len(tasks)), key=lambda at: -tasks[at].size_bytes):
        load, at = loads[0]
        packs[at].append(index)
        heapq.heapreplace(loads, (load + tasks[index].size_bytes + _PARTITION_COST_BYTES, at))
    return packs


def worker(
    packs: Sequence[Sequence[tuple[int, PartitionTask]]], outputs: str, progress: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark runs over rows of pack numbers; it is pickled, and all that it holds are plain values."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                for at, task in packs[number]:
                    outcome = pickle.dumps(run_task(task, outputs, progress))
                    yield pa.RecordBatch.from_arrays([pa.array([at]), pa.array([outcome])], ["at", "outcome"])

    return run


def run_task(task: PartitionTask, outputs: str, progress: str, fs: FileSystem | None = None) -> Output | Failure:
    """Clean one partition into a folder of its own.

    Another attempt at the same task gets another folder, so that one that was given up and still runs harms nobody.
    """
    attempt = uuid4().hex
    fs = fs or PosixFileSystem()
    counted = Counted(fs, f"{progress}/{attempt}")
    folder = f"{outputs}/{attempt}"
    try:
        fs.make_directory(folder)
        log = Log(task.path, fs=counted, log_start_offset=task.log_start_offset)
        producers = load_producers(log, now_ms=task.now_ms, expiration_ms=task.settings.producer_expiration_ms)
        cleaned = clean_partition(
            log,
            folder,
            first_dirty=task.first_dirty,
            first_uncleanable=task.first_uncleanable,
            now_ms=task.now_ms,
            settings=task.settings,
            producers=producers,
        )
        fs.sync_directory(folder)
        counted.flush()
        return Output(cleaned, folder, tuple((info.name, info.size_bytes) for info in fs.list(folder)))
    except DataError as error:
        return Failure(FailureKind.DAMAGE, str(error))
    except CordwoodError as error:
        return Failure(FailureKind.OTHER, str(error))
    except OSError as error:
        kind = FailureKind.FULL if is_full(error) else FailureKind.OTHER
        return Failure(kind, f"{error.strerror or error}: {error.filename or task.path}")
    except Exception as error:
        return Failure(FailureKind.BUG, f"{type(error).__name__}: {error}", traceback.format_exc())
