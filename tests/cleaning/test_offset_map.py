"""The offset map beside Kafka's own, and in the cases of docs/cases.md that `cases/offset-map.txt` does not have."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.cleaning.engine import readahead
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.keys import DirtySection, collect_keys, empty_table
from cordwood.cleaning.rules.key_table import KeyTable, MemoryShare
from cordwood.cleaning.rules.latest import LatestOffsets
from cordwood.cleaning.rules.offset_map import OffsetMap, keys_max, slots_of
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import TooLittleMemoryError
from cordwood.kernels.latest import digest_keys
from cordwood.kernels.layout import BATCH_ROW, RECORD_ROW
from cordwood.record.batch import encode_batch
from cordwood.record.columns import RecordColumns
from cordwood.record.record import Record
from cordwood.testing.reference import SlowOffsetMap
from tests.cleaning.scripted import ScriptedLog
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

#: Secret of the keyed hash.
SECRET = bytes(range(16))


def columns(keys: Sequence[bytes], offsets: Sequence[int]) -> RecordColumns:
    rows = np.zeros(len(keys), RECORD_ROW)
    rows["offset"] = offsets
    rows["key_size"] = [len(key) for key in keys]
    rows["key_start"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    return RecordColumns(np.frombuffer(b"".join(keys) + b"\0", np.uint8), rows, np.zeros(1, BATCH_ROW))


def put_chosen(table: KeyTable, records: RecordColumns, chosen: np.ndarray) -> int:
    return table.put(records, chosen, table.hashes(records, chosen))


def put(map_: OffsetMap, *entries: tuple[bytes, int]) -> None:
    found = columns([key for key, _ in entries], [offset for _, offset in entries])
    assert put_chosen(map_, found, np.ones(len(entries), np.bool_)) == len(entries)


def get(map_: OffsetMap, *keys: bytes) -> list[int]:
    found: list[int] = map_.get(columns(keys, [0] * len(keys)), np.ones(len(keys), np.bool_)).tolist()
    return found


def utilization(map_: OffsetMap) -> float:
    """The used part of all slots, as Kafka has it."""
    return map_.keys / map_.slots


def slots_in_use(map_: OffsetMap) -> dict[int, int]:
    """Slot of each offset."""
    return {int(map_._offsets[at]): at for at in np.flatnonzero(map_._sums.any(axis=1)).tolist()}


@pytest.mark.parametrize("count", [10, 100, 1000, 5000])
def test_every_key_that_was_put_is_found(count: int) -> None:
    # case 1
    map_ = OffsetMap(slots_of(48 * count))
    keys = [b"%d" % at for at in range(count)]
    put(map_, *zip(keys, range(count), strict=True))
    assert get(map_, *keys) == list(range(count))


def test_a_new_map_finds_nothing() -> None:
    # case 2
    map_ = OffsetMap(slots_of(4096))
    assert map_.slots == 170
    assert get(map_, *(b"%d" % at for at in range(10))) == [-1] * 10
    assert (map_.keys, map_.latest_offset) == (0, -1)


def test_a_full_map_finds_what_it_has_and_takes_nothing_more() -> None:
    # cases 3, 4, 8
    map_ = OffsetMap(slots_of(4096))
    put(map_, *((b"%d" % (37 + at), at) for at in range(170)))
    assert (map_.keys, map_.latest_offset) == (170, 169)
    assert get(map_, b"%d" % (37 + 170), b"%d" % (37 + 169)) == [-1, 169]
    for key in (b"new", b"37"):
        assert put_chosen(map_, columns([key], [1000]), np.ones(1, np.bool_)) == 0
    map_.latest_offset = 400
    assert get(map_, b"37") == [0]


def test_the_last_put_of_a_key_counts_whatever_its_offset() -> None:
    # cases 5, 6
    map_ = OffsetMap(10)
    put(map_, (b"a", 5), (b"a", 9))
    assert (map_.keys, get(map_, b"a"), map_.latest_offset) == (1, [9], 9)
    put(map_, (b"a", 5))
    assert (map_.keys, get(map_, b"a"), map_.latest_offset) == (1, [5], 5)


def test_each_new_key_takes_a_slot() -> None:
    # case 7
    map_ = OffsetMap(4)
    found = [utilization(map_)]
    for at in range(4):
        put(map_, (b"%d" % at, at))
        found.append(utilization(map_))
    assert found == [0, 0.25, 0.5, 0.75, 1]


def test_keys_stand_in_the_slots_of_kafkas_map() -> None:
    # case 9
    map_ = OffsetMap(slots_of(240))
    put(map_, *((bytes([97 + at]), at) for at in range(6)))
    assert slots_in_use(map_) == {0: 7, 1: 6, 2: 0, 3: 3, 4: 9, 5: 5}


def test_a_map_that_is_filled_to_its_limit_says_where_it_stopped() -> None:
    # case 13
    map_ = OffsetMap(3, keys_max(3, 0.75))
    keys = columns([b"%d" % at for at in range(5)], range(5))
    chosen = keys.rows["offset"] >= 2
    assert put_chosen(map_, keys, chosen) == 4
    assert (map_.keys, map_.latest_offset) == (2, 3)
    assert get(map_, b"0", b"2", b"3", b"4") == [-1, 2, 3, -1]


def scripted(*batches: Sequence[bytes], roll_every: int = 1000) -> ScriptedLog:
    """A log of batches of these keys."""
    log = ScriptedLog()
    for at, keys in enumerate(batches, 1):
        log.append(encode_batch([Record(log.next_offset + i, 0, key, b"v") for i, key in enumerate(keys)]))
        if at % roll_every == 0:
            log.roll()
    log.roll()
    return log


def test_the_map_of_a_range_has_the_keys_of_that_range() -> None:
    # case 11
    log = scripted(*([b"%d" % at] for at in range(500)), roll_every=60).log()
    bases = [segment.base_offset for segment in log.segments]
    for start, end in ((0, bases[1]), (bases[1], bases[3]), (bases[3], bases[-1]), (70, bases[3])):
        segments = tuple(one for one in log.segments if start - 60 < one.base_offset < end)
        settings = CleanSettings(offset_map_slots=1000)
        keys = collect_keys(DirtySection(segments, start, end, AbortTracker()), empty_table(settings, SECRET))
        found = keys.newest
        assert isinstance(found, OffsetMap) and keys.end_offset == end
        assert (found.latest_offset + 1, found.keys) == (end, end - start)
        inside = range(start, end)
        assert get(found, *(b"%d" % at for at in inside)) == list(inside)
        assert get(found, b"%d" % (start - 1), b"%d" % end) == [-1, -1]


def test_the_size_of_what_is_read_at_once_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    # case 22
    def files() -> dict[str, bytes]:
        log = scripted(*([b"%d" % (at % 7), b"%d" % (at % 5), b"%d" % at] for at in range(40)))
        _, end, cleaned = log.clean(offset_map_slots=30)
        assert cleaned is not None and cleaned.end_offset < end
        return log.files()

    whole = files()
    monkeypatch.setattr(readahead, "WINDOW_BYTES", 64)
    assert files() == whole


def test_a_clean_never_takes_more_memory_than_a_java_array_has() -> None:
    assert slots_of(2**31 - 1) == slots_of(2**40) == 89_478_485


def test_a_load_factor_is_cut_to_whole_slots_and_to_the_slots_there_are() -> None:
    assert [keys_max(3, 0.75), keys_max(1, 0.9), keys_max(10, 1.5), keys_max(5, 0.0)] == [2, 0, 10, 0]


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_the_sums_of_keys_are_md5(keys: list[bytes]) -> None:
    found = np.empty((len(keys), 4), np.uint32)
    given = columns(keys, [0] * len(keys))
    chosen = np.ones(len(keys), np.bool_)
    digest_keys(given.data.ctypes.data, given.rows["key_start"], given.rows["key_size"], chosen, found)
    assert [row.tobytes() for row in found] == [hashlib.md5(key).digest() for key in keys]


@given(
    st.integers(1, 12),
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=40),
    st.data(),
)
def test_the_map_does_what_the_slow_one_does(
    slots: int, limit: int, entries: list[tuple[int, bool]], data: st.DataObject
) -> None:
    slow, map_ = SlowOffsetMap(slots), OffsetMap(slots, limit)
    keys = [b"%d" % key for key, _ in entries]
    chosen = np.array([taken for _, taken in entries], np.bool_)
    cut = data.draw(st.integers(0, len(entries)))
    for part in (slice(0, cut), slice(cut, None)):
        start = part.start
        expected = len(keys[part])
        for at, (key, taken) in enumerate(zip(keys[part], chosen[part], strict=True)):
            if taken:
                if slow.size >= min(slots, limit):
                    expected = at
                    break
                slow.put(key, start + at)
        assert put_chosen(map_, columns(keys[part], range(start, start + len(keys[part]))), chosen[part]) == expected
    assert (map_.keys, map_.latest_offset) == (slow.size, slow.latest_offset)
    every = [b"%d" % key for key in range(16)]
    assert get(map_, *every) == [slow.get(key) for key in every]


def test_tables_that_need_more_than_their_memory_are_refused_before_they_take_it() -> None:
    many = columns([b"%d" % at for at in range(5000)], range(5000))
    chosen = np.ones(5000, np.bool_)

    with pytest.raises(TooLittleMemoryError, match=r"5000 keys takes 491520 bytes.* 4 tasks .*least --memory 1966080"):
        put_chosen(LatestOffsets(SECRET, MemoryShare(491_519, 4)), many, chosen)
    put_chosen(LatestOffsets(SECRET, MemoryShare(491_520, 4)), many, chosen)
    with pytest.raises(TooLittleMemoryError, match="A table of 5000 keys takes 240000 bytes") as caught:
        put_chosen(OffsetMap(10_000, memory=MemoryShare(239_999)), many, chosen)
    assert (caught.value.bytes_needed, caught.value.bytes_allowed) == (240_000, 239_999)
    assert caught.value.need.memory_enough == 240_000
    put_chosen(OffsetMap(10_000, memory=MemoryShare(240_000)), many, chosen)


@pytest.mark.parametrize("keys_max", [5000, 8192, 8193, 100_000])
def test_memory_that_an_error_calls_enough_is_enough_for_all_keys(keys_max: int) -> None:
    def put(latest: LatestOffsets) -> None:
        for start in range(0, keys_max, 1000):
            offsets = range(start, min(start + 1000, keys_max))
            some = columns([b"%d" % at for at in offsets], offsets)
            put_chosen(latest, some, np.ones(some.rows.size, np.bool_))

    with pytest.raises(TooLittleMemoryError) as caught:
        put(LatestOffsets(SECRET, MemoryShare(200_000), keys_max))
    need = pickle.loads(pickle.dumps(caught.value)).need
    assert need == caught.value.need
    assert need.memory_enough is not None
    put(LatestOffsets(SECRET, MemoryShare(need.memory_enough), keys_max))


@pytest.mark.kafka
def test_slots_and_sizes_are_those_of_kafkas_own_map(kafka_oracle: Oracle) -> None:
    choose = random.Random(7)
    commands, asked = [], []
    for slots in (1, 2, 3, 7, 10, 24, 100):
        for _ in range(6):
            keys = [f"k{choose.randrange(3 * slots)}" for _ in range(4 * slots)]
            # The count of keys at which it is full: then Kafka's map accepts no more.
            full = next((at for at in range(len(keys)) if len(set(keys[:at])) == slots), len(keys))
            asked.append((slots, keys[:full]))
            commands.append(["offset-map", "--slots", str(slots), *keys[:full]])
    for (slots, keys), lines in zip(asked, kafka_oracle.batch(commands), strict=True):
        map_ = OffsetMap(slots)
        for at, (key, line) in enumerate(zip(keys, lines, strict=True)):
            put(map_, (key.encode(), at))
            found = (slots_in_use(map_)[at], map_.keys, utilization(map_), get(map_, key.encode()))
            assert found == (line["slot"], line["size"], line["utilization"], [line["offset"]])
