"""The segments that retention selects, without a log around them; test_log tests the deletion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from cordwood.live.retention import IsDeletable, below, beyond_size, deletable, older_than
from cordwood.live.segment import LogSegment


@dataclass
class Sized:
    """The properties of a segment that retention reads."""

    base_offset: int
    size_bytes: int = 10
    largest_timestamp: int = 0


#: Offsets 0 to 3, 4 to 7, and the active segment from 8 to 9.
SEGMENTS = [Sized(0, largest_timestamp=100), Sized(4, largest_timestamp=200), Sized(8, largest_timestamp=300)]


def named(rule: IsDeletable, *, high_watermark: int = 10, segments: list[Sized] = SEGMENTS) -> list[int]:
    found = deletable(cast("list[LogSegment]", segments), high_watermark, 10, rule)
    return [segment.base_offset for segment in found]


@pytest.mark.parametrize(("log_start", "expected"), [(0, []), (3, []), (4, [0]), (9, [0, 4]), (10, [0, 4])])
def test_segments_below_the_log_start_go_but_never_the_last(log_start: int, expected: list[int]) -> None:
    assert named(below(log_start)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(-1, []), (30, []), (21, []), (20, [0]), (11, [0]), (0, [0, 4, 8])])
def test_a_log_keeps_at_least_as_many_bytes_as_its_limit(limit: int, expected: list[int]) -> None:
    assert named(beyond_size(30, limit)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(-1, []), (300, []), (299, [0]), (199, [0, 4]), (0, [0, 4, 8])])
def test_segments_go_once_their_last_record_is_older_than_the_limit(limit: int, expected: list[int]) -> None:
    assert named(older_than(limit, 400)) == expected


def test_the_first_segment_that_stays_keeps_all_behind_it() -> None:
    young_first = [Sized(0, largest_timestamp=400), Sized(4, largest_timestamp=0), Sized(8)]
    assert named(older_than(100, 450), segments=young_first) == []


def test_what_is_not_replicated_and_an_empty_last_segment_stay() -> None:
    assert named(older_than(0, 400), high_watermark=9) == [0, 4]
    assert named(older_than(0, 400), high_watermark=7) == [0]
    assert named(older_than(0, 400), segments=[Sized(0), Sized(10, size_bytes=0)]) == [0]
