"""The end of a log that grows, and the outcomes of its transactions from its indexes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cordwood.common.types import Isolation
from cordwood.fs.base import Store
from cordwood.fs.wrapped import CountedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.tail import (
    PATIENCE_SECONDS,
    FollowedLog,
    TailPatience,
    contradicts,
    find_tail,
    follow,
    outcomes,
)
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.testing.memory import MemoryFileSystem
from tests.knobs import SEED
from tests.tables.source.random_logs import PARTITIONS, ROOT, random_directory

LOG = "t-0/00000000000000000000.log"


def batch(offset: int, value: bytes = b"v" * 30) -> bytes:
    return encode_batch([Record(offset + i, 1000, b"k", value) for i in range(3)])


@pytest.fixture
def fs() -> MemoryFileSystem:
    made = MemoryFileSystem(lambda: 0)
    made.make_directory("t-0")
    return made


def put(fs: MemoryFileSystem, data: bytes, path: str = LOG) -> None:
    with fs.create(path, exclusive=False) as file:
        file.write(0, data)


def view(fs: MemoryFileSystem) -> LogView:
    return LogView("t-0", fs=fs, live=True)


def test_whatever_part_of_the_last_batch_is_there_does_not_count(fs: MemoryFileSystem) -> None:
    whole, last = batch(0) + batch(3), batch(6)
    for part in range(len(last)):
        put(fs, whole + last[:part])
        tail = find_tail(view(fs))
        assert (tail.next_offset, tail.end.position, tail.damage) == (6, len(whole), None), part
    put(fs, whole + last)
    assert find_tail(view(fs)).next_offset == 9


def test_in_a_preallocated_file_a_batch_counts_once_its_bytes_are_there(fs: MemoryFileSystem) -> None:
    whole, last, room = batch(0) + batch(3), batch(6), bytes(500)
    known = None
    for part in range(len(last) + 1):
        written = last[:part] + bytes(len(last) - part)
        put(fs, whole + written + room)
        known = find_tail(view(fs), known)
        assert known.next_offset == (9 if written == last else 6), part


def test_a_tail_is_found_again_from_the_one_before(fs: MemoryFileSystem) -> None:
    written = b"".join(batch(3 * number, b"v" * 5000) for number in range(100))
    put(fs, written)
    counted = CountedStore(fs)
    log = LogView("t-0", fs=counted, live=True)
    known = find_tail(log)
    put(fs, written + batch(300) + batch(303))
    counted.bytes_read = 0
    again = find_tail(log, known)
    assert again.next_offset == 306 and again.damage is None
    assert again == find_tail(view(fs))
    assert counted.bytes_read < 3 * 20_000
    counted.bytes_read = 0
    assert find_tail(log, again) is again
    assert counted.bytes_read == 0


def test_a_log_that_was_replaced_is_looked_at_anew(fs: MemoryFileSystem) -> None:
    put(fs, batch(0) + batch(3) + batch(6))
    known = find_tail(view(fs))
    put(fs, batch(0) + batch(5))
    assert find_tail(view(fs), known).next_offset == 8


def test_a_new_segment_without_batches_says_where_the_log_ends(fs: MemoryFileSystem) -> None:
    put(fs, batch(0))
    known = find_tail(view(fs))
    put(fs, b"", "t-0/00000000000000000010.log")
    tail = find_tail(view(fs), known)
    assert (tail.next_offset, tail.end.segment, tail.end.position) == (10, 10, 0)


def test_damage_at_the_end_is_told_and_passed_over_on_demand(fs: MemoryFileSystem) -> None:
    broken = bytearray(batch(3))
    broken[8:12] = b"\0\0\0\1"  # an impossible size
    put(fs, batch(0) + bytes(broken) + batch(6))
    tail = find_tail(view(fs))
    assert tail.next_offset == 3 and tail.damage is not None and tail.damage.path == LOG
    assert tail.damage.position == len(batch(0))
    found = find_tail(view(fs), tail, search=True)
    assert (found.next_offset, found.damage) == (9, None)


def test_a_last_batch_with_a_wrong_checksum_does_not_count(fs: MemoryFileSystem) -> None:
    broken = bytearray(batch(3))
    broken[-1] ^= 1
    put(fs, batch(0) + bytes(broken))
    tail = find_tail(view(fs))
    assert tail.next_offset == 3 and "CRC-32C mismatch" in str(tail.damage)
    put(fs, batch(0) + batch(3))
    assert find_tail(view(fs), tail).next_offset == 6


# ---- a followed log --------------------------------------------------------------------------------------------------

OPEN: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def test_damage_before_the_end_is_passed_once_no_append_takes_that_long(fs: MemoryFileSystem) -> None:
    times = [0.0]
    wrong = bytes(11) + b"\x09" + batch(3)[12:]  # its length is too small
    put(fs, batch(0) + wrong + batch(6))
    followed = FollowedLog(view(fs), 0, None, patience=TailPatience(lambda: times[0]))
    for time, end, passes in ((1.0, 3, False), (PATIENCE_SECONDS, 3, False), (PATIENCE_SECONDS + 1, 9, True)):
        times[0] = time
        followed.look()
        assert (followed.end_offset, followed.log.live) == (end, not passes)
    followed.look()
    assert followed.log.live, "the next bytes may be half of an append again"
    put(fs, batch(0) + wrong + batch(6) + wrong)
    followed.look()
    assert followed.damage is None
    times[0] += PATIENCE_SECONDS
    followed.look()
    assert followed.damage is not None and followed.damage.position == 3 * len(wrong)


def test_records_deleted_inside_an_open_transaction_are_not_read_when_it_ends(fs: MemoryFileSystem) -> None:
    put(fs, batch(0) + encode_batch([Record(at, 1000, b"k", b"v") for at in range(3, 6)], **OPEN))
    followed = FollowedLog(view(fs), 0, Isolation.READ_COMMITTED)
    followed.look()
    assert (followed.end_offset, followed.next_offset) == (3, 0)
    put(fs, b"0\n1\nt 0 5\n", "log-start-offset-checkpoint")
    followed.look()
    assert followed.next_offset == 5


def test_a_topic_that_is_created_again_is_read_from_its_start(
    fs: MemoryFileSystem,
) -> None:
    ids = [b"version: 0\ntopic_id: %s\n" % one for one in (b"agRvKBhqTb-sqxzWqdupEA", b"XXXXXXXXXXXXXXXXXXXXXg")]
    put(fs, batch(0) + batch(3))
    put(fs, ids[0], "t-0/partition.metadata")
    followed = FollowedLog(view(fs), 0, None)
    followed.look()
    followed.next_offset = followed.end_offset
    put(fs, batch(0) + batch(3) + batch(6))
    followed.look()
    assert followed.next_offset == 6
    followed.next_offset = followed.end_offset
    put(fs, ids[1], "t-0/partition.metadata")
    put(fs, batch(0) + batch(3) + batch(6) + batch(9))
    followed.look()
    assert (followed.next_offset, followed.end_offset) == (0, 12)


# ---- outcomes of transactions ----------------------------------------------------------------------------------------


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
