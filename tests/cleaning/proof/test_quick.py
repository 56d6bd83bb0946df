"""The quick pass finds the same as the careful pass, or leaves the range to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.proof import compare, prove, quick
from cordwood.cleaning.proof.judging import Judge
from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.cleaning.proof.producers import ProducerNotes
from cordwood.cleaning.proof.reading import RangeWindows
from cordwood.cleaning.proof.violations import Verdict
from cordwood.common.types import Codec, TimestampType
from cordwood.kernels.last_records import COUNTS, ENTRY, WENT
from cordwood.kernels.layout import BATCH_ROW
from cordwood.kernels.side_by_side import COMPARED, MORE_AFTER, ODD, are_plain, compare_plain
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow
from cordwood.record.record import Record
from tests import knobs
from tests.cleaning.proof.planting import NOW, State, cleaned_example
from tests.cleaning.proof.proving import verify_pairs
from tests.cleaning.proof.wrong_results import wrong_results
from tests.commands.in_process import InThisProcess
from tests.logs import window

pytestmark = pytest.mark.more

BYTES = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"x" * 40, b"x" * 39 + b"y"]))
#: Key, value, header, of the batch before; and its fate in the clean: it stays or is dropped.
MADE = st.tuples(BYTES, BYTES, st.booleans(), st.sampled_from(["stays", "stays", "goes"]))
BATCH = st.tuples(
    st.lists(MADE, max_size=6), st.sampled_from(["same", "horizon", "gone"]), st.sampled_from(list(TimestampType))
)


def states_of(made: list[Any], changed: int = -1) -> tuple[bytes, bytes, list[Record], set[int]]:
    """Both states, the records before, and the offsets of kept records.

    Args:
        changed: offset of a record whose value is another in the state after.
    """
    before, after, records, stays = b"", b"", [], set()
    offset = 0
    for batch, what, time in made:
        mine = [
            Record(offset + 2 * at, 7 + at, key, value, (("h", None),) if headers else ())
            for at, (key, value, headers, _) in enumerate(batch)
        ]
        if time is TimestampType.LOG_APPEND_TIME:
            mine = [Record(one.offset, 99, one.key, one.value, one.headers) for one in mine]
        ends: Any = {"base_offset": offset, "last_offset": offset + 2 * len(batch), "timestamp_type": time}
        newest: Any = {"max_timestamp": 99 if time is TimestampType.LOG_APPEND_TIME else 7 + len(batch)}
        before += encode_batch(mine, base_timestamp=5, **ends, **newest)
        kept = [
            one if one.offset != changed else replace(one, value=_another(one.value))
            for one, (*_, fate) in zip(mine, batch, strict=True)
            if fate == "stays"
        ]
        records += mine
        if what != "gone":
            stays |= {one.offset for one in kept}
            horizon: Any = {"delete_horizon_ms": 1_000_000} if what == "horizon" else {"base_timestamp": 5}
            after += encode_batch(kept, **ends, **newest, **horizon)
        offset += 2 * len(batch) + 1
    return before, after, records, stays


def _another(value: bytes | None) -> bytes:
    assert value
    return bytes([value[0] ^ 1]) + value[1:]


def compared(before: BatchWindow, after: BatchWindow, cut: int) -> tuple[int, int, list[int], set[int]]:
    """Return the status; the records found; offsets of all entries; and offsets of dropped ones.

    The batches after the clean are given in two windows, as if the first ended at `cut`.
    """
    count = int(before.batches["record_count"].sum())
    entries, newest = np.zeros(count, ENTRY), np.zeros(after.batches.size, np.int64)
    rules = np.full(before.batches.size, COUNTS)
    between, points = np.array([0, 1 << 60]), np.array([3, 5], np.uint64)
    at, used, there, status = 0, 0, 0, MORE_AFTER
    for first, end, is_last in ((0, cut, False), (cut, after.batches.size, True)):
        batches = after.batches[first:end]
        status, at, now_at, records, used = compare_plain(
            *(before.data.ctypes.data, before.batches, at, after.data.ctypes.data, batches, 0, is_last, False),
            *(rules, between, points, entries, used, newest[first:end]),
        )
        there += records
        if status != MORE_AFTER:
            break
        assert now_at == batches.size
    if status == COMPARED and now_at < batches.size:
        status = ODD  # batches that the state before has not
    filled = after.batches["record_count"] > 0
    if status == COMPARED:
        assert (newest[filled] <= after.batches["max_timestamp"][filled]).all()
    found = entries[:used]
    return status, there, found["offset"].tolist(), set(found["offset"][found["low"] & WENT != 0].tolist())


@given(st.lists(BATCH, min_size=1, max_size=4), st.integers(0, 4))
def test_records_that_stay_and_that_go_are_told_apart(made: list[Any], cut: int) -> None:
    data = states_of(made)
    before, after = (window(one) for one in data[:2])
    records, stays = data[2:]
    assert are_plain(before.batches, before.data.size, -1)
    status, there, offsets, went = compared(before, after, min(cut, after.batches.size))
    assert status == COMPARED
    assert there == len(stays)
    assert offsets == [one.offset for one in records if one.key is not None]
    assert went == {one.offset for one in records if one.key is not None} - stays


@given(st.lists(BATCH, min_size=1, max_size=3), st.data())
def test_a_record_that_is_another_is_odd(made: list[Any], data: st.DataObject) -> None:
    made = [(batch, "same", time) for batch, _, time in made]
    _, _, records, stays = states_of(made)
    chosen = [one.offset for one in records if one.offset in stays and one.value]
    if not chosen:
        return
    before, after, *_ = states_of(made, data.draw(st.sampled_from(chosen)))
    status, *_ = compared(window(before), window(after), 0)
    assert status == ODD


def test_only_plain_batches_in_order_are_taken() -> None:
    def row(**fields: int) -> Any:
        rows = np.zeros(2, BATCH_ROW)
        rows["magic"], rows["size_bytes"], rows["record_count"] = 2, 70, 1
        rows["position"], rows["base_offset"], rows["last_offset"] = [0, 70], [10, 20], [19, 29]
        for name, value in fields.items():
            rows[name][1] = value
        return rows

    assert are_plain(row(), 140, 9)
    assert not are_plain(row(), 139, 9)
    assert not are_plain(row(), 140, 10)
    for fields in (
        {"magic": 1},
        {"attributes": int(Codec.LZ4)},
        {"computed_crc": 1},
        {"record_count": -1},
        {"base_offset": 19},
        {"last_offset": 19},
    ):
        assert not are_plain(row(**fields), 140, 9)


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "RANGE_BYTES", 1)


@pytest.fixture
def cleaned(tmp_path: Path, many_ranges: None) -> tuple[Path, State]:
    """The example, and the output of a correct clean."""
    before, _ = cleaned_example(tmp_path, InThisProcess())  # type: ignore[arg-type]
    return before, State.read(tmp_path / "after" / "t-0", 63)


def with_careful_alone(monkeypatch: pytest.MonkeyPatch, pairs: list[Pair]) -> list[Verdict]:
    def odd(*_: object) -> None:
        raise quick.OddError

    monkeypatch.setattr(quick, "compare", odd)
    return verify_pairs(pairs)


def test_a_right_result_takes_the_quick_pass_but_for_other_kinds_of_batches(
    cleaned: tuple[Path, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = cleaned
    after = tmp_path / "after" / "t-0"
    pair = Pair(None, Side(str(before), 0), Side(str(after), 0), now_ms=NOW, new_horizon_ms=NOW + 86_400_000)
    starts: list[int] = []
    wrapped = compare.compare

    def careful(before: RangeWindows, after: RangeWindows | None, judge: Judge, notes: ProducerNotes) -> None:
        starts.append(before.part.start)
        wrapped(before, after, judge, notes)

    monkeypatch.setattr(compare, "compare", careful)
    (found,) = verify_pairs([pair])
    assert found.holds
    assert set(starts) == {20}, "the segment with old messages and codecs"
    assert with_careful_alone(monkeypatch, [pair]) == [found]


def test_both_passes_find_the_same(
    cleaned: tuple[Path, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, state = cleaned
    pairs = []
    for number, wrong in enumerate(wrong_results(state)[knobs.SEED % 5 :: 5]):
        planted = state.copy()
        wrong.plant(planted)
        after = Side(str(planted.write(tmp_path / str(number) / "t-0")), 0)
        pairs.append(Pair(None, Side(str(before), 0), after, now_ms=NOW, new_horizon_ms=NOW + 86_400_000))
    found = verify_pairs(pairs)
    assert found == with_careful_alone(monkeypatch, pairs)
    assert not any(verdict.holds for verdict in found)
