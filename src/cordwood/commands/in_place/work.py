"""The work of a clean in place, and its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cordwood.cleaning.plan import Compaction, Decision, PartitionPlan, Plan
from cordwood.commands.options import IndexOptions
from cordwood.engine.partition import Cleaned
from cordwood.engine.task import Failure, Indexes, PartitionTask, tasks_of
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.index.build import SEGMENT_SHARE


@dataclass(frozen=True, slots=True)
class Work:
    """The partitions that are to be cleaned, by path.

    Attributes:
        tasks: each one's whole task, from which waves take parts.
        index_max: the most that the key indexes of a partition may take; None: what is worth it.
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
    ) -> Work:
        """What a plan says, without the partitions that failed."""
        found = tasks_of(plan, fs.location(), Indexes.ALL if indexes.index else Indexes.KEPT_UP, index_root)
        tasks = {task.path: task for task in found if task.path not in failures}
        return cls(
            {one.path: one for one in plan.partitions if one.path in tasks}, tasks, indexes.index_max, index_root
        )

    def without(self, paths: Collection[str]) -> Work:
        """The work without some partitions."""
        return replace(
            self,
            plans={path: one for path, one in self.plans.items() if path not in paths},
            tasks={path: one for path, one in self.tasks.items() if path not in paths},
        )

    def without_indexes(self, paths: Collection[str]) -> Work:
        """The work without making the key indexes of some partitions."""
        without = {path: replace(self.tasks[path].leaving_no_garbage(), fresh_secret=None) for path in paths}
        return replace(self, tasks={**self.tasks, **without})

    def index_bytes(self, path: str) -> int:
        """The most that the key indexes of a partition take that are made; 0: none are."""
        if not self.tasks[path].makes_index:
            return 0
        bytes_max = self.compaction(path).total_bytes // SEGMENT_SHARE
        return bytes_max if self.index_max is None else min(bytes_max, self.index_max)

    def compaction(self, path: str) -> Compaction:
        """Which segments of a partition are cleaned, and how."""
        plan = self.plans[path]
        assert plan.decision is Decision.CLEAN and plan.compaction is not None, "it is to be cleaned"
        return plan.compaction

    def groups(self, path: str) -> Sequence[tuple[int, ...]]:
        """The base offsets of segments that are cleaned together, group by group."""
        return self.compaction(path).groups

    @property
    def size_bytes(self) -> int:
        """How much is read to clean all of it."""
        return sum(task.size_bytes for task in self.tasks.values())

    @property
    def new_bytes(self) -> int:
        """How much of it no clean has seen, about."""
        compactions = map(self.compaction, self.tasks)
        return sum(round(one.dirty_part * one.total_bytes) for one in compactions)

    @property
    def output_bytes_max(self) -> int:
        """How much is written at most."""
        return sum(self.compaction(path).bounds.bytes_max for path in self.tasks)


@dataclass
class Progress:
    """How far a partition is.

    Attributes:
        done: how many of them are in place.
        cleaned: what was done in whole waves; None: nothing yet.
    """

    groups: int
    done: int = 0
    cleaned: Cleaned | None = None

    @property
    def complete(self) -> bool:
        """Whether all groups are in place."""
        return self.done == self.groups

    def add(self, part: Cleaned) -> None:
        """Add what one more wave did."""
        if self.cleaned is None:
            self.cleaned = part
            return
        before, counts = self.cleaned, replace(self.cleaned.counts)
        counts.add(part.counts)
        left = None if before.left is None or part.left is None else before.left.with_more(part.left)
        self.cleaned = replace(
            part,
            left=left,
            replaced=before.replaced + part.replaced,
            outputs=before.outputs + part.outputs,
            segments=before.segments + part.segments,
            kept=before.kept | part.kept,
            counts=counts,
        )


@dataclass
class Ledger:
    """The finished work. It is updated at once, so that an interrupted clean can report it.

    Attributes:
        progress: of the partitions that are to be cleaned, by path.
        failures: those that could not be loaded or cleaned, by path.
        verified: records that were proved right.
        bytes_read, bytes_written: what the tasks of cleans read, proofs aside, and what they wrote.
        index_bytes: of that, key indexes.
    """

    progress: dict[str, Progress] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    verified: int = 0
    verify_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    index_bytes: int = 0

    def begin(self, work: Work) -> None:
        """Nothing of this is done yet."""
        self.progress = {path: Progress(len(work.groups(path))) for path in work.tasks}

    def notes(self) -> Iterator[str]:
        """Which partitions are cleaned, and how far, for the message after an interruption."""
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
            yield "the others are as they were; clean again to go on"
