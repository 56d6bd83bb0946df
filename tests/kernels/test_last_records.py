"""Entries of keys against numbers of any size and sorted lists, and the table of last records against a dict."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.last_records import (
    COUNTS,
    ENTRY,
    FREE,
    MAY_GO,
    NO_VALUE,
    PRIME,
    SLOT,
    THERE,
    TOMBSTONE,
    TOMBSTONES_MAY_GO,
    WENT,
    divide,
    enter_records,
    keep_last,
    merge_entries,
    move_slots,
)
from cordwood.kernels.layout import RECORD_ROW

P = int(PRIME)
POINTS = st.one_of(st.integers(0, P - 1), st.sampled_from([0, 1, P - 1, 1 << 60, (1 << 32) - 1, 1 << 32]))
HIDDEN = np.empty(0, np.int64)


def fingerprint(key: bytes, point: int) -> int:
    """The polynomial, term by term."""
    found = len(key) + 1
    for start in range(0, len(key), 7):
        found = (found * point + int.from_bytes(key[start : start + 7], "little")) % P
    return found


def entered(
    keys: list[bytes | None],
    points: tuple[int, int],
    there: npt.NDArray[np.bool_] | None = None,
    rules: list[int] | None = None,
    between: tuple[int, int] = (0, 1 << 62),
    values: list[bool] | None = None,
) -> npt.NDArray[np.void]:
    data = np.frombuffer(b"".join(key or b"" for key in keys) + b"behind", np.uint8)
    rows = np.zeros(len(keys), RECORD_ROW)
    sizes = np.array([len(key or b"") for key in keys], np.int32)
    rows["key_start"] = np.cumsum(sizes) - sizes
    rows["key_size"] = [-1 if key is None else len(key) for key in keys]
    rows["offset"] = np.arange(len(keys))
    rows["value_size"] = [0 if value else -1 for value in values or [True] * len(keys)]
    rows["batch"] = np.arange(len(keys))
    entries = np.zeros(len(keys) + 1, ENTRY)
    there = np.ones(len(keys), np.bool_) if there is None else there
    used = enter_records(
        *(data.ctypes.data, rows, rows["offset"], np.array(rules or [int(COUNTS)] * len(keys), np.uint8), there),
        *(np.array(between, np.int64), np.array(points, np.uint64), entries, 1),
    )
    return entries[1:used]


@given(
    st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 40).map(lambda n: b"\xff" * n)), max_size=8),
    POINTS,
    POINTS,
)
def test_fingerprints_are_polynomials_of_the_keys_bytes(keys: list[bytes], first: int, second: int) -> None:
    found = entered(list(keys), (first, second))
    assert [(int(one["low"]) & P, int(one["high"]) & P) for one in found] == [
        (fingerprint(key, first), fingerprint(key, second)) for key in keys
    ]


def test_keys_that_differ_in_one_byte_or_in_length_have_other_fingerprints() -> None:
    keys = [bytes(17 * [0]), *(bytes(at * [0] + [1] + (16 - at) * [0]) for at in range(17)), b"", b"\0", b"\0\0"]
    found = entered(list(keys), (0x1234_5678_9ABC_DEF, 0xFED_CBA9_8765_4321))
    assert len(set(found["low"].tolist())) == len(set(found["high"].tolist())) == len(keys)


MADE = st.lists(
    st.tuples(st.sampled_from([None, b"", b"a", b"key"]), st.booleans(), st.booleans(), st.integers(0, 3)), max_size=20
)


@given(MADE, st.integers(0, 20), st.integers(0, 20))
def test_records_that_count_become_entries_with_what_is_known_of_them(made, low: int, high: int) -> None:
    expected = [
        (at, not there, there, not value, not value and bool(rule & TOMBSTONES_MAY_GO))
        for at, (key, there, value, rule) in enumerate(made)
        if key is not None and rule & COUNTS and low <= at < high
    ]
    found = entered(
        [key for key, *_ in made],
        (3, 5),
        np.array([there for _, there, *_ in made], np.bool_),
        [rule for *_, rule in made],
        (low, high),
        [value for _, _, value, _ in made],
    )
    assert [
        (int(one["offset"]), bool(one["low"] & WENT), *(bool(one["high"] & bit) for bit in (THERE, TOMBSTONE, MAY_GO)))
        for one in found
    ] == expected


#: Few fingerprints, so that keys meet: some differ in one half only.
KEYS = st.tuples(st.sampled_from([0, 1, 2**60, P - 1]), st.sampled_from([0, 1, P - 1]))
RECORDS = st.lists(st.tuples(KEYS, st.booleans(), st.booleans(), st.integers(0, 50)), max_size=60)


def entries_of(records: list[Any]) -> npt.NDArray[np.void]:
    return np.array(
        [
            (
                low | (0 if there else int(WENT)),
                high | (int(THERE) if there else 0) | (0 if value else int(TOMBSTONE)),
                offset,
            )
            for (low, high), there, value, offset in records
        ],
        ENTRY,
    )


@given(RECORDS, st.integers(1, 40))
def test_sections_hold_what_went_and_what_is_there_of_each_hash_range(records, ranges: int) -> None:
    entries = entries_of(records)
    target, starts = np.empty(entries.size, ENTRY), np.zeros(2 * ranges + 1, np.int64)
    divide(entries, ranges, target, starts)
    assert sorted(target.tolist()) == sorted(entries.tolist())
    assert starts[-1] == entries.size
    ranges_of: dict[int, set[int]] = {}
    for section, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        for one in target[start:end]:
            assert bool(one["low"] & WENT) == (section % 2 == 0)
            ranges_of.setdefault(int(one["low"]) & P, set()).add(section // 2)
    assert all(len(found) == 1 for found in ranges_of.values())


@given(RECORDS, st.integers(1, 5))
def test_of_what_went_the_last_record_of_each_key_stays_in_its_section(records, ranges: int) -> None:
    # Entries are made in the order of their offsets.
    entries = entries_of(sorted(records, key=lambda one: one[-1]))
    divided, starts = np.empty(entries.size, ENTRY), np.zeros(2 * ranges + 1, np.int64)
    divide(entries, ranges, divided, starts)
    expected: list[list[tuple[int, int, int]]] = []
    for section, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        some = divided[start:end].tolist()
        if section % 2 == 0:
            some = list({(low & P, high & P): (low, high, offset) for low, high, offset in some}.values())
        expected.append(some)
    count = keep_last(divided, starts, np.empty(128, np.int32))
    assert [divided[start:end].tolist() for start, end in itertools.pairwise(starts.tolist())] == expected
    assert starts[-1] == count


def empty_table(slots: int) -> npt.NDArray[np.void]:
    table = np.zeros(slots, SLOT)
    table["last"] = FREE
    return table


def pieces_of(*pieces: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Addresses and counts."""
    return np.array([one.ctypes.data for one in pieces], np.int64), np.array([one.size for one in pieces], np.int64)


@given(RECORDS, st.integers(0, 60), st.sets(st.integers(0, 50)), st.booleans())
def test_the_table_holds_the_last_record_and_the_last_value_of_each_key(records, cut, hidden, insert) -> None:
    entries = entries_of(records)
    expected: dict[tuple[int, int], list[int]] = {}
    for at, (key, there, value, offset) in enumerate(records):
        if offset in hidden or (not insert and at >= cut and key not in expected):
            continue
        # Last offset, whether it exists and has a value, the last existing value, whether a record was dropped.
        one = expected.setdefault(key, [-1, False, False, NO_VALUE, False])
        if offset > one[0]:
            one[:3] = offset, there, value
        one[3] = max(one[3], offset if there and value else NO_VALUE)
        one[4] |= not there
    places = np.array(sorted(hidden), np.int64)
    table = empty_table(16)
    piece, start, used = merge_entries(*pieces_of(entries[:cut]), 0, 0, places, places, True, table, 0, 13)
    assert (piece, start) == (1, 0)
    later = pieces_of(entries[cut : cut + 7], entries[:0], entries[cut + 7 :])
    piece, start, used = merge_entries(*later, 0, 0, places, places, insert, table, used, 16)
    assert (piece, start, used) == (3, 0, len(expected))
    larger = empty_table(64)
    assert move_slots(table, larger) == used
    for slots in (table, larger):
        assert {
            (int(one["low"]) & P, int(one["high"]) & P): [
                int(one["last"]),
                bool(one["high"] & THERE),
                not one["high"] & TOMBSTONE,
                int(one["value_there"]),
                bool(one["low"] & WENT),
            ]
            for one in slots[slots["last"] != FREE]
        } == expected


@given(RECORDS, st.integers(0, 60), st.integers(0, 12))
def test_a_full_table_says_which_entry_found_no_room(records, cut, used_max) -> None:
    entries = entries_of(records)
    pieces, table = (entries[:cut], entries[cut:]), empty_table(16)
    piece, start, used = merge_entries(*pieces_of(*pieces), 0, 0, HIDDEN, HIDDEN, True, table, 0, used_max)
    done = sum(one.size for one in pieces[:piece]) + start
    assert used == len({key for key, *_ in records[:done]}) <= used_max
    assert done == entries.size or used == used_max
    piece, start, used = merge_entries(*pieces_of(*pieces), piece, start, HIDDEN, HIDDEN, True, table, used, 16)
    assert (piece, start, used) == (2, 0, len({key for key, *_ in records}))
