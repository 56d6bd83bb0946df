from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.kernels.hashing import hash_keys
from cordwood.testing.reference import siphash128

#: The reference implementation's test vectors for 128 bits: key 00 01 … 0f, input 00 01 … of that many bytes.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
}
SECRET = bytes(range(16))


def kernel(keys: list[bytes | None], secret: bytes) -> list[bytes | None]:
    """The hash of each key, all from one buffer; None for None."""
    data = np.frombuffer(b"".join(key or b"" for key in keys) + bytes(8), np.uint8)
    sizes = np.array([-1 if key is None else len(key) for key in keys], np.int32)
    starts = np.array([0, *np.cumsum(np.maximum(sizes, 0))][: len(keys)], np.int32)
    hashes = np.full((len(keys), 2), 7, np.uint64)
    low, high = np.frombuffer(secret, np.uint64)
    hash_keys(data.ctypes.data, starts, sizes, sizes >= 0, low, high, hashes)
    assert (hashes[sizes < 0] == 7).all(), "the place of a missing key was written to"
    return [None if key is None else row.tobytes() for key, row in zip(keys, hashes, strict=True)]


@pytest.mark.parametrize("size", VECTORS)
def test_hashes_are_those_of_the_published_vectors(size: int) -> None:
    (found,) = kernel([bytes(range(size))], SECRET)
    assert found is not None
    assert found.hex() == VECTORS[size]
    assert siphash128(bytes(range(size)), SECRET).hex() == VECTORS[size]


KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=8)


@given(KEYS, st.binary(min_size=16, max_size=16))
def test_hashes_are_those_of_the_slow_twin_for_keys_anywhere_in_a_buffer(keys, secret) -> None:
    assert kernel(keys, secret) == [None if key is None else siphash128(key, secret) for key in keys]


#: Runs of keys with the same number of whole words are hashed side by side; these are runs, and keys that interrupt
# them.
RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(14, 35), st.one_of(st.none(), st.binary(max_size=40))), max_size=3
).map(
    lambda runs: [
        key
        for words, count, between in runs
        for key in (*(hashlib.blake2b(b"%d" % i).digest()[: 8 * words + i * 5 % 8] for i in range(count)), between)
    ]
)


@given(RUNS, st.binary(min_size=16, max_size=16))
def test_keys_that_are_hashed_side_by_side_have_the_hashes_they_have_alone(keys, secret) -> None:
    assert kernel(keys, secret) == [None if key is None else siphash128(key, secret) for key in keys]


def test_a_hash_does_not_depend_on_what_follows_the_key() -> None:
    one, _ = kernel([b"key", b"\xff" * 8], SECRET)
    other, _ = kernel([b"key", b"\0" * 8], SECRET)
    assert one == other


def test_keys_of_many_sizes_do_not_collide() -> None:
    keys: list[bytes | None] = [hashlib.blake2b(b"%d" % i).digest()[: i % 60] + b"%d" % i for i in range(2000)]
    assert len(set(kernel(keys, SECRET))) == len(keys)
