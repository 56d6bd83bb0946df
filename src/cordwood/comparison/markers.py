"""Finds markers that a replica misses, and the records that do not count because their transaction did not commit.

A marker ends the transaction of all earlier batches of its producer. A cleaner drops a marker only after the data of
its transaction. So a replica that has the data needs the marker, and the replica with the marker is right:

    newest     5 data │ 9 ABORT │ 12 data │ 15 COMMIT
    other      5 data │         │ 12 data │ 15 COMMIT       serves the aborted batch 5, as its next marker is a COMMIT

The comparison is as of one offset, its end: a transaction counts as open if its marker is at or above the end. But the
replica's cleaner had read that marker. So a record of such a transaction explains gaps if the replica has its COMMIT.

The steps of both replicas are read backwards, in chunks; memory holds one chunk, and the next marker of each producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.pairs import Int64Array
from cordwood.cleaning.proof.producers import ABORT, COMMIT, DATA, STEP
from cordwood.cleaning.proof.scratch import Kept, Scratch
from cordwood.comparison.values import Difference, DifferenceKind, PairFindings, PairRole, Sum
from cordwood.kernels.two_sides import EXCUSES_NEWEST, EXCUSES_OTHER, HIDDEN

_KINDS = {ABORT: "ABORT", COMMIT: "COMMIT"}
#: Offset and kind of a marker.
_Marker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OffsetKinds:
    """Ranges of offsets whose records do not count, see `kernels.two_sides.merge_sides`.

    Attributes:
        firsts, lasts: int64[ranges], ascending.
        kinds: int8[ranges].
    """

    firsts: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    lasts: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    kinds: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))


@dataclass(slots=True)
class _Ranges:
    """Collects ranges of one replica."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)

    def finish(self) -> OffsetKinds:
        rows = np.array(sorted(self.rows), np.int64).reshape(-1, 3)
        return OffsetKinds(rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2].astype(np.int8))


@dataclass(slots=True)
class MarkerFindings:
    """The result of all steps of a pair.

    Attributes:
        newest: records of the newest replica that do not count.
        other: records of only the other replica that do not count.
    """

    findings: PairFindings
    newest: OffsetKinds
    other: OffsetKinds


@dataclass(slots=True)
class _Next:
    """The next marker of a producer.

    Attributes:
        own: in each replica, at any offset.
        either: in either replica, below the end.
    """

    own: list[_Marker | None] = field(default_factory=lambda: [None, None])
    either: _Marker | None = None


def judge_markers(
    chunks: Sequence[Kept],
    scratch: Scratch,
    end: int,
    ends: tuple[int, int],
    lost: tuple[Sequence[range], Sequence[range]],
) -> MarkerFindings:
    """Judge the transactional batches and markers of a pair.

    Args:
        chunks: STEP in chunks, in the order of offsets in each replica.
        end: the end of the comparison.
        ends: log end offset of the newest and of the other replica.
        lost: offsets that each replica lacks; their markers are not reported again.
    """
    findings, ranges = PairFindings(), (_Ranges(), _Ranges())
    nexts: dict[int, _Next] = {}
    reported: dict[tuple[PairRole, int], Difference] = {}
    with scratch.reader() as reader:
        for chunk in reversed(chunks):
            steps = reader.read(chunk, 0, STEP)
            # At one offset a marker is after the data before it; both replicas' copies of a step are adjacent.
            order = np.lexsort((steps["after"], steps["first"], steps["last"]))[::-1]
            rows = steps[order].tolist()
            there = {(pid, first, after) for pid, first, _, kind, after, filled in rows if kind == DATA and filled}
            markers = {(pid, last, after) for pid, _, last, kind, after, _ in rows if kind != DATA}
            for pid, first, last, kind, after, filled in rows:
                role, known = PairRole(after), nexts.setdefault(pid, _Next())
                if kind != DATA:
                    known.own[role] = last, kind
                    if last < end:
                        known.either = last, kind
                        findings.sum(Sum.MARKERS_CLEANED, (pid, last, not after) not in markers)
                    continue
                _hide(known, first, last, role, end, ranges[role])
                if filled and last < end:
                    both = (pid, first, not after) in there
                    found = _wrong(known, first, last, role, end, ends, has_both=both)
                    if found is not None and not any(found.end_offset - 1 in one for one in lost[role]):
                        at = known.either[0] if known.either is not None else first
                        reported[role, at] = found
    for one in reported.values():
        findings.differ(one)
    return MarkerFindings(findings, ranges[0].finish(), ranges[1].finish())


def _hide(known: _Next, first: int, last: int, role: PairRole, end: int, ranges: _Ranges) -> None:
    """Note the records of a batch, unless they count."""
    own = known.own[role]
    if last >= end:
        if own is None or own[1] != COMMIT:
            ranges.rows.append((first, last, int(HIDDEN)))
        return
    if known.either is not None:
        if known.either[1] != COMMIT:
            ranges.rows.append((first, last, int(HIDDEN)))
        return
    # Open as of the end; but the replica's cleaner has read a later COMMIT.
    bits = HIDDEN
    for marker, bit in zip(known.own, (EXCUSES_NEWEST, EXCUSES_OTHER), strict=True):
        if marker is not None and marker[1] == COMMIT:
            bits |= bit
    ranges.rows.append((first, last, int(bits)))


def _wrong(
    known: _Next, first: int, last: int, role: PairRole, end: int, ends: tuple[int, int], *, has_both: bool
) -> Difference | None:
    """Return the difference if a replica lacks the marker that decides a batch, so its readers see another outcome."""
    own, either = known.own[role], known.either
    as_of_end = own if own is not None and own[0] < end else None
    if either is None:
        # The opposite replica has removed the data, so its cleaner had read the marker.
        gone = not has_both and own is None and known.own[role.opposite] is None and ends[role] >= ends[role.opposite]
        what = "the other replica has removed the transaction's data"
        return Difference(DifferenceKind.MARKER, role, first, last + 1, what=what) if gone else None
    if as_of_end == either or (as_of_end is not None and as_of_end[1] == either[1]):
        return None
    marker = f"its {_KINDS[either[1]]} marker at offset {either[0]} is missing"
    if as_of_end is None:
        return Difference(DifferenceKind.MARKER, role, either[0], either[0] + 1, what=f"ends offset {first} on")
    kind = DifferenceKind.ABORTED if either[1] == ABORT else DifferenceKind.HIDDEN
    return Difference(kind, role, first, last + 1, what=marker)
