"""Splitting a segment: the same batches in two segments, after any crash."""

from __future__ import annotations

import pytest

from cordwood.common.errors import CorruptBatchError, RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.log.files import read_file
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.split import split_segment
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.scripted import LIVE
from tests.crashes import CutsDuring, durable
from tests.storage.swaps import NOW_MS, Script

PATH = f"{LIVE}/t-0"
TEXT = "a=1 7:b=1 | c=1,d=1 7:abort e=1 8:f=1 8:abort g=1 | h=1"


def disk() -> MemoryFileSystem:
    log = Script({"index.interval.bytes": 60})(TEXT)
    log.stop(clean=True)
    return durable(log.fs)


def log_of(fs: LocalFileSystem) -> LogView:
    return LogView(PATH, fs=fs, log_start_offset=0)


def split(fs: LocalFileSystem, offset: int) -> bool:
    return split_segment(fs, log_of(fs), offset, IndexLimits(60))


def bytes_of(fs: LocalFileSystem) -> bytes:
    return b"".join(read_file(fs, segment.path) for segment in log_of(fs).segments)


@pytest.mark.parametrize("offset", [4, 5, 6, 7, 8])
def test_batches_indexes_and_aborted_transactions_are_divided(offset: int) -> None:
    fs = disk()
    before = bytes_of(fs)
    committed = [one.offset for one in log_of(fs).records(isolation="read_committed")]
    assert split(fs, offset)
    segments = log_of(fs).segments
    assert [one.base_offset for one in segments] == [0, 2, offset, 9]
    assert bytes_of(fs) == before
    assert [one.offset for one in log_of(fs).records(isolation="read_committed")] == committed
    for segment, end in zip(segments, [*(one.base_offset for one in segments[1:]), 10], strict=True):
        index = segment.transaction_index()
        markers = [] if index is None else [one.last_offset for one in index.transactions()]
        assert markers == [one for one in (4, 7) if segment.base_offset <= one < end]
    assert {one.files.log.mtime_ns for one in segments[1:3]} == {NOW_MS * 1_000_000}


def test_a_boundary_stays_as_it_is() -> None:
    fs = disk()
    assert not split(fs, 2) and [one.base_offset for one in log_of(fs).segments] == [0, 2, 9]


def test_a_batch_on_both_sides_and_damage_are_refused() -> None:
    fs = disk()
    before = bytes_of(fs)
    with pytest.raises(RequestError, match="the batch of offsets 2 to 3 is on both sides of offset 3"):
        split(fs, 3)
    assert bytes_of(fs) == before
    with fs.open_for_update(log_of(fs).segments[1].path) as file:
        file.write(70, b"\xff")
    with pytest.raises(CorruptBatchError):
        split(fs, 5)


@pytest.mark.more
def test_a_crash_leaves_one_segment_or_two() -> None:
    start = disk()
    before = bytes_of(start)
    seen = set()

    def look(left: MemoryFileSystem) -> None:
        recover_in_place(left, log_of(left), crashed=False, recovery_point=9, now_ms=NOW_MS)
        assert bytes_of(left) == before
        seen.add(tuple(one.base_offset for one in log_of(left).segments))

    cuts = CutsDuring(look, sampled=8, subsets_max=6)
    cuts.during(lambda fs: split(fs, 5), start)
    assert seen == {(0, 2, 9), (0, 2, 5, 9)} and cuts.different > 20
