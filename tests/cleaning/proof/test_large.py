"""Large values are replaced by digests: the other fields of a record stay, and different values have different
digests.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.proof.compare import Digests
from cordwood.record.batch import encode_batch
from cordwood.record.columns import decode
from cordwood.record.record import Record, to_records
from tests.logs import window

pytestmark = pytest.mark.more

SMALLEST = 40
VALUES = st.one_of(st.none(), st.binary(max_size=SMALLEST + 5), st.sampled_from([b"x" * SMALLEST, b"y" * 300]))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=2)


@given(st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=50)), VALUES, HEADERS), min_size=1, max_size=6))
def test_only_large_values_are_replaced(made) -> None:
    records = [Record(at, 7, key, value, tuple(headers)) for at, (key, value, headers) in enumerate(made)]
    digests = Digests(smallest_bytes=SMALLEST)
    (columns,) = decode(window(encode_batch(records)))
    found = list(to_records(*digests.replace(columns.data, columns.rows)))
    by_value: dict[bytes, bytes] = {}
    for record, now in zip(records, found, strict=True):
        if record.value is None or len(record.value) < SMALLEST:
            assert now == record
        else:
            assert now.value is not None
            assert len(now.value) == 32
            assert replace(now, value=record.value) == record
            by_value[record.value] = now.value
    assert len(set(by_value.values())) == len(by_value)
    # The same secret gives the same digests among any other records.
    assert list(to_records(*digests.replace(columns.data, columns.rows[-1:]))) == found[-1:]
