"""The joint delete horizon: which tombstones and markers may go from all replicas of a partition.

A first pass has cleaned all replicas over the same range. So each batch in it that holds tombstones has a delete
horizon, and each marker whose transaction has no data left. A tombstone or marker may go if no replica has it in a
batch whose horizon is in the future, or that has none; a replica may have lost it already. All others are held:

    offsets      10    20    30    40    50    60
    replica 1    due   due   due   due   later later
    replica 2    -     -     due   later later later      cleaned later than replica 1
    held                           40 ………………………………… and all from the end of the range on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cordwood.cleaning.rules.held import HeldOffsets
from cordwood.common.config import LONG_MAX
from cordwood.kernels.layout import DELETE_HORIZON, BatchRows, has_flag, is_control
from cordwood.storage.log.segment import skip_gap
from cordwood.storage.log.view import LogView

Int64Array = npt.NDArray[np.int64]
#: More ranges are joined to fewer, which hold more.
RANGES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class JointHorizon:
    """The decision on the tombstones and markers of a partition, the same for all replicas.

    Attributes:
        held: offsets whose tombstones and markers stay.
        is_due: whether some at other offsets may be removed.
    """

    held: HeldOffsets
    is_due: bool


def joint_horizon(logs: Sequence[LogView], end: int, now_ms: int) -> JointHorizon:
    """Compare the delete horizons of all replicas, from their batch headers.

    Args:
        logs: the replicas, after the first pass.
        end: end of the common range.
    """
    runs = [_runs(log, end, now_ms) for log in logs]
    held = _merged(np.concatenate([run[run[:, 2] == 0, :2] for run in runs] + [np.array([[end, LONG_MAX]])]))
    offsets = HeldOffsets(held[:, 0], held[:, 1])
    due = np.concatenate([run[run[:, 2] == 1, :2] for run in runs])
    # A run of batches that are due may reach over held ones of another replica; it counts if any part of it does not.
    covered = np.searchsorted(offsets.ends, due[:, 0], side="right")
    inside = (offsets.starts[covered] <= due[:, 0]) & (due[:, 1] <= offsets.ends[covered])
    return JointHorizon(offsets, bool((~inside).any()))


def _runs(log: LogView, end: int, now_ms: int) -> Int64Array:
    """Return int64[runs, 3]: start, end, and whether they are due, of batches with tombstones or markers.

    Neighbours of the same kind are one run, as a clean sets horizons in the order of offsets.
    """
    found = [np.empty((0, 3), np.int64)]
    for rows in _batches(log, end):
        horizon = has_flag(rows, DELETE_HORIZON)
        some = rows[(rows["record_count"] > 0) & (horizon | is_control(rows))]
        is_due = has_flag(some, DELETE_HORIZON) & (some["base_timestamp"] <= now_ms)
        if some.size:
            firsts = np.flatnonzero(np.diff(is_due.astype(np.int8), prepend=-1))
            lasts = np.append(firsts[1:], some.size) - 1
            ends = some["last_offset"][lasts] + 1
            found.append(np.column_stack([some["base_offset"][firsts], ends, is_due[firsts]]))
    return _joined(np.concatenate(found))


def _batches(log: LogView, end: int) -> Iterator[BatchRows]:
    for segment in log.segments:
        if segment.base_offset < end:
            for rows in segment.headers(skip_gap):
                yield rows[rows["last_offset"] < end]


def _joined(runs: Int64Array) -> Int64Array:
    """Join neighbours of the same kind."""
    firsts = np.flatnonzero(np.diff(runs[:, 2], prepend=-1))
    lasts = np.append(firsts[1:], len(runs)) - 1
    return runs[firsts] if not firsts.size else np.column_stack([runs[firsts, 0], runs[lasts, 1], runs[firsts, 2]])


def _merged(ranges: Int64Array) -> Int64Array:
    """Return disjoint ranges in ascending order that cover these; at most `RANGES_MAX`."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])
    gaps = ranges[1:, 0] - reach[:-1]
    cuts = np.flatnonzero(gaps > 0)
    if cuts.size >= RANGES_MAX:
        cuts = np.sort(cuts[np.argsort(gaps[cuts])[-(RANGES_MAX - 1) :]])
    return np.column_stack([ranges[np.append(0, cuts + 1), 0], reach[np.append(cuts, len(ranges) - 1)]])
