"""How sections get from the tasks that make them to the tasks that read them, for a partition cleaned by many tasks.

    memory       the partition fits one task: nothing is handed over (`engine.scan`)
    blobs        checked files in a folder that all tasks see: `engine.blob_exchange`
    rows         rows that a scheduler moves from task to task, as Spark's shuffle does: `engine.row_exchange`

Scans, merges and rewrites are the same functions for all of them, and so is what they write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from cordwood.engine.stages import Prepared, RunSummary, RunTask
from cordwood.engine.task import Failure, Output, PartitionTask
from cordwood.kernels.layout import BatchRows
from cordwood.storage.log.view import LogView

T = TypeVar("T")
#: The exchanges that can be asked for: blobs, or rows by Spark's shuffle.
ExchangeName = Literal["blobs", "shuffle"]


class Each(Protocol):
    """Runs a function on each of some items, as tasks; the results come in the order of the items.

    Items are run in the order of their sizes, and their function and values are pickled.
    """

    def __call__(self, do: Callable[[T], Any], items: Sequence[T], sizes: Sequence[int]) -> list[Any]:
        """Run them."""
        ...


#: Cleans, and has checked what was written, as `Jobs.clean` does.
CleanEach = Callable[[Sequence[PartitionTask]], list[Output | Failure]]


@dataclass(slots=True, eq=False)
class StagedPartition:
    """How far a partition is.

    Attributes:
        task: what is to be done.
        log: of the partition.
        run_bytes: how large runs should be; None: a run is a segment.
        headers: see `prepare`.
        prepared: runs and groups.
        runs: what is scanned, by number of the run.
        groups: what is rewritten, by number of the group.
        outcome: what became of it, once that is known.
        unordered: offsets do not ascend, so that one task has to clean it with a table.
    """

    task: PartitionTask
    log: LogView
    run_bytes: int
    headers: Mapping[int, BatchRows] = field(default_factory=dict)
    prepared: Prepared | None = None
    runs: dict[int, RunSummary] = field(default_factory=dict)
    groups: dict[int, Output] = field(default_factory=dict)
    outcome: Output | Failure | None = None
    unordered: bool = False

    @property
    def cut(self) -> Prepared:
        """Its runs and groups."""
        assert self.prepared is not None, "it was cut"
        return self.prepared

    @property
    def summaries(self) -> list[RunSummary]:
        """What its scans left, once all runs are scanned."""
        return [self.runs[number] for number in range(len(self.cut.runs))]

    def run_bytes_of(self, run: RunTask) -> int:
        """The size of a run."""
        end = run.end
        if end is None:
            end = next(one.size_bytes for one in self.log.segments if one.base_offset == run.base_offset)
        return end - run.start

    def group_bytes(self, number: int) -> int:
        """The size of a group."""
        return sum(one.size_bytes for one in self.log.segments if one.base_offset in self.cut.groups[number])


class Exchange(Protocol):
    """Runs scans and rewrites, and merges in between, so that what one has found gets to the next."""

    def scan(self, places: Sequence[tuple[StagedPartition, int]]) -> list[RunSummary | Failure]:
        """Scan runs, each given by its partition and number; what was left of an earlier scan of it does not count."""
        ...

    def rewrite(self, places: Sequence[tuple[StagedPartition, int, PartitionTask]]) -> list[Output | Failure]:
        """Rewrite groups, each given with its number, of partitions whose runs are all scanned; merge before, if need
        be. A failure of kind LOST may go away if runs are scanned again.
        """
        ...

    def lost_runs(self, partition: StagedPartition, failure: Failure) -> Collection[int]:
        """The runs that have to be scanned again, as some of what they left is lost."""
        ...

    def close(self) -> None:
        """Remove what was handed over."""
        ...
