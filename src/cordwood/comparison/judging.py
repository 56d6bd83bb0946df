"""Judges the records and batches of two replicas at the same offsets, by symmetrical rules.

A record that only one replica has is normal below the offset that cleaners may have reached: its key decides, see
`keys`. Above it, the other replica misses the record. Two different records at one offset are never normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.judging import Summaries, matched
from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Piece
from cordwood.comparison.entries import SidedEntries
from cordwood.comparison.values import Difference, DifferenceKind, PairFindings, PairRole, Sum
from cordwood.kernels import side_by_side
from cordwood.kernels.last_records import COUNTS
from cordwood.kernels.layout import BatchRows, is_control
from cordwood.kernels.side_by_side import INVENTED

#: A difference besides those of `side_by_side`.
_PRODUCER = np.uint8(1 << 7)
_FIELDS = {
    side_by_side.TIMESTAMP: "timestamp",
    side_by_side.KEY: "key",
    side_by_side.VALUE: "value",
    side_by_side.HEADERS: "headers",
    _PRODUCER: "producer id, epoch or sequence",
}
#: Header fields of a batch that a cleaner keeps, besides the leader epoch.
_KEPT = ("producer_id", "producer_epoch", "base_sequence")


@dataclass(slots=True)
class RecordRun:
    """Adjacent records that one replica misses, or that differ.

    Attributes:
        role: the replica that misses the records; OTHER for different records.
        first, end: offsets [first, end).
        data: number of records that are no control records.
        fields: bits of the fields that differ; 0 for missing records.
        key: of the first record.
    """

    role: PairRole
    first: int
    end: int
    records: int
    data: int
    fields: int = 0
    key: bytes | None = None


@dataclass(slots=True)
class PairJudge:
    """Judges a range; a pass calls it, see `proof.judging.Judging`.

    Attributes:
        keys: entries of all records that count for keys.
        has_keys: whether keys are compared at all.
        cleaned_below: no cleaner has removed a record from this offset on.
        keyless_stay: records without a key were not removed either, as the topic may never have been compacted.
        runs: differences that no cleaner explains, in the order of offsets.
        diverged_at: the lowest offset of batches with different leader epochs; None if all epochs are equal.
    """

    keys: SidedEntries
    has_keys: bool
    cleaned_below: int
    keyless_stay: bool = False
    facts: Facts = field(default_factory=Facts)
    findings: PairFindings = field(default_factory=PairFindings)
    runs: list[RecordRun] = field(default_factory=list)
    diverged_at: int | None = None

    def rules(self, batches: BatchRows, mtime_ms: int) -> npt.NDArray[np.uint8]:
        """Return uint8[batches]: whether the records of each batch count for keys."""
        return np.where(is_control(batches), 0, COUNTS if self.has_keys else 0).astype(np.uint8)

    def records(self, piece: Piece, there: BoolArray) -> None:
        """Add records of *before*; `there` marks records that the other replica has, too."""
        self.keys.add(piece, self.rules(piece.batches, 0), there)

    def records_of_both(self, before: list[Piece], after: list[Piece]) -> None:
        """Compare the records of both replicas up to the same offset."""
        there, differs = matched(before, after)
        runs: list[RecordRun] = []
        for piece, known in zip(before, there, strict=True):
            self.facts.count(Count.RECORDS_BEFORE, piece.rows.size)
            missing = self._missing(piece, ~known, self.keys.first, runs)
            self._add(piece, known, missing)
        for piece, its_differs in zip(after, differs, strict=True):
            invented = its_differs == INVENTED
            self.facts.count(Count.RECORDS_AFTER, piece.rows.size)
            self.facts.count(Count.RECORDS_SAME, piece.rows.size - int(invented.sum()))
            if not its_differs.any():
                continue
            assert self.keys.first is not None
            missing = self._missing(piece, invented, self.keys.first.opposite, runs)
            rules = self.rules(piece.batches, 0)
            self.keys.add_other(_some(piece, invented & ~missing), rules)
            if missing.any():
                self.keys.excuse(_some(piece, missing), rules)
            _note_runs(piece, ~invented & (its_differs != 0), PairRole.OTHER, runs, its_differs)
        self.runs += sorted(runs, key=lambda one: one.first)

    def _add(self, piece: Piece, known: BoolArray, missing: BoolArray) -> None:
        if not missing.any():
            self.records(piece, known)
            return
        rules = self.rules(piece.batches, 0)
        self.keys.add(_some(piece, ~missing), rules, known[~missing])
        self.keys.excuse(_some(piece, missing), rules)

    def _missing(self, piece: Piece, alone: BoolArray, owner: PairRole | None, runs: list[RecordRun]) -> BoolArray:
        """Note the records of a replica that the opposite one misses; return them as bool[records]."""
        assert owner is not None
        rows = piece.rows
        missing: BoolArray = alone & (rows["offset"] >= self.cleaned_below)
        if self.keyless_stay:
            missing |= alone & (rows["key_size"] < 0)
        _note_runs(piece, missing, owner.opposite, runs)
        return missing

    def batches(self, before: BatchRows, after: BatchRows, summaries: Summaries, known: BoolArray) -> None:
        """Compare the header fields of batches that both replicas have."""
        if not (before.size and after.size):
            return
        at = np.minimum(np.searchsorted(before["last_offset"], after["last_offset"]), before.size - 1)
        paired = before["last_offset"][at] == after["last_offset"]
        was, now = before[at[paired]], after[paired]
        equal = was["crc"] == now["crc"]
        self.findings.sum(Sum.BATCHES_EQUAL, equal.sum())
        self.findings.sum(Sum.BYTES_EQUAL, was["size_bytes"][equal].sum())
        rewritten = ~equal
        for run in self.runs:
            if run.fields:  # its batch was not rewritten by a cleaner
                rewritten &= (now["last_offset"] < run.first) | (_firsts(now) >= run.end)
        self.findings.sum(Sum.BATCHES_REWRITTEN, rewritten.sum())
        epochs = was["leader_epoch"] != now["leader_epoch"]
        if epochs.any():
            lowest = int(_firsts(was[epochs]).min())
            self.diverged_at = lowest if self.diverged_at is None else min(lowest, self.diverged_at)
        producers = np.logical_or.reduce([was[name] != now[name] for name in _KEPT]) & ~epochs
        for row in was[producers]:
            first, end = int(_firsts(row)), int(row["last_offset"]) + 1
            self.runs.append(RecordRun(PairRole.OTHER, first, end, max(int(row["record_count"]), 1), 1, int(_PRODUCER)))


def _firsts(rows: BatchRows | np.void) -> npt.NDArray[np.int64]:
    return np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"])


def _some(piece: Piece, chosen: BoolArray) -> Piece:
    return Piece(piece.data, piece.rows[chosen], piece.batches, piece.mtime_ms)


def _note_runs(
    piece: Piece, chosen: BoolArray, role: PairRole, runs: list[RecordRun], fields: npt.NDArray[np.uint8] | None = None
) -> None:
    """Note the chosen records as runs of adjacent records."""
    if not chosen.any():
        return
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    control = is_control(piece.batches)[piece.rows["batch"]]
    for first, end in edges.reshape(-1, 2).tolist():
        rows = piece.rows[first:end]
        start, size = int(rows["key_start"][0]), int(rows["key_size"][0])
        key = piece.data[start : start + size].tobytes() if size >= 0 and not control[first] else None
        bits = 0 if fields is None else int(np.bitwise_or.reduce(fields[first:end]))
        data = int((~control[first:end]).sum())
        runs.append(RecordRun(role, int(rows["offset"][0]), int(rows["offset"][-1]) + 1, end - first, data, bits, key))


def joined_runs(runs: Sequence[RecordRun]) -> list[RecordRun]:
    """Join runs of the same kind that touch each other."""
    found: list[RecordRun] = []
    for one in sorted(runs, key=lambda one: (one.role, one.fields != 0, one.first)):
        last = found[-1] if found else None
        is_alike = last is not None and (last.role, last.fields != 0) == (one.role, one.fields != 0)
        if last is not None and is_alike and last.end >= one.first:
            last.end = max(last.end, one.end)
            last.records, last.data, last.fields = (
                last.records + one.records,
                last.data + one.data,
                last.fields | one.fields,
            )
        else:
            found.append(RecordRun(one.role, one.first, one.end, one.records, one.data, one.fields, one.key))
    return found


def difference_of(run: RecordRun) -> Difference:
    """Return a run as a difference."""
    if run.fields:
        names = ", ".join(name for bit, name in _FIELDS.items() if run.fields & bit)
        what, kind = f"different {names}", DifferenceKind.CHANGED
    else:
        what, kind = "", DifferenceKind.MISSING if run.data else DifferenceKind.MARKER
    return Difference(kind, run.role, run.first, run.end, run.records, key=run.key, what=what)
