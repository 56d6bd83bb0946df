"""The table of newest offsets against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.latest import latest_offsets, move_table, put_latest


def table(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty((size, 2), np.uint64), np.full(size, -1, np.int64)


#: Few slots and few hashes, so that keys meet: some differ in one half only, some want the same slot.
HASHES = st.tuples(st.sampled_from([0, 1, 15, 16, 2**64 - 1]), st.sampled_from([0, 1, 2**63]))
PUTS = st.lists(st.tuples(HASHES, st.booleans()), max_size=40)


def arrays(puts: list[tuple[tuple[int, int], bool]]) -> tuple[np.ndarray, np.ndarray]:
    hashes = np.array([one for one, _ in puts], np.uint64).reshape(-1, 2)
    return hashes, np.array([chosen for _, chosen in puts], np.bool_)


@given(PUTS, PUTS, st.integers(0, 2**62))
def test_the_table_holds_what_a_dict_holds_and_counts_new_keys(first, second, start) -> None:
    slots, offsets = table(32)
    expected: dict[tuple[int, int], int] = {}
    for puts, base in ((first, start), (second, start + 100)):
        hashes, chosen = arrays(puts)
        known = len(expected)
        expected |= {one: base + at for at, (one, wanted) in enumerate(puts) if wanted}
        assert put_latest(hashes, np.arange(base, base + len(puts)), chosen, slots, offsets) == len(expected) - known
    hashes, chosen = arrays(first + second)
    found = np.full(chosen.size, 5, np.int64)
    latest_offsets(hashes, chosen, slots, offsets, found)
    assert found.tolist() == [expected.get(one, -1) if wanted else -1 for one, wanted in first + second]
    larger, more = table(64)
    move_table(slots, offsets, larger, more)
    everything = np.array(list(expected), np.uint64).reshape(-1, 2)
    found = np.empty(len(expected), np.int64)
    latest_offsets(everything, np.ones(len(expected), np.bool_), larger, more, found)
    assert found.tolist() == list(expected.values())
    assert np.count_nonzero(more >= 0) == len(expected)


def test_a_later_put_wins_even_with_a_smaller_offset() -> None:
    # As in Kafka's map (case 6); logs are read in order, so it does not happen.
    slots, offsets = table(4)
    hashes = np.ones((2, 2), np.uint64)
    put_latest(hashes, np.array([9, 5]), np.ones(2, np.bool_), slots, offsets)
    found = np.empty(2, np.int64)
    latest_offsets(hashes, np.ones(2, np.bool_), slots, offsets, found)
    assert found.tolist() == [5, 5]
