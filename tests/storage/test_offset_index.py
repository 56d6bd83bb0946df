"""The offset index. Kafka: OffsetIndexTest."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.storage.formats import offset_index
from cordwood.storage.formats.offset_index import OffsetIndex

GOLDEN = bytes.fromhex("00000005 00000000 00000032 00001068")


def index(base_offset: int, *entries: tuple[int, int]) -> OffsetIndex:
    rows = np.array(entries, np.int64).reshape(-1, 2)
    return OffsetIndex(base_offset, rows[:, 0], rows[:, 1], len(rows))


def test_golden_bytes_are_read_and_written() -> None:
    read = offset_index.decode(GOLDEN, 100)
    assert (read.offsets.tolist(), read.positions.tolist()) == ([105, 150], [0, 4200])
    assert (read.entries, read.max_entries, read.rest, read.last_offset) == (2, 2, b"", 150)
    assert offset_index.encode(index(100, (105, 0), (150, 4200))) == GOLDEN
    assert list(offset_index.faults(read)) == []


def test_granularity_of_the_batch_gives_the_golden_index() -> None:
    expected = bytes.fromhex("00000002 00000090 00000004 00000120")
    assert offset_index.encode(index(200, (202, 144), (204, 288))) == expected


def test_lookup_gives_the_last_entry_at_or_below_the_target() -> None:
    known = index(100, (105, 7), (150, 4200))
    targets = (0, 99, 104, 105, 106, 149, 150, 2**62)
    assert [known.lookup(target) for target in targets] == [(100, 0)] * 3 + [(105, 7)] * 3 + [(150, 4200)] * 2
    assert index(100).lookup(105) == (100, 0)


def test_a_zero_tail_is_room_and_not_entries() -> None:
    read = offset_index.decode(GOLDEN + bytes(80), 100)
    assert (read.entries, read.max_entries) == (2, 12)
    assert read.lookup(10_000) == (150, 4200)
    assert offset_index.encode(read) == GOLDEN + bytes(80)
    assert list(offset_index.faults(read)) == []


@pytest.mark.parametrize("room", [4088, 4096, 8184, 10_485_760])
def test_a_zero_tail_of_any_length_is_room(room: int) -> None:
    read = offset_index.decode(GOLDEN + bytes(room), 100)
    assert (read.entries, read.max_entries) == (2, 2 + room // 8)
    assert offset_index.decode(bytes(room), 100).entries == 0


def test_an_entry_that_ends_with_zero_bytes_is_not_taken_for_room() -> None:
    data = struct.pack(">ii", 5, 0) + struct.pack(">ii", 256, 0x01000000) + bytes(8)
    assert offset_index.decode(data, 0).entries == 2


def test_a_part_of_an_entry_is_kept_and_reported() -> None:
    read = offset_index.decode(GOLDEN + b"\0\0\0", 100)
    assert (read.entries, read.rest) == (2, b"\0\0\0")
    (fault,) = offset_index.faults(read)
    assert str(fault.at("x.index")) == "3 bytes after the last whole entry of 8 bytes in x.index at position 16"


FAULTS = [
    (((99, 4),), "offset 99 is below the segment's base offset 100"),
    (((105, -1),), "position -1 is negative"),
    (((105, 10), (105, 20)), "offset 105 follows offset 105"),
    (((105, 10), (106, 10)), "position 10 follows position 10"),
]


@pytest.mark.parametrize(("entries", "what"), FAULTS)
def test_each_inconsistency_is_reported_with_its_place(entries: tuple[tuple[int, int], ...], what: str) -> None:
    damaged = offset_index.decode(offset_index.encode(index(100, *entries)), 100)
    (fault,) = offset_index.faults(damaged)
    assert fault.what == f"index entry {len(entries) - 1}: {what}"
    assert fault.position == 8 * (len(entries) - 1)
    assert fault.offset == entries[-1][0]


def test_every_inconsistency_is_reported() -> None:
    assert len(list(offset_index.faults(index(0, (5, 50), (4, 60), (6, 40), (7, 70))))) == 2


def test_an_offset_that_does_not_fit_its_segment_is_our_own_mistake() -> None:
    # case 179
    with pytest.raises(AssertionError):
        offset_index.encode(index(0, (2**31, 0)))


@given(st.binary(max_size=100), st.integers(0, 2**63 - 1))
def test_any_bytes_come_back_as_they_were(data: bytes, base_offset: int) -> None:
    read = offset_index.decode(memoryview(data), base_offset)
    assert offset_index.encode(read) == data
    list(offset_index.faults(read))
    read.lookup(base_offset)


@given(st.lists(st.integers(1, 60), unique=True).map(sorted), st.integers(90, 170))
def test_lookup_meets_its_slow_twin(relative: list[int], target: int) -> None:
    entries = [(100 + offset, 10 * offset) for offset in relative]
    expected = max((entry for entry in entries if entry[0] <= target), default=(100, 0))
    assert index(100, *entries).lookup(target) == expected
