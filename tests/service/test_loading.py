"""What loading and rolling cost when a log has many segments: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cordwood.fs.memory import MemoryFileSystem
from cordwood.storage.formats.filenames import FileKind
from tests.service.live_logs import NOW_MS, PATH, World, batch
from tests.work import CountedListings, calls_of

FEW, MANY = 50, 200


def written(segments: int) -> MemoryFileSystem:
    """A log of so many segments, whose power is cut after all was flushed."""
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)
    world = World(fs)
    log = world.load({"segment.index.bytes": "64"})
    for number in range(segments):
        log.append_as_leader(batch(f"a{number}", producer_id=1, sequence=number), 0)
        log.roll()
    log.flush(force_active_segment=True)
    log.close_handlers()
    return fs


def without_indexes(fs: MemoryFileSystem) -> None:
    for info in fs.list(PATH):
        if info.name.endswith(FileKind.OFFSET_INDEX):
            fs.unlink(f"{PATH}/{info.name}")


@pytest.mark.parametrize("lost", [lambda _: None, without_indexes], ids=["crashed", "without indexes"])
def test_recovery_of_many_segments_does_no_more_for_each_than_that_of_few(
    lost: Callable[[MemoryFileSystem], None],
) -> None:
    listings, calls = [], []
    for segments in (FEW, MANY):
        fs = written(segments)
        lost(fs)
        counted = CountedListings(fs)
        calls.append(calls_of(lambda fs=counted: World(fs).load({"segment.index.bytes": "64"}, clean_shutdown=False)))  # type: ignore[misc]
        listings.append(counted.listings)
    assert listings[0] == listings[1]
    assert calls[1] - calls[0] < 1.1 * calls[0] * (MANY - FEW) / FEW


def test_a_roll_of_a_log_with_many_segments_is_no_more_work_than_with_few() -> None:
    log = World(MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)).load({"segment.index.bytes": "64"})
    costs = []
    for number in range(MANY):
        log.append_as_leader(batch(f"a{number}", producer_id=1, sequence=number), 0)
        costs.append(calls_of(log.roll))
    assert len(set(costs[FEW:])) == 1
