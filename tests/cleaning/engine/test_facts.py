"""Facts of a log from a few reads decide as those from all headers, and show estimates where they are not exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cordwood.cleaning.engine.task import tasks_of
from cordwood.cleaning.rules.plan import Decision
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.log import header_sample
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.first_plans import decided, planned
from tests.fixtures import NAMES, TIMES, fixture
from tests.logs import LARGE_SEGMENTS, batch, make_large_log, make_log, marker, put_snapshot, window

SEGMENT_BYTES_MAX = 200 << 10


def test_a_large_log_is_planned_from_a_few_reads_a_segment(tmp_path: Path) -> None:
    make_large_log(tmp_path / "t-0")
    few, all_headers = CountedStore(PosixFileSystem()), CountedStore(PosixFileSystem())
    some = planned(tmp_path, exact=False, fs=few)
    exact = planned(tmp_path, exact=True, fs=all_headers)
    assert decided(some) == decided(exact)
    assert some.partitions[0].decision is Decision.CLEAN
    assert few.bytes_read < LARGE_SEGMENTS * SEGMENT_BYTES_MAX < all_headers.bytes_read


def test_records_of_a_large_log_are_a_bound_by_offsets_or_an_estimate(tmp_path: Path) -> None:
    for holes in (False, True):
        make_large_log(tmp_path / f"{holes}" / "t-0", holes=holes)
        (some,), (exact,) = (planned(tmp_path / f"{holes}", exact=one).partitions for one in (False, True))
        assert some.compaction is not None
        assert exact.compaction is not None
        assert not exact.compaction.estimates
        assert ("records_max" in some.compaction.estimates) == holes
        records, known = some.compaction.bounds.records_max, exact.compaction.bounds.records_max
        assert records is not None
        assert known is not None
        assert known * 0.9 < records < known * 1.5
        assert holes or records == known


def test_a_sample_without_transactions_does_not_exclude_them(tmp_path: Path) -> None:
    make_large_log(tmp_path / "t-0")
    location = PosixFileSystem().location()
    (some,), (exact,) = (tasks_of(planned(tmp_path, exact=one), location) for one in (False, True))
    assert some.transactional
    assert not exact.transactional


@pytest.mark.more
@pytest.mark.parametrize("name", NAMES)
def test_plans_of_every_fixture_are_the_same_from_a_few_headers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [fixture(name) / side for side in (("a", "b") if "jbod" in name else ("",))]
    marks = [None, 0, 7, 40, 150, 500]
    exact = [decided(planned(side, exact=True, mark=mark, now_ms=TIMES[0])) for side in sides for mark in marks]
    monkeypatch.setattr(header_sample, "EXACT_LOG_BYTES", -1)
    some = [decided(planned(side, exact=False, mark=mark, now_ms=TIMES[0])) for side in sides for mark in marks]
    assert some == exact


def random_transactions(folder: Path, rng: np.random.Generator) -> int:
    """Write a log of transactions, with most of the snapshots that a broker writes; return its end."""
    offset, began = 0, set[int]()
    segments, producers = [], Producers()
    folder.mkdir()
    for _ in range(int(rng.integers(2, 6))):
        if rng.random() < 0.7:
            put_snapshot(folder, offset, producers)
        base, batches = offset, []
        for _ in range(int(rng.integers(1, 7))):
            producer = int(rng.integers(0, 4))
            if producer in began and rng.random() < 0.5:
                batches.append(marker(offset, producer, committed=True))
                began.discard(producer)
            else:
                batches.append(batch(offset, "k=v", producer=producer or None))
                began |= {producer} - {0}
            offset += 1
            producers.replay(window(batches[-1]).batches)
        segments.append((base, batches))
    if rng.random() < 0.3:
        put_snapshot(folder, offset, producers)
    make_log(folder, *segments)
    return offset


@pytest.mark.parametrize("seed", range(40))
def test_transactions_hold_back_the_same_clean_from_a_few_headers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    end = random_transactions(tmp_path / "t-0", rng)
    marks = [None, *sorted(set(rng.integers(0, end + 1, 4).tolist()))]
    exact = [decided(planned(tmp_path, exact=True, mark=mark)) for mark in marks]
    monkeypatch.setattr(header_sample, "EXACT_LOG_BYTES", -1)
    assert [decided(planned(tmp_path, exact=False, mark=mark)) for mark in marks] == exact
