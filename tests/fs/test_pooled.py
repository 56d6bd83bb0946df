"""A pool keeps few files open, which its users do not notice."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cordwood.fs.base import File
from cordwood.fs.pooled import PooledFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.testing.memory import MemoryFileSystem

pytestmark = pytest.mark.more


def open_files(folder: Path) -> int:
    """Number of this process's descriptors for files in a folder, including unlinked files."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except OSError:
            continue
    return found


linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")


@pytest.fixture
def pool() -> PooledFileSystem:
    return PooledFileSystem(PosixFileSystem(), 3)


def files(pool: PooledFileSystem, folder: Path, count: int) -> list[File]:
    made = [pool.create(f"{folder}/{number}") for number in range(count)]
    for number, file in enumerate(made):
        file.write(0, b"%d" % number)
    return made


@linux
def test_however_many_files_are_used_few_are_open(pool: PooledFileSystem, tmp_path: Path) -> None:
    used = files(pool, tmp_path, 50)
    for _ in range(2):
        assert [file.read(0, 9) for file in used] == [b"%d" % number for number in range(50)]
        assert open_files(tmp_path) <= 3


@linux
def test_nothing_is_opened_before_it_is_used(pool: PooledFileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    file = pool.open_for_update(f"{tmp_path}/f")
    assert (file.size(), open_files(tmp_path)) == (3, 0)
    assert (file.read(0, 2), open_files(tmp_path)) == (b"ab", 1)


@linux
def test_a_file_without_a_user_is_closed(pool: PooledFileSystem, tmp_path: Path) -> None:
    used = files(pool, tmp_path, 2)
    del used
    assert open_files(tmp_path) == 0


def test_a_file_that_is_not_open_stays_itself_when_it_is_removed_or_replaced(
    pool: PooledFileSystem, tmp_path: Path
) -> None:
    used = files(pool, tmp_path, 9)
    pool.unlink(f"{tmp_path}/0")
    pool.rename(f"{tmp_path}/2", f"{tmp_path}/1")
    assert [used[number].read(0, 9) for number in range(3)] == [b"0", b"1", b"2"]
    used[1].write(0, b"x")
    assert (tmp_path / "1").read_bytes() == b"2", "its name is another file's"


def test_a_renamed_directory_is_followed(pool: PooledFileSystem, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "ab").mkdir()
    used = [*files(pool, tmp_path / "a", 5), *files(pool, tmp_path / "a" / "b", 2), *files(pool, tmp_path / "ab", 2)]
    pool.rename(f"{tmp_path}/a", f"{tmp_path}/c")
    assert [file.read(0, 9) for file in used] == [b"%d" % number for number in (*range(5), 0, 1, 0, 1)]
    pool.unlink(f"{tmp_path}/c/b/1")
    assert used[6].read(0, 9) == b"1"


def test_readers_are_not_disturbed_when_their_files_are_closed(pool: PooledFileSystem, tmp_path: Path) -> None:
    used = files(pool, tmp_path, 12)
    failed: list[object] = []

    def read(first: int) -> None:
        for turn in range(600):
            number = (first + turn * 7) % 12
            found = used[number].read(0, 9)
            if found != b"%d" % number:
                failed.append((number, found))

    threads = [threading.Thread(target=read, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for turn in range(200):  # names change meanwhile
        pool.rename(f"{tmp_path}/{turn % 12}", f"{tmp_path}/moved")
        pool.rename(f"{tmp_path}/moved", f"{tmp_path}/{turn % 12}")
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_location_is_that_of_the_file_system_below() -> None:
    memory = MemoryFileSystem(lambda: 0)
    assert PooledFileSystem(memory, 1).location().open() is memory
    assert isinstance(PooledFileSystem(PosixFileSystem(), 1).location().open(), PosixFileSystem)
