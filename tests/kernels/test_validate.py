"""The checks of a producer's batch, beside their slow, obvious twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import validate
from cordwood.kernels.layout import HEADER, LOG_APPEND_TIME, RECORD_ROW
from cordwood.record.plain import BrokenError, read_body
from cordwood.record.record import Record, encode_record

BASE, NOW, AROUND = 1000, 1000, 10
LIMITS = np.array([NOW, AROUND, AROUND])
RECORDS = st.lists(
    st.tuples(
        st.integers(-1, 3), st.sampled_from([-1, 0, 985, 990, 1000, 1010, 1015]), st.sampled_from([None, b"", b"k"])
    )
)


def slow(body: bytes, count: int, own: int | None) -> tuple[int, int] | None:
    """The largest timestamp and the findings; None if the records are unreadable."""
    found, largest = 0, -1
    try:
        records = list(read_body(body, count, 0, BASE))
    except BrokenError:
        return None
    for at, record in enumerate(records):
        timestamp = record.timestamp if own is None else own
        found |= validate.NULL_KEY if record.key is None else 0
        found |= validate.GAPS if record.offset != at else 0
        if timestamp == -1:
            found |= validate.NO_TIMESTAMP
        elif abs(timestamp - NOW) > AROUND:
            found |= validate.BAD_TIMESTAMP
        largest = max(largest, timestamp)
    return largest, found


@given(
    records=RECORDS, more=st.integers(-1, 1), own=st.sampled_from([None, None, -1, 1000, 1015]), cut=st.integers(0, 3)
)
def test_a_batch_is_judged_as_by_the_slow_twin(
    records: list[tuple[int, int, bytes | None]], more: int, own: int | None, cut: int
) -> None:
    made = [Record(at + delta, ts, key, b"v") for at, (delta, ts, key) in enumerate(records)]
    body = b"".join(encode_record(one, base_offset=0, base_timestamp=BASE) for one in made)
    body, count = body[: len(body) - cut], max(0, len(records) + more)
    data, rows = np.frombuffer(_header(count, own) + body, np.uint8), np.empty(max(1, count), RECORD_ROW)
    header = data.ctypes.data
    status, done, largest, found = validate.check_records(header, header + HEADER.size, len(body), False, LIMITS, rows)
    expected = slow(body, count, own)
    assert (status == 0) == (expected is not None)
    if expected is not None:
        assert (done, (largest, found)) == (count, expected)
        assert rows["offset"][:count].tolist() == [one.offset for one in made[:count]]


def _header(count: int, own: int | None) -> bytes:
    attributes = LOG_APPEND_TIME if own is not None else 0
    return HEADER.pack(0, 0, -1, 2, 0, attributes, count - 1, BASE, own or 0, -1, -1, -1, count)


@given(records=RECORDS, length=st.integers(-3, 3), cut=st.integers(0, 40))
def test_the_length_of_a_record_counts_unless_it_is_read_in_part(
    records: list[tuple[int, int, bytes | None]], length: int, cut: int
) -> None:
    made = [Record(at, ts, key, b"v", (("h", None),)) for at, (_, ts, key) in enumerate(records)]
    body = bytearray(b"".join(encode_record(one, base_offset=0, base_timestamp=BASE) for one in made))
    if body:
        body[0] += 2 * length
    whole = len(body) - cut
    data, rows = np.frombuffer(_header(len(made), None) + body, np.uint8), np.empty(1, RECORD_ROW)
    header = data.ctypes.data
    for is_partial, good in (True, cut == 0), (False, cut == 0 and (length == 0 or not made)):
        if whole >= 0:
            status, *_ = validate.check_records(header, header + HEADER.size, whole, is_partial, LIMITS, rows)
            assert (status == 0) == good
