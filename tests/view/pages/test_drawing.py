"""Areas of a treemap's rectangles are proportional to their values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.view.pages.drawing import Box, fitting, squarified

AREA = Box(0, 0, 400, 300)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40).map(lambda sizes: sorted(sizes, reverse=True)))
def test_rectangles_cover_the_area_in_proportion(sizes: list[int]) -> None:
    boxes = squarified(sizes, AREA)
    total = sum(sizes)
    for size, box in zip(sizes, boxes, strict=True):
        assert box.width * box.height == pytest.approx(size / total * 400 * 300)
        assert box.x >= -1e-6 and box.y >= -1e-6
        assert box.x + box.width <= 400 + 1e-6 and box.y + box.height <= 300 + 1e-6
    for at, one in enumerate(boxes):
        for other in boxes[:at]:
            over_x = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            over_y = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert min(over_x, over_y) <= 1e-6


def test_rectangles_are_near_to_squares() -> None:
    # The example of the paper.
    boxes = squarified([6, 6, 4, 3, 2, 2, 1], Box(0, 0, 6, 4))
    assert all(1 / 3 < box.width / box.height < 3 for box in boxes)


def test_sizes_of_nothing_get_rectangles_of_nothing() -> None:
    assert [(box.width, box.height) for box in squarified([0, 0], AREA)] == [(0, 0), (0, 0)]
    (_, second) = squarified([5, 0], AREA)
    assert second.width * second.height == 0


def test_text_is_cut_to_its_room_or_left_out() -> None:
    assert fitting("orders", 200) == "orders"
    assert fitting("a-long-name", 50) == "a-lon…"
    assert fitting("orders", 10) == ""
