"""The joint delete horizon, from the batch headers of replicas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.rules.held import HeldOffsets
from cordwood.commands.in_place import horizon
from cordwood.commands.in_place.horizon import joint_horizon
from tests.commands.joint_scene import RETENTION_MS, made


def held(script: str, later_ms: int = 0, *, end: int | None = None) -> tuple[list[tuple[int, int]], bool]:
    """Held ranges below the end, and whether anything is due."""
    cluster = made(script)
    end = cluster.high_watermark if end is None else end
    found = joint_horizon([log.log() for log in cluster.logs], end, cluster.now_ms + later_ms)
    *ranges, last = found.held.ranges()
    assert last == (end, 2**63 - 1) or last[0] < end
    return ranges, found.is_due


def test_a_tombstone_is_due_once_its_horizon_has_passed_everywhere() -> None:
    script = "a=∅ b=1 | c=∅ | clean1 wait30 clean2 clean3 d=1 |"
    # Ranges may hold more than the batches in them.
    assert held(script, RETENTION_MS - 31) == ([(0, 3)], False)
    assert held(script, RETENTION_MS - 1) == ([(0, 3)], False)
    assert held(script, RETENTION_MS) == ([], True)


def test_later_tombstones_stay_with_those_that_only_one_replica_holds() -> None:
    script = "a=∅ | clean wait60 b=∅ | clean1 wait60 clean2 clean3 c=1 |"
    assert held(script) == ([(1, 2)], True)


def test_a_marker_without_a_horizon_stays() -> None:
    assert held("7:a=1 7:commit 8:b=1 8:abort | clean wait500 c=1 |")[0] == [(1, 4)]


def test_nothing_above_the_end_is_due() -> None:
    assert held("a=1 | b=∅ | clean wait500 c=1 |", end=1) == ([], False)


def test_many_ranges_are_joined_and_hold_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizon, "RANGES_MAX", 3)
    ranges = np.array([[0, 1], [10, 11], [12, 13], [40, 41], [43, 44]])
    assert horizon._merged(ranges).tolist() == [[0, 1], [10, 13], [40, 44]]


_RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=8)


@given(ranges=_RANGES.filter(bool), batches=_RANGES)
def test_held_offsets_overlap_as_sets_do(ranges: list[tuple[int, int]], batches: list[tuple[int, int]]) -> None:
    merged = horizon._merged(np.array([[start, start + size] for start, size in ranges]))
    offsets = HeldOffsets(merged[:, 0], merged[:, 1])
    members = {one for start, size in ranges for one in range(start, start + size)}
    assert {one for low, high in offsets.ranges() for one in range(low, high)} == members
    firsts = np.array([start for start, _ in batches], np.int64)
    lasts = np.array([start + size - 1 for start, size in batches], np.int64)
    expected = [not members.isdisjoint(range(start, start + size)) for start, size in batches]
    assert offsets.overlap(firsts, lasts).tolist() == expected
