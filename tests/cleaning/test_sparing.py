"""Which groups a clean with `--min-dead` writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.rules.sparing import GroupShare, groups_to_write

pytestmark = pytest.mark.more

SEGMENT = 1000


def share(dead: int, *, age: int = 9, size: int = 1000, segments: int = 1, must: bool = False) -> GroupShare:
    return GroupShare(segments, size, dead, age, must)


def slow(groups: Sequence[GroupShare], garbage_max: float) -> list[bool]:
    """The slow twin: choose one group after the other, always the best of the remaining ones."""
    written = [one.must or (one.segments > 1 and one.size_bytes <= SEGMENT / 2) for one in groups]
    while (
        sum(one.garbage_bytes for one, is_written in zip(groups, written, strict=True) if not is_written) > garbage_max
    ):
        best = None
        for at, one in enumerate(groups):
            if not written[at]:
                dead = Fraction(one.garbage_bytes, one.size_bytes)
                score = dead * (one.age_ms + 1) / (1 + (1 - dead))
                if best is None or score > best[0]:
                    best = (score, at)
        assert best is not None
        written[best[1]] = True
    return written


groups = st.lists(
    st.builds(
        lambda size, dead, age, segments, must: share(
            min(dead, size), age=age, size=size, segments=segments, must=must
        ),
        st.integers(1, 1200), st.integers(0, 600), st.integers(0, 50), st.integers(1, 3), st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


@given(groups, st.integers(0, 2000))
def test_it_chooses_what_a_slow_search_does(some: list[GroupShare], garbage_max: int) -> None:
    assert groups_to_write(some, garbage_max, SEGMENT) == slow(some, garbage_max)


@given(groups, st.integers(0, 2000))
def test_no_more_garbage_is_left_than_may_be_and_no_group_is_written_for_nothing(
    some: list[GroupShare], garbage_max: int
) -> None:
    written = groups_to_write(some, garbage_max, SEGMENT)
    left = sum(one.garbage_bytes for one, is_written in zip(some, written, strict=True) if not is_written)
    assert left <= garbage_max
    assert all(is_written for one, is_written in zip(some, written, strict=True) if one.must)
    for one, is_written in zip(some, written, strict=True):
        small = one.segments > 1 and 2 * one.size_bytes <= SEGMENT
        assert one.garbage_bytes or not is_written or one.must or small


def test_of_the_same_garbage_the_older_goes_and_of_the_same_age_the_larger_share() -> None:
    assert groups_to_write([share(100, age=1), share(100, age=5), share(99, age=5)], 200, SEGMENT) == [
        False,
        True,
        False,
    ]
    for order in itertools.permutations([share(300), share(200), share(100)]):
        written = groups_to_write(order, 300, SEGMENT)
        assert [one.garbage_bytes for one, is_written in zip(order, written, strict=True) if is_written] == [300]


def test_small_segments_are_merged_where_one_small_segment_comes_out() -> None:
    small, large = share(0, size=500, segments=2), share(0, size=501, segments=2)
    assert groups_to_write([small, large], 10_000, SEGMENT) == [True, False]
