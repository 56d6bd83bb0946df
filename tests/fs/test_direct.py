"""Large files bypass the page cache, where the disk is fast and the file system can; their bytes are the same."""

from __future__ import annotations

import errno
import itertools
import os
import random
import types
from pathlib import Path

import numpy as np
import pytest

from cordwood.fs import direct
from cordwood.fs.base import DIRECT_BLOCK_BYTES, Bytes, ReadableFile
from cordwood.fs.direct import Appender, copy_direct, is_in_memory, read_direct
from cordwood.fs.paced import PacedTargetStore
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.fs.wrapped import CountedStore, WrappedFile
from tests.fs.lock_holders import on_linux

MIB = 1 << 20


class Noted(WrappedFile):
    """Notes the positions and sizes of writes, and their kind."""

    def __init__(self, file: PosixFile) -> None:
        super().__init__(file)
        self.direct: list[tuple[int, int]] = []
        self.through_cache: list[tuple[int, int]] = []
        self.on_their_way: list[tuple[int, int]] = []

    def write(self, position: int, data: Bytes) -> None:
        super().write(position, data)
        self.through_cache.append((position, len(data)))

    def write_back(self, position: int, size_bytes: int) -> None:
        super().write_back(position, size_bytes)
        self.on_their_way.append((position, size_bytes))

    def write_direct(self, position: int, data: Bytes) -> None:
        self._file.write_direct(position, data)
        self.direct.append((position, len(data)))


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """A folder on a disk: a file system in memory has other direct writes, or none."""
    return on_disk


def bytes_of(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def test_what_is_appended_in_pieces_of_any_size_is_the_file(tmp_path: Path) -> None:
    random_ = random.Random(28)
    for number in range(20):
        pieces = [bytes_of(random_.choice([0, 1, 100, 4096, 5000, MIB, 9 * MIB])) for _ in range(random_.randrange(12))]
        with PosixFileSystem().create(f"{tmp_path}/{number}") as file:
            appender = Appender(file)
            for piece in pieces:
                appender.append(piece)
                if random_.random() < 0.2:
                    appender.flush()
            appender.flush()
            assert appender.position == sum(piece.size for piece in pieces)
        assert Path(tmp_path, f"{number}").read_bytes() == b"".join(piece.tobytes() for piece in pieces)


def test_whole_blocks_of_a_large_file_go_past_the_cache_and_the_rest_through_it(tmp_path: Path) -> None:
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    appender = Appender(file, lambda: 0)
    for _ in range(21):
        appender.append(bytes_of(MIB))
    appender.append(bytes_of(100))
    appender.flush()
    assert file.direct == [(0, 8 * MIB), (8 * MIB, 8 * MIB), (16 * MIB, 5 * MIB)]
    assert file.through_cache == [(21 * MIB, 100)]


def test_a_small_file_goes_through_the_cache(tmp_path: Path) -> None:
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    appender = Appender(file, lambda: 0)
    appender.append(bytes_of(MIB - 1))
    appender.flush()
    assert (file.direct, file.through_cache) == ([], [(0, MIB - 1)])


def test_behind_bytes_that_are_shared_whole_blocks_go_past_the_cache_again(tmp_path: Path) -> None:
    source = PosixFileSystem().create(f"{tmp_path}/source")
    shared, own = bytes_of(5000), bytes_of(3 * MIB)
    source.write(0, shared)
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    appender = Appender(file, lambda: 0)
    appender.append_shared(shared, source, 0)
    appender.append(own)
    appender.flush()
    assert file.direct == [(8192, 3 * MIB - 4096)]
    assert Path(tmp_path, "f").read_bytes() == shared.tobytes() + own.tobytes()


def test_a_slow_disk_gets_one_block_directly_and_memory_the_others(tmp_path: Path) -> None:
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    appender = Appender(file, itertools.count(step=0.1).__next__)
    appender.append(bytes_of(20 * MIB))
    appender.flush()
    assert file.direct == [(0, 8 * MIB)]
    assert file.through_cache == [(8 * MIB, 8 * MIB), (16 * MIB, 4 * MIB)]


def test_a_fast_disk_that_is_late_once_gets_all_blocks_directly(tmp_path: Path) -> None:
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    times = iter([0, 0.01, 0.01, 0.07, 0.07, 0.08, 0.08, 0.09])  # the second of four writes needs 60 ms
    appender = Appender(file, times.__next__)
    appender.append(bytes_of(32 * MIB))
    appender.flush()
    assert sum(size for _, size in file.direct) == 32 * MIB


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 8 * MIB, 17 * MIB + 4096, 17 * MIB + 5000])
def test_a_copy_has_the_bytes_of_its_source(tmp_path: Path, size: int) -> None:
    data = bytes_of(size).tobytes()
    Path(tmp_path, "source").write_bytes(data)
    PosixFileSystem().copy(f"{tmp_path}/source", f"{tmp_path}/copy")
    assert Path(tmp_path, "copy").read_bytes() == data


def test_whole_blocks_of_a_copy_go_past_the_cache_until_the_disk_is_slow(tmp_path: Path) -> None:
    data = bytes_of(20 * MIB + 100)
    Path(tmp_path, "source").write_bytes(data.tobytes())
    for step, copied in [(0.0, 20 * MIB), (0.1, 8 * MIB)]:
        with PosixFileSystem().open(f"{tmp_path}/source") as source:
            file = Noted(PosixFileSystem().create(f"{tmp_path}/copy-{copied}"))
            assert copy_direct(source, file, itertools.count(step=step).__next__) == copied
        assert sum(size for _, size in file.direct) == copied and not file.through_cache
        assert Path(tmp_path, f"copy-{copied}").read_bytes() == data[:copied].tobytes()


@on_linux
def test_a_large_copy_is_not_in_memory(tmp_path: Path) -> None:
    if not goes_past_the_cache(tmp_path):
        pytest.skip(f"the file system of {tmp_path} writes through the page cache")
    Path(tmp_path, "source").write_bytes(bytes_of(8 * MIB).tobytes())
    PosixFileSystem().copy(f"{tmp_path}/source", f"{tmp_path}/copy")
    with PosixFileSystem().open(f"{tmp_path}/copy") as copied:
        assert not is_in_memory(copied.fileno(), 0)


@pytest.mark.parametrize("will_sync", [False, True])
def test_only_of_files_that_are_synced_bytes_are_on_their_way_at_once(tmp_path: Path, will_sync: bool) -> None:
    # Temporary files are deleted before a slow disk would have written them.
    file = Noted(PosixFileSystem().create(f"{tmp_path}/f"))
    appender = Appender(file, itertools.count(step=0.1).__next__, will_sync=will_sync)
    appender.append(bytes_of(20 * MIB))
    appender.flush()
    assert file.on_their_way == (file.through_cache if will_sync else [])


def test_a_file_system_without_it_writes_and_reads_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *arguments: int, **options: int) -> int:
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "no such thing here", path)
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    data = bytes_of(9 * MIB)
    with PosixFileSystem().create(f"{tmp_path}/f") as file:
        appender = Appender(file)
        appender.append(data)
        appender.flush()
        file.sync()
        assert np.array_equal(read_direct(file, 0, data.size), data)
    assert Path(tmp_path, "f").read_bytes() == data.tobytes()


@on_linux
def test_a_large_file_that_was_written_and_read_directly_is_not_in_memory(tmp_path: Path) -> None:
    if not goes_past_the_cache(tmp_path):
        pytest.skip(f"the file system of {tmp_path} writes through the page cache")
    data = bytes_of(8 * MIB)
    with PosixFileSystem().create(f"{tmp_path}/f") as file:
        appender = Appender(file)
        appender.append(data)
        appender.flush()
        assert np.array_equal(read_direct(file, 4096, MIB), data[4096 : 4096 + MIB])
        assert not is_in_memory(file.fileno(), 0) and not is_in_memory(file.fileno(), 4096)
        assert file.read(0, 10) == data[:10].tobytes()
        assert is_in_memory(file.fileno(), 0)
        # Data in the page cache is read from there.
        assert np.array_equal(read_direct(file, 0, data.size), data)


def goes_past_the_cache(folder: Path) -> bool:
    with PosixFileSystem().create(f"{folder}/probe") as file:
        file.write_direct(0, direct.aligned_buffer(MIB))
        return not is_in_memory(file.fileno(), 0)


def test_a_store_that_counts_counts_what_is_read_directly(tmp_path: Path) -> None:
    Path(tmp_path, "f").write_bytes(bytes(MIB))
    store = CountedStore(PosixFileSystem())
    with store.open(f"{tmp_path}/f") as file:
        assert read_direct(file, 5000, MIB).size == MIB - 5000
    assert store.bytes_read == MIB - 4096


@on_linux
def test_little_is_read_as_it_is_and_the_system_reads_ahead(tmp_path: Path) -> None:
    Path(tmp_path, "f").write_bytes(bytes(MIB))
    store = CountedStore(PosixFileSystem())
    with store.open(f"{tmp_path}/f") as file, Path(tmp_path, "f").open("rb") as same:
        os.fsync(same.fileno())
        os.posix_fadvise(same.fileno(), 0, MIB, os.POSIX_FADV_DONTNEED)
        assert read_direct(file, 5000, 160).size == 160
        assert is_in_memory(same.fileno(), 4096)
    assert store.bytes_read == 160


def test_a_file_with_a_pace_waits_for_all_that_goes_past_the_cache(tmp_path: Path) -> None:
    waited: list[int] = []
    pace = types.SimpleNamespace(piece_bytes=MIB, wait_for=waited.append)
    store = PacedTargetStore(PosixFileSystem(), lambda: pace)
    with store.create(f"{tmp_path}/f") as file:
        file.write_direct(0, direct.aligned_buffer(2 * MIB + 4096))
        assert waited == [MIB, MIB, 4096]
        waited.clear()
        assert read_direct(file, MIB, 8 * MIB).size == MIB + 4096
    assert sum(waited) == MIB + 4096 and max(waited) == MIB


def test_a_closed_file_holds_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/fd"))
    file: ReadableFile
    with PosixFileSystem().create(f"{tmp_path}/f") as file:
        file.write_direct(0, direct.aligned_buffer(DIRECT_BLOCK_BYTES))
    assert set(os.listdir("/dev/fd")) == before
