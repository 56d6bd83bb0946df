"""One wave of a clean in place: write new segments, prove them, swap them for the old ones, and record the result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cordwood.cleaning.engine.partition import GroupRange
from cordwood.cleaning.engine.progress import Counters, total
from cordwood.cleaning.engine.task import (
    Failure,
    FailureKind,
    Output,
    PartitionTask,
    is_provable,
    miscounted,
    not_as_reported,
    put_in_place,
)
from cordwood.cleaning.proof.pairs import Count, Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import Verdict
from cordwood.cleaning.rules.waves import Wave
from cordwood.commands.in_place.work import InPlaceWork, Ledger, LockedDirectories
from cordwood.commands.verify import verify_pairs
from cordwood.common.errors import NoSpaceError
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.copy import Replacement
from cordwood.storage.changes.swap import swap_in
from cordwood.storage.formats import filenames
from cordwood.storage.formats.filenames import parse_file
from cordwood.tasks.tasks import Jobs


def run_wave(
    site: LockedDirectories, jobs: Jobs, work: InPlaceWork, wave: Wave, ledger: Ledger, *, verify: bool
) -> None:
    """Clean the groups of a wave, and replace their segments by the outputs.

    Args:
        work: the work of all waves.
        wave: the groups of this wave; groups of failed partitions are skipped.
        verify: whether to prove outputs before using them.
    """
    tasks = [
        _part(work, path, first, end, ledger) for path, (first, end) in wave.items() if path not in ledger.failures
    ]
    read_before = total(site.fs, jobs.progress)
    outcomes = jobs.clean(tasks, None, proved=verify)
    ledger.bytes_read += total(site.fs, jobs.progress) - read_before
    _note_written(site, outcomes, ledger)
    if verify:
        outcomes = _proved(site, jobs, tasks, outcomes, ledger)
    site.confirm_locks()

    def swap(at: int) -> None:
        _swap(site, work, tasks[at], outcomes[at], ledger)

    in_parallel(site.fs.concurrency, swap, range(len(tasks)))
    _record(site, [task.path for task in tasks if ledger.progress[task.path].complete], ledger)


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


# ---- prove -----------------------------------------------------------------------------------------------------------


def _proved(
    site: LockedDirectories,
    jobs: Jobs,
    tasks: Sequence[PartitionTask],
    outcomes: Sequence[Output | Failure],
    ledger: Ledger,
) -> list[Output | Failure]:
    """Prove the outcomes; replace each one that cannot be proved right by a failure."""
    found = list(outcomes)
    written = {at: outcome for at, outcome in enumerate(outcomes) if isinstance(outcome, Output)}
    if not written:
        return found
    pairs = [_pair(site, tasks[at], output) for at, output in written.items()]
    started = time.monotonic()
    counters = Counters(site.fs.location(), jobs.progress)
    read_before = total(site.fs, jobs.progress)
    try:
        verdicts = verify_pairs(jobs.runner(), jobs.fs, pairs, PosixFileSystem(), counters=counters)
    except NoSpaceError as error:
        what = "what was written for it is not used, as it cannot be proved right"
        for at in written:
            found[at] = Failure(FailureKind.FULL, f"{tasks[at].path}: {what}: {error}", for_all=f"{what}: {error}")
        return found
    ledger.verify_seconds += time.monotonic() - started
    ledger.proof_bytes_read += total(site.fs, jobs.progress) - read_before
    for at, verdict in zip(written, verdicts, strict=True):
        ledger.verified += verdict.counts.get(Count.RECORDS_BEFORE, 0)
        if verdict.holds:
            fault = _miscounted(written[at], verdict)
            found[at] = not_as_reported(tasks[at].path, fault) if fault else written[at]
        else:
            # Damage where the clean does not read, as in the active segment, is not a bug of Cordwood.
            kind = FailureKind.DAMAGE if ViolationKind.DAMAGE_BEFORE in verdict.totals else FailureKind.BUG
            found[at] = Failure(kind, _not_proved(tasks[at].path, verdict))
    return found


def _pair(site: LockedDirectories, task: PartitionTask, output: Output) -> Pair:
    """Return a partition before and after the swap.

    The proof of each wave reads the whole log, outputs of earlier waves included. An earlier wave may have kept an old
    value because a tombstone in a later wave hides it: a=1 in wave 1, a=∅ in wave 2. If wave 2 dropped the tombstone,
    a=1 would be back. For the same reason a marker in wave 2 must stay while wave 1 keeps data of its transaction.
    """
    path, cleaned, settings = task.path, output.cleaned, task.settings
    going = output.replacement
    files = {
        info.name: f"{path}/{info.name}"
        for info in site.fs.list(path)
        if not info.is_directory and not going.removes(parse_file(info.name))
    }
    files |= {name: f"{output.folder}/{name}" for name, _ in output.files}
    name = next(place.name for place in site.places if place.path == path)
    return Pair(
        None if name is None else name.topic_partition,
        Side(path, task.log_start_offset),
        Side(path, task.log_start_offset, files),
        first_uncleanable=task.end,
        superseding_end=task.first_uncleanable,
        now_ms=task.now_ms,
        deletes_for_good=settings.deletes_for_good,
        legacy_horizon_ms=None if cleaned.carried is None else cleaned.carried.old_horizon_ms,
        new_horizon_ms=task.now_ms + settings.delete_retention_ms,
        producer_expiration_ms=settings.producer_expiration_ms,
        witnesses=True,
        # If tombstones went, the proof looks for older values of their keys everywhere.
        first_dirty=0 if cleaned.counts.tombstones_expired else task.first_dirty,
        written=frozenset(base for _, outputs in cleaned.written for base in outputs)
        if is_provable(task, output)
        else frozenset(),
    )


def _miscounted(output: Output, verdict: Verdict) -> str:
    """Return a difference, in words, between the figures of a clean and the outputs that its proof has read, or ""."""
    if not verdict.pair.written:
        return ""
    counts = (verdict.counts.get(count, 0) for count in (Count.BATCHES_WRITTEN, Count.RECORDS_WRITTEN))
    return next(miscounted(output.cleaned, *counts), "")


def _not_proved(path: str, verdict: Verdict) -> str:
    first, count = verdict.violations[0], sum(verdict.totals.values())
    where = "" if first.offset is None else f", offset {first.offset}"
    return (
        f"{path}: what was written for it cannot be proved right, so it is not used; {count} violations, such as: "
        f"{first.path}{where}: {first.what}"
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


def _record(site: LockedDirectories, paths: Iterable[str], ledger: Ledger) -> None:
    """Write the clean offsets of partitions to the cleaner's checkpoints."""
    by_path = {place.path: place for place in site.places}
    offsets: dict[str, dict[TopicPartition, int | None]] = {}
    for path in paths:
        place, cleaned = by_path[path], ledger.progress[path].cleaned
        assert place.name is not None and cleaned is not None, "it was cleaned"
        offsets.setdefault(place.directory.path, {})[place.name.topic_partition] = cleaned.end_offset
    for directory in site.node.directories:
        if directory.path in offsets:
            site.record(directory, {filenames.CLEANER_OFFSETS: offsets[directory.path]})
