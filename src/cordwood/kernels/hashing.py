"""SipHash-2-4 with 128 bits: what stands for a key while records are compared.

Two keys count as the same when all 128 bits agree. The hash is keyed with a secret that nobody outside a run knows, so
nobody can write keys that collide; for keys that nobody chose against it, a collision among 10^9 keys has a chance of
10^-21. Kafka compares MD5 sums, for which colliding keys can be made.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import load8, load64, prefetch

U64 = np.uint64
_AHEAD = 16


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
def siphash128(address, size, secret0, secret1):
    """(low, high) 64 bits of the hash of `size` bytes at `address`."""
    v0 = secret0 ^ U64(0x736F6D6570736575)
    v1 = secret1 ^ U64(0x646F72616E646F6D) ^ U64(0xEE)
    v2 = secret0 ^ U64(0x6C7967656E657261)
    v3 = secret1 ^ U64(0x7465646279746573)
    last = U64(size) << U64(56)
    while size >= 8:
        word = load64(address)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        address += 8
        size -= 8
    for i in range(size):
        last |= U64(load8(address + i)) << U64(8 * i)
    v3 ^= last
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= last
    v2 ^= U64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= U64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True, nogil=True)
def hash_keys(address, starts, sizes, chosen, secret0, secret1, hashes):
    """Hash the keys of records.

    Args:
        address: of the data.
        starts, sizes: int32[records]; a negative size is no key.
        chosen: bool[records], those with a key that is wanted; the hashes of others are not filled.
        secret0, secret1: uint64, the run's secret.
        hashes: uint64[records, 2], filled.
    """
    for i in range(starts.size):
        # Keys of records with large values lie far apart, where nothing else sends for them.
        if i + _AHEAD < starts.size:
            prefetch(address + starts[i + _AHEAD])
        if chosen[i]:
            hashes[i, 0], hashes[i, 1] = siphash128(address + starts[i], sizes[i], secret0, secret1)
