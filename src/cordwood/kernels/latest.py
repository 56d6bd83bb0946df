"""Hash tables of the newest offset of each key: ours over 128-bit key hashes, and Kafka's own over MD5 sums.

A slot of ours has three numbers: both halves of a hash, and the newest offset (all ones if the slot is free). The table
is at most half full, so a look-up needs one or two probes. Each probe is a cache miss, so slots are prefetched a few
records ahead.

If most looked-up keys are not in the table, a Bloom filter is tested first: a key has three bits in one word, chosen by
the half of its hash that does not choose its slot. The filter is small enough for a cache.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import be32, load8, load32, prefetch
from cordwood.kernels.superseded import IGNORED, SUPERSEDED

U64 = np.uint64

LOW, HIGH, OFFSET = 0, 1, 2
SLOT_NUMBERS = 3
FREE = U64(0xFFFF_FFFF_FFFF_FFFF)
#: Table slots per word of a filter: 16 to 32 bits per key, so that about one of 200 keys outside the table passes.
WORD_SLOTS = 8
_AHEAD = 16


@njit(cache=True, nogil=True)
def choose_keyed(rows, start, chosen):
    """Choose the records with a key at or above an offset.

    Args:
        rows: RECORD_ROW[records].
        chosen: bool[records], filled.
    """
    for i in range(rows.size):
        chosen[i] = (rows[i]["key_size"] >= 0) & (rows[i]["offset"] >= start)


@njit(inline="always")
def _slot(slots, low, high):
    """Return the slot of a hash, or the free slot for it."""
    mask = slots.shape[0] - 1
    at = np.int64(low) & mask
    while slots[at, OFFSET] != FREE and (slots[at, LOW] != low or slots[at, HIGH] != high):
        at = (at + 1) & mask
    return at


@njit(inline="always")
def _send_for(slots, hashes, i):
    if i < hashes.shape[0]:
        at = np.int64(hashes[i, 0]) & (slots.shape[0] - 1)
        prefetch(slots.ctypes.data + 8 * SLOT_NUMBERS * at)


@njit(cache=True, nogil=True)
def put_latest(hashes, record_offsets, chosen, slots):
    """Insert records; a later record replaces an earlier one with the same key.

    Args:
        hashes: uint64[records, 2].
        record_offsets: int64[records], >= 0.
        chosen: bool[records], the records to insert.
        slots: the table, uint64[size, 3]; size is a power of two, and at least twice the number of keys.

    Returns:
        the number of new keys.
    """
    added = 0
    for i in range(min(_AHEAD, chosen.size)):
        _send_for(slots, hashes, i)
    for i in range(chosen.size):
        _send_for(slots, hashes, i + _AHEAD)
        if chosen[i]:
            at = _slot(slots, hashes[i, 0], hashes[i, 1])
            if slots[at, OFFSET] == FREE:
                slots[at, LOW] = hashes[i, 0]
                slots[at, HIGH] = hashes[i, 1]
                added += 1
            slots[at, OFFSET] = U64(record_offsets[i])
    return added


@njit(cache=True, nogil=True)
def latest_offsets(hashes, chosen, slots, found):
    """Look up records: set found[i] to the key's newest offset, or -1 if it is not in the table or not chosen.

    Args:
        hashes: uint64[records, 2]; read for chosen records only.
        chosen: bool[records].
        slots: the table, uint64[size, 3].
        found: int64[records], filled.
    """
    for i in range(min(_AHEAD, chosen.size)):
        _send_for(slots, hashes, i)
    for i in range(chosen.size):
        _send_for(slots, hashes, i + _AHEAD)
        found[i] = np.int64(slots[_slot(slots, hashes[i, 0], hashes[i, 1]), OFFSET]) if chosen[i] else -1


@njit(cache=True, nogil=True)
def move_table(slots, new_slots):
    """Copy all keys of a table to a larger, empty one."""
    for old in range(slots.shape[0]):
        if slots[old, OFFSET] != FREE:
            at = _slot(new_slots, slots[old, LOW], slots[old, HIGH])
            for number in range(SLOT_NUMBERS):
                new_slots[at, number] = slots[old, number]


@njit(inline="always")
def _word_and_bits(low, high, words):
    """Return the index of a hash's word in a filter, and its bits in that word."""
    bits = U64(1) << (high & U64(63)) | U64(1) << (high >> U64(6) & U64(63)) | U64(1) << (high >> U64(12) & U64(63))
    return np.int64(high >> U64(18)) & (words.size - 1), bits


@njit(cache=True, nogil=True)
def fill_filter(slots, words):
    """Insert all keys of a table into a filter, uint64[a power of two], zeros."""
    for slot in range(slots.shape[0]):
        if slots[slot, OFFSET] != FREE:
            at, bits = _word_and_bits(slots[slot, LOW], slots[slot, HIGH], words)
            words[at] |= bits


@njit(cache=True, nogil=True)
def probe(hashes, record_offsets, slots, words, kinds):
    """Find the records whose key has a newer record in the table.

    Args:
        hashes: uint64[records, 2].
        record_offsets: int64[records].
        slots: the table, uint64[size, 3].
        words: the filter of its keys, see `fill_filter`.
        kinds: uint8[records]; IGNORED records are skipped, found ones become SUPERSEDED.
    """
    for i in range(kinds.size):
        if kinds[i] == IGNORED:
            continue
        low, high = hashes[i, 0], hashes[i, 1]
        at, bits = _word_and_bits(low, high, words)
        if words[at] & bits != bits:
            continue
        newest = slots[_slot(slots, low, high), OFFSET]
        if newest != FREE and np.int64(newest) > record_offsets[i]:
            kinds[i] = SUPERSEDED


# ---- Kafka's offset map ----------------------------------------------------------------------------------------------

# A slot has 24 bytes, the MD5 sum of a key and an offset; an all-zero slot is free. Each of the first 13 probes is four
# bytes of the sum, at bytes 0, 1, … 12; later probes count up from the 13th. A probe is a signed number, and its slot
# is its absolute value modulo the number of slots, so probes that count up from a negative number visit the same slots
# again after 0.

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
def _slot_of_sum(digest, attempt, slots):
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
        at = _slot_of_sum(address + 16 * i, attempt, offsets.size)
        while not _is_free(sums, offsets, at) and (sums[at, 0] != digests[i, 0] or sums[at, 1] != digests[i, 1]):
            attempt += 1
            at = _slot_of_sum(address + 16 * i, attempt, offsets.size)
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
            at = _slot_of_sum(address + 16 * i, attempt, offsets.size)
            if _is_free(sums, offsets, at):
                break
            if sums[at, 0] == digests[i, 0] and sums[at, 1] == digests[i, 1]:
                found[i] = offsets[at]
                break
