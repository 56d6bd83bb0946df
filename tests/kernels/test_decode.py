from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import decode as kernel
from cordwood.kernels.layout import BATCH_ROW, RECORD_ROW
from cordwood.record.batch import encode_message
from cordwood.record.record import Record, encode_record, to_records
from cordwood.testing import reference
from cordwood.testing.strategies import records
from tests.kernels.bodies import changed, changes, twin


def decode_bodies(
    bodies: list[bytes],
    counts: list[int],
    *,
    capacity: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[list[Record] | None]:
    """Records per body, None for a broken one, through the kernel with room for a few rows at a time."""
    data = np.frombuffer(b"".join(bodies) + b"\0", np.uint8)
    ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
    starts = ends - [len(body) for body in bodies]
    headers = np.zeros(len(bodies), BATCH_ROW)
    headers["base_offset"], headers["base_timestamp"] = base_offset, base_timestamp
    headers["record_count"] = counts
    if append_time is not None:
        headers["attributes"], headers["max_timestamp"] = 8, append_time
    found: list[list[Record] | None] = [[] for _ in bodies]
    batch, at, done = 0, int(starts[0]), 0
    while batch < len(bodies):
        rows = np.empty(capacity, RECORD_ROW)
        status, count, batch, at, done, _ = kernel.decode_records(
            data.ctypes.data, starts, ends, True, headers, batch, at, done, rows
        )
        for row, record in zip(rows[:count], to_records(data, rows[:count]), strict=True):
            found[row["batch"]].append(record)
        if status < 0:
            assert status in kernel.PROBLEMS
            found[batch] = None
            batch, done = batch + 1, 0
            at = int(starts[batch]) if batch < len(bodies) else 0
    return found


@given(
    st.lists(
        st.tuples(records(), changes, st.sampled_from([0, 0, 0, 1, 5]), st.sampled_from([0, 0, 0, -1, 1])),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(0, 2**40)),
)
def test_records_of_whole_bodies_are_those_of_the_slow_twin(parts, capacity, append_time) -> None:
    base = 1_700_000_000_000
    bodies = [
        changed(b"".join(encode_record(r, base_offset=0, base_timestamp=base) for r in chosen), edits, cut)
        for chosen, edits, cut, _ in parts
    ]
    counts = [len(chosen) + more for chosen, _, _, more in parts]
    expected = [twin(body, count, 0, base, append_time) for body, count in zip(bodies, counts, strict=True)]
    found = decode_bodies(
        bodies, counts, capacity=capacity, base_offset=0, base_timestamp=base, append_time=append_time
    )
    assert found == expected


@given(records(max_size=5), changes, st.integers(1, 60), st.integers(1, 4))
def test_a_body_that_comes_in_pieces_gives_the_same_records(chosen, edits, piece, capacity) -> None:
    body = changed(b"".join(encode_record(r, base_offset=0, base_timestamp=0) for r in chosen), edits, 0)
    header = np.zeros(1, BATCH_ROW)
    header["record_count"] = len(chosen)
    found: list[Record] | None = []
    start = at = done = 0
    end = min(piece, len(body))
    while True:
        data = np.frombuffer(body[start:end] + b"\0", np.uint8)
        rows = np.empty(capacity, RECORD_ROW)
        final = end == len(body)
        status, count, _, at, done, needed = kernel.decode_records(
            data.ctypes.data, np.zeros(1, np.int64), np.array([end - start]), final, header, 0, at, done, rows
        )
        found += to_records(data, rows[:count])  # type: ignore[operator]
        if status < 0:
            found = None
            break
        if status == kernel.DONE:
            break
        if status == kernel.MORE:
            assert not final and needed > end - start, "a piece that is asked for brings something new"
            start, at = start + at, 0
            end = min(len(body), end + piece)
    assert found == twin(body, len(chosen), 0, 0, None)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), records(magic=1, max_size=1)), max_size=5),
    changes,
    st.integers(0, 30),
    st.booleans(),
)
def test_messages_of_a_set_are_those_of_the_slow_twin(messages, edits, cut, fix_crc) -> None:
    data = changed(
        b"".join(
            encode_message(magic, offset=r.offset, timestamp=r.timestamp, key=r.key, value=r.value)
            for magic, (r,) in messages
        ),
        edits,
        cut,
    )
    expected: list[tuple[int, Record]] | None = []
    try:
        expected += reference.read_message_set(data)  # type: ignore[operator]
    except reference.BrokenError:
        expected = None
    array = np.frombuffer(data + b"\0", np.uint8)
    found: list[tuple[int, Record]] | None = []
    at = 0
    while found is not None:
        rows, magics = np.empty(2, RECORD_ROW), np.empty(2, np.int8)
        status, count, at, _ = kernel.decode_message_set(array.ctypes.data, len(data), at, True, True, rows, magics)
        found += zip(magics[:count].tolist(), to_records(array, rows[:count]), strict=True)
        if status == kernel.DONE:
            break
        if status < 0:
            found = None
    assert found == expected
