"""The time index. Kafka: TimeIndexTest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.types import NONE
from cordwood.storage.formats import time_index
from cordwood.storage.formats.time_index import TimeIndex

GOLDEN = bytes.fromhex("00000000000003e8 00000005 00000000000007d0 00000032")


def index(base_offset: int, *entries: tuple[int, int]) -> TimeIndex:
    rows = np.array(entries, np.int64).reshape(-1, 2)
    return TimeIndex(base_offset, rows[:, 0], rows[:, 1], len(rows))


def test_golden_bytes_are_read_and_written() -> None:
    read = time_index.decode(GOLDEN, 100)
    assert (read.timestamps.tolist(), read.offsets.tolist()) == ([1000, 2000], [105, 150])
    assert (read.entries, read.max_entries, read.rest, read.last_entry) == (2, 2, b"", (2000, 150))
    assert time_index.encode(index(100, (1000, 105), (2000, 150))) == GOLDEN
    assert list(time_index.faults(read)) == []


def test_granularity_of_the_batch_gives_the_golden_index() -> None:
    expected = bytes.fromhex("0000000000001388 00000000 0000000000001748 00000004")
    assert time_index.encode(index(200, (5000, 200), (5960, 204))) == expected


def test_lookup_gives_the_last_entry_at_or_below_the_timestamp() -> None:
    known = index(100, (1000, 105), (2000, 150))
    times = (NONE, 999, 1000, 1999, 2000, 2**62)
    assert [known.lookup(time) for time in times] == [(NONE, 100)] * 2 + [(1000, 105)] * 2 + [(2000, 150)] * 2


def test_an_empty_index_ends_before_time() -> None:
    assert index(100).last_entry == index(100).lookup(5) == (NONE, 100)


def test_a_zero_tail_is_room_and_not_entries() -> None:
    read = time_index.decode(GOLDEN + bytes(60), 100)
    assert (read.entries, read.max_entries, read.last_entry) == (2, 7, (2000, 150))
    assert time_index.encode(read) == GOLDEN + bytes(60)


def test_timestamp_0_at_the_base_offset_is_an_entry_where_it_is_the_whole_file() -> None:
    # All zeros, and yet written: timestamp 0 is above the none that an empty index ends with.
    assert time_index.decode(bytes(12), 100).last_entry == (0, 100)
    assert time_index.decode(bytes(12) + GOLDEN, 100).timestamps.tolist() == [0, 1000, 2000]
    assert time_index.decode(bytes(24), 100).entries == 0


def test_a_part_of_an_entry_is_kept_and_reported() -> None:
    read = time_index.decode(GOLDEN + b"\0\1", 100)
    assert (read.entries, read.rest) == (2, b"\0\1")
    (fault,) = time_index.faults(read)
    assert (fault.what, fault.position) == ("2 bytes after the last whole entry of 12 bytes", 24)


FAULTS = [
    (((1000, 99),), "offset 99 is below the segment's base offset 100"),
    (((-5, 105),), "timestamp -5 is negative"),
    (((1000, 105), (999, 106)), "timestamp 999 follows timestamp 1000"),
    (((1000, 105), (1001, 104)), "offset 104 follows offset 105"),
]


@pytest.mark.parametrize(("entries", "what"), FAULTS)
def test_each_inconsistency_is_reported_with_its_place(entries: tuple[tuple[int, int], ...], what: str) -> None:
    (fault,) = time_index.faults(time_index.decode(time_index.encode(index(100, *entries)), 100))
    assert fault.what == f"time index entry {len(entries) - 1}: {what}"
    assert fault.position == 12 * (len(entries) - 1)


def test_the_extremes_of_64_bits_do_not_hide_an_inconsistency() -> None:
    faults = time_index.faults(index(0, (-(2**63), 0), (2**63 - 1, 1), (5, 2)))
    assert [fault.what.split()[-3] for fault in faults] == ["-9223372036854775808", "follows"]


def test_equal_timestamps_and_offsets_are_no_inconsistency() -> None:
    assert list(time_index.faults(index(100, (1000, 105), (1000, 105)))) == []


@given(st.binary(max_size=100), st.integers(0, 2**63 - 1))
def test_any_bytes_come_back_as_they_were(data: bytes, base_offset: int) -> None:
    read = time_index.decode(memoryview(data), base_offset)
    assert time_index.encode(read) == data
    list(time_index.faults(read))
    read.lookup(base_offset)


@given(st.lists(st.integers(0, 60), unique=True).map(sorted), st.integers(-1, 70))
def test_lookup_meets_its_slow_twin(times: list[int], target: int) -> None:
    entries = [(time, 100 + place) for place, time in enumerate(times)]
    expected = max((entry for entry in entries if entry[0] <= target), default=(NONE, 100))
    assert index(100, *entries).lookup(target) == expected
