"""The newest offset of each key: an open-addressing hash table over 128-bit key hashes.

A slot has three numbers: both halves of a hash, and the newest offset (all ones if the slot is free). The table is at
most half full, so a look-up needs one or two probes. Each probe is a cache miss, so slots are prefetched a few records
ahead. `rules.offset_map` has Kafka's own map, with its slots, limit and MD5.

If most looked-up keys are not in the table, a Bloom filter is tested first: a key has three bits in one word, chosen by
the half of its hash that does not choose its slot. The filter is small enough for a cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import prefetch
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
