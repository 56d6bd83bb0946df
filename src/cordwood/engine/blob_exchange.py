"""Tasks that hand each other blobs: checked files in a folder that all of them see.

    scan ──► a blob per run ──► merge ──► a blob per merge ──► rewrite, which reads its part of both

A blob that is lost or damaged is made again by the task that made it; the task that missed it runs again, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.superseded import ScannedKeys
from cordwood.engine.blobs import Blob, BlobReader, BlobWriter
from cordwood.engine.exchange import CleanEach, Each, StagedPartition
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
from cordwood.engine.task import Failure, Output, PartitionTask, failure_of
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.location import Location
from cordwood.storage.log.files import remove_tree

#: A merge of fewer entries is not worth a task.
MERGE_ENTRIES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScannedBlob:
    """What the scan of a run left.

    Attributes:
        blob: what is left of its chunks, and the outcomes.
        summary: the rest.
    """

    blob: Blob
    summary: RunSummary


@dataclass(frozen=True, slots=True)
class MergedBlob:
    """What a merge found: the section run.chunk.range of its blob has the superseded ordinals of that chunk.

    Attributes:
        blob: of these sections.
        low, high: the ranges [low, high).
    """

    blob: Blob
    low: int
    high: int


class BlobExchange:
    """Tasks that hand each other blobs.

    Args:
        fs: where the partitions are.
        outputs: where folders for blobs are made; None: in the work folder of each partition.
        each: runs functions as tasks.
        clean_each: rewrites groups.
        cores: tasks that run at once.
    """

    def __init__(self, fs: LocalFileSystem, outputs: str | None, each: Each, clean_each: CleanEach, cores: int) -> None:
        self._fs = fs
        self._outputs = outputs
        self._each = each
        self._clean_each = clean_each
        self._cores = cores
        self._folders: dict[StagedPartition, str] = {}
        self._scanned: dict[tuple[StagedPartition, int], ScannedBlob] = {}
        self._merged: dict[StagedPartition, dict[tuple[int, int], MergedBlob]] = {}

    def _folder(self, partition: StagedPartition) -> str:
        if partition not in self._folders:
            folder = f"{partition.task.folder(self._outputs)}/{uuid4().hex}.blobs"
            self._fs.make_directory(folder)
            self._folders[partition] = folder
            self._merged[partition] = {}
        return self._folders[partition]

    def scan(self, places: Sequence[tuple[StagedPartition, int]]) -> list[RunSummary | Failure]:
        """See `Exchange.scan`."""
        tasks = [_ScanTask(one.cut.runs[number], self._folder(one)) for one, number in places]
        sizes = [one.run_bytes_of(one.cut.runs[number]) for one, number in places]
        answers: list[RunSummary | Failure] = []
        for place, found in zip(places, self._each(_scanned, tasks, sizes), strict=True):
            if not isinstance(found, Failure):
                self._scanned[place] = found
            answers.append(found if isinstance(found, Failure) else found.summary)
        return answers

    def rewrite(self, places: Sequence[tuple[StagedPartition, int, PartitionTask]]) -> list[Output | Failure]:
        """See `Exchange.rewrite`."""
        partitions = list({one: None for one, _, _ in places})
        failures = self._merge(partitions)
        runs = {one: group_runs(one.cut, one.summaries) for one in partitions if one not in failures}
        chosen = [(one, number, task) for one, number, task in places if one not in failures]
        tasks = [replace(task, scanned=self._scanned_of(one, runs[one][number])) for one, number, task in chosen]
        found = iter(self._clean_each(tasks))
        return [failures[one] if one in failures else next(found) for one, _, _ in places]

    def _scanned_of(self, one: StagedPartition, runs: GroupRuns) -> ScannedBlobs:
        numbers = [number for some in runs.runs.values() for number, _ in some]
        blobs = {number: self._scanned[one, number].blob for number in numbers}
        return ScannedBlobs(runs, blobs, tuple(self._merged[one].values()))

    def _merge(self, partitions: Sequence[StagedPartition]) -> dict[StagedPartition, Failure]:
        """Merge the ranges that are not merged; returns why that failed, of the partitions where it did."""
        tasks = [
            (one, task)
            for one in partitions
            for task in self._merge_tasks(one)
            if (task.low, task.high) not in self._merged[one]
        ]
        sizes = [sum(run.summary.entries for run in task.runs) * (task.high - task.low) for _, task in tasks]
        failures: dict[StagedPartition, Failure] = {}
        for (one, task), found in zip(tasks, self._each(_merged, [task for _, task in tasks], sizes), strict=True):
            if isinstance(found, Failure):
                failures.setdefault(one, found)
            else:
                self._merged[one][task.low, task.high] = found
        return failures

    def _merge_tasks(self, one: StagedPartition) -> list[MergeTask]:
        """How the ranges are divided; none if there is nothing to merge."""
        runs = one.summaries
        if not chunks_of(runs):
            return []
        ranges = runs[0].ranges
        count = max(1, min(2 * self._cores, ranges, sum(run.entries for run in runs) // MERGE_ENTRIES))
        edges = [ranges * at // count for at in range(count + 1)]
        scanned = tuple(self._scanned[one, number] for number in range(len(runs)))
        folder = self._folder(one)
        return [MergeTask(one.task.location, scanned, low, high, folder) for low, high in itertools.pairwise(edges)]

    def lost_runs(self, partition: StagedPartition, failure: Failure) -> Collection[int]:
        """See `Exchange.lost_runs`."""
        merged = self._merged[partition]
        self._merged[partition] = {key: found for key, found in merged.items() if found.blob.path != failure.lost}
        return [
            number
            for number in range(len(partition.cut.runs))
            if (partition, number) in self._scanned and self._scanned[partition, number].blob.path == failure.lost
        ]

    def close(self) -> None:
        """Remove the blobs."""
        for folder in self._folders.values():
            remove_tree(self._fs, folder)


# ---- functions of tasks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ScanTask:
    """Scans a run into a blob of a folder."""

    run: RunTask
    folder: str


def _scanned(task: _ScanTask) -> ScannedBlob | Failure:
    try:
        fs = task.run.place.location.open()
        return ScannedBlob(*scan_into_blob(task.run, fs, f"{task.folder}/{uuid4().hex}.scan"))
    except Exception as error:
        return failure_of(error, task.run.place.path)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merges some ranges of hashes.

    Attributes:
        location: of the file system.
        runs: all, in log order.
        low, high: the ranges [low, high).
        folder: where the blob is written.
    """

    location: Location[LocalFileSystem]
    runs: tuple[ScannedBlob, ...]
    low: int
    high: int
    folder: str


def _merged(task: MergeTask) -> MergedBlob | Failure:
    try:
        return merge_blobs(task)
    except Exception as error:
        return failure_of(error, task.folder)


def merge_blobs(task: MergeTask) -> MergedBlob:
    """Merge ranges, one after the other: memory holds the entries of one range of all runs."""
    fs = task.location.open()
    places = chunks_of([run.summary for run in task.runs])
    with ExitStack() as files:
        readers = [files.enter_context(closing(BlobReader(fs, run.blob))) for run in task.runs]
        writer = files.enter_context(closing(BlobWriter(fs, f"{task.folder}/{uuid4().hex}.merge")))
        for number in range(task.low, task.high):
            parts = [readers[run].get(part_name(chunk, number), *CHUNK_KINDS) for run, chunk in places]
            for (run, chunk), superseded in zip(places, merge_range(parts), strict=True):
                writer.add(f"{run}.{chunk}.{number}", superseded)
        return MergedBlob(writer.finish(), task.low, task.high)


@dataclass(frozen=True, slots=True)
class ScannedBlobs:
    """Where the rewrite of a group reads what scans and merges found.

    Attributes:
        runs: of the group.
        blobs: of the runs, by number.
        merged: what all merges found.
    """

    runs: GroupRuns
    blobs: Mapping[int, Blob]
    merged: tuple[MergedBlob, ...]

    def load(self, fs: LocalFileSystem) -> ScannedKeys:
        """See `KeySource.load`."""
        with ExitStack() as files:
            merged = {
                number: reader
                for one in self.merged
                for reader in [files.enter_context(closing(BlobReader(fs, one.blob)))]
                for number in range(one.low, one.high)
            }
            return self.runs.keys(_BlobSections(fs, self.blobs, merged))


@dataclass(frozen=True, slots=True)
class _BlobSections:
    """The sections of a group, in blobs; see `GroupSections`."""

    fs: LocalFileSystem
    blobs: Mapping[int, Blob]
    merged: Mapping[int, BlobReader]

    def outcomes(self, run: int) -> Sequence[npt.NDArray[Any]]:
        with closing(BlobReader(self.fs, self.blobs[run])) as reader:
            return reader.get(OUTCOMES, *OUTCOME_KINDS)

    def superseded(self, run: int, chunk: int, number: int) -> npt.NDArray[np.uint32]:
        return self.merged[number].get(f"{run}.{chunk}.{number}", np.uint32)[0]
