"""Tasks that hand each other rows, which a `RowRunner` moves from task to task: no folder has to be shared for them.

    scan ──► rows by range ──► merge ──► rows by group ──► rewrite
      └────► rows by group ───────────────────────────────────┘

A scan writes its blob (`engine.stages`) to a folder of its own machine and sends the sections of that, so that the rows
of a scan that fails are never sent. A merge that fails tells the rewrites that wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.superseded import ScannedKeys
from cordwood.engine import sections
from cordwood.engine.blobs import BlobReader
from cordwood.engine.exchange import StagedPartition
from cordwood.engine.rows import Row, RowReader, Stage, rows_of
from cordwood.engine.stages import (
    CHUNK_KINDS,
    OUTCOME_KINDS,
    OUTCOMES,
    GroupRuns,
    RunSummary,
    RunTask,
    chunks_of,
    group_runs,
    merge_range,
    part_name,
    scan_into_blob,
)
from cordwood.engine.task import Failure, FailureKind, Output, PartitionTask, failure_of
from cordwood.fs.base import LocalFileSystem
from cordwood.types import NONE

#: Where rows of outcomes and of failures stand among those of a run, and of a group: first.
_OUTCOMES, _FAILURE = (NONE, NONE), (NONE, NONE, NONE)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Scans a run into rows.

    Attributes:
        run: to scan.
        answer: number of the answer.
        number: of the run, among those of its partition.
        merge: the target of its first range of hashes; those of the others follow.
        group: the target of its group; None: its segment is not rewritten.
    """

    run: RunTask
    answer: int
    number: int
    merge: int
    group: int | None


@dataclass(frozen=True, slots=True)
class Merges:
    """The merges of a partition, one for each range.

    Attributes:
        path: of the partition.
        first: the target of the first range; those of the others follow.
        ranges: of hashes.
        chunks: (run, chunk), all of them in log order.
        groups: for each run the target of its group; None: no task waits for it.
    """

    path: str
    first: int
    ranges: int
    chunks: tuple[tuple[int, int], ...]
    groups: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class GroupTask:
    """Rewrites a group.

    Attributes:
        answer: number of the answer.
        target: of the rows that it reads.
        task: what is to be done, but for what the rows say.
        runs: of the group.
    """

    answer: int
    target: int
    task: PartitionTask
    runs: GroupRuns


class RowRunner(Protocol):
    """Runs tasks, keeps the rows of scans, and moves rows to the tasks that they are for."""

    def scan(self, tasks: Sequence[ScanTask], sizes: Sequence[int]) -> Mapping[int, RunSummary | Failure]:
        """Run `scan_rows`; returns the answers by number, and keeps the other rows."""
        ...

    def rewrite(self, merges: Sequence[Merges], groups: Sequence[GroupTask]) -> Mapping[int, Output | Failure]:
        """Run `merge_rows` and `rewrite_rows` on what was kept; returns the answers by number."""
        ...

    def close(self) -> None:
        """Remove what was kept."""
        ...


@dataclass(frozen=True, slots=True)
class _Targets:
    """The targets of a partition: of its first range, of each of its groups, and of the group of each of its runs."""

    merge: int
    groups: tuple[int, ...]
    of_runs: tuple[int | None, ...]


class RowExchange:
    """Tasks that hand each other rows; see `Exchange`."""

    def __init__(self, runner: RowRunner) -> None:
        self._runner = runner
        self._targets: dict[StagedPartition, _Targets] = {}
        self._merges = self._groups = 0

    def scan(self, places: Sequence[tuple[StagedPartition, int]]) -> list[RunSummary | Failure]:
        """See `Exchange.scan`."""
        if not places:
            return []
        self._place(list({one: None for one, _ in places}))
        tasks, sizes = [], []
        for answer, (one, number) in enumerate(places):
            run, targets = one.cut.runs[number], self._targets[one]
            tasks.append(ScanTask(run, answer, number, targets.merge, targets.of_runs[number]))
            sizes.append(one.run_bytes_of(run))
        answers = self._runner.scan(tasks, sizes)
        return [answers[answer] for answer in range(len(places))]

    def _place(self, partitions: Sequence[StagedPartition]) -> None:
        """Give partitions new targets: rows of earlier scans go nowhere.

        Tasks take targets by turns, so the groups are numbered from the largest to the smallest.
        """
        groups = [(one, number) for one in partitions for number in range(len(one.cut.groups))]
        groups.sort(key=lambda place: -place[0].group_bytes(place[1]))
        numbers = {place: self._groups + at for at, place in enumerate(groups)}
        self._groups += len(groups)
        for one in partitions:
            targets = tuple(numbers[one, number] for number in range(len(one.cut.groups)))
            by_base = {base: target for group, target in zip(one.cut.groups, targets, strict=True) for base in group}
            of_runs = tuple(by_base.get(run.base_offset) for run in one.cut.runs)
            self._targets[one] = _Targets(self._merges, targets, of_runs)
            self._merges += one.cut.runs[0].ranges

    def rewrite(self, places: Sequence[tuple[StagedPartition, int, PartitionTask]]) -> list[Output | Failure]:
        """See `Exchange.rewrite`."""
        if not places:
            return []
        runs = {one: group_runs(one.cut, one.summaries) for one in {one: None for one, _, _ in places}}
        wanted = {self._targets[one].groups[number] for one, number, _ in places}
        merges = [
            Merges(
                one.task.path,
                self._targets[one].merge,
                one.summaries[0].ranges,
                tuple(chunks),
                tuple(group if group in wanted else None for group in self._targets[one].of_runs),
            )
            for one in runs
            if (chunks := chunks_of(one.summaries))
        ]
        groups = [
            GroupTask(answer, self._targets[one].groups[number], task, runs[one][number])
            for answer, (one, number, task) in enumerate(places)
        ]
        answers = self._runner.rewrite(merges, groups)
        return [answers[at] if at in answers else _no_rows(task) for at, (_, _, task) in enumerate(places)]

    def lost_runs(self, partition: StagedPartition, failure: Failure) -> Collection[int]:
        """All of them: what is kept of the scans is the runner's, which would have made it again if it could."""
        assert failure.kind is FailureKind.LOST
        return range(len(partition.cut.runs))

    def close(self) -> None:
        """See `Exchange.close`."""
        self._runner.close()


def _no_rows(task: PartitionTask) -> Failure:
    return Failure(FailureKind.LOST, f"{task.path}: what its scans left is gone", lost=task.path)


# ---- functions of tasks ----------------------------------------------------------------------------------------------


def scan_rows(task: ScanTask, folder: str) -> Iterator[Row]:
    """Scan a run: rows for merges and for the rewrite, then the answer.

    Args:
        task: what to do.
        folder: on this machine, for a file that is gone afterwards.
    """
    answer: RunSummary | Failure
    fs = task.run.place.location.open()
    path = f"{folder}/cordwood-{uuid4().hex}.scan"
    try:
        blob, answer = scan_into_blob(task.run, fs, path)
        with closing(BlobReader(fs, blob)) as reader:
            for chunk, number in itertools.product(range(answer.chunks), range(answer.ranges)):
                data = reader.data(part_name(chunk, number))
                yield from rows_of(Stage.MERGE, task.merge + number, (task.number, chunk, number), [data])
            if task.group is not None:
                yield from rows_of(Stage.REWRITE, task.group, (task.number, *_OUTCOMES), [reader.data(OUTCOMES)])
    except Exception as error:
        answer = failure_of(error, task.run.place.path)
    finally:
        with contextlib.suppress(OSError):
            fs.unlink(path)
    yield Row(Stage.ANSWER, task.answer, 0, 0, 0, 0, pickle.dumps(answer))


def merge_rows(rows: Iterable[Row], merges: Sequence[Merges]) -> Iterator[Row]:
    """Merge all ranges whose rows these are, sorted: memory holds the entries of one range of all runs."""
    by_target = {one.first + number: (one, number) for one in merges for number in range(one.ranges)}
    for target, own in itertools.groupby(rows, attrgetter("target")):
        if target in by_target:
            yield from _merged(*by_target[target], own)


def _merged(merge: Merges, number: int, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        reader = RowReader(rows, merge.path)
        found = merge_range([reader.get((run, chunk, number), *CHUNK_KINDS) for run, chunk in merge.chunks])
    except Exception as error:
        failure = pickle.dumps(failure_of(error, merge.path))
        for group in sorted({group for group in merge.groups if group is not None}):
            yield Row(Stage.REWRITE, group, *_FAILURE, 0, failure)
        return
    for (run, chunk), superseded in zip(merge.chunks, found, strict=True):
        target = merge.groups[run]
        if target is not None:
            yield from rows_of(Stage.REWRITE, target, (run, chunk, number), sections.encode([superseded]))


def rewrite_rows(
    rows: Iterable[Row], groups: Sequence[GroupTask], do: Callable[[PartitionTask], Output | Failure]
) -> Iterator[tuple[int, Output | Failure]]:
    """Rewrite all groups whose rows these are, sorted; (number, answer) of each."""
    by_target = {one.target: one for one in groups}
    for target, own in itertools.groupby(rows, attrgetter("target")):
        if target in by_target:
            group = by_target[target]
            yield group.answer, _rewritten(group, own, do)


def _rewritten(
    group: GroupTask, rows: Iterator[Row], do: Callable[[PartitionTask], Output | Failure]
) -> Output | Failure:
    first = next(rows)
    if first[2:5] == _FAILURE:
        failure: Failure = pickle.loads(first.data)
        return failure
    try:
        reader = RowReader(itertools.chain([first], rows), group.task.path)
        keys = group.runs.keys(_RowSections(reader))
    except Exception as error:
        return failure_of(error, group.task.path)
    return do(replace(group.task, scanned=_Loaded(keys)))


@dataclass(frozen=True, slots=True)
class _RowSections:
    """The sections of a group, in rows; see `GroupSections`."""

    reader: RowReader

    def outcomes(self, run: int) -> Sequence[npt.NDArray[Any]]:
        return self.reader.get((run, *_OUTCOMES), *OUTCOME_KINDS)

    def superseded(self, run: int, chunk: int, number: int) -> npt.NDArray[np.uint32]:
        return self.reader.get((run, chunk, number), np.uint32)[0]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What was read of rows; see `KeySource`."""

    keys: ScannedKeys

    def load(self, fs: LocalFileSystem) -> ScannedKeys:
        return self.keys
