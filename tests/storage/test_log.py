from __future__ import annotations

import errno
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.commands.opening import open_log
from cordwood.common.errors import CorruptBatchError, DataError, NotFoundError
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import offset_index
from cordwood.storage.log.files import read_file
from cordwood.storage.log.recovery import Verb
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.fixtures import copy_of, fixture


def batch(offset: int, count: int = 3, timestamp: int = 1000) -> bytes:
    return encode_batch([Record(offset + i, timestamp + i, b"k%d" % i, b"v" * 30) for i in range(count)])


def partition(files: dict[str, bytes]) -> MemoryFileSystem:
    """A partition t-0 with these files."""
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("d")
    fs.make_directory("d/t-0")
    for name, data in files.items():
        with fs.create(f"d/t-0/{name}" if "/" not in name else name) as file:
            file.write(0, data)
    return fs


def name(offset: int, suffix: str = ".log") -> str:
    return f"{offset:020d}{suffix}"


def offsets(log: LogView, **choice: object) -> list[int]:
    return [record.offset for record in log.records(isolation=None, **choice)]  # type: ignore[arg-type]


TWO_SEGMENTS = {name(0): batch(0) + batch(3), name(6): batch(6) + batch(9)}


def test_segments_are_read_in_the_order_of_their_offsets() -> None:
    log = LogView("d/t-0", fs=partition(dict(reversed(TWO_SEGMENTS.items()))))
    assert [segment.base_offset for segment in log.segments] == [0, 6]
    assert offsets(log) == list(range(12))
    assert (log.first_offset, log.next_offset, log.log_start_offset) == (0, 12, 0)


def test_a_partition_without_segments_is_said_to_have_none() -> None:
    with pytest.raises(NotFoundError, match="holds no log segment"):
        open_log("d/t-0", fs=partition({}))
    with pytest.raises(NotFoundError):
        open_log("d/nowhere-0", fs=partition({}))


def test_an_empty_active_segment_tells_the_end_of_the_log() -> None:
    assert LogView("d/t-0", fs=partition({name(0): batch(0), name(7): b""})).next_offset == 7
    assert LogView("d/t-0", fs=partition({name(42): b""})).next_offset == 42


def test_a_range_of_offsets_gives_just_those() -> None:
    log = LogView("d/t-0", fs=partition(TWO_SEGMENTS))
    for start in range(14):
        for end in range(14):
            assert offsets(log, start_offset=start, end_offset=end) == list(range(start, min(end, 12)))


def test_reading_from_a_gap_starts_at_the_next_batch() -> None:
    # case 178
    data = b"".join(encode_batch([Record(at, 1000, b"k", b"v") for at in (base, base + 1)]) for base in (50, 60))
    assert offsets(LogView("d/t-0", fs=partition({name(0): data})), start_offset=55) == [60, 61]


def test_a_base_offset_that_was_flipped_upwards_is_damage_and_does_not_end_reading() -> None:
    flipped = (1 << 55 | 3).to_bytes(8, "big") + batch(3)[8:]  # the CRC does not cover it
    log = LogView("d/t-0", fs=partition({name(0): batch(0) + flipped + batch(6) + batch(9) + batch(12) + batch(15)}))
    damage: list[DataError] = []
    assert offsets(log, end_offset=10, on_damage=damage.append) == [0, 1, 2, 6, 7, 8, 9]
    assert [(one.position, "comes before a batch that starts at offset 6" in str(one)) for one in damage] == [
        (len(batch(0)), True)
    ]
    last = LogView("d/t-0", fs=partition({name(0): batch(0) + flipped}))
    assert offsets(last, end_offset=10) == [0, 1, 2]


def test_an_index_that_cannot_be_read_only_costs_time(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for file, data in TWO_SEGMENTS.items():
        (directory / file).write_bytes(data)
    os.mkfifo(directory / name(0, ".index"))
    os.mkfifo(directory / name(0, ".timeindex"))
    with (directory / name(6, ".index")).open("wb") as index:
        index.truncate(1 << 40)  # needs no room on the disk
    log = LogView(str(directory), fs=PosixFileSystem())
    assert offsets(log, start_offset=4, since_ms=0) == list(range(4, 12))
    assert offsets(log, start_offset=10) == [10, 11]
    with pytest.raises(OSError, match="more than such a file ever has") as caught:
        log.segments[1].offset_index()
    assert caught.value.errno == errno.EFBIG


def test_a_segment_that_cannot_be_read_is_told_and_the_next_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / name(6)).write_bytes(batch(6))
    os.mkfifo(directory / name(0))
    log = LogView(str(directory), fs=PosixFileSystem())
    told: list[tuple[int, str]] = []
    windows = log.windows(on_unreadable=lambda segment, error: told.append((segment.base_offset, error.filename)))
    assert [segment.base_offset for segment, _ in windows] == [6]
    assert told == [(0, str(directory / name(0)))]
    with pytest.raises(OSError, match="FIFO"):
        offsets(log)


def test_a_consumer_starts_at_the_log_start_offset() -> None:
    fs = partition({**TWO_SEGMENTS, "d/log-start-offset-checkpoint": b"0\n1\nt 0 4\n"})
    log = LogView("d/t-0", fs=fs)
    assert log.log_start_offset == 4
    assert [record.offset for record in log] == list(range(4, 12))
    assert offsets(log) == list(range(12))


@functools.cache
def orders() -> tuple[Path, list[Record]]:
    path = fixture("kraft-before") / "orders-0"
    return path, list(open_log(str(path)).records())


@pytest.mark.parametrize("broken", [False, True])
def test_filters_are_exact_with_good_and_with_broken_indexes(tmp_path: Path, broken: bool) -> None:
    path, records = orders()
    if broken:
        path = copy_of(path, tmp_path / "orders-0")
        for file in path.iterdir():
            if file.suffix in (".index", ".timeindex"):
                entries = np.frombuffer(file.read_bytes(), ">i4").copy()
                file.write_bytes((entries[::-1] // 2).astype(">i4").tobytes())
    log = open_log(str(path))
    for start in range(0, records[-1].offset + 10, 37):
        expected = [r for r in records if start <= r.offset < start + 50]
        assert list(log.records(start_offset=start, end_offset=start + 50)) == expected
    times = sorted(record.timestamp for record in records)
    for since in times[:: len(times) // 12]:
        expected = [r for r in records if since <= r.timestamp < since + 10**7]
        assert list(log.records(since_ms=since, until_ms=since + 10**7)) == expected


def test_a_look_up_by_offset_starts_where_the_index_points_at() -> None:
    path, _ = orders()
    log = open_log(str(path))
    segment = log.segments[0]
    index = segment.offset_index()
    assert index is not None
    with segment.open() as file:
        found = [segment.position_of(file, int(offset)) for offset in index.offsets]
    assert found == index.positions.tolist()


def test_an_index_entry_that_points_beside_its_batch_is_not_used() -> None:
    data = batch(0) + batch(3) + batch(6)
    size = len(batch(0))
    for position in (1, size - 1, size + 1, 2 * size, len(data), -5):
        entries = offset_index.OffsetIndex(0, np.array([5]), np.array([position]), 1)
        fs = partition({name(0): data, name(0, ".index"): offset_index.encode(entries)})
        assert offsets(LogView("d/t-0", fs=fs), start_offset=5) == [5, 6, 7, 8], position


def test_a_torn_tail_ends_the_log_and_damage_is_raised_or_reported_where_it_is() -> None:
    assert offsets(LogView("d/t-0", fs=partition({name(0): batch(0) + batch(3)[:-1]}))) == [0, 1, 2]
    assert offsets(LogView("d/t-0", fs=partition({name(0): batch(0) + bytes(100)}))) == [0, 1, 2]
    # In a segment that is not the last one, the same is damage.
    log = LogView("d/t-0", fs=partition({name(0): batch(0) + batch(3)[:-1], name(6): batch(6)}))
    with pytest.raises(CorruptBatchError, match="the file ends after"):
        offsets(log)
    damage: list[DataError] = []
    assert offsets(log, on_damage=damage.append) == [0, 1, 2, 6, 7, 8]
    assert [(error.path, error.position) for error in damage] == [(f"d/t-0/{name(0)}", len(batch(0)))]


def test_an_error_names_file_position_and_offset() -> None:
    broken = bytearray(batch(3))
    broken[-2] ^= 1
    log = LogView("d/t-0", fs=partition({name(0): batch(0) + bytes(broken)}))
    with pytest.raises(CorruptBatchError) as caught:
        offsets(log)
    error = caught.value
    assert (error.path, error.position, error.offset) == (f"d/t-0/{name(0)}", len(batch(0)), 3)
    assert f"in d/t-0/{name(0)} at position {len(batch(0))} (offset 3)" in str(error)


def test_an_interrupted_swap_is_read_as_it_will_be_finished_and_nothing_is_changed() -> None:
    # cases 149, 150
    swapped = encode_batch([Record(1, 1000, b"k", b"new"), Record(4, 1000, b"k", b"new")], base_offset=0, last_offset=5)
    files = {**TWO_SEGMENTS, name(0, ".log.swap"): swapped, name(0, ".index.swap"): b"", name(0, ".index"): b""}
    fs = partition(files)
    log = LogView("d/t-0", fs=fs)
    assert offsets(log) == [1, 4, 6, 7, 8, 9, 10, 11]
    assert [(action.verb, action.file, action.target) for action in log.recovery.actions[:4]] == [
        (Verb.DELETE, name(0, ".index"), ""),
        (Verb.DELETE, name(0), ""),
        (Verb.RENAME, name(0, ".index.swap"), name(0, ".index")),
        (Verb.RENAME, name(0, ".log.swap"), name(0)),
    ]
    assert {info.name for info in fs.list("d/t-0")} == set(files)


def test_a_swap_at_or_above_a_cleaned_file_is_not_taken() -> None:
    files = {**TWO_SEGMENTS, name(6, ".log.swap"): batch(6), name(0, ".log.cleaned"): batch(0)[:9]}
    log = LogView("d/t-0", fs=partition(files))
    assert offsets(log) == list(range(12))
    assert [(action.verb, action.file) for action in log.recovery.actions[:2]] == [
        (Verb.DELETE, name(6, ".log.swap")),
        (Verb.DELETE, name(0, ".log.cleaned")),
    ]


def test_leftovers_of_deletion_and_orphaned_indexes_do_not_count() -> None:
    # case 169
    files = {**TWO_SEGMENTS, name(3, ".log.deleted"): b"x", name(9, ".index"): b"", "notes.txt": b""}
    log = LogView("d/t-0", fs=partition(files))
    assert offsets(log) == list(range(12))
    assert [action.file for action in log.recovery.actions if action.verb is Verb.DELETE] == [
        name(3, ".log.deleted"),
        name(9, ".index"),
    ]
    assert log.recovery.foreign == ("notes.txt",)


def test_a_segment_that_vanishes_while_a_live_log_is_read_is_looked_for_again() -> None:
    fs = partition({name(0): batch(0), name(3): batch(3), name(6): batch(6)})
    log = LogView("d/t-0", fs=fs, live=True)
    found = log.records(isolation=None)
    first = [next(found).offset for _ in range(3)]
    # The cleaner merges the next two segments into one.
    with fs.create(f"d/t-0/{name(2)}") as file:
        file.write(0, batch(3) + batch(6))
    fs.unlink(f"d/t-0/{name(3)}")
    fs.unlink(f"d/t-0/{name(6)}")
    assert first + [record.offset for record in found] == list(range(9))


def test_a_live_log_ends_at_its_first_incomplete_batch() -> None:
    log = LogView("d/t-0", fs=partition({name(0): batch(0) + batch(3)[:-9]}), live=True)
    assert offsets(log) == [0, 1, 2]
    assert log.next_offset == 3


def test_the_package_opens_a_log_in_one_call() -> None:
    path, records = orders()
    log = cordwood.open_log(str(path))
    assert [record.offset for record in log] == [record.offset for record in records]
    assert next(log.batches()).record_count == 13
    assert log.next_offset == records[-1].offset + 1


def test_reading_a_small_file_takes_all_of_it() -> None:
    assert read_file(partition({name(0): b"abc"}), f"d/t-0/{name(0)}") == b"abc"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"isolation": "foo"}, "isolation is read_uncommitted or read_committed, not 'foo'"),
        ({"start_offset": "5"}, "start_offset is a whole number or None"),
        ({"end_offset": 1.5}, "end_offset is a whole number or None"),
        ({"since_ms": "now"}, "since_ms is a number or None"),
    ],
)
def test_arguments_that_are_none_are_refused_in_words(choice: dict[str, Any], words: str) -> None:
    log = cordwood.open_log(str(fixture("kraft-before") / "orders-0"))
    for call in (lambda: list(log.records(**choice)), lambda: log.to_arrow(**choice)):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    with pytest.raises(TypeError, match="key is bytes or text"):
        log.get(5)  # type: ignore[arg-type]
    assert len(list(log.records(isolation="READ_COMMITTED"))) > 0
