"""The newest offset of each key: an open-addressing table over 128-bit key hashes.

A slot is four numbers: both halves of a hash, the newest offset (all ones: the slot is free) and the ordinal of its
record, which counts the records that were entered. The table is made at most half full, so a look-up ends after a probe
or two. Each probe meets memory that no cache holds, so it is sent for some records ahead. Kafka's own map, with its
slots, limit and MD5, is `cleaning.offset_map`.

Whoever enters a record learns which older one it takes the place of. So while records come in the order of their
offsets, all that is superseded is known, as one bit per ordinal, without a look-up.
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
    """The slot of a hash, or the free one where it would go."""
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
    """Enter records; a later one with the same key takes the place of an earlier one.

    Args:
        hashes: uint64[records, 2].
        record_offsets: int64[records], >= 0.
        chosen: bool[records], those that are entered.
        first_ordinal: of these records; each gets one, also those that are not entered.
        last_offset: of the record that was entered last, -1 before the first.
        slots: the table, uint64[size, 4]; size a power of two, at least twice the keys entered.
        superseded: uint8[> last ordinal / 8], a bit per ordinal, set for each whose place is taken.

    Returns:
        (added, last_offset, in_order): how many keys are new; the last offset, now; whether all offsets were above the
        one before.
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
    """Look up records: found[i] becomes the newest offset of the key, -1 if it is not in the table or not chosen.

    Args:
        hashes: uint64[records, 2], of those that are chosen.
        chosen: bool[records].
        slots: the table.
        found: int64[records], filled.
    """
    for i in range(min(_AHEAD, chosen.size)):
        _send_for(slots, hashes, i)
    for i in range(chosen.size):
        _send_for(slots, hashes, i + _AHEAD)
        found[i] = np.int64(slots[_slot(slots, hashes[i, 0], hashes[i, 1]), OFFSET]) if chosen[i] else -1


@njit(cache=True, nogil=True)
def move_table(slots, new_slots):
    """Enter all of one table into a larger, empty one."""
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
    """How many records of each batch are superseded.

    Args:
        superseded: uint8, a bit per ordinal.
        first_ordinals: int64[batches], of each batch's first record; negative: the batch is left out.
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
    """Take note of batches of magic 2 of which all records are entered.

    Args:
        rows: RECORD_ROW[records]; those of a batch are side by side.
        batches: BATCH_ROW[batches] that the rows are of.
        chosen: bool[records], those that are entered.
        first_ordinal: of the first record.
        smallest: a batch of fewer records is left out.
        last_offsets: int64[batches], crcs: uint32[batches], ordinals: int64[batches] (of each batch's first record),
            tombstones: bool[batches] (whether it holds any); filled from the start.

    Returns:
        how many were noted.
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
