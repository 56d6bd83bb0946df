"""A store that reads each byte once answers as the store below it, and reads each byte from it only once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cordwood.fs.read_once import ReadOnceStore
from cordwood.fs.wrapped import CountedStore
from cordwood.testing.memory import MemoryFileSystem

SIZE = 100
DATA = bytes(range(SIZE))
reads = st.lists(st.tuples(st.booleans(), st.integers(0, SIZE + 5), st.integers(0, 40)), max_size=30)


def counted() -> CountedStore:
    fs = MemoryFileSystem(lambda: 0)
    for name in ("a.log", "b.log", "c.index"):
        with fs.create(f"/{name}") as file:
            file.write(0, DATA)
    return CountedStore(fs)


def read(store: ReadOnceStore, path: str, position: int, size: int, *, into: bool) -> bytes:
    with store.open(path) as file:
        if not into:
            return file.read(position, size)
        target = bytearray(size)
        count = file.read_into(position, memoryview(target))
        return bytes(target[:count])


@given(reads, st.integers(0, 2 * SIZE))
def test_reads_give_the_bytes_of_the_file_each_of_which_is_read_once(
    reads: list[tuple[bool, int, int]], memory: int
) -> None:
    below = counted()
    store = ReadOnceStore(below, memory, suffix=".log")
    wanted: set[int] = set()
    for into, position, size in reads:
        assert read(store, "/a.log", position, size, into=into) == DATA[position : position + size]
        wanted |= set(range(position, min(position + size, SIZE)))
    assert below.bytes_read >= len(wanted)
    if memory >= SIZE:
        assert below.bytes_read == len(wanted)


def test_other_files_and_what_does_not_fit_are_read_each_time() -> None:
    below = counted()
    store = ReadOnceStore(below, SIZE, suffix=".log")
    sizes = []
    for path in ("/a.log", "/a.log", "/b.log", "/b.log", "/c.index", "/c.index"):
        before = below.bytes_read
        assert read(store, path, 0, 2 * SIZE, into=False) == DATA
        sizes.append(below.bytes_read - before)
    assert sizes == [SIZE, 0, SIZE, SIZE, SIZE, SIZE]
