"""The table of newest offsets against a dict, and its bits against a list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.latest import (
    FREE,
    OFFSET,
    SLOT_NUMBERS,
    choose_keyed,
    count_superseded,
    latest_offsets,
    move_table,
    note_batches,
    put_latest,
)
from cordwood.kernels.layout import BATCH_ROW, RECORD_ROW


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
def test_the_table_holds_what_a_dict_holds_and_tells_what_was_replaced(first, second, start) -> None:
    slots, superseded = table(32), np.zeros(20, np.uint8)
    expected: dict[tuple[int, int], int] = {}
    holder: dict[tuple[int, int], int] = {}
    replaced = set()
    last = -1
    for puts, base, ordinal in ((first, start, 0), (second, start + 100, len(first))):
        hashes, chosen = arrays(puts)
        known = len(expected)
        for at, (one, wanted) in enumerate(puts):
            if wanted:
                replaced |= {holder[one]} if one in holder else set()
                expected[one], holder[one] = base + at, ordinal + at
        offsets = np.arange(base, base + len(puts))
        added, last, in_order = put_latest(hashes, offsets, chosen, ordinal, last, slots, superseded)
        assert (added, in_order) == (len(expected) - known, True)
        assert last == max(expected.values(), default=-1)
    bits = np.unpackbits(superseded, bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted(replaced)
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


def test_a_later_put_wins_even_with_a_smaller_offset_and_the_order_is_told() -> None:
    # As in Kafka's map (case 6); logs are read in order, so it does not happen.
    slots = table(4)
    hashes, both = np.ones((2, 2), np.uint64), np.ones(2, np.bool_)
    put = put_latest(hashes, np.array([9, 5]), both, 0, -1, slots, np.zeros(1, np.uint8))
    assert put == (1, 5, False)
    found = np.empty(2, np.int64)
    latest_offsets(hashes, both, slots, found)
    assert found.tolist() == [5, 5]


BATCHES = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=12)


@given(BATCHES, st.integers(0, 20), st.data())
def test_bits_are_counted_per_batch(batches, before, data) -> None:
    firsts, sizes, expected, at = [], [], [], before
    bits = [data.draw(st.booleans()) for _ in range(before + sum(size for size, _ in batches))]
    for size, known in batches:
        firsts.append(at if known else -1)
        sizes.append(size)
        expected.append(bits[at : at + size] if known else [False] * size)
        at += size
    packed = np.packbits(np.array(bits, np.bool_), bitorder="little")
    counts = np.full(len(batches), 7, np.int64)
    count_superseded(packed, np.array(firsts), np.array(sizes), counts)
    assert counts.tolist() == [sum(one) for one in expected]


#: Of a batch: magic, records that its header announces beyond those that are there; per record: entered, with a value.
NOTED = st.lists(
    st.tuples(
        st.sampled_from([2, 2, 2, 1]),
        st.sampled_from([0, 0, 0, 1]),
        st.lists(st.tuples(st.sampled_from([True, True, True, False]), st.booleans()), min_size=1, max_size=4),
    ),
    max_size=8,
)


@given(NOTED, st.integers(0, 100), st.integers(1, 3), st.integers(0, 2))
def test_batches_are_noted_of_which_all_records_were_entered(made, first_ordinal, smallest, skipped) -> None:
    # Some batches in front have no records.
    batches = np.zeros(len(made) + skipped, BATCH_ROW)
    rows = np.zeros(sum(len(batch) for _, _, batch in made), RECORD_ROW)
    rows["batch"] = np.repeat(np.arange(len(made)), [len(batch) for _, _, batch in made]) + skipped
    flat = [record for _, _, batch in made for record in batch]
    rows["value_size"] = [0 if has_value else -1 for _, has_value in flat]
    chosen = np.array([entered for entered, _ in flat], np.bool_)
    expected, ordinal = [], first_ordinal
    for at, (magic, more, batch) in enumerate(made, skipped):
        batches[at]["magic"], batches[at]["record_count"] = magic, len(batch) + more
        batches[at]["last_offset"], batches[at]["crc"] = 100 + at, 2**32 - 1 - at
        if magic == 2 and not more and len(batch) >= smallest and all(entered for entered, _ in batch):
            expected.append((100 + at, 2**32 - 1 - at, ordinal, not all(has_value for _, has_value in batch)))
        ordinal += len(batch)
    columns = [np.zeros(batches.size, kind) for kind in (np.int64, np.uint32, np.int64, np.bool_)]
    count = note_batches(rows, batches, chosen, first_ordinal, smallest, *columns)
    assert list(zip(*(column[:count].tolist() for column in columns), strict=True)) == expected
