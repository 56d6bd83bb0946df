"""Finds committed transactions, and checks that read_committed consumers see the same of them after a clean.

The steps of a log are read in chunks, in the order of their offsets. Memory holds one chunk, one byte for each step,
and the state of each producer at that place:

    backwards    the producer's next marker decides how a batch's transaction ended: the fate of each batch, per state
    forwards     the aborted transactions that a broker reports to consumers, up to each batch of the state after
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.keys import Uncommitted
from cordwood.cleaning.proof.pairs import BoolArray, Count, Facts, Int64Array, ViolationKind
from cordwood.cleaning.proof.producers import ABORT, COMMIT, DATA, STEP
from cordwood.cleaning.proof.scratch import Kept, Scratch
from cordwood.common.types import NONE

Steps = npt.NDArray[np.void]
Fates = npt.NDArray[np.int8]

#: The fate of a batch in an open transaction; the other fates are ABORT and COMMIT.
OPEN = -1
#: An entry of a transaction index: producer id, first and last offset of an aborted transaction.
ABORTED = np.dtype([("pid", "<i8"), ("first", "<i8"), ("last", "<i8")])


def judge_transactions(
    chunks: Sequence[Kept], aborted: npt.NDArray[np.void], scratch: Scratch
) -> tuple[Facts, Uncommitted]:
    """Judge the transactional batches of a pair.

    Args:
        chunks: STEP in chunks, of both states, in the order of offsets.
        aborted: ABORTED[entries], from the transaction indexes of the state after.

    Returns:
        facts; and the offsets of the state before whose records were not committed.
    """
    facts = Facts()
    markers: dict[tuple[bool, int], int] = {}
    fates: list[Fates] = []
    uncommitted: list[Steps] = []
    with scratch.reader() as reader:
        for chunk in reversed(chunks):
            steps = reader.read(chunk, 0, STEP)
            fates.append(_fates(steps, markers))
            uncommitted.append(steps[(steps["kind"] == DATA) & ~steps["after"] & (fates[-1] != COMMIT)])
        told = _Told.of(aborted)
        for chunk, its_fates in zip(chunks, reversed(fates), strict=True):
            _judge_chunk(reader.read(chunk, 0, STEP), its_fates, told, facts)
    rows = np.concatenate([np.empty(0, STEP), *uncommitted])
    rows = rows[np.argsort(rows["first"], kind="stable")]
    return facts, Uncommitted(rows["first"].copy(), rows["last"].copy())


def _groups(*names: npt.NDArray[np.generic]) -> BoolArray:
    """Return bool[rows]: whether a row of sorted rows is the first of its group."""
    new = np.ones(names[0].size, np.bool_)
    if names[0].size:
        new[1:] = np.logical_or.reduce([name[1:] != name[:-1] for name in names])
    return new


def _spans(new_group: BoolArray) -> Iterable[tuple[int, int]]:
    """Return the start and end index of each group of sorted rows."""
    return itertools.pairwise([*np.flatnonzero(new_group).tolist(), new_group.size])


def _latest(chosen: BoolArray, new_group: BoolArray) -> Int64Array:
    """Return int64[rows]: the index of the last chosen row up to each row, in its group; NONE without one."""
    indexes = np.arange(chosen.size)
    latest = np.maximum.accumulate(np.where(chosen, indexes, NONE))
    start = np.maximum.accumulate(np.where(new_group, indexes, 0))
    return np.where(latest >= start, latest, NONE)


def _fates(steps: Steps, markers: dict[tuple[bool, int], int]) -> Fates:
    """Return how the transaction of each step ended, which the producer's next marker decides.

    Args:
        markers: the first marker after these steps, by state and producer; updated to the first marker in these steps.
    """
    order = np.lexsort((-steps["last"], steps["pid"], steps["after"]))
    rows = steps[order]
    new = _groups(rows["pid"], rows["after"])
    is_marker = rows["kind"] != DATA
    next_marker = _latest(is_marker, new)
    found = np.where(next_marker >= 0, rows["kind"][next_marker], OPEN).astype(np.int8)
    for start, end in _spans(new):
        key = bool(rows["after"][start]), int(rows["pid"][start])
        if key in markers:
            found[start:end][next_marker[start:end] < 0] = markers[key]
        if next_marker[end - 1] >= 0:
            markers[key] = int(rows["kind"][next_marker[end - 1]])
    fates = np.empty(steps.size, np.int8)
    fates[order] = found
    return fates


@dataclass(slots=True)
class _Told:
    """The aborted transactions that a broker has reported to a consumer, by producer, up to some offset.

    Attributes:
        entries: ABORTED[entries], by producer and first offset.
        lasts: int64[entries], the largest last offset among the producer's entries up to each entry.
        abort_at: offset of the producer's last ABORT marker.
    """

    entries: npt.NDArray[np.void]
    lasts: Int64Array
    abort_at: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, aborted: npt.NDArray[np.void]) -> _Told:
        entries = aborted[np.lexsort((aborted["first"], aborted["pid"]))]
        new = _groups(entries["pid"])
        lasts = entries["last"].copy()
        for at in np.flatnonzero(~new).tolist():
            lasts[at] = max(lasts[at], lasts[at - 1])
        return cls(entries, lasts)

    def up_to(self, pids: Int64Array, offsets: Int64Array) -> Int64Array:
        """Return int64[batches]: the index of the producer's last entry that starts at or below an offset, or NONE."""
        found = np.full(pids.size, NONE, np.int64)
        if not self.entries.size:
            return found
        order = np.argsort(pids, kind="stable")
        for start, end in _spans(_groups(pids[order])):
            mine = order[start:end]
            low, high = np.searchsorted(self.entries["pid"], [pids[mine[0]], pids[mine[0]] + 1])
            at = low + np.searchsorted(self.entries["first"][low:high], offsets[mine], side="right") - 1
            found[mine] = np.where(at >= low, at, NONE)
        return found


def _judge_chunk(steps: Steps, fates: Fates, told: _Told, facts: Facts) -> None:
    """Judge whether consumers skip the same batches in the state after as in the state before.

    A broker sends a consumer all aborted transactions that end at or after its fetch offset. The consumer skips the
    producer's batches from the first offset of such a transaction up to the next ABORT marker. `hidden`: a consumer
    that starts early skips the batch; `shown`: a consumer that starts exactly at it does not.
    """
    is_data = steps["kind"] == DATA
    rows, now = steps[steps["after"] & is_data], fates[steps["after"] & is_data]
    was_rows, was = steps[~steps["after"] & is_data], fates[~steps["after"] & is_data]
    aborts_up_to = _aborts(steps, told)
    known, before = _matched(was_rows, rows)
    chosen = known & rows["filled"]
    rows, now, was = rows[chosen], now[chosen], was[before[chosen]]
    abort_at = aborts_up_to[chosen]
    entry = told.up_to(rows["pid"], rows["last"])
    entry_first = np.where(entry >= 0, np.append(told.entries["first"], NONE)[entry], NONE)
    entry_last = np.where(entry >= 0, np.append(told.lasts, NONE)[entry], NONE)
    hidden, shown = entry_first > abort_at, entry_last < rows["first"]
    same = was == now
    good = np.where(was == ABORT, same & hidden & ~shown, same & ~hidden & shown)
    facts.count(Count.TRANSACTIONAL, int(good.sum()))
    facts.broken_at(ViolationKind.ABORTED_VISIBLE, rows["first"][~good & (was == ABORT)])
    facts.broken_at(ViolationKind.COMMITTED_HIDDEN, rows["first"][~good & (was != ABORT)])


def _aborts(steps: Steps, told: _Told) -> Int64Array:
    """Return int64[data batches of the state after]: offset of the producer's last ABORT marker up to each, or NONE."""
    after = steps[steps["after"] & (steps["kind"] != COMMIT)]
    order = np.lexsort((after["kind"], after["last"], after["pid"]))
    rows = after[order]
    new = _groups(rows["pid"])
    latest = _latest(rows["kind"] == ABORT, new)
    found = np.where(latest >= 0, rows["last"][latest], NONE)
    for start, end in _spans(new):
        pid = int(rows["pid"][start])
        if pid in told.abort_at:
            mine = found[start:end]
            mine[:] = np.maximum(mine, told.abort_at[pid])
        if (last := int(found[end - 1])) >= 0:
            told.abort_at[pid] = last
    aborts = np.empty(after.size, np.int64)
    aborts[order] = found
    return np.asarray(aborts[after["kind"] == DATA])


def _matched(before: Steps, after: Steps) -> tuple[BoolArray, Int64Array]:
    """Find batches of the state after in the state before, by producer and first offset; return (found, index)."""
    if not before.size:
        return np.zeros(after.size, np.bool_), np.zeros(after.size, np.int64)
    order = np.argsort(before["first"], kind="stable")
    at = np.minimum(np.searchsorted(before["first"][order], after["first"]), before.size - 1)
    found = order[at]
    return (before["first"][found] == after["first"]) & (before["pid"][found] == after["pid"]), found
