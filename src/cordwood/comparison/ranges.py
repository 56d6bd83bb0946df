"""Compares the records of two replicas in a range of offsets, by the passes of a proof.

The quick pass works if one replica has all records of the range, as if only the other was cleaned. It is tried with
each replica as *before*. If neither works, the careful pass decodes both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import numpy as np

from cordwood.cleaning.proof import quick
from cordwood.cleaning.proof.compare import compare as compare_carefully
from cordwood.cleaning.proof.judging import Judging
from cordwood.cleaning.proof.keys import KeyRules
from cordwood.cleaning.proof.pairs import Count, Facts, Piece, ViolationKind
from cordwood.cleaning.proof.producers import Noting, ProducerNotes
from cordwood.cleaning.proof.reading import PairRange, RangeWindows
from cordwood.cleaning.proof.scratch import Kept, Scratch, ScratchWriter
from cordwood.comparison.entries import KeyShare, SidedEntries
from cordwood.comparison.judging import PairJudge, RecordRun
from cordwood.comparison.reading import Interval, ReplicaWindows, damage_in
from cordwood.comparison.values import PairFindings, PairRole, Sum
from cordwood.kernels.layout import BATCH_ROW, BatchRows
from cordwood.record.columns import BatchWindow, decode, is_valid
from cordwood.storage.log.view import LogView

_NO_BATCHES = np.empty(0, BATCH_ROW)


class How(Enum):
    """How the records of a range are compared."""

    #: Both replicas are read.
    BOTH = "both"
    #: Both have the same batches, so only one replica is read.
    SAME = "same"
    #: A part of a replica above the compared offsets: its records explain gaps of that replica.
    NEWEST_ABOVE = "newest above"
    OTHER_ABOVE = "other above"
    #: A part that is damaged in one replica: the records of both explain gaps of both.
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range, and how it is compared.

    Attributes:
        skips_damage: see `ReplicaWindows`.
        has_keys: whether keys are compared at all.
        cleaned_below, keyless_stay: see `PairJudge`.
    """

    part: PairRange
    how: How
    rules: KeyRules
    sample: KeyShare
    has_keys: bool
    cleaned_below: int
    keyless_stay: bool = False
    skips_damage: bool = False


@dataclass(frozen=True, slots=True)
class RangeFindings:
    """The result of a range.

    Attributes:
        keys: entries, see `SidedEntries`.
        steps: of its transactions, see `ProducerNotes`; *after* is the other replica.
        runs: differences that no cleaner explains.
        diverged_at: see `PairJudge`.
        damage: unreadable offsets of the newest and the other replica. With damage, all other fields are empty.
    """

    findings: PairFindings
    keys: list[Kept]
    steps: list[Kept]
    runs: list[RecordRun]
    diverged_at: int | None = None
    damage: tuple[tuple[Interval, ...], tuple[Interval, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class _OrderedNotes:
    """Notes the batches of a range, with the newest replica first."""

    notes: ProducerNotes
    swapped: bool

    def add(self, before: BatchRows, after: BatchRows) -> None:
        """See `ProducerNotes.add`."""
        self.notes.add(*((after, before) if self.swapped else (before, after)))


_Pass = Callable[[RangeWindows, RangeWindows | None, Judging, Noting], None]


def compare_records(
    task: RangeTask, newest: LogView, other: LogView, scratch: Scratch, *, here_bytes: int
) -> RangeFindings:
    """Compare the records of a range.

    Args:
        here_bytes: bytes of entries and steps that stay in memory; more are written to a file of `scratch`.
    """
    with scratch.writer(here_bytes=here_bytes) as writer:
        reading = _RangeReading(task, newest, other, writer)
        if task.how not in (How.BOTH, How.SAME):
            return reading.alone()
        # The quick pass reports no runs.
        if task.part.end <= task.cleaned_below and not task.keyless_stay:
            for swapped in (False, True) if task.how is How.BOTH else (False,):
                with suppress(quick.OddError):
                    return reading.compared(quick.compare, swapped=swapped)
        return reading.compared(compare_carefully, swapped=False)


@dataclass(frozen=True, slots=True)
class _RangeReading:
    task: RangeTask
    newest: LogView
    other: LogView
    writer: ScratchWriter

    def windows(self, log: LogView, facts: Facts) -> ReplicaWindows:
        part = self.task.part
        return ReplicaWindows(
            log, part, part.start, facts, ViolationKind.DAMAGE_BEFORE, skips_damage=self.task.skips_damage
        )

    def keys(self, first: PairRole | None, *, excused: bool = False) -> SidedEntries:
        return SidedEntries(self.task.rules, self.writer, first, excused, sample=self.task.sample)

    def compared(self, compare: _Pass, *, swapped: bool) -> RangeFindings:
        task, first = self.task, PairRole.OTHER if swapped else PairRole.NEWEST
        judge = PairJudge(self.keys(first), task.has_keys, task.cleaned_below, task.keyless_stay)
        notes = ProducerNotes(task.part.start, self.writer)
        facts = Facts(), Facts()
        logs = (self.other, self.newest) if swapped else (self.newest, self.other)
        before = self.windows(logs[0], facts[0])
        after = self.windows(logs[1], facts[1]) if task.how is How.BOTH else None
        compare(before, after, judge, _OrderedNotes(notes, swapped))
        part = task.part
        if any(one.counts.get(kind) for one in facts for kind in ViolationKind):
            damage = tuple(tuple(damage_in(log, part.start, part.end)) for log in (self.newest, self.other))
            unknown = Interval(part.start, part.end, "two readers do not agree on its batches")
            return RangeFindings(
                PairFindings(), [], [], [], None, (damage[0], damage[1] if any(damage) else (unknown,))
            )
        self._sums(judge)
        _, steps = notes.finish()
        entries = judge.keys.finish()
        return RangeFindings(judge.findings, entries, steps, judge.runs, judge.diverged_at)

    def _sums(self, judge: PairJudge) -> None:
        counts = judge.facts.counts
        same = counts.get(Count.RECORDS_SAME, 0)
        alone = [counts.get(name, 0) - same for name in (Count.RECORDS_BEFORE, Count.RECORDS_AFTER)]
        judge.findings.sum(Sum.RECORDS_EQUAL, same)
        judge.findings.sum(Sum.RECORDS_CLEANED, sum(alone) - sum(one.records for one in judge.runs if not one.fields))
        judge.findings.sum(Sum.BYTES_EQUAL, counts.get(Count.UNCHANGED_BYTES, 0))

    def alone(self) -> RangeFindings:
        """Read records that only explain gaps. Damage among them explains nothing."""
        task, findings = self.task, PairFindings()
        roles = {
            How.NEWEST_ABOVE: (PairRole.NEWEST,),
            How.OTHER_ABOVE: (PairRole.OTHER,),
            How.UNJUDGED: (PairRole.NEWEST, PairRole.OTHER),
        }[task.how]
        keys = self.keys(None if task.how is How.UNJUDGED else roles[0], excused=True)
        judge = PairJudge(keys, task.has_keys, task.cleaned_below)
        notes = ProducerNotes(task.part.start, self.writer)
        for role in roles:
            windows = self.windows((self.newest, self.other)[role], Facts())
            for segment, item in windows:
                batches = windows.batches_of(item)
                batches = batches[is_valid(batches)]
                window = BatchWindow(item.position, item.data, batches, item.read)
                for columns in decode(window, on_damage=lambda _: None):
                    piece = Piece(columns.data, columns.rows, columns.batches, segment.mtime_ms)
                    keys.add(piece, judge.rules(columns.batches, 0), np.zeros(columns.rows.size, np.bool_))
                    del columns, piece
                if task.how is How.UNJUDGED:
                    findings.sum(Sum.UNJUDGED_BYTES, int(batches["size_bytes"].sum()))
                notes.add(*((batches, _NO_BATCHES) if role is PairRole.NEWEST else (_NO_BATCHES, batches)))
                del item, window
        _, steps = notes.finish()
        return RangeFindings(findings, keys.finish(), steps, [])
