"""The newest offset of each key: an open-addressing table over 128-bit key hashes.

A slot is a hash and an offset; an offset of -1 marks it free. The table is made at most half full, so a look-up ends
after a probe or two. Kafka's own map, with its slots, limit and MD5, is `cleaning.offset_map`.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(inline="always")
def _slot(slots, offsets, low, high):
    """The slot of a hash, or the free one where it would go."""
    mask = offsets.size - 1
    at = np.int64(low) & mask
    while offsets[at] >= 0 and (slots[at, 0] != low or slots[at, 1] != high):
        at = (at + 1) & mask
    return at


@njit(cache=True)
def put_latest(hashes, record_offsets, chosen, slots, offsets):
    """Enter records; a later one with the same key takes the place of an earlier one.

    Args:
        hashes: uint64[records, 2].
        record_offsets: int64[records], >= 0.
        chosen: bool[records], those that are entered.
        slots, offsets: the table, uint64[size, 2] and int64[size]; a power of two, at least twice the keys entered.

    Returns:
        how many keys are new.
    """
    added = 0
    for i in range(record_offsets.size):
        if chosen[i]:
            at = _slot(slots, offsets, hashes[i, 0], hashes[i, 1])
            if offsets[at] < 0:
                slots[at, 0] = hashes[i, 0]
                slots[at, 1] = hashes[i, 1]
                added += 1
            offsets[at] = record_offsets[i]
    return added


@njit(cache=True)
def latest_offsets(hashes, chosen, slots, offsets, found):
    """Look up records: found[i] becomes the newest offset of the key, -1 if it is not in the table or not chosen."""
    for i in range(chosen.size):
        found[i] = offsets[_slot(slots, offsets, hashes[i, 0], hashes[i, 1])] if chosen[i] else -1


@njit(cache=True)
def move_table(slots, offsets, new_slots, new_offsets):
    """Enter all of one table into a larger, empty one."""
    for old in range(offsets.size):
        if offsets[old] >= 0:
            at = _slot(new_slots, new_offsets, slots[old, 0], slots[old, 1])
            new_slots[at, 0] = slots[old, 0]
            new_slots[at, 1] = slots[old, 1]
            new_offsets[at] = offsets[old]
