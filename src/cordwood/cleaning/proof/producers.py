"""Collects facts about batches with a producer id, range by range.

A broker rebuilds a producer's state from the last batch of its epoch. So a range's result holds the last offsets for
each producer and epoch. A single task judges all transactional batches and markers in the order of their offsets,
because the marker that decides a transaction may be in a later range; see `transactions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.proof.pairs import Count, Facts, ViolationKind
from cordwood.cleaning.proof.room import STEP_BYTES
from cordwood.cleaning.proof.scratch import Kept, ScratchWriter
from cordwood.common.types import NONE
from cordwood.kernels.layout import TRANSACTIONAL, BatchRows, is_control

#: Kinds of steps, in their order at one offset.
ABORT, COMMIT, DATA = range(3)
#: A transactional data batch, with or without records, or a marker, of the state before or after.
STEP = np.dtype(
    [("pid", "<i8"), ("first", "<i8"), ("last", "<i8"), ("kind", "i1"), ("after", "?"), ("filled", "?")], align=True
)
assert STEP.itemsize == STEP_BYTES
#: The last offsets of a producer's epoch, in one state: of its data batches, and of all its batches; NONE without any.
SEEN = np.dtype([("pid", "<i8"), ("data", "<i8"), ("any", "<i8"), ("epoch", "<i4"), ("after", "?")], align=True)

_SEEN_MAX = 1 << 16
#: Number of steps that are kept at a time, 4 MB.
STEPS_AT_ONCE = 1 << 17


class Noting(Protocol):
    """Notes the batches that a pass reads; see `ProducerNotes`."""

    def add(self, before: BatchRows, after: BatchRows) -> None:
        """See `ProducerNotes.add`."""
        ...


@dataclass(slots=True)
class ProducerNotes:
    """Collects the batches of a range, of both states, in the order of their offsets.

    Attributes:
        lowest: batches that end below this offset are skipped.
    """

    lowest: int
    writer: ScratchWriter
    _steps: list[npt.NDArray[np.void]] = field(default_factory=list)
    _chunks: list[Kept] = field(default_factory=list)
    _seen: list[npt.NDArray[np.void]] = field(default_factory=list)

    def add(self, before: BatchRows, after: BatchRows) -> None:
        """Add batches of both states that end in the same range of offsets."""
        self._add(before, after=False)
        self._add(after, after=True)
        if sum(steps.size for steps in self._steps) >= STEPS_AT_ONCE:
            self._chunks.append(self.writer.write(*self._taken()))

    def _add(self, batches: BatchRows, *, after: bool) -> None:
        rows = batches[(batches["producer_id"] >= 0) & (batches["last_offset"] >= self.lowest)]
        if not rows.size:
            return
        control = is_control(rows)
        seen = np.empty(rows.size, SEEN)
        seen["pid"], seen["epoch"], seen["after"] = rows["producer_id"], rows["producer_epoch"], after
        seen["any"], seen["data"] = rows["last_offset"], np.where(control, NONE, rows["last_offset"])
        self._seen.append(seen)
        if sum(one.size for one in self._seen) > _SEEN_MAX:
            self._seen = [merge_seen(self._seen)]
        markers = control & ((rows["control_type"] == 0) | (rows["control_type"] == 1))
        chosen = markers | (~control & (rows["attributes"] & TRANSACTIONAL != 0))
        if chosen.any():
            rows, markers = rows[chosen], markers[chosen]
            steps = np.empty(rows.size, STEP)
            steps["pid"], steps["first"], steps["last"] = rows["producer_id"], rows["base_offset"], rows["last_offset"]
            ended = np.where(rows["control_type"] == 0, ABORT, COMMIT)
            steps["kind"], steps["after"] = np.where(markers, ended, DATA), after
            steps["filled"] = rows["record_count"] > 0
            self._steps.append(steps)

    def finish(self) -> tuple[npt.NDArray[np.void], list[Kept]]:
        """Return the last offsets, SEEN[producer epochs], and the steps, as STEP in chunks."""
        if self._steps:
            self._chunks.append(self.writer.write(*self._taken()))
        return merge_seen(self._seen), self._chunks

    def _taken(self) -> tuple[npt.NDArray[np.void], list[int]]:
        steps = np.concatenate(self._steps)
        self._steps = []
        return steps, [0, steps.size]


def merge_seen(parts: Iterable[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Merge the last offsets of all parts: SEEN[producer epochs], one row for each producer and epoch."""
    rows = np.concatenate([np.empty(0, SEEN), *parts])
    if not rows.size:
        return rows
    rows = rows[np.lexsort((rows["epoch"], rows["pid"], rows["after"]))]
    new = np.ones(rows.size, np.bool_)
    new[1:] = np.logical_or.reduce([rows[name][1:] != rows[name][:-1] for name in ("epoch", "pid", "after")])
    starts = np.flatnonzero(new)
    merged = rows[starts]
    for name in ("data", "any"):
        merged[name] = np.maximum.reduceat(rows[name], starts)
    return merged


def judge_producers(seen: npt.NDArray[np.void], known: Sequence[tuple[int, int, int]], facts: Facts) -> None:
    """Check that the log still has the batch from which a broker rebuilds each known producer's state.

    That batch is the producer's last data batch. If the broker has read only a marker of the producer, any batch of
    that epoch suffices, such as the marker or an emptied batch. Other producers may disappear: Kafka's cleaner drops
    them, even if the log holds batches of them.

    Args:
        seen: SEEN[producer epochs].
        known: id, epoch and last data offset of each producer in the broker's state.
    """
    if not known or not seen.size:
        return
    last_offsets = {(pid, epoch): last for pid, epoch, last in known}
    states: tuple[dict[tuple[int, int], tuple[int, int]], ...] = ({}, {})
    for row in seen:
        key = int(row["pid"]), int(row["epoch"])
        if key in last_offsets:
            states[int(row["after"])][key] = int(row["data"]), int(row["any"])
    was, now = states
    for key, (data, any_batch) in was.items():
        last = last_offsets[key]
        if last < 0:
            kept, at = key in now, any_batch
        elif data == last:
            kept, at = key in now and now[key][0] == last, last
        else:
            continue
        if kept:
            facts.count(Count.PRODUCERS, 1)
        else:
            facts.broken(ViolationKind.PRODUCER_LOST, at)
