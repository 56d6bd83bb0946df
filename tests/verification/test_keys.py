"""Keys of a log in parts: whatever the parts, tables and hash ranges, the same is judged as of the whole log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.layout import RECORD_ROW
from cordwood.types import NONE
from cordwood.verification.facts import FACT_NAMES, KeyRules, Keys, merge_facts
from cordwood.verification.keys import LastRecords, by_bucket, entries_of, judge, secret_points
from cordwood.verification.pairs import NAMES, Count, ViolationKind

#: Key, whether it has a value, whether it is there after the clean, whether it may be gone if it is a tombstone.
Made = tuple[bytes, bool, bool, bool]
RECORDS = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b", b"a key of more bytes"]), st.booleans(), st.booleans(), st.booleans()),
    max_size=30,
)


def entries(records: list[Made], points: tuple[int, int], first_offset: int = 0) -> npt.NDArray[np.void]:
    data = np.frombuffer(b"".join(key for key, *_ in records) or b"none", np.uint8)
    rows = np.zeros(len(records), RECORD_ROW)
    rows["offset"] = np.arange(first_offset, first_offset + len(records))
    rows["key_size"] = [len(key) for key, *_ in records]
    rows["key_start"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    rows["value_size"] = [0 if value else -1 for _, value, *_ in records]
    there = np.array([there for _, _, there, _ in records], np.bool_)
    may_go = np.array([not value and may_go for _, value, _, may_go in records], np.bool_)
    return entries_of(data, rows, points, there=there, may_go=may_go)


def expected(records: list[Made]) -> Counter[str]:
    """What is so, key by key."""
    found: Counter[str] = Counter()
    for key in {key for key, *_ in records}:
        mine = [one[1:] for one in records if one[0] == key]
        value, there, may_go = mine[-1]
        value_is_there = any(value and there for value, there, _ in mine)
        if there:
            found[Count.KEYS_KEPT] += 1
        elif not value and may_go:
            found[ViolationKind.CAME_BACK if value_is_there else Count.KEYS_DELETED] += 1
        else:
            found[ViolationKind.VALUE_LOST if value else ViolationKind.TOMBSTONE_LOST] += 1
    return found


@given(RECORDS, st.integers(0, 30), st.integers(1, 3), st.sampled_from([4, 8, 1 << 12]), st.randoms())
def test_keys_are_judged_the_same_however_they_are_shared_out(records, cut, buckets, slots_max, random) -> None:
    rules = KeyRules(secret_points(), 5, buckets, np.empty(0, np.int64))
    rows: list[dict[str, Any]] = []
    for part, first in ((records[:cut], 0), (records[cut:], cut)):
        keys = Keys(7, rules, LastRecords(slots_max))
        for one in range(0, len(part), 3):
            keys.add(entries(part[one : one + 3], rules.points, first + one))
            for batch in keys.take():
                rows += batch.to_pylist()
        for batch in keys.take(last=True):
            rows += batch.to_pylist()
    random.shuffle(rows)
    rows.sort(key=lambda row: row["bucket"])
    schema = pa.schema(list(zip(FACT_NAMES, [pa.int32(), pa.int32(), pa.int32(), pa.binary(), pa.int64(), pa.int64(),
                                             pa.binary()], strict=True)))  # fmt: skip
    found: Counter[str] = Counter()
    for batch in merge_facts([pa.RecordBatch.from_pylist([row], schema) for row in rows]):
        for row in batch.to_pylist():
            assert row["pair"] == 7
            assert 5 <= row["bucket"] < 5 + buckets
            found[NAMES[row["code"]]] += row["n"]
    assert found == expected(records)


def test_violations_of_keys_say_where_the_record_is() -> None:
    records = [
        (b"lost", True, False, False),
        (b"back", True, True, False),
        (b"back", False, False, True),
        (b"tombstone", False, False, False),
        (b"kept", True, True, False),
    ]
    counts, wrong = judge(entries(records, secret_points())[[0, 3, 4]])
    assert counts == {Count.KEYS_KEPT: 1, Count.KEYS_DELETED: 0}
    assert {kind: offsets.tolist() for kind, offsets in wrong.items()} == {
        ViolationKind.VALUE_LOST: [0],
        ViolationKind.TOMBSTONE_LOST: [3],
    }
    table = LastRecords()
    assert not list(table.add(entries(records[1:3], secret_points(), 1)))
    _, wrong = judge(table.take())
    assert {kind: offsets.tolist() for kind, offsets in wrong.items()} == {ViolationKind.CAME_BACK: [1]}


def test_hash_ranges_share_out_all_entries_about_evenly() -> None:
    made = entries([(b"%d" % number, True, True, True) for number in range(30_000)], secret_points())
    shares = dict(by_bucket(made, 3))
    assert sum(one.size for one in shares.values()) == made.size
    assert all(9_000 < one.size < 11_000 for one in shares.values())
    assert not {int(one) for one in shares[0]["low"]} & {int(one) for one in shares[2]["low"]}
    assert NONE not in made["last"]
