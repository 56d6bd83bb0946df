"""The newest offset of each key: an open-addressing hash table over 128-bit key hashes.

A slot is four numbers: both halves of a hash, the newest offset (all ones: the slot is free) and the ordinal of that
record, a running number. The table is at most half full, so a look-up takes one or two probes. Each probe is a cache
miss, so slots are prefetched a few records ahead. `cleaning.offset_map` has Kafka's own map, with its slots, limit and
MD5.

Entering a record shows which older record it supersedes. So if records are entered in the order of their offsets, all
superseded records are known without look-ups, as one bit per ordinal.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import prefetch

U64 = np.uint64

LOW, HIGH, OFFSET, ORDINAL = 0, 1, 2, 3
SLOT_NUMBERS = 4
FREE = U64(0xFFFF_FFFF_FFFF_FFFF)
_AHEAD = 16


@njit(cache=True, nogil=True)
def choose_keyed(rows, start, chosen):
    """Choose the records with a key at or above an offset.

    Args:
        rows: RECORD_ROW[records].
        start: the offset.
        chosen: bool[records], filled.
    """
    for i in range(rows.size):
        chosen[i] = (rows[i]["key_size"] >= 0) & (rows[i]["offset"] >= start)


@njit(inline="always")
def _slot(slots, low, high):
    """The slot of a hash, or the free slot for it."""
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
def put_latest(hashes, record_offsets, chosen, first_ordinal, last_offset, slots, superseded):
    """Enter records; a later record supersedes an earlier one with the same key.

    Args:
        hashes: uint64[records, 2].
        record_offsets: int64[records], >= 0.
        chosen: bool[records], the records to enter.
        first_ordinal: ordinal of the first record. Records that are not entered also take up an ordinal.
        last_offset: of the record that was entered last, -1 before the first.
        slots: the table, uint64[size, 4]; size is a power of two, and at least twice the keys entered.
        superseded: uint8[> last ordinal / 8], a bit per ordinal, set for superseded records.

    Returns:
        (added, last_offset, in_order): number of new keys; offset of the record entered last; whether each offset was
        above the one before.
    """
    added = 0
    in_order = True
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
            else:
                old = slots[at, ORDINAL]
                superseded[old >> U64(3)] |= np.uint8(1) << np.uint8(old & U64(7))
            slots[at, OFFSET] = U64(record_offsets[i])
            slots[at, ORDINAL] = U64(first_ordinal + i)
            in_order = in_order and record_offsets[i] > last_offset
            last_offset = record_offsets[i]
    return added, last_offset, in_order


@njit(cache=True, nogil=True)
def latest_offsets(hashes, chosen, slots, found):
    """Look up records: found[i] is set to the newest offset of the key, -1 if it is not in the table or not chosen.

    Args:
        hashes: uint64[records, 2]; read for chosen records only.
        chosen: bool[records].
        slots: the table, uint64[size, 4].
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
def _bit(superseded, ordinal):
    return (superseded[ordinal >> 3] >> np.uint8(ordinal & 7)) & np.uint8(1)


@njit(cache=True, nogil=True)
def count_superseded(superseded, first_ordinals, sizes, counts):
    """Count the superseded records of each batch.

    Args:
        superseded: uint8, a bit per ordinal.
        first_ordinals: int64[batches], of each batch's first record; negative: skip the batch, its count is 0.
        sizes: int64[batches], records in each.
        counts: int64[batches], filled.
    """
    for b in range(first_ordinals.size):
        counts[b] = 0
        if first_ordinals[b] >= 0:
            for ordinal in range(first_ordinals[b], first_ordinals[b] + sizes[b]):
                counts[b] += _bit(superseded, ordinal)


@njit(cache=True, nogil=True)
def note_batches(rows, batches, chosen, first_ordinal, smallest, last_offsets, crcs, ordinals, tombstones):
    """List the batches of magic 2 whose records were all entered.

    Args:
        rows: RECORD_ROW[records]; the records of a batch are adjacent.
        batches: BATCH_ROW[batches] of the rows.
        chosen: bool[records], the records that were entered.
        first_ordinal: of the first record.
        smallest: batches with fewer records are left out.
        last_offsets: int64[batches], crcs: uint32[batches], ordinals: int64[batches] (of each batch's first record),
            tombstones: bool[batches] (whether it has any); filled from the start.

    Returns:
        the number of batches listed.
    """
    count = 0
    i = 0
    while i < rows.size:
        b = rows[i]["batch"]
        start = i
        whole = True
        some = False
        while i < rows.size and rows[i]["batch"] == b:
            whole = whole and chosen[i]
            some = some or rows[i]["value_size"] < 0
            i += 1
        batch = batches[b]
        if whole and i - start >= smallest and i - start == batch["record_count"] and batch["magic"] == 2:
            last_offsets[count] = batch["last_offset"]
            crcs[count] = batch["crc"]
            ordinals[count] = first_ordinal + start
            tombstones[count] = some
            count += 1
    return count
