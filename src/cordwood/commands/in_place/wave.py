"""One wave of a clean in place: write new segments, prove them, swap them for the old ones, and record the result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cordwood.cleaning.engine.partition import GroupRange
from cordwood.cleaning.engine.progress import total
from cordwood.cleaning.engine.task import (
    Failure,
    Output,
    PartitionTask,
    put_in_place,
)
from cordwood.cleaning.rules.waves import Wave
from cordwood.commands.in_place.proving import proved
from cordwood.commands.in_place.work import InPlaceWork, Ledger, LockedDirectories
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import swap_in
from cordwood.storage.formats import filenames
from cordwood.tasks.tasks import Jobs


def run_wave(
    site: LockedDirectories,
    jobs: Jobs,
    work: InPlaceWork,
    wave: Wave,
    ledger: Ledger,
    *,
    verify: bool,
    unrecorded: Collection[str] = (),
) -> None:
    """Clean the groups of a wave, and replace their segments by the outputs.

    Args:
        work: the work of all waves.
        wave: the groups of this wave; groups of failed partitions are skipped.
        verify: whether to prove outputs before using them.
        unrecorded: partitions whose clean is not recorded yet, once it is complete.
    """
    tasks = [
        _part(work, path, first, end, ledger) for path, (first, end) in wave.items() if path not in ledger.failures
    ]
    read_before = total(site.fs, jobs.progress)
    outcomes = jobs.clean(tasks, None, proved=verify)
    ledger.bytes_read += total(site.fs, jobs.progress) - read_before
    _note_written(site, outcomes, ledger)
    if verify:
        outcomes = proved(jobs, tasks, outcomes, site.names, ledger.proofs)
    site.confirm_locks()

    def swap(at: int) -> None:
        _swap(site, work, tasks[at], outcomes[at], ledger)

    in_parallel(site.fs.concurrency, swap, range(len(tasks)))
    done = [task.path for task in tasks if ledger.progress[task.path].complete and task.path not in unrecorded]
    record_clean(site, done, ledger)


def _part(work: InPlaceWork, path: str, first: int, end: int, ledger: Ledger) -> PartitionTask:
    """Return the task for some groups of a partition."""
    task, groups = work.tasks[path], work.groups(path)
    if (first, end) == (0, len(groups)):
        return task
    behind = groups[end][0] if end < len(groups) else task.first_uncleanable
    cleaned = ledger.progress[path].cleaned
    return replace(
        task, part=GroupRange(tuple(groups[first:end]), behind, None if cleaned is None else cleaned.carried)
    )


# ---- swap, record ----------------------------------------------------------------------------------------------------


def _swap(
    site: LockedDirectories, work: InPlaceWork, task: PartitionTask, outcome: Output | Failure, ledger: Ledger
) -> None:
    """Swap in the groups of a partition, in ascending order."""
    groups = len(work.groups(task.path) if task.part is None else task.part.groups)
    path = task.path
    if isinstance(outcome, Output):
        progress = ledger.progress[path]
        # Rounds of Kafka's offset map have their own groups.
        progress.groups += len(outcome.cleaned.replaced) - groups

        def swap(group: Replacement) -> None:
            swap_in(site.fs, path, group, keep=site.keep)
            progress.done += 1

        put_in_place(site.fs, task, outcome, swap, index_bytes_max=work.index_max)
        progress.done += len(outcome.cleaned.kept)
        progress.add(outcome.cleaned)
    else:
        ledger.failures[path] = outcome
    site.empty_work_folder(path)


def _note_written(site: LockedDirectories, outcomes: Sequence[Output | Failure], ledger: Ledger) -> None:
    for output in outcomes:
        if isinstance(output, Output):
            index_bytes = sum(site.fs.stat(path).size_bytes for path in output.indexes)
            ledger.index_bytes += index_bytes
            ledger.bytes_written += index_bytes + sum(size for _, size in output.files)


def record_clean(site: LockedDirectories, paths: Iterable[str], ledger: Ledger) -> None:
    """Write the clean offsets of partitions to the cleaner's checkpoints.

    A joint clean may end below the clean offset that a replica had before; the higher offset stays.
    """
    by_path = {place.path: place for place in site.places}
    offsets: dict[str, dict[TopicPartition, int | None]] = {}
    for path in paths:
        place, cleaned = by_path[path], ledger.progress[path].cleaned
        assert place.name is not None and cleaned is not None, "it was cleaned"
        offset = max(cleaned.end_offset, site.clean_before.get(path, 0))
        offsets.setdefault(place.directory.path, {})[place.name.topic_partition] = offset
    for directory in site.directories:
        if directory.path in offsets:
            site.record(directory, {filenames.CLEANER_OFFSETS: offsets[directory.path]})
