"""Packed segments equal the given ones, and their changes equal the result of a plain comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.packed import PackedSegments, TierSegment
from tests.storage.tier.states import PARTITION, scripts, segment


def packed(*segments: TierSegment) -> PackedSegments:
    return PackedSegments.of(PARTITION, segments)


@given(scripts())
@settings(max_examples=60, deadline=None)
def test_segments_come_out_as_they_went_in(states: list[TierState]) -> None:
    for state in states:
        segments = tuple(state.segments)
        again = packed(*segments)
        assert tuple(again) == segments and [again[at] for at in range(len(again))] == list(segments)
        assert again == state.packed and hash(again) == hash(state.packed)
        assert again.size_bytes == sum(one.segment.size_bytes for one in segments)
        assert again[1:3] == list(segments[1:3])
        assert again.end_offsets.tolist() == [one.segment.end_offset for one in segments]
        assert again.max_timestamps.tolist() == [one.segment.max_timestamp_ms for one in segments]


@given(scripts())
@settings(max_examples=60, deadline=None)
def test_changes_are_the_segments_that_differ(states: list[TierState]) -> None:
    for base in states:
        for state in states:
            before = {one.segment.id: one for one in base.segments}
            now = {one.segment.id: one for one in state.segments}
            added, removed = state.packed.changes_since(base.packed)
            assert added == [one for key, one in now.items() if before.get(key) != one]
            assert removed == [key for key, one in before.items() if now.get(key) != one]


def test_each_field_of_a_segment_counts_as_a_change() -> None:
    one = segment("a", 0, 9)
    empty = replace(one.segment, custom_metadata=b"")
    for other in (
        replace(one, crc32c=1),
        replace(one, segment=replace(one.segment, epochs=(*one.segment.epochs, *one.segment.epochs))),
        replace(one, segment=empty),
        replace(one, segment=replace(empty, custom_metadata=b"x")),
    ):
        assert packed(one) != packed(other)
        assert packed(other).changes_since(packed(one)) == ([other], [one.segment.id])


def test_the_first_overlap_is_found() -> None:
    assert packed(segment("a", 0, 9), segment("b", 10, 19)).overlapping is None
    assert packed(segment("a", 0, 9), segment("b", 10, 19), segment("c", 19, 30)).overlapping == 2


def test_a_segment_of_another_partition_is_refused() -> None:
    with pytest.raises(AssertionError):
        PackedSegments.of(PARTITION._replace(partition=1), [segment("a", 0, 9)])
