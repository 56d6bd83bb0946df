"""Duration of stays, if some have not ended yet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.simulation.sizing.result import NEVER, Stay

pytestmark = pytest.mark.more

NOW = 100


def stay(*pairs: tuple[int, int | None], lost: dict[int, int] | None = None, factor: float = 1) -> Stay | None:
    """The stay of things with a begin and an end; `lost` has the times at which some of them became something else."""
    began, ended = (np.array([one[i] if one[i] is not None else NEVER for one in pairs], np.int64) for i in (0, 1))
    lost_ms = None if lost is None else np.array([lost.get(i, NEVER) for i in range(len(pairs))])
    return Stay.of(began, ended, NOW, factor, lost_ms=lost_ms)


def test_nothing_has_no_stay() -> None:
    assert stay() is None


def test_if_all_have_gone_the_figures_are_theirs() -> None:
    found = stay(*((start, start + length) for start, length in zip(range(20), range(1, 21), strict=True)), factor=10)
    assert found == Stay(200, 0, min_ms=1, median_ms=10, most_ms=19, max_ms=20)


def test_what_is_still_there_counts_as_longer_and_not_as_gone() -> None:
    # Half of all ended after 10; the other half was observed for 10, and not longer.
    assert stay((80, 90), (90, None)) == Stay(2, 1, 10, median_ms=10, most_ms=None, max_ms=10)
    # Things observed only for a moment do not count for the other ones.
    assert stay((10, 40), (20, 60), (99, None), (99, None)) == Stay(4, 2, 30, 30, 40, max_ms=40)
    assert stay((0, None), (50, None)) == Stay(2, 2, None, None, None, max_ms=100)


def test_what_became_something_else_was_seen_until_then() -> None:
    pairs = [(0, 50), (0, 60), (0, 20), (0, 70)]
    # The third would have stayed longer, had it not been superseded at 10.
    found = stay(*pairs, lost={2: 10})
    assert found == Stay(4, 0, 50, median_ms=60, most_ms=70, max_ms=70)
    # A stay that ended in the moment of its loss ended because of the loss.
    assert stay((0, 20), lost={0: 20}) == Stay(1, 0, None, None, None, 20)
    assert stay((0, NOW), lost={0: NOW}) == Stay(1, 0, 100, 100, 100, 100)


@given(st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20)), min_size=1, max_size=30))
def test_the_estimate_equals_its_slow_twin(pairs: list[tuple[int, int | None]]) -> None:
    found = stay(*((start, None if length is None else start + length) for start, length in pairs))
    assert found is not None
    seen = [(NOW - start if length is None else length, length is not None) for start, length in pairs]
    staying, survival = 1.0, []
    for time in sorted({length for length, _ in seen}):
        at_risk = sum(length >= time for length, _ in seen)
        staying *= 1 - sum(length == time and went for length, went in seen) / at_risk
        survival.append((time, staying))
    for share, value in ((0.5, found.median_ms), (0.95, found.most_ms)):
        assert value == next((time for time, left in survival if left <= 1 - share + 1e-12), None)
    assert found.max_ms == max(length for length, _ in seen)
    assert found.still_there == sum(not went for _, went in seen)


def test_a_long_stay_is_estimated_right_although_most_were_not_seen_to_end() -> None:
    source = np.random.default_rng(3)
    began = source.integers(0, 1000, 20_000)
    ended = began + source.exponential(400, 20_000).astype(np.int64)
    found = Stay.of(began, np.where(ended > 1000, NEVER, ended), 1000)
    assert found is not None and found.median_ms == pytest.approx(400 * np.log(2), rel=0.03)
    assert found.still_there > 5000
