"""The facts that a comparison of two replicas keeps about each key: its last record in each replica.

A record becomes an entry of `last_records`, whose flags are read in another way: `WENT` marks a record that only one
replica has, `ON_OTHER` which of the two, and `EXCUSE` a record outside of the comparison, which only explains that
older records of its key are gone:

    flags                 the record counts for     it explains gaps of
    none (or THERE)       both replicas             -
    WENT                  the newest replica      -
    WENT | ON_OTHER       the other replica         -
    any | EXCUSE          none                      the replicas that it would count for

Only keys with a record that one replica lacks can differ. So, as in a proof, the table needs the keys of only one part
of the entries, the smaller one of *on one side* and *on both sides*.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.last_records import ENTRY, PRIME, TOMBSTONE, WENT, mixed
from cordwood.kernels.native import load64, prefetch

U64 = np.uint64
#: Further flags in the upper bits of `low` of an entry.
ON_OTHER, EXCUSE = U64(1 << 62), U64(1 << 63)
#: A key in the table: its fingerprint; its last record in each replica, `2 * offset + is a tombstone`; the newest
#: offset that explains gaps of each replica. -1: none.
SIDES_SLOT = np.dtype(
    [("low", "<u8"), ("high", "<u8")] + [(name, "<i8") for name in ("last", "other_last", "excused", "other_excused")]
)
#: `low` of a free slot: a fingerprint is below `PRIME`.
FREE_LOW = U64(2**64 - 1)
NO_RECORD = -1
#: Kinds of ranges of offsets: their records do not count; or they explain gaps of the replicas of these bits instead.
HIDDEN, EXCUSES_NEWEST, EXCUSES_OTHER = np.int8(0), np.int8(1), np.int8(2)

_ENTRY_BYTES = ENTRY.itemsize
_HIGH_AT, _OFFSET_AT = 8, 16
_SLOT_BYTES = SIDES_SLOT.itemsize
_AHEAD = 8
_COUNTS = np.int8(-1)


@njit(inline="always")
def _home(table, low):
    return np.int64(mixed(low) & U64(table.size - 1))


@njit(inline="always")
def _slot(table, low, high):
    """Return the slot of a key, or the free slot for it."""
    at = _home(table, low)
    while table[at]["low"] != FREE_LOW and (table[at]["low"] != low or table[at]["high"] != high):
        at = (at + 1) & (table.size - 1)
    return at


@njit(inline="always")
def _kind_at(offset, firsts, lasts, kinds):
    """Return the kind of the range that holds an offset, or `_COUNTS`."""
    low, high = 0, firsts.size
    while low < high:
        middle = (low + high) // 2
        if firsts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return kinds[low - 1] if low > 0 and offset <= lasts[low - 1] else _COUNTS


@njit(cache=True, nogil=True)
def merge_sides(
    addresses,
    counts,
    piece,
    start,
    firsts,
    lasts,
    kinds,
    other_firsts,
    other_lasts,
    other_kinds,
    insert,
    table,
    used,
    used_max,
):
    """Merge entries into a table, until it is full.

    Args:
        addresses: int64[pieces], addresses of ENTRY[counts] each.
        counts: int64[pieces].
        piece, start: index of the piece to start with, and index of the entry in it.
        firsts, lasts, kinds: int64, int64, int8[ranges], ascending: ranges of offsets whose records do not count, for
            records that both replicas or the newest one have.
        other_firsts, other_lasts, other_kinds: the same for records that only the other replica has.
        insert: insert keys that are not in the table; otherwise skip them.
        table: SIDES_SLOT[a power of two] with at least one free slot.
        used_max: maximum number of used slots.

    Returns:
        (index of the piece, and index of the first entry in it that found no room; number of used slots).
    """
    has_ranges = firsts.size > 0 or other_firsts.size > 0
    while piece < counts.size:
        address, count = addresses[piece], counts[piece]
        for i in range(start, count):
            at = address + _ENTRY_BYTES * i
            if i + _AHEAD < count:
                ahead = load64(at + _AHEAD * _ENTRY_BYTES)
                prefetch(table.ctypes.data + _SLOT_BYTES * _home(table, ahead))
            if used >= used_max:
                return piece, i, used
            flags, low = load64(at), load64(at) & PRIME
            top = load64(at + _HIGH_AT)
            high, offset = top & PRIME, np.int64(load64(at + _OFFSET_AT))
            single, on_other = flags & WENT != U64(0), flags & ON_OTHER != U64(0)
            counts_for = np.int8(3) if not single else (EXCUSES_OTHER if on_other else EXCUSES_NEWEST)
            excuses = counts_for if flags & EXCUSE != U64(0) else np.int8(0)
            if has_ranges:
                if single and on_other:
                    kind = _kind_at(offset, other_firsts, other_lasts, other_kinds)
                else:
                    kind = _kind_at(offset, firsts, lasts, kinds)
                if kind == HIDDEN:
                    continue
                if kind != _COUNTS:
                    excuses = kind
            slot_at = _slot(table, low, high)
            slot = table[slot_at]
            if slot["low"] == FREE_LOW:
                if not insert:
                    continue
                used += 1
                slot["low"], slot["high"] = low, high
                slot["last"] = slot["other_last"] = NO_RECORD
                slot["excused"] = slot["other_excused"] = NO_RECORD
            code = offset * 2 + (1 if top & TOMBSTONE != U64(0) else 0)
            if excuses & EXCUSES_NEWEST != 0:
                slot["excused"] = max(slot["excused"], offset)
            if excuses & EXCUSES_OTHER != 0:
                slot["other_excused"] = max(slot["other_excused"], offset)
            if excuses == 0 and counts_for & EXCUSES_NEWEST != 0:
                slot["last"] = max(slot["last"], code)
            if excuses == 0 and counts_for & EXCUSES_OTHER != 0:
                slot["other_last"] = max(slot["other_last"], code)
        piece, start = piece + 1, 0
    return piece, 0, used


@njit(cache=True, nogil=True)
def move_sides(table, larger):
    """Move the used slots of a table to an empty, larger one; return their number."""
    used = 0
    for i in range(table.size):
        one = table[i]
        if one["low"] == FREE_LOW:
            continue
        to = larger[_slot(larger, one["low"], one["high"])]
        to["low"], to["high"] = one["low"], one["high"]
        to["last"], to["other_last"] = one["last"], one["other_last"]
        to["excused"], to["other_excused"] = one["excused"], one["other_excused"]
        used += 1
    return used
