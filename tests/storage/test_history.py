"""All records of some keys: equal to a full scan, with key indexes, without, and with wrong ones."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from cordwood.common.errors import DataError
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import key_index_path
from cordwood.storage.index.build import drop_indexes
from cordwood.storage.index.history import KeyHistory, TransactionOutcome
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.cleaning.ranked import timestamps
from tests.fixtures import NAMES, copy_of, fixture
from tests.knobs import in_turns, scaled, step
from tests.storage.index_twins import all_keys, index_all, plain_history
from tests.tables.source.random_logs import PARTITIONS, ROOT, random_directory

pytestmark = pytest.mark.more

SOME = ("kraft-before", "legacy-mixed-before", "legacy-v0-before", "kraft-crashed")


def same_as_plain(log: LogView, keys: list[bytes]) -> KeyHistory:
    """Search a log for keys; the history that did it."""
    expected = plain_history(log, keys)
    history = KeyHistory(keys, on_damage=lambda _: None)
    assert history.of(log) == expected
    last = {one.key: one for one in expected if one.outcome is TransactionOutcome.COMMITTED}
    newest = KeyHistory(keys, on_damage=lambda _: None).of(log, last=True)
    assert [(one.key, one.offset, one.value) for one in newest] == sorted(
        ((one.key, one.offset, one.value) for one in last.values()), key=lambda one: one[1]
    )
    return history


@pytest.mark.parametrize("name", in_turns(NAMES, *SOME))
def test_the_history_of_keys_in_real_logs_is_that_of_a_full_scan(name: str, tmp_path: Path) -> None:
    fs, copy = PosixFileSystem(), copy_of(fixture(name), tmp_path / "logs")
    source, indexed = random.Random(name), 0
    for path in sorted({str(log.parent) for log in copy.rglob("*.log") if "cluster" not in str(log)}):
        log = LogView(path, fs=fs)
        known = all_keys(log)
        keys = [*source.sample(known, min(len(known), 5)), b"\0\0\0\1", b"no such key", b""]
        same_as_plain(log, keys)
        index_all(fs, log)
        indexed += same_as_plain(log, keys).indexed
    assert indexed > 0


@pytest.mark.parametrize("seed", range(scaled(30, 300)))
def test_the_history_of_keys_in_random_logs_is_that_of_a_full_scan(seed: int) -> None:
    fs = random_directory(seed).fs
    for partition in PARTITIONS:
        log = LogView(f"{ROOT}/{partition}", fs=fs)
        known = all_keys(log)
        for keys in (known[:1], known):
            same_as_plain(log, [*keys, b"no such key"])
        index_all(fs, log)
        for keys in (known[:1], known):
            assert same_as_plain(log, [*keys, b"no such key"]).scanned == 0


PATH = "/logs/a-0"


def some_log(values: bytes = b"v") -> tuple[MemoryFileSystem, LogView]:
    """Two segments of forty batches of ten records each, with the keys 0 to 96 in turn."""
    fs = MemoryFileSystem(lambda: 0)
    for path in ("/logs", PATH):
        fs.make_directory(path)
    for first in (0, 400):
        batches = [
            encode_batch([Record(at + i, 1, b"%d" % ((at + i) % 97), values * 20) for i in range(10)])
            for at in range(first, first + 400, 10)
        ]
        for ending, data in ((".log", b"".join(batches)), (".index", b""), (".timeindex", b"")):
            with fs.create(f"{PATH}/{first:020d}{ending}") as file:
                file.write(0, data)
    return fs, LogView(PATH, fs=fs)


def test_only_a_few_batches_are_read_through_an_index() -> None:
    fs, log = some_log()
    index_all(fs, log)
    with fs.open_for_update(log.segments[0].path) as file:
        file.write(200, b"\x77")
    assert [one.offset for one in KeyHistory([b"42"]).of(log)] == list(range(42, 800, 97))
    drop_indexes(fs, log)
    with pytest.raises(DataError, match="CRC-32C"):
        KeyHistory([b"42"]).of(log)


def test_the_last_record_of_keys_is_looked_for_from_the_newest_segment_on() -> None:
    fs, log = some_log()
    index_all(fs, log)
    searched: list[int] = []
    found = KeyHistory([b"42"]).of(log, lambda segment: searched.append(segment.base_offset), last=True)
    assert ([one.offset for one in found], searched) == ([42 + 7 * 97], [400])
    assert KeyHistory([b"none"]).of(log, lambda segment: searched.append(segment.base_offset), last=True) == []
    assert searched == [400, 400, 0]


def test_under_another_keep_rule_an_earlier_record_may_supersede_a_later_one() -> None:
    fs, _ = some_log()
    times = [5, 9, 7, 9, 3]
    data = encode_batch([Record(at, time, b"k", b"v") for at, time in enumerate(times)])
    with fs.open_for_update(f"{PATH}/{0:020d}.log") as file:
        file.truncate(0)
        file.write(0, data)
    log = LogView(PATH, fs=fs)
    found = KeyHistory([b"k"], ranks=timestamps).of(log)
    assert [(one.offset, one.superseded_by) for one in found] == [(0, 2), (1, 3), (2, 1), (3, None), (4, 0)]
    assert [one.offset for one in KeyHistory([b"k"], ranks=timestamps).of(log, last=True)] == [3]


@pytest.mark.parametrize("keys", [[b"42"], pytest.param([b"%d" % at for at in range(97)], marks=pytest.mark.slow)])
def test_an_index_with_any_byte_flipped_or_cut_anywhere_changes_nothing(keys: list[bytes]) -> None:
    fs, log = some_log()
    expected = plain_history(log, keys)
    index_all(fs, log)
    path = key_index_path(PATH, 400)
    with fs.open(path) as file:
        right = file.read(0, file.size())
    for at in range(0, len(right), step(11)):
        for wrong in (right[:at] + bytes([right[at] ^ 1 << at % 8]) + right[at + 1 :], right[:at]):
            with fs.create(path, exclusive=False) as file:
                file.write(0, wrong)
            assert KeyHistory(keys).of(log) == expected


def test_indexes_of_another_log_of_an_earlier_state_or_of_no_use_change_nothing() -> None:
    fs, log = some_log()
    other_fs, other = some_log(b"w")
    index_all(other_fs, other)
    index_all(fs, log)
    path = key_index_path(PATH, 0)
    with other_fs.open(path) as file:
        foreign = file.read(0, file.size())
    with fs.create(path, exclusive=False) as file:
        file.write(0, foreign)
    assert same_as_plain(log, [b"42", b"96"]).scanned == 1
    index_all(fs, log)
    # A cleaner removed the second batch, everything behind it moved.
    segment = log.segments[0].path
    with fs.open_for_update(segment) as file:
        size = int.from_bytes(file.read(8, 4), "big") + 12
        data = file.read(0, file.size())
        file.truncate(len(data) - size)
        file.write(0, data[:size] + data[2 * size :])
    log.list_again()
    assert same_as_plain(log, [b"42", b"12", b"10"]).scanned == 1


def test_a_batch_that_a_stale_index_leads_to_is_compared_before_it_is_believed() -> None:
    fs, log = some_log()
    batches = [encode_batch([Record(2 * at + i, 1, b"k%03d" % at, b"v") for i in range(2)]) for at in range(190)]
    with fs.create(log.segments[0].path, exclusive=False) as file:
        file.write(0, b"".join(batches))
    log.list_again()
    index_all(fs, log)
    # One batch is replaced by another of the same size, outside the samples that are always compared.
    other = encode_batch([Record(2 * 101 + i, 1, b"zzzz", b"v") for i in range(2)])
    with fs.open_for_update(log.segments[0].path) as file:
        file.write(sum(map(len, batches[:101])), other)
    assert same_as_plain(log, [b"k001"]).scanned == 0
    assert same_as_plain(log, [b"k101"]).scanned == 1


def test_a_log_that_loses_a_segment_while_it_is_searched_is_listed_again(tmp_path: Path) -> None:
    fs, partition = PosixFileSystem(), tmp_path / "a-0"
    partition.mkdir()
    for first in (0, 10, 20):
        records = [Record(first + i, 1, b"k%d" % (i % 3), b"v") for i in range(10)]
        (partition / f"{first:020d}.log").write_bytes(encode_batch(records))
    log = LogView(str(partition), fs=fs)
    (partition / f"{0:020d}.log").unlink()
    assert [one.offset for one in KeyHistory([b"k1"]).of(log)] == [11, 14, 17, 21, 24, 27]
    shutil.rmtree(partition)


def test_an_aborted_record_that_a_cleaner_removes_during_the_search_stays_aborted() -> None:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("t-0")
    aborted = encode_batch(
        [Record(0, 1, b"k", b"aborted")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    rest = encode_marker(Marker(1, 1, 7, 0, committed=False)) + encode_batch([Record(2, 1, b"k", b"v")])

    def put(content: bytes) -> None:
        with fs.create("t-0/00000000000000000000.log", exclusive=False) as file:
            file.write(0, content)

    put(aborted + rest)
    records = KeyHistory([b"k"]).of(LogView("t-0", fs=fs), lambda _: put(rest))
    assert [(record.offset, record.outcome) for record in records] == [
        (0, TransactionOutcome.ABORTED),
        (2, TransactionOutcome.COMMITTED),
    ]
