from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import scan
from cordwood.kernels.layout import BAD_MAGIC, BAD_SIZE, BATCH_ROW, END, PARTIAL, BatchRows
from cordwood.testing import reference
from cordwood.testing.strategies import logs

ENDS = {END: "end", PARTIAL: "partial", BAD_SIZE: "size", BAD_MAGIC: "magic"}


def walk(data: bytes, *, capacity: int, window: int, whole: bool) -> tuple[list[BatchRows], str, int]:
    """All rows of a file in windows of some size, and how the walk ended."""
    array = np.frombuffer(data + b"\0", np.uint8)[: len(data)]
    rows_list, at, size = [], 0, window
    while True:
        rows = np.zeros(capacity, BATCH_ROW)
        have = min(size, len(data) - at)
        count, taken, status = scan.scan_batches(array.ctypes.data + at, have, len(data) - at, at, whole, rows)
        assert (rows["computed_crc"] == rows["crc"]).all()
        if whole:
            scan.compute_crcs(array.ctypes.data + at, have, at, rows[:count])
        rows_list.append(rows[:count])
        at += taken
        if status in ENDS:
            return rows_list, ENDS[status], at
        size = window if count else size + window


@given(
    logs(),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3),
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from([17, 61, 100, 1 << 20]),
    st.booleans(),
)
def test_entries_are_those_of_the_slow_walk_in_windows_of_any_size(log, changes, cut, capacity, window, whole):
    changed = bytearray(log[0])
    for at, byte in changes:
        if at < len(changed):
            changed[at] = byte
    data = bytes(changed[: len(changed) - cut])
    expected, end, position = reference.read_entries(data)
    found, how, where = walk(data, capacity=capacity, window=window, whole=whole)
    rows = np.concatenate(found)
    assert rows["position"].tolist() == [entry.position for entry in expected]
    assert rows["size_bytes"].tolist() == [entry.size_bytes for entry in expected]
    assert rows["magic"].tolist() == [entry.magic for entry in expected]
    assert (how, where) == (end, position)
    if whole:
        assert (rows["crc"] == rows["computed_crc"]).tolist() == [entry.is_valid for entry in expected]


@given(logs(), st.integers(0, 2000), st.integers(1, 255), st.integers(0, 200))
def test_crcs_are_computed_of_the_entries_that_are_whole_in_a_window(log, at, flip, missing) -> None:
    data = bytearray(log[0] + b"\0")
    data[at % len(data)] ^= flip
    array = np.frombuffer(bytes(data), np.uint8)
    rows = np.zeros(50, BATCH_ROW)
    count, *_ = scan.scan_batches(array.ctypes.data, len(log[0]), len(log[0]), 7, False, rows)
    room = max(0, len(log[0]) - missing)
    scan.compute_crcs(array.ctypes.data, room, 7, rows[:count])
    expected, _, _ = reference.read_entries(bytes(data[:-1]))
    assert (rows["crc"] == rows["computed_crc"])[:count].tolist() == [
        entry.is_valid or entry.position + entry.size_bytes > room for entry in expected
    ]


@given(logs(base_offset=5), st.binary(min_size=1, max_size=40))
def test_search_finds_the_first_whole_entry_behind_damage(log, damage) -> None:
    good, _ = log
    data = damage + good
    array = np.frombuffer(data, np.uint8)
    at, _ = scan.find_batch(array.ctypes.data, len(data), len(data), 4, 2**31, 1 << 20)
    if reference.read_entries(good)[0]:
        # Bytes of the damage may complete an earlier entry by chance; then that entry is a good one too.
        assert 0 <= at <= len(damage)
        assert reference.read_entries(data[at:])[0][0].is_valid
    else:
        assert at < 0


@given(logs(base_offset=5), st.binary(min_size=1, max_size=40), st.integers(0, 31))
def test_search_skips_an_entry_whose_crc_is_wrong(log, damage, bit) -> None:
    good = bytearray(log[0])
    if good:
        crc = 17 if good[16] == 2 else 12
        good[crc + bit // 8] ^= 1 << bit % 8
    array = np.frombuffer(damage + good, np.uint8)
    at, _ = scan.find_batch(array.ctypes.data, array.size, array.size, 4, 2**31, 1 << 20)
    assert at != len(damage)


def test_the_search_for_a_batch_gives_up_when_its_budget_is_used() -> None:
    # Each position looks like the header of a batch that covers all following bytes.
    entry = (0).to_bytes(8, "big") + (2000).to_bytes(4, "big") + bytes(4) + b"\2"
    data = np.frombuffer((entry * 400), np.uint8)
    at, left = scan.find_batch(data.ctypes.data, data.size, data.size, -1, 2**31, 10_000)
    assert at == -1
    assert left < 0
