"""Kafka's offset map: an open-addressing hash table over the MD5 sums of keys.

A slot has 24 bytes, the sum and an offset; an all-zero slot is free. Each of the first 13 probes is four bytes of the
sum, at bytes 0, 1, … 12; later probes count up from the 13th. A probe is a signed number, and its slot is its absolute
value modulo the number of slots, so probes that count up from a negative number visit the same slots again after 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import be32, load8, load32

U32 = np.uint32

#: The last position of four bytes in a sum of 16 bytes.
LAST_WINDOW = 12
_SINES = np.array([int(abs(np.sin(i + 1)) * 2**32) for i in range(64)], U32)
_SHIFTS = np.array([[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]], U32)


@njit(inline="always")
def _rotated(x, bits):
    return (x << bits) | (x >> (U32(32) - bits))


@njit
def _digest_block(state, words):
    """Update an MD5 state (RFC 1321), uint32[4], with a block of 16 words."""
    a, b, c, d = state[0], state[1], state[2], state[3]
    for i in range(64):
        part = i >> 4
        if part == 0:
            mixed, word = (b & c) | (~b & d), i
        elif part == 1:
            mixed, word = (d & b) | (~d & c), (5 * i + 1) & 15
        elif part == 2:
            mixed, word = b ^ c ^ d, (3 * i + 5) & 15
        else:
            mixed, word = c ^ (b | ~d), (7 * i) & 15
        rotated = _rotated(U32(a + mixed + _SINES[i] + words[word]), _SHIFTS[part, i & 3])
        a, d, c, b = d, c, b, U32(b + rotated)
    state[0], state[1], state[2], state[3] = a + state[0], b + state[1], c + state[2], d + state[3]


@njit(cache=True, nogil=True)
def digest_keys(address, starts, sizes, chosen, digests):
    """Compute the MD5 sums of the keys of records.

    Args:
        starts, sizes: int32[records].
        chosen: bool[records], the records with a key to hash; the digests of others are not filled.
        digests: uint32[records, 4], filled with the 16 bytes of each sum.
    """
    words = np.empty(16, U32)
    for i in range(sizes.size):
        if not chosen[i]:
            continue
        key, size = address + starts[i], np.int64(sizes[i])
        state = digests[i]
        state[0], state[1], state[2], state[3] = U32(0x67452301), U32(0xEFCDAB89), U32(0x98BADCFE), U32(0x10325476)
        done = 0
        while size - done >= 64:
            for w in range(16):
                words[w] = load32(key + done + 4 * w)
            _digest_block(state, words)
            done += 64
        # Padding: the remaining bytes, a 1 bit, zeros, and the size in bits at the end of the last block.
        words[:] = 0
        left = size - done
        for at in range(left):
            words[at >> 2] |= U32(load8(key + done + at)) << U32(8 * (at & 3))
        words[left >> 2] |= U32(0x80) << U32(8 * (left & 3))
        if left >= 56:
            _digest_block(state, words)
            words[:] = 0
        words[14], words[15] = U32((size << 3) & 0xFFFFFFFF), U32(size >> 29)
        _digest_block(state, words)


@njit(inline="always")
def _slot(digest, attempt, slots):
    probe = np.int64(be32(digest + min(attempt, LAST_WINDOW))) + max(0, attempt - LAST_WINDOW)
    if probe >= 2**31:
        probe -= 2**32
    return 0 if probe == -(2**31) else abs(probe) % slots


@njit(inline="always")
def _is_free(sums, offsets, at):
    return offsets[at] == 0 and sums[at, 0] == 0 and sums[at, 1] == 0


@njit(cache=True, nogil=True)
def put_offsets(address, digests, record_offsets, chosen, sums, offsets, entries, limit):
    """Insert records until the map has `limit` keys; then stop at the next chosen record, even if its key is known.

    Args:
        digests: uint64[records, 2], the 16 bytes of each sum.
        record_offsets: int64[records].
        chosen: bool[records], the records to insert.
        sums, offsets: the map, uint64[slots, 2] and int64[slots].
        entries: current number of keys in the map.
        limit: maximum number of keys; at most the number of slots.

    Returns:
        (index, entries): index of the first chosen record that was not inserted, or the number of records; and the new
        number of keys.
    """
    for i in range(chosen.size):
        if not chosen[i]:
            continue
        if entries >= limit:
            return i, entries
        attempt = 0
        at = _slot(address + 16 * i, attempt, offsets.size)
        while not _is_free(sums, offsets, at) and (sums[at, 0] != digests[i, 0] or sums[at, 1] != digests[i, 1]):
            attempt += 1
            at = _slot(address + 16 * i, attempt, offsets.size)
        if _is_free(sums, offsets, at):
            entries += 1
            sums[at, 0], sums[at, 1] = digests[i, 0], digests[i, 1]
        offsets[at] = record_offsets[i]
    return chosen.size, entries


@njit(cache=True, nogil=True)
def get_offsets(address, digests, chosen, sums, offsets, found):
    """Look up records: set found[i] to the key's newest offset, or -1 if it is not in the map or not chosen."""
    for i in range(chosen.size):
        found[i] = -1
        if not chosen[i]:
            continue
        for attempt in range(offsets.size + LAST_WINDOW):
            at = _slot(address + 16 * i, attempt, offsets.size)
            if _is_free(sums, offsets, at):
                break
            if sums[at, 0] == digests[i, 0] and sums[at, 1] == digests[i, 1]:
                found[i] = offsets[at]
                break
