"""Superseded records by buckets, against the definition: record by record, with a dict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.kernels.layout import RECORD_ROW
from cordwood.kernels.superseded import (
    BUCKETS,
    COMPARED,
    HAS_KEYLESS,
    HAS_TOMBSTONE,
    IGNORED,
    SUPERSEDING,
    count_bits,
    count_buckets,
    dedupe,
    merge,
    note_records,
    scatter,
    set_bits,
)

#: Few hashes, so that keys meet: some differ in one half only, some share a bucket, some want the same slot.
HASHES = st.tuples(st.sampled_from([0, 1, 64, 2**64 - 1]), st.sampled_from([0, 1, 2**54, 2**63]))
RECORDS = st.lists(st.tuples(HASHES, st.sampled_from([IGNORED, COMPARED, SUPERSEDING])), max_size=60)


def superseded(records) -> list[bool]:
    """The definition: some later record has the key, and supersedes.

    A free slot is (0, 0), so that this hash is taken for (1, 0): one more collision, as unlikely as any other.
    """
    seen: set[tuple[int, int]] = set()
    found = []
    for hash, kind in reversed(records):
        key = hash if hash != (0, 0) else (1, 0)
        found.append(kind != IGNORED and key in seen)
        if kind == SUPERSEDING:
            seen.add(key)
    return found[::-1]


def chunk(records, pieces: int):
    """Scatter and deduplicate a chunk given in pieces; return its hashes, ordinals, starts and bits."""
    hashes = np.array([key for key, _ in records], np.uint64).reshape(-1, 2)
    kinds = np.array([kind for _, kind in records], np.uint8)
    edges = np.linspace(0, kinds.size, pieces + 1).astype(int).tolist()
    counts = np.zeros(BUCKETS, np.int64)
    for first, end in pairwise(edges):
        count_buckets(hashes[first:end], kinds[first:end], counts)
    starts = np.append(0, np.cumsum(counts))
    ends = starts[:-1].copy()
    out_hashes, out_ordinals = np.zeros((starts[-1], 2), np.uint64), np.zeros(starts[-1], np.uint32)
    for first, end in pairwise(edges):
        scatter(hashes[first:end], kinds[first:end], first, ends, out_hashes, out_ordinals)
    assert (ends == starts[1:]).all()
    bits = np.zeros(kinds.size // 8 + 1, np.uint8)
    dedupe(out_hashes, out_ordinals, starts, bits)
    return out_hashes, out_ordinals, starts, bits


@example([((0, 0), COMPARED), ((1, 0), SUPERSEDING)], [], 1)
@given(RECORDS, st.lists(st.integers(0, 60), max_size=4), st.integers(1, 3))
def test_records_with_a_newer_one_of_their_key_are_superseded_however_the_log_is_cut(records, cuts, pieces) -> None:
    bounds = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    parts = [records[first:end] for first, end in pairwise(bounds)]
    chunks = [chunk(part, pieces) for part in parts]
    hashes = np.array([one[0].ctypes.data for one in chunks], np.int64)
    ordinals = np.array([one[1].ctypes.data for one in chunks], np.int64)
    # Two ranges of buckets, as two tasks would take them.
    dead = np.zeros(len(chunks), np.int64)
    for low, high in ((0, BUCKETS // 3), (BUCKETS // 3, BUCKETS)):
        starts = np.array([one[2][low : high + 1] for one in chunks])
        first = starts[:, :1]
        merge(hashes + 16 * first[:, 0], ordinals + 4 * first[:, 0], starts - first, dead)
        for (_, numbers, _, bits), count, start in zip(chunks, dead.tolist(), first[:, 0].tolist(), strict=True):
            set_bits(numbers[start : start + count], bits)
    found = [
        bool(bits[at >> 3] >> (at & 7) & 1)
        for part, (_, _, _, bits) in zip(parts, chunks, strict=True)
        for at in range(len(part))
    ]
    assert found == superseded(records)


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(-1, 1), st.integers(-1, 1)), max_size=30)


@given(ROWS, st.lists(st.integers(0, 20), min_size=4, max_size=4), st.integers(-1, 20))
def test_records_are_classified_and_counted_by_batch(records, superseding_from, last_offset) -> None:
    rows = np.zeros(len(records), RECORD_ROW)
    for name, column in zip(("batch", "offset", "key_size", "value_size"), zip(*records, strict=True), strict=False):
        rows[name] = column
    index_of = np.array([2, 0, 3, 1])
    kinds, counts, flags = np.empty(rows.size, np.uint8), np.zeros(4, np.int32), np.zeros(4, np.uint8)
    last, in_order = note_records(rows, index_of, np.array(superseding_from), last_offset, kinds, counts, flags)
    offsets = [last_offset, *(offset for _, offset, _, _ in records)]
    assert (last, in_order) == (offsets[-1], all(a < b for a, b in pairwise(offsets)))
    for at, (batch, offset, key_size, _) in enumerate(records):
        kind = SUPERSEDING if offset >= superseding_from[index_of[batch]] else COMPARED
        assert kinds[at] == (IGNORED if key_size < 0 else kind)
    for batch, index in enumerate(index_of.tolist()):
        own = [record for record in records if record[0] == batch]
        assert counts[index] == len(own)
        assert bool(flags[index] & HAS_TOMBSTONE) == any(record[3] < 0 for record in own)
        assert bool(flags[index] & HAS_KEYLESS) == any(record[2] < 0 for record in own)


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
    count_bits(packed, np.array(firsts), np.array(sizes), counts)
    assert counts.tolist() == [sum(one) for one in expected]
