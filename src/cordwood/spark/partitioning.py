"""How work is cut: one partition is one task's work, and many small ones are packed into one task.

An empty Spark task costs some milliseconds, so a task per tiny partition would cost more than its work. About four
tasks per core are few enough, and many enough that no core waits long for the last one.
"""

from __future__ import annotations

import functools
import heapq
import os
import pickle
import struct
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from cordwood.cleaning.latest import MemoryShare
from cordwood.cleaning.plan import Decision, Plan, SegmentFacts
from cordwood.errors import CordwoodError, DataError
from cordwood.fs.base import FileSystem, is_full
from cordwood.fs.discarding import DiscardingFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark import checking
from cordwood.spark.planning import clean_settings
from cordwood.spark.progress import Counted
from cordwood.spark.rounds import clean_in_rounds
from cordwood.spark.tasks import Cleaned, CleanSettings, Part, load_producers, segment_facts
from cordwood.storage.copying import Replacement
from cordwood.storage.filenames import WORK_FOLDER
from cordwood.storage.log import Log

if TYPE_CHECKING:
    import pyarrow as pa

TASKS_PER_CORE = 4
#: What a partition costs besides its bytes, in bytes: opening, small files, fsync.
_PARTITION_COST_BYTES = 500_000
#: Where Linux tells a container its limit, or `max`.
_CONTAINER_LIMIT = "/sys/fs/cgroup/memory.max"
#: Partitions up to this size mostly wait for the disk to sync, so that some of them are worked on at a time.
_SMALL_BYTES = 1_000_000
_SMALL_AT_A_TIME = 8
#: Of the rows that tasks return.
RESULT_SCHEMA = "at bigint, outcome binary"

T = TypeVar("T")
#: What `mapInArrow` takes.
Worker = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


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
        part: only some of its groups.
    """

    path: str
    log_start_offset: int
    first_dirty: int
    first_uncleanable: int
    now_ms: int
    settings: CleanSettings
    size_bytes: int = 0
    part: Part | None = None

    @property
    def end(self) -> int:
        """Where the last of the outputs ends, at most."""
        return self.first_uncleanable if self.part is None else self.part.end


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
        segments: what planning would know of them.
    """

    cleaned: Cleaned
    folder: str
    files: tuple[tuple[str, int], ...]
    segments: tuple[SegmentFacts, ...] = ()

    @property
    def replacement(self) -> Replacement:
        """All of it, as it goes into its partition."""
        cleaned = self.cleaned
        return Replacement(
            self.folder,
            tuple(name for name, _ in self.files),
            frozenset(base for group in cleaned.replaced for base in group),
            frozenset(base for group in cleaned.outputs for base in group),
            cleaned.end_offset,
        )


def tasks_of(plan: Plan) -> list[PartitionTask]:
    """The partitions of a plan that are to be cleaned."""
    tasks = []
    memory = MemoryShare(_machine_memory_bytes() // 4 if plan.choices.memory is None else plan.choices.memory)
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
                settings=replace(clean_settings(one, plan.choices), memory=memory),
                # The dirty part twice: for its keys, and to be copied.
                size_bytes=compaction.total_bytes + compaction.cleanable_bytes,
            )
        )
    return tasks


def share_memory(tasks: Sequence[PartitionTask], cores: int) -> list[PartitionTask]:
    """The tasks, each with its part of the memory that all have together: as many run at once as there are cores."""
    at_once = max(1, min(cores, len(tasks)))

    def shared(task: PartitionTask) -> PartitionTask:
        whole = task.settings.memory
        memory = None if whole is None else MemoryShare(whole.size_bytes // at_once, at_once)
        return replace(task, settings=replace(task.settings, memory=memory))

    return [shared(task) for task in tasks]


def _machine_memory_bytes() -> int:
    """What this machine has, or the container that we are in."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with PosixFileSystem().open(_CONTAINER_LIMIT) as file:
            return min(memory, int(file.read(0, 32)))
    except (OSError, ValueError):  # no container, or one without a limit
        return memory


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


def over_rows(
    packs: Sequence[Sequence[tuple[int, T]]], do: Callable[[T], object], is_small: Callable[[T], bool]
) -> Worker:
    """The function that Spark runs over rows of pack numbers; it is pickled, and all that it holds are plain values."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for at, outcome in _outcomes(packs[number], do, is_small):
                    yield _row(at, pickle.dumps(outcome))

    return run


def _row(at: int, outcome: bytes) -> pa.RecordBatch:
    """One row, made of buffers: all other ways make a worker load pandas first, which takes longer than a clean."""
    import pyarrow as pa

    ats = [None, pa.py_buffer(struct.pack("=q", at))]
    outcomes = [None, pa.py_buffer(struct.pack("=2i", 0, len(outcome))), pa.py_buffer(outcome)]
    columns = [pa.Array.from_buffers(pa.int64(), 1, ats), pa.Array.from_buffers(pa.binary(), 1, outcomes)]
    return pa.RecordBatch.from_arrays(columns, ["at", "outcome"])


def _outcomes(
    pack: Sequence[tuple[int, T]], do: Callable[[T], object], is_small: Callable[[T], bool]
) -> Iterator[tuple[int, object]]:
    small = [(at, item) for at, item in pack if is_small(item)]
    # No row goes out before the threads have ended: a generator that is left in the middle must not hold any.
    with ThreadPoolExecutor(_SMALL_AT_A_TIME) as pool:
        outcomes = list(pool.map(do, (item for _, item in small)))
    yield from zip((at for at, _ in small), outcomes, strict=True)
    yield from ((at, do(item)) for at, item in pack if not is_small(item))


def worker(
    packs: Sequence[Sequence[tuple[int, PartitionTask]]], outputs: str | None, progress: str, *, discard: bool = False
) -> Worker:
    """Runs tasks; see `run_task`."""
    do = functools.partial(run_task, outputs=outputs, progress=progress, discard=discard)
    return over_rows(packs, do, lambda task: task.size_bytes <= _SMALL_BYTES)


def checker(tasks: Sequence[PartitionTask]) -> Worker:
    """Is given what a `worker` says of each task, and looks at what it wrote; see `check_output`."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at, outcome in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield _row(at, pickle.dumps(check_output(tasks[at], pickle.loads(outcome))))

    return run


def run_task(
    task: PartitionTask, outputs: str | None, progress: str, fs: FileSystem | None = None, *, discard: bool = False
) -> Output | Failure:
    """Clean one partition into a folder of its own; or into none, to see what would come of it.

    Another attempt at the same task gets another folder, so that one that was given up and still runs harms nobody.

    Args:
        task: what to do.
        outputs: where that folder is made; None: in the work folder of the partition.
        progress: where to say how far it is.
        fs: default: the machine's.
        discard: write nothing.
    """
    attempt = uuid4().hex
    fs = fs or PosixFileSystem()
    counted = Counted(fs, f"{progress}/{attempt}")
    folder = f"{outputs or f'{task.path}/{WORK_FOLDER}'}/{attempt}"
    # A further round reads what the one before it wrote.
    kept = not discard or task.settings.offset_map_slots is not None
    written = counted if kept else DiscardingFileSystem(counted, folder)
    try:
        written.make_directory(folder)
        log = Log(task.path, fs=written, log_start_offset=task.log_start_offset)
        producers = load_producers(log, now_ms=task.now_ms, expiration_ms=task.settings.producer_expiration_ms)
        cleaned = clean_in_rounds(
            log,
            folder,
            first_dirty=task.first_dirty,
            first_uncleanable=task.first_uncleanable,
            now_ms=task.now_ms,
            settings=task.settings,
            producers=producers,
            part=task.part,
        )
        # Its names need not last: the files are renamed to where they belong, and those names do.
        counted.flush()
        files = tuple((info.name, info.size_bytes) for info in written.list(folder))
        after = Log(folder, fs=written, log_start_offset=0)
        return Output(cleaned, folder, files, tuple(map(segment_facts, after.segments)))
    except Exception as error:
        failure = _failure(error, task)
        # What an error holds goes when Python gets round to it. A table of keys must go now: the next needs its room.
        traceback.clear_frames(error.__traceback__)
        return failure


def _failure(error: Exception, task: PartitionTask) -> Failure:
    match error:
        case DataError():
            return Failure(FailureKind.DAMAGE, str(error))
        case CordwoodError():
            return Failure(FailureKind.OTHER, str(error))
        case OSError():
            kind = FailureKind.FULL if is_full(error) else FailureKind.OTHER
            return Failure(kind, f"{error.strerror or error}: {error.filename or task.path}")
        case _:
            return Failure(FailureKind.BUG, f"{type(error).__name__}: {error}", traceback.format_exc())


def check_output(task: PartitionTask, outcome: Output | Failure) -> Output | Failure:
    """Look at what another process wrote for a task; a failure when it is not what that one said."""
    if isinstance(outcome, Failure):
        return outcome
    try:
        found = next(
            checking.faults(PosixFileSystem(), outcome.folder, outcome.files, outcome.cleaned, task.end),
            None,
        )
    except Exception as error:
        return Failure(FailureKind.BUG, f"{type(error).__name__}: {error}", traceback.format_exc())
    if found is None:
        return outcome
    what = f"{task.path}: what was written for it is not what it should be, so it is not used: {found}"
    return Failure(FailureKind.BUG, what)
