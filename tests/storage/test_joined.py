"""Small segments that are read as one keep their places: counts are those of all, damage is found in its file."""

from __future__ import annotations

from pathlib import Path

from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.index.key_sample import count_keys
from cordwood.storage.log.segment import JoinedSegment, joined, parts_of
from cordwood.storage.log.view import LogView
from tests.cleaning.engine.logs import data, make_log


def small(path: Path) -> LogView:
    """Four segments of two batches, and an empty one; each key but `a` is in one segment."""
    logs = [(2 * at, [data(2 * at, b"a"), data(2 * at + 1, b"k%d" % at)]) for at in range(4)]
    return make_log(path, *logs, (8, []))


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
