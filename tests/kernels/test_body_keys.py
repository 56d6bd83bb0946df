"""Keys of bodies, against the definition: record by record."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cordwood.kernels.decode import DONE
from cordwood.kernels.layout import BATCH_ROW
from cordwood.kernels.superseded import COMPARED, HAS_KEYLESS, HAS_TOMBSTONE, IGNORED, SUPERSEDING, keys_of_bodies
from cordwood.record.columns import Bodies, raise_damage
from cordwood.record.record import Record, encode_record
from cordwood.testing import reference
from cordwood.testing.strategies import records
from tests.kernels.bodies import changed, changes, twin

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
