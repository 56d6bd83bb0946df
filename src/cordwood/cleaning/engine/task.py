"""A clean of one partition as a value that any scheduler can run: task, outcome, execution, check, replacement.

The check of a task's outputs runs in another process, before the clean uses any of them. It compares only bytes on disk
with the figures that the task returned: files and their lengths, CRC and position of every batch, sums of batches,
records and bytes, indexes against batches. It shares no code with deciding and writing. If the outputs are proved, the
proof reads their batches and indexes, so that they are read once.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from uuid import uuid4

import numpy as np

from cordwood.cleaning.engine.blobs import LostSectionError
from cordwood.cleaning.engine.facts import clean_settings, segment_facts
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_in_rounds
from cordwood.cleaning.engine.progress import Counted, Counters
from cordwood.cleaning.rules.key_table import MemoryShare, whole_memory
from cordwood.cleaning.rules.plan import Decision, Plan, SegmentFacts
from cordwood.cleaning.rules.waves import disk_bytes
from cordwood.common.errors import CordwoodError, DataError, MemoryNeed, RequestError, StoreError, TooLittleMemoryError
from cordwood.fs.base import LocalFileSystem, Store, TargetStore, is_full
from cordwood.fs.discarding import DiscardingStore
from cordwood.fs.location import Location
from cordwood.fs.paced import WantedLocation
from cordwood.fs.read_once import ReadOnceStore
from cordwood.fs.wrapped import SyncsLater
from cordwood.record.columns import BatchWindow, is_valid
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, Temporary, parse_file
from cordwood.storage.index import files as key_indexes
from cordwood.storage.index.build import new_secret
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Checks, WindowReader
from cordwood.storage.log.written import WrittenSegment

#: Name of the folder, in a task's own folder, for its progress reports.
PROGRESS = "progress"


class Indexes(Enum):
    """Which partitions get key indexes."""

    NONE = "none"
    KEPT_UP = "kept up"  # partitions that already have some
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTask(CleanRequest):
    """A request to clean a partition that any process can run.

    Attributes:
        size_bytes: approximate bytes to read.
        records: maximum number of records to read; None if unknown.
        dirty_part: approximate dirty share of the log; 1 if unknown.
        index_root: see `LogView`.
        transactional: whether there are markers, or data of transactions.
        retained: whether retention follows, which needs the facts of the new segments.
        read_memory_bytes: bytes of the log that are read once, and stay in memory for the second pass.
        work: the task's own folder for outputs, with a folder `PROGRESS` in it; its removal means that the result is
            no longer wanted. None for the folder of all tasks' outputs, or the partition's work folder.
    """

    location: Location[TargetStore]
    path: str
    log_start_offset: int
    size_bytes: int = 0
    records: int | None = None
    dirty_part: float = 1.0
    transactional: bool = True
    retained: bool = False
    read_memory_bytes: int = 0
    index_root: str | None = None
    work: str | None = None

    @property
    def end(self) -> int:
        """Upper bound of the last output's end."""
        return self.first_uncleanable if self.part is None else self.part.end

    @property
    def makes_index(self) -> bool:
        """Whether key indexes are made of the clean's outputs."""
        return self.fresh_secret is not None

    def log(self, fs: Store) -> LogView:
        """Open the partition's log through a file system."""
        return LogView(self.path, fs=fs, log_start_offset=self.log_start_offset, index_root=self.index_root)

    def folder(self, outputs: str | None) -> str:
        """Return the parent folder of its outputs; `outputs`: the folder for all tasks, if there is one."""
        return self.work or outputs or f"{self.path}/{WORK_FOLDER}"

    def progress(self, of_all: str) -> str:
        """Return the folder for its progress reports; `of_all`: the folder for tasks without their own."""
        return of_all if self.work is None else f"{self.work}/{PROGRESS}"

    def at(self, location: Location[TargetStore]) -> PartitionTask:
        """Return the task on another file system. It ends once the task's own folder is removed."""
        return replace(self, location=location if self.work is None else WantedLocation(location, self.work))


class FailureKind(StrEnum):
    """Why a partition was not cleaned."""

    DAMAGE = "damage"
    FULL = "full"  # no space on the target disk
    MEMORY = "memory"  # its keys need more memory than its task may use
    LOST = "lost"  # another task's output for it is missing or damaged
    STORE = "store"  #: the object store failed
    LOCKED = "locked"  #: a broker or another program holds its log directory
    OTHER = "other"
    BUG = "bug"


@dataclass(frozen=True, slots=True)
class Failure:
    """A partition that could not be cleaned. Its outputs are invalid.

    Attributes:
        what: the error in words, with the place.
        detail: the place in our code, for a bug.
        memory: memory needed, if there was too little.
        bytes_needed: space needed on a disk that is too small, if known.
        lost: path of the missing or damaged blob.
        for_all: the part of `what` that is the same for other partitions, which may be reported once for all.
        error: the raised error, if it is a type that users handle.
    """

    kind: FailureKind
    what: str
    detail: str = ""
    memory: MemoryNeed | None = None
    bytes_needed: int | None = None
    lost: str = ""
    for_all: str = ""
    error: Exception | None = field(default=None, repr=False, compare=False)

    def exception(self) -> Exception:
        """Return the exception to raise where a failure cannot be returned as a value."""
        return self.error or RuntimeError(self.detail or self.what)


@dataclass(frozen=True, slots=True)
class Output:
    """A partition that was cleaned.

    Attributes:
        folder: folder of the new segments.
        files: (name, bytes) of each file.
        segments: facts about them, as retention needs them; empty if none follows.
        indexes: paths of key indexes, of the outputs and of segments that stay.
    """

    cleaned: Cleaned
    folder: str
    files: tuple[tuple[str, int], ...]
    segments: tuple[SegmentFacts, ...] = ()
    indexes: tuple[str, ...] = ()

    @property
    def replacement(self) -> Replacement:
        """Return all written files as one replacement in the partition."""
        cleaned = self.cleaned
        return Replacement(
            self.folder,
            tuple(name for name, _ in self.files),
            frozenset(base for replaced, _ in cleaned.written for base in replaced),
            frozenset(base for _, outputs in cleaned.written for base in outputs),
            cleaned.end_offset,
        )

    def by_group(self) -> Iterator[Replacement]:
        """Yield one replacement per written group, in order."""
        for replaced, outputs in self.cleaned.written:
            names = tuple(name for name, _ in self.files if _offset_of(name) in outputs)
            yield Replacement(self.folder, names, frozenset(replaced), frozenset(outputs), self.cleaned.end_offset)

    def split_at(self, offset: int) -> tuple[Output, Output]:
        """Return the output of the groups that begin below an offset, and of all others; both without counts."""
        groups = [*zip(self.cleaned.replaced, self.cleaned.outputs, strict=True)]
        below, rest = ([one for one in groups if (one[0][0] < offset) == is_below] for is_below in (True, False))
        first, second = (
            replace(
                self,
                cleaned=replace(
                    self.cleaned,
                    replaced=tuple(replaced for replaced, _ in some),
                    outputs=tuple(outputs for _, outputs in some),
                    segments=(),
                ),
            )
            for some in (below, rest)
        )
        return first, second

    def group_bytes(self) -> Iterator[int]:
        """Yield the size of each group's outputs on disk; 0 for groups that were not written."""
        for outputs in self.cleaned.outputs:
            yield disk_bytes([size for name, size in self.files if _offset_of(name) in outputs])


def _offset_of(name: str) -> int | None:
    file = parse_file(name)
    return None if file is None else file.offset


def put_in_place(
    fs: LocalFileSystem,
    task: PartitionTask,
    output: Output,
    swap_in: Callable[[Replacement], object],
    *,
    changing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    index_bytes_max: int | None = None,
) -> None:
    """Replace the old segments of a partition, and their key indexes, by a clean's output.

        forget     remove the indexes of a group's old segments; durable before the swap
        swap       replace the segments of the group; then the next group
        remember   once all groups are in place, publish the new indexes; remove the indexes of segments that are gone

    So a crash at any point leaves no new segment beside the index of an old one. A segment without an index only costs
    the next clean a scan. The same holds after an error of the disk in the first and the last step, which is therefore
    ignored: an index that stays although its segment is replaced does not match the new one, and is not used.

    Args:
        swap_in: replaces the segments of one group; durable on return.
        changing: wraps the change of each group, and of the indexes; raises once the clean must stop.
        index_bytes_max: see `limit_indexes`.
    """
    for replacement in output.by_group():
        with changing():
            with contextlib.suppress(OSError):
                for root in {None, task.index_root}:
                    key_indexes.forget_indexes(fs, task.path, replacement.replaced, root)
            swap_in(replacement)
    with changing(), contextlib.suppress(OSError):
        key_indexes.take_over_indexes(fs, task.path, output.indexes, task.index_root)
        parsed = [parse_file(info.name) for info in fs.list(task.path)]
        logs = [file for file in parsed if file is not None and file.kind is FileKind.LOG]
        segments = {file.offset for file in logs if file.temporary is Temporary.NONE}
        key_indexes.remove_indexes(fs, task.path, segments, task.index_root)
        if index_bytes_max is not None:
            key_indexes.limit_indexes(fs, task.path, index_bytes_max, task.index_root)


def tasks_of(
    plan: Plan,
    location: Location[TargetStore],
    indexes: Indexes = Indexes.NONE,
    index_root: str | None = None,
    *,
    retained: bool = False,
) -> list[PartitionTask]:
    """Return tasks for the plan's partitions that are to be cleaned, in the file system at a location.

    Args:
        index_root: see `LogView`.
        retained: see `PartitionTask`.
    """
    tasks = []
    memory, fs = MemoryShare(whole_memory(plan.choices.memory)), location.open()
    for one in plan.with_decision(Decision.CLEAN):
        assert one.compaction is not None, "or there would be nothing to clean"
        compaction = one.compaction
        known = key_indexes.secret_of_most(fs, one.path, index_root)
        makes_index = indexes is Indexes.ALL or (indexes is Indexes.KEPT_UP and known is not None)
        settings = replace(clean_settings(one, plan.choices), memory=memory)
        first_dirty = compaction.range.first_dirty_offset
        task = PartitionTask(
            location=location,
            path=one.path,
            log_start_offset=one.log_start_offset,
            first_dirty=settings.precedence.first_superseding(first_dirty, one.log_start_offset),
            first_uncleanable=compaction.range.first_uncleanable_offset,
            log_end_offset=one.log_end_offset,
            now_ms=plan.now_ms,
            settings=settings,
            size_bytes=compaction.read_bytes,
            records=compaction.bounds.records_max,
            dirty_part=compaction.dirty_part,
            transactional=compaction.may_be_transactional,
            retained=retained,
            index_secret=None if plan.choices.read_all else known,
            fresh_secret=new_secret() if makes_index else None,
            index_root=index_root,
        )
        tasks.append(task)
    return tasks


def run_task(task: PartitionTask, outputs: str | None, progress: str, *, discard: bool = False) -> Output | Failure:
    """Clean one partition into a new folder; or only count the output, with `discard`.

    Each attempt at a task gets a new folder, so an abandoned attempt that still runs does no harm.

    Args:
        outputs: parent of that folder, unless the task has a folder; None for the work folder of the partition.
        progress: folder for progress reports, unless the task has a folder.
    """
    fs = task.location.open()
    counted = Counted(fs, fs, f"{task.progress(progress)}/{uuid4().hex}")
    (outcome,) = _reported(counted, [(task, clean_task(task, fs, counted, outputs, discard=discard))])
    return outcome


def run_small_tasks(
    tasks: Sequence[PartitionTask], outputs: str | None, progress: str, *, discard: bool = False
) -> list[Output | Failure]:
    """Clean small partitions one after the other, and sync the outputs of all of them together; see `run_task`."""
    outcomes: list[Output | Failure] = []
    by_place = itertools.groupby(tasks, lambda task: (task.location, task.progress(progress)))
    for (location, folder), some in by_place:
        fs = location.open()
        with closing(SyncsLater(fs)) as written:
            counted = Counted(written, fs, f"{folder}/{uuid4().hex}")
            own = [(task, clean_task(task, written, counted, outputs, discard=discard)) for task in some]
            errors = written.sync_all()
        synced = [(task, _synced(task, outcome, errors)) for task, outcome in own]
        outcomes += _reported(counted, synced)
    return outcomes


def _reported(counted: Counted, outcomes: Sequence[tuple[PartitionTask, Output | Failure]]) -> list[Output | Failure]:
    """Report the bytes that tasks have read; return their outcomes, or failures if these are no longer wanted."""
    try:
        counted.flush()
    except FileNotFoundError as error:
        return [failure_of(error, task.path) for task, _ in outcomes]
    return [outcome for _, outcome in outcomes]


def _synced(task: PartitionTask, outcome: Output | Failure, errors: Mapping[str, OSError]) -> Output | Failure:
    """Return the outcome of a task; or a failure, if one of its files is not durable."""
    if isinstance(outcome, Output):
        for path, error in errors.items():
            if path.startswith(outcome.folder):
                return failure_of(error, task.path)
    return outcome


def clean_task(
    task: PartitionTask, fs: TargetStore, counted: Counted, outputs: str | None, *, discard: bool
) -> Output | Failure:
    """Clean a partition.

    Args:
        fs: the store for its outputs.
        counted: the store to read from.
    """
    folder = f"{task.folder(outputs)}/{uuid4().hex}"
    # A further round reads the outputs of the previous one.
    kept = not discard or task.settings.offset_map_slots is not None
    written = fs if kept else DiscardingStore(fs, folder)
    try:
        written.make_directory(folder)
        log = task.log(_read_once(counted, task.read_memory_bytes))
        secret = None if discard else task.new_index_secret
        indexes = None
        if secret is not None and task.makes_index:
            indexes = IndexMaker(written, f"{folder}.index", secret, task.settings.memory)
        cleaned = clean_in_rounds(written, log, folder, task, indexes)
        # Names of outputs need not be durable: the files are renamed into the partition, where the names are synced.
        listed = written.list(folder)
        files = tuple((info.name, info.size_bytes) for info in listed)
        after = LogView(folder, fs=written, log_start_offset=0, entries=listed).segments if task.retained else ()
        made = () if indexes is None else indexes.paths
        return Output(cleaned, folder, files, tuple(map(segment_facts, after)), made)
    except Exception as error:
        trace = error.__traceback__
        failure = failure_of(error, task.path)
        # The traceback keeps the key table alive; release it now, as the next task needs its memory.
        traceback.clear_frames(trace)
        return failure


def _read_once(store: Store, memory_bytes: int) -> Store:
    return ReadOnceStore(store, memory_bytes, suffix=FileKind.LOG) if memory_bytes else store


def failure_of(error: Exception, path: str) -> Failure:
    """Convert an error of a task to a value."""
    # Other errors may not be picklable. Without its traceback, an error does not keep frames and their objects alive.
    is_known = isinstance(error, DataError | RequestError | StoreError | LostSectionError | OSError)
    bare = error.with_traceback(None) if is_known else None
    match error:
        case LostSectionError():
            return Failure(FailureKind.LOST, str(error), lost=error.where, error=bare)
        case DataError():
            return Failure(FailureKind.DAMAGE, str(error), error=bare)
        case TooLittleMemoryError():
            return Failure(FailureKind.MEMORY, str(error), memory=error.need, error=bare)
        case StoreError():
            return Failure(FailureKind.STORE, str(error), error=bare)
        case CordwoodError():
            return Failure(FailureKind.OTHER, str(error), error=bare)
        case OSError():
            kind = FailureKind.FULL if is_full(error) else FailureKind.OTHER
            return Failure(kind, f"{error.strerror or error}: {error.filename or path}", error=bare)
        case _:
            return Failure(FailureKind.BUG, f"{type(error).__name__}: {error}", traceback.format_exc())


def check_output(
    task: PartitionTask, outcome: Output | Failure, progress: str | None = None, *, with_batches: bool = True
) -> Output | Failure:
    """Check another process's output for a task; return a failure if it differs from the reported figures.

    Args:
        progress: folder for progress reports, unless the task has a folder; None for no reports.
        with_batches: see `faults`; False for outputs whose batches a proof reads.
    """
    if isinstance(outcome, Failure):
        return outcome
    try:
        store, cleaned = task.location.open(), outcome.cleaned
        counters = None if progress is None else Counters(task.location, task.progress(progress))
        with_batches = with_batches or not is_provable(task, outcome)
        with contextlib.nullcontext(store) if counters is None else counters.counting(store) as fs:
            found = next(
                faults(fs, outcome.folder, outcome.files, cleaned, task.end, with_batches=with_batches),
                None,
            )
    except StoreError as error:
        return failure_of(error, task.path)
    except Exception as error:
        return Failure(FailureKind.BUG, f"{type(error).__name__}: {error}", traceback.format_exc())
    return outcome if found is None else not_as_reported(task.path, found)


def is_provable(task: PartitionTask, output: Output) -> bool:
    """Return whether a proof reads all outputs: they are in the range from the log start on."""
    return all(base >= task.log_start_offset for _, outputs in output.cleaned.written for base in outputs)


def not_as_reported(path: str, fault: str) -> Failure:
    """Return the failure of a partition whose outputs are not as its task has reported."""
    what = f"{path}: the new segments are not as their task reported, so they are not used: {fault}"
    return Failure(FailureKind.BUG, what)


# ---- check -----------------------------------------------------------------------------------------------------------

#: Outputs below this size are read within milliseconds, so threads do not pay.
_ALONE_BYTES = 32 << 20


def faults(
    fs: Store,
    folder: str,
    files: Sequence[tuple[str, int]],
    cleaned: Cleaned,
    last_end: int,
    *,
    with_batches: bool = True,
) -> Iterator[str]:
    """Yield the faults of a clean's outputs, in words.

    Args:
        with_batches: read the outputs; if not, only compare names and sizes of files.
        files: (name, bytes) of the outputs.
        cleaned: the task's figures.
        last_end: end of the last group; no output extends beyond it.
    """
    listed = fs.list(folder)
    found = [(info.name, info.size_bytes) for info in listed]
    if found != sorted(files):
        yield f"the files are {found}, and should be {sorted(files)}"
        return
    log = LogView(folder, fs=fs, log_start_offset=0, entries=listed)
    segments = {segment.base_offset: segment for segment in log.segments}
    bases = [base for group in cleaned.outputs for base in group if base not in cleaned.kept]
    if sorted(segments) != sorted(bases):
        yield f"the segments are {sorted(segments)}, and should be {sorted(bases)}"
        return
    # Outputs of one group end before the next group's sources begin.
    ends = [
        end
        for group, after in zip(cleaned.outputs, [*(some[0] for some in cleaned.replaced[1:]), None], strict=True)
        for base, end in zip(group, [*group[1:], last_end if after is None else after], strict=True)
        if base not in cleaned.kept
    ]
    if with_batches:
        yield from _batch_faults([segments[base] for base in bases], ends, cleaned)
    size_bytes = cleaned.kept_counts.bytes_written + sum(segment.size_bytes for segment in segments.values())
    if cleaned.rounds == 1 and size_bytes != cleaned.counts.bytes_written:
        yield f"{size_bytes} bytes are there, {cleaned.counts.bytes_written} were written"


def _batch_faults(segments: Sequence[Segment], ends: Sequence[int], cleaned: Cleaned) -> Iterator[str]:
    batches = records = 0
    for segment, seen in zip(segments, _looked_at(segments, ends), strict=True):
        yield from (f"{segment.path}: {what}" for what in seen.faults)
        batches += seen.batches
        records += seen.records
    yield from miscounted(cleaned, batches, records)


def miscounted(cleaned: Cleaned, batches: int, records: int) -> Iterator[str]:
    """Yield the differences, in words, between the figures of a clean and the batches and records in its outputs."""
    counts, kept = cleaned.counts, cleaned.kept_counts
    if cleaned.rounds > 1:
        return  # the counts are sums over all rounds
    for what, is_there, said in (
        ("batches", batches + kept.batches_verbatim, counts.batches_read - counts.batches_dropped),
        ("records", records + kept.records_kept, counts.records_kept),
    ):
        if is_there != said:
            yield f"{is_there} {what} are there, {said} were written"


@dataclass(frozen=True, slots=True)
class _SegmentTotals:
    """Totals and faults of a segment."""

    batches: int
    records: int
    faults: list[str]


def _looked_at(segments: Sequence[Segment], ends: Sequence[int]) -> list[_SegmentTotals]:
    """Read the segments, two at a time unless they are too few or too small."""
    if len(segments) == 1 or sum(segment.size_bytes for segment in segments) < _ALONE_BYTES:
        return list(map(_look_at, segments, ends))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(_look_at, segments, ends))


def _look_at(segment: Segment, end: int) -> _SegmentTotals:
    written, last = WrittenSegment(segment), segment.base_offset - 1
    with segment.open() as file:
        for item in WindowReader(file, Checks.ONCE, base_offset=segment.base_offset, search=False):
            if not isinstance(item, BatchWindow):
                return _SegmentTotals(0, 0, [f"position {item.position}: {item.what}"])
            batches, valid = item.batches, is_valid(item.batches)
            if not valid.all():
                return _SegmentTotals(0, 0, [f"position {batches['position'][np.argmin(valid)]}: CRC-32C mismatch"])
            starts, lasts = batches["base_offset"], batches["last_offset"]
            if (lasts < starts).any() or (starts[1:] <= lasts[:-1]).any():
                return _SegmentTotals(0, 0, ["offsets do not ascend"])
            if starts[0] <= last or lasts[-1] >= end:
                what = f"offsets {starts[0]} to {lasts[-1]} are not from {last + 1} to {end - 1}"
                return _SegmentTotals(0, 0, [what])
            last = int(lasts[-1])
            written.add(batches)
            del item, batches
    return _SegmentTotals(written.batches, written.records, [*written.faults()])
