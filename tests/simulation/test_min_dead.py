"""Simulations with and without garbage, beside a model in plain Python without logs and cleaners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.common.errors import RequestError

pytestmark = pytest.mark.more

SCALE, KEYS, RATE, STEPS = 25, 4_000, 6.0, 2_000
RECORD_BYTES = 1_000 + 61
#: Records of a segment, and the number of records appended in a step.
SEGMENT = ((1 << 20) / SCALE + RECORD_BYTES / 2) // RECORD_BYTES
OPTIONS: dict[str, Any] = {
    "rate": str(RATE),
    "keys": KEYS * SCALE,
    "record_size": 1_000,
    "batch_records": 1,
    "preload": True,
    "days": 1,
    "scale": SCALE,
    "overrides": ["cleanup.policy=compact", "segment.bytes=1048576", "min.cleanable.dirty.ratio=0.1"],
}


class Model:
    """A log as lists of records, each the number of its append; counts the records that cleans write."""

    def __init__(self, share: float | None) -> None:
        self.share = share
        self.key_of: list[int] = []
        self.newest: dict[int, int] = {}
        #: Records, and when they were written; the last one is active.
        self.segments: list[tuple[list[int], int]] = [([], 0)]
        self.dirty = 0
        self.written = 0

    def append(self, key: int, now: int) -> None:
        if len(self.segments[-1][0]) >= SEGMENT:
            self.segments.append(([], now))
        self.newest[key] = len(self.key_of)
        self.segments[-1] = ([*self.segments[-1][0], len(self.key_of)], now)
        self.key_of.append(key)

    def clean_if_due(self, now: int) -> None:
        closed, active = self.segments[:-1], self.segments[-1]
        sizes = [len(records) for records, _ in closed]
        dirty = sum(size for (records, _), size in zip(closed, sizes, strict=True) if records[0] >= self.dirty)
        if dirty <= 0.1 * sum(sizes):
            return
        end = active[0][0]
        newest: dict[int, int] = {}
        for records, _ in closed:
            newest.update({self.key_of[one]: one for one in records})
        groups = self._groups(closed)
        dead = [sum(newest[self.key_of[one]] != one for records, _ in group for one in records) for group in groups]
        kept: list[tuple[list[int], int]] = []
        for group, is_written in zip(groups, self._choose(groups, dead, now), strict=True):
            if not is_written:
                kept += group
                continue
            records = [one for part, _ in group for one in part if newest[self.key_of[one]] == one]
            self.written += len(records)
            if records:
                kept.append((records, now))
        self.segments, self.dirty = [*kept, active], end

    @staticmethod
    def _groups(closed: Sequence[tuple[list[int], int]]) -> list[list[tuple[list[int], int]]]:
        groups: list[list[tuple[list[int], int]]] = []
        for segment in closed:
            if groups and sum(len(records) for records, _ in [*groups[-1], segment]) <= SEGMENT:
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def _choose(self, groups: Sequence[Sequence[tuple[list[int], int]]], dead: Sequence[int], now: int) -> list[bool]:
        """Kafka rewrites all groups; otherwise the best groups are rewritten until the garbage is small enough."""
        if self.share is None:
            return [True] * len(groups)
        sizes = [sum(len(records) for records, _ in group) for group in groups]
        chosen = [
            (gone > 0 and group[-1][0][-1] >= self.dirty) or (len(group) > 1 and 2 * size <= SEGMENT)
            for group, gone, size in zip(groups, dead, sizes, strict=True)
        ]

        def gain(at: int) -> float:
            gone = dead[at] / sizes[at]
            return gone * (now - max(written for _, written in groups[at]) + 1) / (2 - gone)

        left_max = self.share * sum(sizes)
        while sum(gone for gone, is_chosen in zip(dead, chosen, strict=True) if not is_chosen) > left_max:
            chosen[max((at for at in range(len(groups)) if not chosen[at]), key=gain)] = True
        return chosen


def model(skew: float, share: float | None) -> float:
    """Records that cleans write, for each that is appended."""
    source = np.random.default_rng(3)
    found = Model(share)
    # A key of the simulation stands for `SCALE` keys, which are next to each other in rank.
    ranks = np.arange(1, KEYS * SCALE + 1).reshape(KEYS, SCALE)
    weights = np.cumsum((1.0 / ranks**skew).sum(axis=1))
    count = round(RATE * 86_400 / SCALE)
    keys = np.searchsorted(weights / weights[-1], source.random(count)).tolist()
    for key in range(KEYS):
        found.append(key, 0)
    found.clean_if_due(0)
    per_step, step_ms = count / STEPS, 86_400_000 // STEPS
    for step in range(STEPS):
        for key in keys[round(step * per_step) : round((step + 1) * per_step)]:
            found.append(key, step * step_ms)
        found.clean_if_due((step + 1) * step_ms - 1)
    return found.written / len(found.key_of)


@pytest.mark.slow
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_as_much_is_written_as_a_model_says(skew: float) -> None:
    exact, leaving = cordwood.simulate(**OPTIONS, skew=skew, min_dead=0.1).outcomes
    assert exact.cleaned_per_byte == pytest.approx(model(skew, None), rel=0.05)
    assert leaving.cleaned_per_byte == pytest.approx(model(skew, 0.1), rel=0.1)
    assert leaving.cleaned_per_byte < exact.cleaned_per_byte / 2


SMALL = {**OPTIONS, "days": 0.1, "keys": 25_000}


def test_both_policies_are_shown_and_the_first_is_that_of_kafka() -> None:
    result = cordwood.simulate(**SMALL, min_dead=0.1)
    exact, leaving = result.outcomes
    (alone,) = cordwood.simulate(**SMALL).outcomes
    assert exact == alone and (exact.min_dead, leaving.min_dead) == (None, 0.1)
    assert leaving.cleaned_per_byte < exact.cleaned_per_byte
    assert leaving.contents.superseded > exact.contents.superseded
    assert leaving.appended_bytes == exact.appended_bytes
    line = next(line for line in result.text().splitlines() if line.startswith("B: "))
    assert line.endswith("segment.bytes=1048576; cleaned by Cordwood with --min-dead 10%")


@pytest.mark.parametrize(
    "options",
    [
        {"min_dead": 0.0},
        {"min_dead": 1.0},
        {"min_dead": 0.1, "against": ["segment.ms=1000000"]},
        {"min_dead": 0.1, "overrides": ["cleanup.policy=delete"]},
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="min_dead"):
        cordwood.simulate(**SMALL | options)
