from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cordwood.fs.posix import PosixFileSystem
from cordwood.kernels.layout import BATCH_ROW
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow, decode, is_valid
from cordwood.record.record import Record, to_records
from cordwood.storage.log import windows
from cordwood.storage.log.windows import Checks, Gap, GapKind, WindowReader, compute_crcs, read_headers
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.strategies import logs
from tests import kafka_tools


def open_file(data: bytes):
    fs = MemoryFileSystem(lambda: 0)
    with fs.create("log") as file:
        file.write(0, data)
    return fs.open("log")


def batch(offset: int, count: int = 3) -> bytes:
    return encode_batch([Record(offset + i, 1000, b"k%d" % i, b"v" * 30) for i in range(count)])


def read(data: bytes, **options) -> tuple[list[Record], list[Gap]]:
    records: list[Record] = []
    gaps: list[Gap] = []
    for item in WindowReader(open_file(data), Checks.WHOLE, **options):
        if isinstance(item, Gap):
            gaps.append(item)
        else:
            assert item.batches["position"][0] == item.position
            for part in decode(item, on_damage=lambda _: None):
                records += to_records(part.data, part.rows)
    return records, gaps


def offsets(data: bytes, **options) -> list[int]:
    return [record.offset for record in read(data, **options)[0]]


@pytest.mark.more
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs(), st.sampled_from([17, 61, 64, 100, 500, 1 << 20]), st.sampled_from([50, 200, 1 << 20]), st.integers(1, 9))
def test_windows_of_any_size_hold_the_same_records(monkeypatch, log, window_bytes, largest, piece) -> None:
    monkeypatch.setattr(windows, "LARGEST_WINDOW_BYTES", largest)
    monkeypatch.setattr(windows, "PIECE_BYTES", piece)
    data, records = log
    assert read(data, window_bytes=window_bytes) == (records, [])


@pytest.mark.more
@given(logs(), st.integers(17, 300))
def test_headers_alone_are_those_of_whole_windows(log, window_bytes) -> None:
    data, _ = log
    whole = [item.batches for item in WindowReader(open_file(data), Checks.WHOLE) if isinstance(item, BatchWindow)]
    alone = [item for item in read_headers(open_file(data)) if not isinstance(item, Gap)]
    small = WindowReader(open_file(data), Checks.HEADERS, window_bytes=window_bytes)
    few = [item.batches for item in small if isinstance(item, BatchWindow)]
    empty = np.empty(0, BATCH_ROW)
    assert (np.concatenate([empty, *alone]) == np.concatenate([empty, *whole])).all()
    assert (np.concatenate([empty, *few]) == np.concatenate([empty, *whole])).all()


_LARGE = [
    encode_batch([Record(offset, 1000, b"k", bytes(size))]) for offset, size in enumerate((1, 9_000, 70_000, 20_000))
]


@pytest.mark.more
@given(
    logs(base_offset=10),
    st.lists(st.sampled_from(_LARGE), max_size=4),
    st.lists(st.sampled_from(_LARGE), max_size=2),
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 255)), max_size=2),
    st.integers(0, 200),
    st.sampled_from([None, (0, 0), (0, 4096), (4096, 8192), (8192, 65_536), (65_536, 0)]),
)
def test_headers_of_a_file_in_memory_are_those_of_its_windows(log, before, behind, flips, cut, hole) -> None:
    data = bytearray(b"".join([*before, log[0], *behind]))
    for at, flip in flips:
        if at < len(data):
            data[at] ^= flip
    del data[len(data) - cut :]
    expected = list(read_headers(open_file(bytes(data))))
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        if hole is not None:
            os.fsync(file.fileno())
            start, length = hole
            os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)
        with PosixFileSystem().open(file.name) as opened:
            assert opened.cached_reads() is not None
            found = list(read_headers(opened))
    assert [item for item in found if isinstance(item, Gap)] == [item for item in expected if isinstance(item, Gap)]
    rows, expected_rows = (
        np.concatenate([np.empty(0, BATCH_ROW), *(item for item in items if not isinstance(item, Gap))])
        for items in (found, expected)
    )
    assert (rows == expected_rows).all()


def test_who_looks_for_one_batch_of_a_file_in_memory_does_not_wait_for_thousands() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(batch(10 * at) for at in range(1000)))
        file.flush()
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            reason = f"{tempfile.gettempdir()} has no reads that do not wait for a disk: {error}; set TMPDIR"
            (pytest.fail if kafka_tools.required() else pytest.skip)(reason)
        with PosixFileSystem().open(file.name) as opened:
            sizes = [item.size for item in read_headers(opened) if not isinstance(item, Gap)]
    assert sizes[0] < 100
    assert sum(sizes) == 1000


@pytest.mark.more
@given(logs(), st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=2), st.integers(17, 600))
def test_windows_whose_crcs_come_later_are_the_same_up_to_the_first_damage(log, flips, window_bytes) -> None:
    data = bytearray(log[0])
    for at, flip in flips:
        if at < len(data):
            data[at] ^= flip

    def read_until_damage(checks: Checks) -> list[object]:
        found: list[object] = []
        for item in WindowReader(open_file(bytes(data)), checks, window_bytes=window_bytes):
            if isinstance(item, Gap):
                return [*found, item.position, item.kind]
            if checks is Checks.DEFERRED:
                compute_crcs(item)
            found += item.batches.tolist()
            if not is_valid(item.batches).all():
                return found[: len(found) - item.batches.size + int(np.argmin(is_valid(item.batches))) + 1]
        return found

    assert read_until_damage(Checks.DEFERRED) == read_until_damage(Checks.WHOLE)


def test_a_file_that_ends_inside_a_batch_is_torn_there() -> None:
    # case 137
    data = batch(0) + batch(3)
    for cut in range(1, len(batch(3))):
        records, gaps = read(data[:-cut])
        assert [record.offset for record in records] == [0, 1, 2]
        (gap,) = gaps
        # The first bytes of an offset are zero, like those of a file that was only made longer.
        kind = GapKind.TORN if any(batch(3)[:-cut]) else GapKind.ZEROS
        assert (gap.kind, gap.position, gap.end) == (kind, len(batch(0)), len(data) - cut)


def test_a_tail_of_zeros_is_room_not_damage() -> None:
    for zeros in (18, 100, 5000):
        assert read(batch(0) + bytes(zeros))[1] == [Gap(len(batch(0)), zeros, GapKind.ZEROS, f"{zeros} zero bytes")]


@pytest.mark.parametrize(
    ("name", "at", "data"),
    [
        ("size too small", 8, (5).to_bytes(4, "big")),
        ("size beyond the file", 8, (1 << 30).to_bytes(4, "big")),
        ("negative size", 8, (-1).to_bytes(4, "big", signed=True)),
        ("magic 3", 16, b"\3"),
        ("zeros", 0, bytes(40)),
    ],
)
def test_reading_goes_on_behind_damage_where_batches_start_again(name: str, at: int, data: bytes) -> None:
    # case 137
    broken = bytearray(batch(3))
    broken[at : at + len(data)] = data
    log = batch(0) + bytes(broken) + batch(6) + batch(9)
    records, gaps = read(log)
    assert [record.offset for record in records] == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert [(gap.kind, gap.position, gap.end) for gap in gaps] == [
        (GapKind.DAMAGE, len(batch(0)), len(batch(0)) + len(broken))
    ]


def test_batches_that_a_wrong_size_swallowed_are_read_all_the_same() -> None:
    size = len(batch(0))
    for declared in (size + 20, 2 * size - 30, 2 * size + 1):
        broken = bytearray(batch(3))
        broken[8:12] = (declared - 12).to_bytes(4, "big")
        records, gaps = read(batch(0) + bytes(broken) + batch(6) + batch(9))
        assert [record.offset for record in records] == [0, 1, 2, 6, 7, 8, 9, 10, 11], declared
        assert gaps == []


@pytest.mark.parametrize("largest", [100, 1 << 20])
@pytest.mark.parametrize("swallowed", range(1, 6))
def test_batches_that_a_wrong_size_covers_exactly_are_read_all_the_same(
    swallowed: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "LARGEST_WINDOW_BYTES", largest)
    parts = [bytearray(batch(3 * number)) for number in range(7)]
    size = len(parts[0])
    parts[1][8:12] = (size * (swallowed + 1) - 12).to_bytes(4, "big")
    whole = [at for number in (0, *range(2, 7)) for at in range(3 * number, 3 * number + 3)]
    for window_bytes in (61, 100, 1 << 20):
        assert offsets(b"".join(parts), window_bytes=window_bytes) == whole


def test_a_batch_within_a_record_of_a_damaged_batch_is_no_batch_of_the_log() -> None:
    around = bytearray(encode_batch([Record(3, 1000, b"k", batch(4) + batch(7))]))
    around[-1] ^= 1
    data = batch(0) + bytes(around)
    for behind, found in ((b"", []), (batch(20), [20, 21, 22]), (batch(4), [4, 5, 6])):
        assert offsets(data + behind) == [0, 1, 2, *found]


def test_a_batch_behind_damage_must_have_an_offset_of_this_segment_and_place() -> None:
    damage = b"\xff" * 30
    assert offsets(batch(5) + damage + batch(2), base_offset=5) == [5, 6, 7]
    assert offsets(batch(5) + damage + batch(5 + 2**31), base_offset=5) == [5, 6, 7]
    assert offsets(batch(5) + damage + batch(8), base_offset=5) == [5, 6, 7, 8, 9, 10]


def test_the_end_of_a_file_that_is_being_written_is_not_searched() -> None:
    torn = batch(3)[:-1]
    records, gaps = read(batch(0) + torn + batch(6), search=False)
    assert [record.offset for record in records[:3]] == [0, 1, 2]
    assert gaps[-1].end == len(batch(0) + torn + batch(6))


def test_a_wrong_crc_marks_its_batch_and_no_other() -> None:
    broken = bytearray(batch(3))
    broken[-2] ^= 1
    (item,) = WindowReader(open_file(batch(0) + bytes(broken) + batch(6)), Checks.WHOLE)
    assert isinstance(item, BatchWindow)
    assert is_valid(item.batches).tolist() == [True, False, True]


def test_reading_starts_and_stops_at_the_positions_asked_for() -> None:
    size = len(batch(0))
    data = batch(0) + batch(3) + batch(6)
    assert offsets(data, start=size) == [3, 4, 5, 6, 7, 8]
    assert offsets(data, end=2 * size) == [0, 1, 2, 3, 4, 5]


def test_a_file_that_shrinks_while_it_is_read_ends_where_it_ends_now() -> None:
    fs = MemoryFileSystem(lambda: 0)
    size = len(batch(0))
    with fs.create("log") as file:
        file.write(0, b"".join(batch(3 * i) for i in range(40)))
        found = iter(WindowReader(fs.open("log"), Checks.WHOLE, window_bytes=4 * size))
        first = next(found)
        assert isinstance(first, BatchWindow)
        file.truncate(6 * size + 10)
        rest = list(found)
    assert sum(item.batches.size for item in (first, *rest) if isinstance(item, BatchWindow)) == 6
    assert isinstance(rest[-1], Gap)
