"""The checks of a producer's batch, beside their slow, obvious twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels import validate
from cordwood.kernels.layout import RECORD_ROW
from cordwood.record.plain import BrokenError, read_body
from cordwood.record.record import Record, encode_record

BASE, LOWEST, HIGHEST = 1000, 990, 1010
RECORDS = st.lists(
    st.tuples(
        st.integers(-1, 3), st.sampled_from([-1, 0, 985, 990, 1000, 1010, 1015]), st.sampled_from([None, b"", b"k"])
    )
)


def slow(body: bytes, count: int, own: int) -> tuple[int, int] | None:
    """The largest timestamp and what is found; None: the records cannot be read."""
    found, largest = 0, -1
    try:
        records = list(read_body(body, count, 0, BASE))
    except BrokenError:
        return None
    for at, record in enumerate(records):
        timestamp = record.timestamp if own < 0 else own
        found |= validate.NULL_KEY if record.key is None else 0
        found |= validate.GAPS if record.offset != at else 0
        if timestamp == -1:
            found |= validate.NO_TIMESTAMP
        elif not LOWEST <= timestamp <= HIGHEST:
            found |= validate.BAD_TIMESTAMP
        largest = max(largest, timestamp)
    return largest, found


@given(records=RECORDS, more=st.integers(-1, 1), own=st.sampled_from([-1, 1000, 1015]), cut=st.integers(0, 3))
def test_a_batch_is_judged_as_by_the_slow_twin(
    records: list[tuple[int, int, bytes | None]], more: int, own: int, cut: int
) -> None:
    made = [Record(at + delta, ts, key, b"v") for at, (delta, ts, key) in enumerate(records)]
    body = b"".join(encode_record(one, base_offset=0, base_timestamp=BASE) for one in made)
    body, count = body[: len(body) - cut], max(0, len(records) + more)
    data = np.frombuffer(body or b"\0", np.uint8)
    status, done, largest, found = validate.check_records(
        data.ctypes.data, len(body), count, BASE, own, LOWEST, HIGHEST, np.empty(1, RECORD_ROW)
    )
    expected = slow(body, count, own)
    assert (status == 0) == (expected is not None)
    if expected is not None:
        assert (done, (largest, found)) == (count, expected)
