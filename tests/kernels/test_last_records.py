"""Fingerprints against numbers of any size, and the table of last records against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.last_records import ENTRY, FREE, NO_VALUE, PRIME, THERE, fingerprints, merge_entries

P = int(PRIME)
POINTS = st.one_of(st.integers(0, P - 1), st.sampled_from([0, 1, P - 1, 1 << 60, (1 << 32) - 1, 1 << 32]))


def fingerprint(key: bytes, point: int) -> int:
    """The polynomial, term by term."""
    found = len(key) + 1
    for start in range(0, len(key), 7):
        found = (found * point + int.from_bytes(key[start : start + 7], "little")) % P
    return found


def computed(keys: list[bytes], points: tuple[int, int]) -> list[tuple[int, int]]:
    data = np.frombuffer(b"".join(keys) + b"behind", np.uint8)
    sizes = np.array([len(key) for key in keys], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    lows, highs = np.empty(sizes.size, np.uint64), np.empty(sizes.size, np.uint64)
    fingerprints(data.ctypes.data, starts, sizes, np.array(points, np.uint64), lows, highs)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


@given(st.lists(st.one_of(st.binary(max_size=40), st.just(b"\xff" * 29)), max_size=8), POINTS, POINTS)
def test_fingerprints_are_polynomials_of_the_keys_bytes(keys: list[bytes], first: int, second: int) -> None:
    assert computed(keys, (first, second)) == [(fingerprint(key, first), fingerprint(key, second)) for key in keys]


def test_keys_that_differ_in_one_byte_or_in_length_have_other_fingerprints() -> None:
    keys = [bytes(17 * [0]), *(bytes(at * [0] + [1] + (16 - at) * [0]) for at in range(17)), b"", b"\0", b"\0\0"]
    found = computed(keys, (0x1234_5678_9ABC_DEF, 0xFED_CBA9_8765_4321))
    assert len({low for low, _ in found}) == len({high for _, high in found}) == len(keys)


#: Few fingerprints, so that keys meet: some differ in one half only.
KEYS = st.tuples(st.sampled_from([0, 1, 2**60, P - 1]), st.sampled_from([0, 1, P - 1]))
RECORDS = st.lists(
    st.tuples(KEYS, st.sampled_from([0, int(THERE)]), st.integers(0, 50), st.integers(-1, 50)), max_size=60
)


@given(RECORDS, st.integers(0, 60))
def test_the_table_holds_the_last_record_and_the_last_value_of_each_key(records, cut) -> None:
    entries = np.array([(low, high | flag, last, value) for (low, high), flag, last, value in records], ENTRY)
    expected: dict[tuple[int, int], list[int]] = {}
    for key, flag, last, value in records:
        one = expected.setdefault(key, [-1, 0, NO_VALUE])
        if last > one[0]:
            one[:2] = last, flag
        one[2] = max(one[2], value)
    table = np.zeros(16, ENTRY)
    table["last"] = FREE
    done, used = merge_entries(entries[:cut], 0, table, 0, 13)
    assert done == min(cut, entries.size)
    done, used = merge_entries(entries, done, table, used, 13)
    assert (done, used) == (entries.size, len(expected))
    found = {
        (int(one["low"]), int(one["high"]) & P): [int(one["last"]), int(one["high"]) & ~P, int(one["value_there"])]
        for one in table[table["last"] != FREE]
    }
    assert found == expected


@given(RECORDS, st.integers(0, 12))
def test_a_full_table_says_which_entry_found_no_room(records, used_max) -> None:
    entries = np.array([(low, high | flag, last, value) for (low, high), flag, last, value in records], ENTRY)
    table = np.zeros(16, ENTRY)
    table["last"] = FREE
    done, used = merge_entries(entries, 0, table, 0, used_max)
    assert used == len({key for key, *_ in records[:done]}) <= used_max
    assert done == entries.size or used == used_max
