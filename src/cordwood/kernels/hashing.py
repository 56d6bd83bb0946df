"""SipHash-2-4 with 128 bits, which represents a key when records are compared.

Keys are considered equal if all 128 bits are equal. The hash uses a secret that is known only within the run, so an
attacker cannot produce colliding keys; the chance of an accidental collision among 10^9 keys is 10^-21. Kafka compares
MD5 sums, for which colliding keys can be constructed.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import load8, load64, prefetch

U64 = np.uint64
_V0, _V1, _V2, _V3 = (
    U64(0x736F6D6570736575),
    U64(0x646F72616E646F6D ^ 0xEE),
    U64(0x6C7967656E657261),
    U64(0x7465646279746573),
)
_LANES = 16


@njit(inline="always")
def _rotate(x, bits):
    return (x << U64(bits)) | (x >> U64(64 - bits))


@njit(inline="always")
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@njit(inline="always")
def _tail(address, size):
    """Return the last word of the input: the bytes after the key's whole words, and in the top byte the key's size."""
    last = U64(size) << U64(56)
    rest = size & 7
    for i in range(rest):
        last |= U64(load8(address + size - rest + i)) << U64(8 * i)
    return last


@njit(inline="always")
def siphash128(address, size, secret0, secret1):
    """Hash `size` bytes at `address`; return the (low, high) 64 bits."""
    v0 = secret0 ^ _V0
    v1 = secret1 ^ _V1
    v2 = secret0 ^ _V2
    v3 = secret1 ^ _V3
    for at in range(address, address + size - 7, 8):
        word = load64(at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    last = _tail(address, size)
    v3 ^= last
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= last
    return _finish(v0, v1, v2, v3)


@njit(inline="always")
def _finish(v0, v1, v2, v3):
    v2 ^= U64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= U64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@njit(inline="always")
def _side_by_side(address, starts, sizes, first, secret0, secret1, lanes, hashes):
    """Hash `_LANES` keys with the same number of whole words at once; the compiler vectorizes the loops over lanes.

    `lanes` is uint64[5, _LANES], for the four words of each key's state and the current word of input.
    """
    v0, v1, v2, v3, word = lanes[0], lanes[1], lanes[2], lanes[3], lanes[4]
    for lane in range(_LANES):
        v0[lane] = secret0 ^ _V0
        v1[lane] = secret1 ^ _V1
        v2[lane] = secret0 ^ _V2
        v3[lane] = secret1 ^ _V3
    words = sizes[first] >> 3
    for at in range(words + 1):
        for lane in range(_LANES):
            key = address + starts[first + lane]
            word[lane] = load64(key + 8 * at) if at < words else _tail(key, sizes[first + lane])
        for lane in range(_LANES):
            a, b, c, d = v0[lane], v1[lane], v2[lane], v3[lane] ^ word[lane]
            a, b, c, d = _round(a, b, c, d)
            a, b, c, d = _round(a, b, c, d)
            v0[lane], v1[lane], v2[lane], v3[lane] = a ^ word[lane], b, c, d
    for lane in range(_LANES):
        v0[lane], v1[lane] = _finish(v0[lane], v1[lane], v2[lane], v3[lane])
    for lane in range(_LANES):
        hashes[first + lane, 0], hashes[first + lane, 1] = v0[lane], v1[lane]


@njit(inline="always")
def _alike(sizes, chosen, first):
    """Return whether the next `_LANES` keys exist, are all chosen, and have the same number of whole words."""
    if first + _LANES > sizes.size:
        return False
    alike = True
    for lane in range(_LANES):
        alike &= chosen[first + lane] & (sizes[first + lane] >> 3 == sizes[first] >> 3)
    return alike


@njit(cache=True, nogil=True)
def hash_keys(address, starts, sizes, chosen, secret0, secret1, hashes):
    """Hash the keys of records.

    Args:
        starts, sizes: int32[records]; a negative size means no key.
        chosen: bool[records], the records with a key to hash; the hashes of others are not filled.
        secret0, secret1: uint64, the run's secret.
        hashes: uint64[records, 2], filled.
    """
    lanes = np.empty((5, _LANES), np.uint64)
    i = 0
    while i < starts.size:
        # Keys of records with large values are far apart, so the processor does not prefetch them by itself.
        for ahead in range(i + _LANES, min(i + 2 * _LANES, starts.size)):
            prefetch(address + starts[ahead])
        if _alike(sizes, chosen, i):
            _side_by_side(address, starts, sizes, i, secret0, secret1, lanes, hashes)
            i += _LANES
            continue
        for _ in range(min(_LANES, starts.size - i)):
            if chosen[i]:
                hashes[i, 0], hashes[i, 1] = siphash128(address + starts[i], sizes[i], secret0, secret1)
            i += 1
