"""Superseded records by buckets, against the definition: record by record, with a dict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.kernels.decode import DONE
from cordwood.kernels.layout import BATCH_ROW, RECORD_ROW
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
    keys_of_bodies,
    merge,
    note_records,
    scatter,
    set_bits,
)
from cordwood.record.columns import Bodies, raise_damage
from cordwood.record.record import Record, encode_record
from cordwood.testing import reference
from cordwood.testing.strategies import records
from tests.kernels.bodies import changed, changes, twin

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


# ---- body keys -------------------------------------------------------------------------------------------------------


SECRET = bytes(range(16))
NEVER = np.iinfo(np.int64).max
FROM = st.sampled_from([0, 3, 10, NEVER])


def found_by_kernel(bodies: Bodies, superseding_from: list[int], end_offset: int, *, with_offsets: bool):
    room, batches = bodies.capacity(), bodies.batches.size
    counts, flags = np.zeros(batches, np.int32), np.zeros(batches, np.uint8)
    kinds, hashes = np.full(room, 99, np.uint8), np.zeros((room, 2), np.uint64)
    offsets = np.empty(room if with_offsets else 0, np.int64)
    status, count, first, last, in_order = keys_of_bodies(
        bodies.data.ctypes.data, bodies.starts, bodies.ends, bodies.batches, np.arange(batches),
        np.array(superseding_from, np.int64), end_offset, np.frombuffer(SECRET, np.uint64), counts, flags, kinds,
        hashes, offsets,
    )  # fmt: skip
    if status != DONE:
        return None
    keyed = [
        None if kind == IGNORED else (int(kind), hash_.tobytes())
        for kind, hash_ in zip(kinds[:count], hashes[:count], strict=True)
    ]
    return keyed, counts.tolist(), flags.tolist(), (int(first), int(last)), bool(in_order), offsets[:count].tolist()


def expected_of(batches: list[list[Record]], superseding_from: list[int], end_offset: int, *, with_offsets: bool):
    keyed: list[tuple[int, bytes] | None] = []
    counts, flags, offsets = [], [], []
    for chosen, start in zip(batches, superseding_from, strict=True):
        counts.append(len(chosen))
        flags.append(0)
        for record in chosen:
            offsets.append(record.offset)
            flags[-1] |= HAS_TOMBSTONE * (record.value is None) | HAS_KEYLESS * (record.key is None)
            if record.key is None or record.offset >= end_offset:
                keyed.append(None)
            else:
                kind = SUPERSEDING if record.offset >= start else COMPARED
                keyed.append((kind, reference.siphash128(record.key, SECRET)))
    span = (offsets[0], offsets[-1]) if offsets else (-1, -1)
    ascending = all(a < b for a, b in zip([-1, *offsets], offsets, strict=False))
    return keyed, counts, flags, span, ascending, offsets if with_offsets else []


@given(
    st.lists(
        st.tuples(records(), changes, st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 0, 0, -1, 1]), FROM),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([NEVER, NEVER, 2, 7]),
    st.booleans(),
)
@example([([Record(n, 5, b"k%d" % (n % 7), b"v") for n in range(1000)], [], 0, 0, 300)], 900, True)
@example([([Record(n, 5, b"k", None) for n in range(256)], [], 0, 0, NEVER)] * 3, NEVER, False)
def test_keys_are_those_of_the_records_one_by_one(parts, end_offset, with_offsets) -> None:
    base = 1_700_000_000_000
    encoded = [
        changed(b"".join(encode_record(r, base_offset=0, base_timestamp=base) for r in chosen), edits, cut)
        for chosen, edits, cut, _, _ in parts
    ]
    counts = [len(chosen) + more for chosen, _, _, more, _ in parts]
    headers = np.zeros(len(parts), BATCH_ROW)
    headers["base_timestamp"], headers["record_count"] = base, counts
    sizes = np.array([len(body) for body in encoded], np.int64)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    bodies = Bodies(np.frombuffer(b"".join(encoded) + b"\0", np.uint8), starts, ends, headers, raise_damage)
    superseding_from = [start for _, _, _, _, start in parts]
    read = [twin(body, count, 0, base, None) for body, count in zip(encoded, counts, strict=True)]
    found = found_by_kernel(bodies, superseding_from, end_offset, with_offsets=with_offsets)
    if any(chosen is None for chosen in read):
        assert found is None
    else:
        whole = [chosen for chosen in read if chosen is not None]
        assert found == expected_of(whole, superseding_from, end_offset, with_offsets=with_offsets)
