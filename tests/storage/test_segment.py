"""Ranges of a segment, cut at positions in its offset index, and small segments read as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import offset_index, time_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.formats.offset_index import OffsetIndex
from cordwood.storage.index.key_sample import count_keys
from cordwood.storage.log.segment import Cut, JoinedSegment, cuts_between, first_cut, joined, last_cut, parts_of
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.strategies import logs
from tests.logs import batch as batch_of
from tests.logs import make_log

NOTHING = OffsetIndex(0, np.empty(0, np.int64), np.empty(0, np.int64), 0)


def opened(data: bytes) -> LogView:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("t-0")
    with fs.create("t-0/00000000000000000000.log") as file:
        file.write(0, data)
    return LogView("t-0", fs=fs)


def batches(data: bytes) -> list[tuple[int, int, int]]:
    """Position, last offset and end of each batch."""
    with opened(data).segments[0].open() as file:
        return [
            (int(row["position"]), int(row["last_offset"]), int(row["position"] + row["size_bytes"]))
            for rows in read_headers(file)
            if not isinstance(rows, Gap)
            for row in rows
        ]


def index_of(entries: list[tuple[int, int]]) -> OffsetIndex:
    offsets, positions = (np.array([entry[at] for entry in entries], np.int64) for at in (0, 1))
    return OffsetIndex(0, offsets, positions, len(entries))


def batch(offset: int, count: int = 3, value: bytes = b"v" * 30) -> bytes:
    return encode_batch([Record(offset + i, 1000, b"k", value) for i in range(count)])


@pytest.mark.more
@settings(max_examples=60)
@given(logs(max_batches=8), st.data())
def test_a_cut_has_smaller_offsets_before_it_and_the_others_behind_it(log, data) -> None:
    found = batches(log[0])
    chosen = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []
    index = index_of(sorted((last, position) for position, last, _ in chosen))
    offset = data.draw(st.integers(0, 400))
    view = opened(log[0])
    with view.segments[0].open() as file:
        below, above = last_cut(file, index, offset), first_cut(file, index, offset)
        between = list(cuts_between(file, index, 0, len(log[0]), data.draw(st.integers(1, 400))))
    cuts = [below, *between] + ([] if above is None else [above])
    for cut in cuts:
        assert cut.position in {0, *(end for _, _, end in found)}
        before = [last for _, last, end in found if end <= cut.position]
        assert all(last < cut.offset for last in before)
        records = [record.offset for record in log[1]]
        behind = [record.offset for record in view.records(isolation=None) if record.offset >= cut.offset]
        assert behind == [one for one in records if one >= cut.offset]
    assert below.offset <= offset or below.position == 0
    assert above is None or above.offset >= offset
    assert [cut.position for cut in between] == sorted({cut.position for cut in between})


def test_an_entry_that_no_batch_fits_makes_no_cut() -> None:
    data = batch(0) + batch(3) + batch(6)
    size = len(batch(0))
    with opened(data).segments[0].open() as file:
        assert last_cut(file, index_of([(5, size)]), 7) == Cut(0, 2 * size, 6, (6, 8))
        for wrong in [(5, size + 1), (4, size), (5, len(data)), (5, 10 * len(data))]:
            assert last_cut(file, index_of([wrong]), 7) == Cut(0, 0, 0)
            assert first_cut(file, index_of([wrong]), 5) is None
            assert list(cuts_between(file, index_of([wrong]), 0, len(data), 1)) == []


def test_entries_of_old_brokers_name_the_first_batch_of_an_append_by_its_last_offset() -> None:
    data = batch(0) + batch(3) + batch(6)
    with opened(data).segments[0].open() as file:
        # One append of two batches, then one.
        index = index_of([(5, 0), (8, 2 * len(batch(0)))])
        assert last_cut(file, index, 7) == Cut(0, len(batch(0)), 3, (3, 5))
        assert first_cut(file, index, 5) == Cut(0, len(data), 9, None)


@pytest.mark.parametrize("changed", [batch(4, 2), batch(3, 2), b"", b"\xff" * 90])
def test_a_cut_no_longer_holds_once_another_batch_is_behind_it(changed: bytes) -> None:
    with opened(batch(0) + batch(3)).segments[0].open() as file:
        cut = last_cut(file, index_of([(2, 0)]), 4)
        assert cut == Cut(0, len(batch(0)), 3, (3, 5))
        assert cut.still_holds(file)
    with opened(batch(0) + changed).segments[0].open() as file:
        assert not cut.still_holds(file)


def test_reading_from_a_cut_that_no_longer_holds_asks_the_index_again() -> None:
    before = batch(0) + batch(3) + batch(6) + batch(9)
    with opened(before).segments[0].open() as file:
        start = last_cut(file, index_of([(5, len(batch(0)))]), 6)
    # Cleaned: batches of the same size; one was dropped, so another batch is at its position.
    after = opened(batch(0) + batch(6) + batch(9))
    found = [
        int(offset)
        for item in after.segments[0].windows(start_offset=6, start=start)
        if not isinstance(item, Gap)
        for offset in item.batches["base_offset"]
    ]
    assert found == [6, 9]


def test_nothing_behind_the_end_of_a_range_is_read_while_the_file_agrees() -> None:
    data = b"".join(batch(3 * number, value=b"v" * 3000) for number in range(40))
    view = opened(data)
    with view.segments[0].open() as file:
        end = first_cut(file, index_of([(29, 9 * len(data) // 40)]), 30)
    assert end is not None and end.position == len(data) // 4
    items = list(view.segments[0].windows(end_offset=30, end=end))
    assert [item.data.size for item in items if not isinstance(item, Gap)] == [len(data) // 4]
    # A cut that is too early does not bound the range.
    early = Cut(0, len(data) // 8, 15)
    items = list(view.segments[0].windows(end_offset=30, end=early))
    offsets = [int(row["base_offset"]) for item in items if not isinstance(item, Gap) for row in item.batches]
    assert offsets == list(range(0, 30, 3))


# ---- small segments read as one --------------------------------------------------------------------------------------


def small(path: Path) -> LogView:
    """Four segments of two batches, and an empty one; each key but `a` is in one segment."""
    return make_log(path, *([batch_of(2 * at, "a=v"), batch_of(2 * at + 1, f"k{at}=v")] for at in range(4)), [])


def test_a_position_leads_to_its_segment(tmp_path: Path) -> None:
    first, empty = joined(small(tmp_path / "t-0").segments)
    assert isinstance(first, JoinedSegment) and not isinstance(empty, JoinedSegment)
    second = parts_of(first)[1]
    start = parts_of(first)[0].size_bytes
    assert first.place_of(start - 1) == (parts_of(first)[0].path, start - 1)
    assert first.place_of(start + 3) == (second.path, 3)
    with first.open() as file:
        assert file.read(start, second.size_bytes) == Path(second.path).read_bytes()


def test_a_segment_that_stays_apart_is_not_joined(tmp_path: Path) -> None:
    segments = small(tmp_path / "t-0").segments
    found = [[part.base_offset for part in parts_of(one)] for one in joined(segments, apart={2})]
    assert found == [[0], [2], [4, 6], [8]]


def test_keys_are_counted_over_joined_segments(tmp_path: Path) -> None:
    found = count_keys(small(tmp_path / "t-0"), 1 << 20)
    assert found is not None
    assert (found.records, found.keys, found.damage) == (8, 5, None)


def test_a_damaged_batch_is_placed_in_its_own_file(tmp_path: Path) -> None:
    log = small(tmp_path / "t-0")
    path = tmp_path / "t-0" / offset_name(4, FileKind.LOG)
    whole = bytearray(path.read_bytes())
    second = len(whole) // 2
    whole[-1] ^= 1  # in the second batch; its checksum differs now
    path.write_bytes(whole)
    found = count_keys(log, 1 << 20)
    assert found is not None and found.damage is not None
    assert (found.damage.path, found.damage.position) == (str(path), second)
    assert found.records == 7


def test_segments_whose_offsets_overlap_are_read_one_by_one(tmp_path: Path) -> None:
    log = small(tmp_path / "t-0")
    path = tmp_path / "t-0" / offset_name(4, FileKind.LOG)
    path.write_bytes((tmp_path / "t-0" / offset_name(0, FileKind.LOG)).read_bytes())
    found = count_keys(log, 1 << 20)
    assert found is not None and found.records == 6


# ---- parts of indexes ------------------------------------------------------------------------------------------------


def test_the_last_entry_of_an_index_is_found_before_the_zeros_of_its_room(tmp_path: Path) -> None:
    entries = np.zeros(5000, offset_index.ENTRY)
    entries["offset"] = entries["position"] = np.arange(1, 5001)
    for used, room in ((0, 0), (3, 0), (5000, 0), (0, 100_000), (3, 100_000), (5000, 100_000)):
        folder = tmp_path / f"{used}-{room}" / "t-0"
        make_log(folder, [batch(0)])
        index = folder / offset_name(0, FileKind.OFFSET_INDEX)
        index.write_bytes(entries[:used].tobytes() + bytes(offset_index.ENTRY.itemsize * room))
        store = CountedStore(PosixFileSystem())
        count, last = LogView(str(folder), fs=store).segments[0].last_entry(FileKind.OFFSET_INDEX)
        assert (count, None if last is None else last["position"]) == (used, used or None)
        assert store.bytes_read < 64 << 10


def test_the_only_entry_of_a_time_index_may_be_zeros(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [batch(0)])
    (tmp_path / "t-0" / offset_name(0, FileKind.TIME_INDEX)).write_bytes(bytes(time_index.ENTRY.itemsize))
    count, last = log.segments[0].last_entry(FileKind.TIME_INDEX)
    assert count == 1
    assert last is not None
    assert last["timestamp"] == 0
