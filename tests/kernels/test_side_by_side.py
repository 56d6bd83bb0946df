"""Records of two states side by side, against objects that Python compares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.layout import RECORD_ROW
from cordwood.kernels.side_by_side import HEADERS, INVENTED, KEY, TIMESTAMP, VALUE, look_over, match_records
from cordwood.record.batch import encode_batch
from cordwood.record.columns import RecordColumns, decode
from cordwood.record.record import Record
from tests.logs import window

pytestmark = pytest.mark.more

BYTES = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"x" * 40, b"x" * 39 + b"y", b"x" * 9, b"y" * 9]))
HEADER = st.tuples(st.sampled_from(["", "h", "name"]), st.one_of(st.none(), st.binary(max_size=2)))
MADE = st.tuples(st.integers(0, 3), BYTES, BYTES, st.lists(HEADER, max_size=2).map(tuple))
STATE = st.dictionaries(st.integers(0, 12), MADE, min_size=1, max_size=8)


def columns_of(state: dict[int, Any], base_timestamp: int) -> tuple[list[Record], RecordColumns]:
    records = [Record(offset, *state[offset]) for offset in sorted(state)]
    # Another base timestamp gives other bytes for the same records.
    (columns,) = decode(window(encode_batch(records, base_offset=0, delete_horizon_ms=base_timestamp)))
    return records, columns


@given(STATE, STATE, st.sets(st.integers(0, 12)), st.integers(0, 8))
def test_what_differs_of_records_is_found_field_by_field(first, second, same, cut: int) -> None:
    # Many records are the same in both states.
    second |= {offset: one for offset, one in first.items() if offset in same}
    before, mine = columns_of(first, 1)
    after, theirs = columns_of(second, 1_000_000)
    there, differs = np.zeros(len(before), np.bool_), np.full(len(after), INVENTED)
    other_at = 0
    # In two pieces of the state before.
    for rows, known in ((mine.rows[:cut], there[:cut]), (mine.rows[cut:], there[cut:])):
        _, other_at = match_records(
            mine.data.ctypes.data, rows, 0, theirs.data.ctypes.data, theirs.rows, other_at, known, differs
        )
    offsets = {one.offset: one for one in before}
    assert there.tolist() == [one.offset in second for one in before]
    for one, found in zip(after, differs.tolist(), strict=True):
        was = offsets.get(one.offset)
        if was is None:
            assert found == INVENTED
            continue
        fields = {
            TIMESTAMP: was.timestamp != one.timestamp,
            KEY: was.key != one.key,
            VALUE: was.value != one.value,
            HEADERS: was.headers != one.headers,
        }
        assert found == sum(int(bit) for bit, is_other in fields.items() if is_other)
        assert (found == 0) == (replace(one) == was)


@given(st.lists(st.tuples(st.integers(-1, 20), st.integers(0, 1), st.integers(-5, 5)), max_size=20), st.integers(-1, 5))
def test_one_look_finds_batches_and_what_does_not_ascend(made, last: int) -> None:
    rows = np.zeros(len(made), RECORD_ROW)
    rows["offset"] = [offset for offset, *_ in made]
    rows["batch"] = np.cumsum([new for _, new, _ in made])
    rows["timestamp"] = [time for *_, time in made]
    ascends = np.empty(rows.size, np.bool_)
    first, count, newest = (np.empty(rows.size, np.int64) for _ in range(3))
    batches, wrong = look_over(rows, last, ascends, first, count, newest)
    expected = [row["offset"] > max([last, *rows["offset"][:at].tolist()]) for at, row in enumerate(rows)]
    assert ascends.tolist() == expected
    assert wrong == expected.count(False)
    assert batches == len(set(rows["batch"].tolist()))
    for batch, start, size, time in zip(sorted(set(rows["batch"])), first, count, newest, strict=False):
        mine = np.flatnonzero(rows["batch"] == batch)
        assert [start, size, time] == [mine[0], mine.size, rows["timestamp"][mine].max()]
