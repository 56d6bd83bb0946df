"""Indexes, a snapshot and a few headers yield the same transactions as all headers."""

from __future__ import annotations

import numpy as np
import pytest

from cordwood.fs.base import Store
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.tail import contradicts, follow, outcomes
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.testing.memory import MemoryFileSystem
from tests.knobs import SEED
from tests.tables.source.random_logs import PARTITIONS, ROOT, random_directory


def views(fs: Store) -> list[LogView]:
    return [LogView(f"{ROOT}/{one}", fs=fs) for one in PARTITIONS if fs.exists(f"{ROOT}/{one}")]


def by_headers(log: LogView, end_offset: int) -> Transactions:
    found = Transactions(next_offset=log.first_offset)
    follow(found, log, end_offset)
    return found


def same(one: Transactions, other: Transactions, log: LogView) -> None:
    """Assert that both agree on all data in the log."""
    assert (
        one.last_stable_offset == other.last_stable_offset
        or min(one.last_stable_offset or MAX_OFFSET, other.last_stable_offset or MAX_OFFSET) < log.first_offset
    )
    for _, item in log.windows():
        assert not isinstance(item, Gap)
        for level in ("read_committed", "read_uncommitted"):
            assert np.array_equal(one.visible(item.batches, level), other.visible(item.batches, level))  # type: ignore[arg-type]


@pytest.mark.more
@pytest.mark.parametrize("seed", range(6))
def test_indexes_tell_what_headers_tell(seed: int) -> None:
    for log in views(random_directory(SEED + seed).fs):
        same(outcomes(log, MAX_OFFSET, flushed_below=MAX_OFFSET), log.transactions(), log)
        # Of a compacted log, a snapshot lists transactions whose data was cleaned away entirely.
        for end in range(log.first_offset, log.next_offset, 7) if "orders" in log.path else ():
            found, wanted = outcomes(log, end, flushed_below=MAX_OFFSET), by_headers(log, end)
            # A snapshot lists transactions whose first batches retention deleted.
            assert found.open.keys() >= wanted.open.keys(), end
            there = {id: first for id, first in found.open.items() if first >= log.first_offset}
            assert there == {id: wanted.open[id] for id in there}, end


@pytest.mark.parametrize("kind", [FileKind.OFFSET_INDEX, FileKind.PRODUCER_SNAPSHOT, None])
def test_without_files_or_after_a_crash_headers_are_read(kind: FileKind | None) -> None:
    fs = random_directory(SEED).fs
    if kind is not None:
        for log in views(fs):
            for info in list(fs.list(log.path)):
                if info.name.endswith(kind):
                    fs.unlink(f"{log.path}/{info.name}")
    for log in views(fs):
        for flushed in (0, log.next_offset // 2, MAX_OFFSET):
            same(outcomes(log, MAX_OFFSET, flushed_below=flushed), log.transactions(), log)


def test_a_transaction_index_that_cannot_be_is_not_believed() -> None:
    fs = random_directory(SEED).fs
    for log in views(fs):
        for segment in log.segments:
            path = segment.index_path(FileKind.TRANSACTION_INDEX)
            if path is not None:
                with fs.open_for_update(path) as file:
                    file.write(2 + 8, b"\x7f" * 8)  # a first offset behind the last one
        same(outcomes(log, MAX_OFFSET, flushed_below=MAX_OFFSET), log.transactions(), log)


def test_markers_contradict_an_index_that_lacks_or_invents_a_transaction() -> None:
    lacked = invented = 0
    for seed in range(4):
        for log in views(random_directory(SEED + seed).fs):
            truth = log.transactions()
            assert not wrong(truth, log)
            for producer, ranges in truth.aborted.items():
                for at in range(len(ranges)):
                    less = Transactions(aborted={**truth.aborted, producer: ranges[:at] + ranges[at + 1 :]})
                    if any(record.offset in range(*ranges[at]) for record in log.records(isolation=None)):
                        lacked += wrong(less, log)
            if truth.aborted:
                producer = next(iter(truth.aborted))
                invented += wrong(Transactions(aborted={producer: [(-1, MAX_OFFSET)]}), log)
    assert lacked > 3 and invented > 0


def wrong(found: Transactions, log: LogView) -> bool:
    has_data: set[int] = set()
    return any(
        contradicts(found, item.batches, has_data) is not None for _, item in log.windows() if not isinstance(item, Gap)
    )


def test_following_reads_only_what_came_since() -> None:
    fs = random_directory(SEED).fs
    assert isinstance(fs, MemoryFileSystem)
    for log in views(fs):
        found, resume = Transactions(next_offset=log.first_offset), None
        for end in (*range(log.first_offset, log.next_offset, 5), MAX_OFFSET):
            resume = follow(found, log, end, resume) or resume
            wanted = by_headers(log, end)
            assert (found.open, found.aborted) == (wanted.open, wanted.aborted)
