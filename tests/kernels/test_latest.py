"""The table of newest offsets against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.latest import (
    FREE,
    OFFSET,
    SLOT_NUMBERS,
    choose_keyed,
    fill_filter,
    latest_offsets,
    move_table,
    probe,
    put_latest,
)
from cordwood.kernels.layout import RECORD_ROW
from cordwood.kernels.superseded import COMPARED, IGNORED, SUPERSEDED


def table(size: int) -> np.ndarray:
    return np.full((size, SLOT_NUMBERS), FREE, np.uint64)


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 6))), st.integers(0, 6))
def test_choose_keyed_skips_keyless_records_and_those_below_an_offset(records, start) -> None:
    rows = np.zeros(len(records), RECORD_ROW)
    rows["key_size"], rows["offset"] = np.array(records, np.int64).reshape(-1, 2).T
    chosen = np.empty(len(records), np.bool_)
    choose_keyed(rows, start, chosen)
    assert chosen.tolist() == [size >= 0 and offset >= start for size, offset in records]


#: Few slots and few hashes, so that keys meet: some differ in one half only, some want the same slot.
HASHES = st.tuples(st.sampled_from([0, 1, 15, 16, 2**64 - 1]), st.sampled_from([0, 1, 2**63]))
PUTS = st.lists(st.tuples(HASHES, st.booleans()), max_size=40)


def arrays(puts: list[tuple[tuple[int, int], bool]]) -> tuple[np.ndarray, np.ndarray]:
    hashes = np.array([one for one, _ in puts], np.uint64).reshape(-1, 2)
    return hashes, np.array([chosen for _, chosen in puts], np.bool_)


@given(PUTS, PUTS, st.integers(0, 2**62))
def test_the_table_holds_what_a_dict_holds(first, second, start) -> None:
    slots = table(32)
    expected: dict[tuple[int, int], int] = {}
    for puts, base in ((first, start), (second, start + 100)):
        hashes, chosen = arrays(puts)
        known = len(expected)
        for at, (one, wanted) in enumerate(puts):
            if wanted:
                expected[one] = base + at
        offsets = np.arange(base, base + len(puts))
        assert put_latest(hashes, offsets, chosen, slots) == len(expected) - known
    hashes, chosen = arrays(first + second)
    found = np.full(chosen.size, 5, np.int64)
    latest_offsets(hashes, chosen, slots, found)
    assert found.tolist() == [expected.get(one, -1) if wanted else -1 for one, wanted in first + second]
    larger = table(64)
    move_table(slots, larger)
    everything = np.array(list(expected), np.uint64).reshape(-1, 2)
    found = np.empty(len(expected), np.int64)
    latest_offsets(everything, np.ones(len(expected), np.bool_), larger, found)
    assert found.tolist() == list(expected.values())
    assert np.count_nonzero(larger[:, OFFSET] != FREE) == len(expected)


#: Some share a slot, some a word of the filter, some its bits, too.
PROBED = st.tuples(st.sampled_from([0, 1, 16, 2**64 - 1]), st.sampled_from([0, 1, 2, 64, 2**18, 2**63]))


@given(st.lists(PROBED, max_size=12), st.lists(st.tuples(PROBED, st.integers(0, 20), st.booleans()), max_size=40))
def test_records_are_superseded_if_the_table_has_a_newer_one(entered, records) -> None:
    slots, words = table(32), np.zeros(4, np.uint64)
    every = np.ones(len(entered), np.bool_)
    put_latest(np.array(entered, np.uint64).reshape(-1, 2), np.arange(5, 5 + len(entered)), every, slots)
    fill_filter(slots, words)
    newest = {key: 5 + at for at, key in enumerate(entered)}
    kinds = np.array([COMPARED if compared else IGNORED for _, _, compared in records], np.uint8)
    hashes = np.array([key for key, _, _ in records], np.uint64).reshape(-1, 2)
    probe(hashes, np.array([offset for _, offset, _ in records], np.int64), slots, words, kinds)
    for kind, (key, offset, compared) in zip(kinds.tolist(), records, strict=True):
        assert kind == (IGNORED if not compared else SUPERSEDED if newest.get(key, -1) > offset else COMPARED)


def test_a_later_put_wins_even_with_a_smaller_offset() -> None:
    # As in Kafka's map (case 6).
    slots = table(4)
    hashes, both = np.ones((2, 2), np.uint64), np.ones(2, np.bool_)
    assert put_latest(hashes, np.array([9, 5]), both, slots) == 1
    found = np.empty(2, np.int64)
    latest_offsets(hashes, both, slots, found)
    assert found.tolist() == [5, 5]
