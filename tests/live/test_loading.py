"""The cost of loading and rolling when a log has many segments: counted, not timed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import numpy as np
import pytest

from cordwood.common.types import override
from cordwood.fs.base import File, FileInfo, LocalFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem
from cordwood.storage.formats import time_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS, PATH, World, batch


class CountedListings(WrappedFileSystem):
    """Counts the listings of directories."""

    listings = 0

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        self.listings += 1
        return super().list(path)


class CountedTimeIndexes(WrappedFileSystem):
    """Counts the bytes that are read of time indexes."""

    bytes_read = 0

    @override
    def open(self, path: str) -> File:
        return _Counted(super().open(path), self) if path.endswith(FileKind.TIME_INDEX) else super().open(path)


class _Counted(WrappedFile):
    def __init__(self, file: File, fs: CountedTimeIndexes) -> None:
        super().__init__(file)
        self._fs = fs

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        data = super().read(position, size_bytes)
        self._fs.bytes_read += len(data)
        return data


def calls_of(act: Callable[[], object]) -> int:
    """How many calls of Python functions an action makes: a measure of its work that no load of the machine changes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


FEW, MANY = 50, 200


def written(segments: int) -> MemoryFileSystem:
    """A log with this number of segments, all flushed before the power is cut."""
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)
    world = World(fs)
    log = world.load({"segment.index.bytes": "64"})
    for number in range(segments):
        log.append_as_leader(batch(f"a{number}", producer_id=1, sequence=number), 0)
        log.roll()
    log.flush(force_active_segment=True)
    log.close_handlers()
    return fs


def without(fs: LocalFileSystem, *kinds: FileKind) -> None:
    for info in fs.list(PATH):
        if info.name.endswith(kinds):
            fs.unlink(f"{PATH}/{info.name}")


def load_live(fs: LocalFileSystem) -> None:
    World(fs).load({"segment.index.bytes": "64"}, clean_shutdown=False)


def load_in_place(fs: LocalFileSystem) -> None:
    recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS)


def complete_in_place(fs: LocalFileSystem) -> None:
    without(fs, FileKind.PRODUCER_SNAPSHOT)
    recover_in_place(fs, LogView(PATH, fs=fs), crashed=False, recovery_point=0, now_ms=NOW_MS)


@pytest.mark.parametrize("lost", [(), (FileKind.OFFSET_INDEX,)], ids=["crashed", "without indexes"])
@pytest.mark.parametrize("recover", [load_live, load_in_place, complete_in_place])
def test_recovery_of_many_segments_does_no_more_for_each_than_that_of_few(
    recover: Callable[[LocalFileSystem], None], lost: Sequence[FileKind]
) -> None:
    listings, calls = [], []
    for segments in (FEW, MANY):
        fs = written(segments)
        without(fs, *lost)
        counted = CountedListings(fs)
        calls.append(calls_of(functools.partial(recover, counted)))
        listings.append(counted.listings)
    assert listings[0] == listings[1]
    assert calls[1] - calls[0] < 1.1 * calls[0] * (MANY - FEW) / FEW


def test_a_roll_of_a_log_with_many_segments_is_no_more_work_than_with_few() -> None:
    log = World(MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)).load({"segment.index.bytes": "64"})
    costs = []
    for number in range(MANY):
        log.append_as_leader(batch(f"a{number}", producer_id=1, sequence=number), 0)
        costs.append(calls_of(log.roll))
    # A list that has become too small is copied now and then, in a call or two.
    assert max(costs[FEW:]) - min(costs[FEW:]) < 10


def test_after_a_clean_stop_retention_reads_only_the_end_of_a_long_time_index() -> None:
    fs = written(2)
    entries = 20_000
    times, offsets = NOW_MS - 2 * entries + np.arange(entries), np.zeros(entries, np.int64)
    index = time_index.encode(time_index.TimeIndex(0, times, offsets, entries, b""))
    fs.unlink(path := f"{PATH}/{offset_name(0, FileKind.TIME_INDEX)}")
    with fs.create(path) as file:
        file.write(0, index)
    counted = CountedTimeIndexes(fs)
    log = World(counted).load(
        {"cleanup.policy": "delete", "retention.ms": str(entries), "file.delete.delay.ms": "0"}, clean_shutdown=True
    )
    log.update_high_watermark(log.log_end_offset)
    assert log.delete_old_segments() == 1, "the largest time of the first segment is in its last entry"
    assert counted.bytes_read < len(index) // 4
