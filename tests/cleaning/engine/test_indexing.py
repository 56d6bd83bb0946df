"""Key indexes of a clean's outputs are built from data of its passes; only missing parts are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.indexing import IndexMaker
from cordwood.cleaning.engine.partition import CleanRequest, clean_partition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.columns import BatchWindow
from cordwood.record.record import Record
from cordwood.storage.formats.key_index import KeyIndex, decode, with_identity
from cordwood.storage.index.build import Gatherer, build
from cordwood.storage.index.files import write_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.logs import make_log

pytestmark = pytest.mark.more

FS = PosixFileSystem()
OLD, NEW = bytes(range(16)), bytes(range(16, 32))
SIZE, BATCH = 400, 8


def batch(base: int, keys: list[bytes], value: bytes | None = b"v" * 200) -> bytes:
    return encode_batch([Record(base + at, 1, key, value) for at, key in enumerate(keys)])


def some_log(folder: Path) -> LogView:
    """Three segments of keys that are all different, one with a few keys of the second, and the active one."""
    keys = [b"key-%d" % number for number in range(3 * SIZE)]
    parts = [
        (base, [batch(at, keys[at : at + BATCH]) for at in range(base, base + SIZE, BATCH)])
        for base in range(0, 3 * SIZE, SIZE)
    ]
    end = 3 * SIZE
    dirty = batch(end, [keys[SIZE + 17], b"new", keys[2 * SIZE - 1]])
    return make_log(folder, *parts, (end, [dirty]), [batch(end + 3, [b"active"])])


def made(log: LogView, folder: Path, *, probing: bool, group_bytes: int = 90_000) -> dict[int, KeyIndex]:
    folder.mkdir()
    request = CleanRequest(
        first_dirty=log.segments[3].base_offset if probing else 0,
        first_uncleanable=log.segments[4].base_offset,
        now_ms=10,
        settings=CleanSettings(segment_bytes=group_bytes),
        producers=Producers(),
        probing=probing,
        index_secret=OLD if probing else None,
        fresh_secret=NEW,
    )
    secret = request.new_index_secret
    assert secret == (OLD if probing else NEW)
    maker = IndexMaker(FS, f"{folder}.index", secret, None)
    clean_partition(FS, log, str(folder), request, indexes=maker)
    assert list(maker.paths) == sorted(maker.paths)
    found = [decode(Path(path).read_bytes()) for path in maker.paths]
    return {index.header.base_offset: index for index in found}


def compare(indexes: dict[int, KeyIndex], log: LogView, folder: Path) -> None:
    outputs = LogView(str(folder), fs=FS, log_start_offset=0).segments
    segments: dict[int, Segment] = {one.base_offset: one for one in (*log.segments, *outputs)}
    for base, index in indexes.items():
        again = build(segments[base], index.header.secret, 1 << 30)
        assert again is not None and with_identity(again, index.identity).header == index.header
        assert again.payload.tobytes() == index.payload.tobytes()


@pytest.fixture
def windows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the records of each window that is decoded for an index."""
    found: list[int] = []
    add: Callable[..., None] = Gatherer.add

    def noted(gatherer: Gatherer, window: BatchWindow) -> None:
        found.append(int(window.batches["record_count"].sum()))
        add(gatherer, window)

    monkeypatch.setattr(Gatherer, "add", noted)
    return found


def index_clean_segments(log: LogView) -> None:
    for segment in log.segments[:3]:
        index = build(segment, OLD, 1 << 30)
        assert index is not None
        write_index(FS, log.path, index)


def test_a_clean_that_hashes_all_keys_reads_nothing_for_indexes(tmp_path: Path, windows_read: list[int]) -> None:
    log = some_log(tmp_path / "t-0")
    indexes = made(log, tmp_path / "out", probing=False)
    assert windows_read == []
    # The first and the third segment stay, and have an index, too.
    assert [(base, index.header.entries) for base, index in indexes.items()] == [(0, 400), (400, 398), (800, 400)]
    compare(indexes, log, tmp_path / "out")


def test_segments_that_become_one_have_one_index(tmp_path: Path, windows_read: list[int]) -> None:
    log = some_log(tmp_path / "t-0")
    indexes = made(log, tmp_path / "out", probing=False, group_bytes=1 << 20)
    assert windows_read == []
    assert [(base, index.header.entries) for base, index in indexes.items()] == [(0, 1201)]
    compare(indexes, log, tmp_path / "out")


def test_the_index_of_a_segment_gives_the_keys_of_what_is_left_of_it(tmp_path: Path, windows_read: list[int]) -> None:
    log = some_log(tmp_path / "t-0")
    index_clean_segments(log)
    windows_read.clear()
    indexes = made(log, tmp_path / "out", probing=True)
    # That is the dirty segment. It is so short that its index is not worth keeping.
    assert windows_read == [3]
    # The indexes of the first and the third had no identity, and get one.
    assert [(base, index.header.entries) for base, index in indexes.items()] == [(0, 400), (400, 398), (800, 400)]
    assert all(index.identity is not None for index in indexes.values())
    compare(indexes, log, tmp_path / "out")


def test_only_the_part_of_an_output_is_read_whose_keys_nobody_knows(tmp_path: Path, windows_read: list[int]) -> None:
    log = some_log(tmp_path / "t-0")
    index_clean_segments(log)
    windows_read.clear()
    indexes = made(log, tmp_path / "out", probing=True, group_bytes=1 << 20)
    # Three records of the dirty segment; and the remaining reads, as the larger index has buckets of more bits than the
    # old ones.
    assert windows_read == [400, 398, 400, 3]
    compare(indexes, log, tmp_path / "out")


def test_a_part_that_loses_records_for_another_reason_than_their_keys_is_read(
    tmp_path: Path, windows_read: list[int]
) -> None:
    start, end = [batch(at, [b"key-%d" % at] * 8) for at in range(0, 80, 8)], 80
    keyless = encode_batch([Record(end, 1, None, b"v"), Record(end + 1, 1, b"k", b"v" * 9_000)])
    log = make_log(tmp_path / "t-0", (0, start), (end, [keyless]), [batch(100, [b"a"])])
    folder = tmp_path / "out"
    folder.mkdir()
    request = CleanRequest(
        first_dirty=0,
        first_uncleanable=100,
        now_ms=10,
        settings=CleanSettings(segment_bytes=1 << 20),
        producers=Producers(),
        fresh_secret=NEW,
    )
    maker = IndexMaker(FS, f"{folder}.index", NEW, None)
    clean_partition(FS, log, str(folder), request, indexes=maker)
    assert windows_read == [1]
    (path,) = maker.paths
    indexes = {0: decode(Path(path).read_bytes())}
    assert indexes[0].header.entries == 11
    compare(indexes, log, folder)
