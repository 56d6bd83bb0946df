"""Keys among other bytes: the same places as `bytes.find` gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cordwood.storage.index.traces import KEY_BYTES_MIN, ByteSearch
from cordwood.testing.memory import MemoryFileSystem


def plain(data: bytes, keys: list[bytes]) -> set[tuple[int, bytes]]:
    """Every place where a key begins."""
    places = ((at, key) for key in keys if len(key) >= KEY_BYTES_MIN for at in range(len(data)))
    return {(at, key) for at, key in places if data[at : at + len(key)] == key}


SOME = st.binary(max_size=9).map(lambda data: bytes(byte % 3 for byte in data))


@given(st.lists(SOME, max_size=30), st.lists(SOME, max_size=6))
def test_keys_are_found_where_plain_python_finds_them(parts: list[bytes], keys: list[bytes]) -> None:
    data = b"".join(parts)
    found = list(ByteSearch(keys).find(np.frombuffer(data, np.uint8)))
    assert len(found) == len(set(found)) and set(found) == plain(data, keys)


def test_keys_across_pieces_of_a_file_are_found_once_within_its_part() -> None:
    piece, key = 4 << 20, b"across-the-edge"
    data = bytearray(2 * piece + 100)
    places = [0, piece - 7, 2 * piece - len(key), 2 * piece, len(data) - len(key)]
    for at in places:
        data[at : at + len(key)] = key
    fs = MemoryFileSystem(lambda: 0)
    with fs.create("/file") as file:
        file.write(0, bytes(data))
        assert list(ByteSearch([key]).find_in_file(file, 0, len(data))) == [(at, key) for at in places]
        some = list(ByteSearch([key]).find_in_file(file, 1, len(data) - 1))
        assert [at for at, _ in some] == places[1:-1]
