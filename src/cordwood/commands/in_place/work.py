"""The state of a clean in place: its locked directories, its work, and its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.cleaning.engine.partition import Cleaned
from cordwood.cleaning.engine.task import Failure, Indexes, PartitionTask, tasks_of
from cordwood.cleaning.rules.plan import Compaction, Decision, PartitionPlan, Plan
from cordwood.commands.in_place.proving import Proofs
from cordwood.commands.options import IndexOptions
from cordwood.common.types import TopicPartition
from cordwood.fs.base import DirectoryLock, LocalFileSystem
from cordwood.fs.workspace import remove_tree
from cordwood.storage.changes.backup import KeepFolder
from cordwood.storage.changes.swap import Keep
from cordwood.storage.formats import checkpoints, filenames, properties
from cordwood.storage.formats.filenames import INDEX_FOLDER, WORK_FOLDER
from cordwood.storage.index.build import SEGMENT_SHARE
from cordwood.storage.log.files import clear_work_folder, make_work_folder, write_file
from cordwood.storage.node.cluster import Cluster
from cordwood.storage.node.directory import LogDirectory
from cordwood.storage.node.node import LocatedPartition

#: The folder of task counters within a work folder.
PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class LockedDirectories:
    """Locked log directories of one or more brokers.

    Attributes:
        cluster: the brokers whose directories are locked.
        places: the selected partitions that a broker would load.
        kept: the folder that keeps replaced files, or None.
        now_ms: the time of all decisions.
        locked: brokers that hold their directories, by name, with the reason; these are left alone.
        left_places: the selected partitions in these directories, each after its broker's name.
        clean_before: of partitions that are cleaned jointly, the offset up to which they are clean already, by path.
    """

    fs: LocalFileSystem
    cluster: Cluster
    places: Sequence[LocatedPartition]
    locks: Sequence[DirectoryLock]
    kept: KeepFolder | None
    now_ms: int
    locked: Mapping[str, str] = field(default_factory=dict)
    left_places: Sequence[tuple[str, LocatedPartition]] = ()
    clean_before: dict[str, int] = field(default_factory=dict)

    @property
    def directories(self) -> list[LogDirectory]:
        """All log directories."""
        return [directory for node in self.cluster.nodes for directory in node.directories]

    @property
    def of_several(self) -> bool:
        """Whether the user gave the directories of several brokers."""
        return len(self.cluster.nodes) + len(self.locked) > 1

    def place_of(self, path: str) -> LocatedPartition:
        """Return the partition with this path."""
        return next(place for place in self.places if place.path == path)

    @property
    def names(self) -> Mapping[str, TopicPartition]:
        """The partition in each directory, by path."""
        return {place.path: place.name.topic_partition for place in self.places if place.name is not None}

    @property
    def keep(self) -> Keep | None:
        """The function that keeps files before they are deleted, or None."""
        return None if self.kept is None else self.kept.keep

    def confirm_locks(self) -> None:
        """Make sure that this process still holds the locks."""
        for lock in self.locks:
            lock.confirm()

    def record(
        self,
        directory: LogDirectory,
        offsets: Mapping[str, Mapping[TopicPartition, int | None]],
        *,
        clean_shutdown: bool = False,
    ) -> None:
        """Write entries to a directory's checkpoints, by file name, and optionally its clean-shutdown file."""
        files = {name: f"{directory.path}/{name}" for name in offsets}
        found = {name: checkpoints.changed(self.fs, files[name], entries) for name, entries in offsets.items()}
        offsets = {name: entries for name, entries in found.items() if entries}
        if self.kept is not None and (offsets or clean_shutdown):
            self.kept.checkpoints(directory.path, offsets, clean_shutdown=clean_shutdown)
        for name, entries in offsets.items():
            checkpoints.update(self.fs, files[name], entries)
        if clean_shutdown:
            data = properties.encode_clean_shutdown(None)
            write_file(self.fs, f"{directory.path}/{filenames.CLEAN_SHUTDOWN}", data)
            self.fs.sync_directory(directory.path)

    def make_work_folders(self, paths: Sequence[str]) -> str:
        """Make the partitions' work folders; return the folder for task counters, which is in the first of them."""
        for path in paths:
            make_work_folder(self.fs, path)
        folder = f"{paths[0] if paths else ''}/{WORK_FOLDER}/{PROGRESS}"
        if paths:
            self.fs.make_directory(folder)
        return folder

    def empty_work_folder(self, path: str) -> None:
        """Remove all task outputs from a partition's work folder, those of abandoned attempts included."""
        for info in self.fs.list(f"{path}/{WORK_FOLDER}"):
            if info.name not in (PROGRESS, INDEX_FOLDER):
                remove_tree(self.fs, f"{path}/{WORK_FOLDER}/{info.name}")

    def remove_work_folders(self) -> None:
        """Remove the work folders, except for key indexes."""
        for place in self.places:
            with contextlib.suppress(OSError):
                clear_work_folder(self.fs, place.path)


@dataclass(frozen=True, slots=True)
class InPlaceWork:
    """The partitions to clean, by path.

    Attributes:
        tasks: the whole task of each partition; waves take parts of it.
        index_max: maximum bytes of a partition's key indexes; None: the default limit.
        index_root: see `LogView`.
    """

    plans: Mapping[str, PartitionPlan]
    tasks: Mapping[str, PartitionTask]
    index_max: int | None = None
    index_root: str | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        fs: LocalFileSystem,
        failures: Mapping[str, Failure],
        indexes: IndexOptions,
        index_root: str | None,
    ) -> InPlaceWork:
        """Collect the work of a plan, without failed partitions."""
        found = tasks_of(plan, fs.location(), Indexes.ALL if indexes.index else Indexes.KEPT_UP, index_root)
        tasks = {task.path: task for task in found if task.path not in failures}
        return cls(
            {one.path: one for one in plan.partitions if one.path in tasks}, tasks, indexes.index_max, index_root
        )

    def without(self, paths: Collection[str]) -> InPlaceWork:
        """Return the work without some partitions."""
        return replace(
            self,
            plans={path: one for path, one in self.plans.items() if path not in paths},
            tasks={path: one for path, one in self.tasks.items() if path not in paths},
        )

    def without_indexes(self, paths: Collection[str]) -> InPlaceWork:
        """Return the same work, but write no key indexes for some partitions."""
        without = {path: replace(self.tasks[path], fresh_secret=None) for path in paths}
        return replace(self, tasks={**self.tasks, **without})

    def index_bytes(self, path: str) -> int:
        """Return the maximum bytes of the key indexes to make for a partition; 0 if it gets no index."""
        if not self.tasks[path].makes_index:
            return 0
        bytes_max = self.compaction(path).total_bytes // SEGMENT_SHARE
        return bytes_max if self.index_max is None else min(bytes_max, self.index_max)

    def compaction(self, path: str) -> Compaction:
        """Return the segments of a partition to clean, with their bounds."""
        plan = self.plans[path]
        assert plan.decision is Decision.CLEAN and plan.compaction is not None, "it is to be cleaned"
        return plan.compaction

    def groups(self, path: str) -> Sequence[tuple[int, ...]]:
        """Return the groups of segments to clean together, by base offset."""
        return self.compaction(path).groups

    @property
    def size_bytes(self) -> int:
        """Bytes that the clean reads."""
        return sum(task.size_bytes for task in self.tasks.values())

    @property
    def new_bytes(self) -> int:
        """Approximate bytes that no clean has read before."""
        compactions = map(self.compaction, self.tasks)
        return sum(round(one.dirty_part * one.total_bytes) for one in compactions)

    @property
    def output_bytes_max(self) -> int:
        """Maximum bytes that the clean writes."""
        return sum(self.compaction(path).bounds.bytes_max for path in self.tasks)


@dataclass
class PartitionProgress:
    """The progress of a partition.

    Attributes:
        done: number of swapped groups.
        cleaned: the result of finished waves, or None.
    """

    groups: int
    done: int = 0
    cleaned: Cleaned | None = None

    @property
    def complete(self) -> bool:
        """Whether all groups are swapped."""
        return self.done == self.groups

    def add(self, part: Cleaned) -> None:
        """Add the result of another wave."""
        if self.cleaned is None:
            self.cleaned = part
            return
        before, counts = self.cleaned, replace(self.cleaned.counts)
        counts.add(part.counts)
        self.cleaned = replace(
            part,
            replaced=before.replaced + part.replaced,
            outputs=before.outputs + part.outputs,
            segments=before.segments + part.segments,
            kept=before.kept | part.kept,
            counts=counts,
        )


@dataclass
class Ledger:
    """The finished work, updated immediately so that an interrupted clean can report it.

    Attributes:
        progress: progress of the partitions to clean, by path.
        failures: partitions that could not be loaded or cleaned, by path.
        proofs: sums of the proofs.
        bytes_read, bytes_written: bytes that the cleans' tasks read, without proofs, and wrote.
        index_bytes: bytes of key indexes in `bytes_written`.
        remarks: notes for the user, by path of the partition.
    """

    progress: dict[str, PartitionProgress] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    proofs: Proofs = field(default_factory=Proofs)
    bytes_read: int = 0
    bytes_written: int = 0
    index_bytes: int = 0
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def note(self, path: str, text: str) -> None:
        """Add a note on a partition."""
        self.remarks.setdefault(path, []).append(text)

    def add(self, second: Ledger) -> None:
        """Add failures and sums of a second pass over some partitions; `behind` joins their results."""
        self.failures |= second.failures
        self.proofs.add(second.proofs)
        self.bytes_read += second.bytes_read
        self.bytes_written += second.bytes_written
        self.index_bytes += second.index_bytes

    def begin(self, work: InPlaceWork) -> None:
        """Set the progress of all work to zero."""
        self.progress = {path: PartitionProgress(len(work.groups(path))) for path in work.tasks}

    def notes(self) -> Iterator[str]:
        """Yield the progress in sentences, for the message after an interruption."""
        if not self.progress:
            yield "no partition was cleaned"
            return
        complete = [path for path, one in self.progress.items() if one.complete]
        names = f": {', '.join(complete)}" if complete else ""
        yield f"{len(complete)} of {len(self.progress)} partitions are cleaned{names}"
        for path, one in self.progress.items():
            if 0 < one.done < one.groups:
                yield f"{path}: {one.done} of its {one.groups} groups of segments are cleaned"
        if len(complete) < len(self.progress):
            yield "all other partitions are unchanged; clean again to continue"
