"""Prove the outputs of tasks before they replace segments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cordwood.cleaning.engine.progress import Counters, total
from cordwood.cleaning.engine.task import (
    Failure,
    FailureKind,
    Output,
    PartitionTask,
    is_provable,
    miscounted,
    not_as_reported,
)
from cordwood.cleaning.proof.pairs import Count, Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import Verdict
from cordwood.commands.verify import verify_pairs
from cordwood.common.errors import NoSpaceError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import parse_file
from cordwood.tasks.tasks import Jobs


@dataclass
class Proofs:
    """Sums of proofs.

    Attributes:
        verified: number of records that were proved right.
        bytes_read: bytes that proofs read.
    """

    verified: int = 0
    seconds: float = 0.0
    bytes_read: int = 0

    def add(self, other: Proofs) -> None:
        """Add other sums."""
        self.verified += other.verified
        self.seconds += other.seconds
        self.bytes_read += other.bytes_read


def proved(
    jobs: Jobs,
    tasks: Sequence[PartitionTask],
    outcomes: Sequence[Output | Failure],
    names: Mapping[str, TopicPartition],
    sums: Proofs,
) -> list[Output | Failure]:
    """Prove the outcomes; replace an outcome whose proof fails by a failure.

    Args:
        names: the partition in each directory.
        sums: the sums that this adds to.
    """
    found = list(outcomes)
    written = {at: outcome for at, outcome in enumerate(outcomes) if isinstance(outcome, Output)}
    if not written:
        return found
    pairs = [_pair(jobs.fs, names[tasks[at].path], tasks[at], output) for at, output in written.items()]
    started = time.monotonic()
    counters = Counters(jobs.location, jobs.progress)
    read_before = total(jobs.fs, jobs.progress)
    try:
        verdicts = verify_pairs(jobs.runner(), jobs.fs, pairs, PosixFileSystem(), counters=counters)
    except NoSpaceError as error:
        what = "its new segments are not used, as they cannot be proved right"
        for at in written:
            found[at] = Failure(FailureKind.FULL, f"{tasks[at].path}: {what}: {error}", for_all=f"{what}: {error}")
        return found
    sums.seconds += time.monotonic() - started
    sums.bytes_read += total(jobs.fs, jobs.progress) - read_before
    for at, verdict in zip(written, verdicts, strict=True):
        sums.verified += verdict.counts.get(Count.RECORDS_BEFORE, 0)
        if verdict.holds:
            fault = _miscounted(written[at], verdict)
            found[at] = not_as_reported(tasks[at].path, fault) if fault else written[at]
        else:
            # Damage where the clean does not read, as in the active segment, is not a bug of Cordwood.
            kind = FailureKind.DAMAGE if ViolationKind.DAMAGE_BEFORE in verdict.totals else FailureKind.BUG
            found[at] = Failure(kind, _not_proved(tasks[at].path, verdict))
    return found


def _pair(fs: Store, name: TopicPartition, task: PartitionTask, output: Output) -> Pair:
    """Return a partition before and after the swap.

    The proof of each wave reads the whole log, outputs of earlier waves included. An earlier wave may have kept an old
    value because a tombstone in a later wave hides it: a=1 in wave 1, a=∅ in wave 2. If wave 2 dropped the tombstone,
    a=1 would be back. For the same reason a marker in wave 2 must stay while wave 1 keeps data of its transaction.
    """
    path, cleaned, settings = task.path, output.cleaned, task.settings
    going = output.replacement
    files = {
        info.name: f"{path}/{info.name}"
        for info in fs.list(path)
        if not info.is_directory and not going.removes(parse_file(info.name))
    }
    files |= {name: f"{output.folder}/{name}" for name, _ in output.files}
    return Pair(
        name,
        Side(path, task.log_start_offset),
        Side(path, task.log_start_offset, files),
        first_uncleanable=task.end,
        superseding_end=task.first_uncleanable,
        now_ms=task.now_ms,
        deletes_for_good=settings.deletes_for_good,
        held=tuple(settings.held.ranges()),
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
        f"{path}: its new segments cannot be proved right, so they are not used; {count} violations, such as: "
        f"{first.path}{where}: {first.what}"
    )
