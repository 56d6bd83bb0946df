"""The facts that a proof keeps about each key: its last record, and its last value that still exists.

A key is represented by a fingerprint: two polynomials of its bytes, modulo the prime 2^61 - 1, at two secret random
points. The probability that two keys of up to n bytes agree in both is below (n/7 + 2)^2 / 2^122, whatever the keys
are: two different polynomials of degree d are equal at d points at most. Among 10^10 keys of 16 bytes, the probability
that any two agree is below 10^-15. The cleaner compares keys by another hash with its own secret, so that both do not
fail together.

Each record that counts becomes an entry of three numbers. Both fingerprints need 61 bits; the remaining bits hold facts
about the record. Entries are divided by hash range, removed records apart from remaining ones, and then merged into a
table with a slot per key, range by range. Entries of one key can be merged in any order.

The last record of a key is the one with the largest rank, and of equal ranks the one with the largest offset. The rank
is the offset, unless the keep rule adds a number to the end of each entry and slot (`ranked`).

Only keys with a removed record can be wrong. So the table needs the keys of only one side, the smaller one. If fewer
records were removed, they are inserted, and the remaining records are looked up. If fewer records remain, they are
inserted first, and then the removed ones, which add only the keys without a remaining record.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.native import has_rank, item_bytes, load8, load32, load64, multiply, prefetch, store64

U64 = np.uint64

ENTRY = np.dtype([("low", "<u8"), ("high", "<u8"), ("offset", "<i8")])
#: A key in the table: its fingerprint, with facts about its last record; and its last value that still exists.
SLOT = np.dtype([("low", "<u8"), ("high", "<u8"), ("value_there", "<i8"), ("last", "<i8")])
#: Bytes of a slot that an entry lacks, and of a rank.
_MORE_BYTES, _RANK_BYTES = SLOT.itemsize - ENTRY.itemsize, 8
_HIGH_AT, _OFFSET_AT = 8, 16
#: Flag in the upper bits of `low`: a record of the key was removed.
WENT = U64(1 << 61)
#: Flags in the upper bits of `high`: the record exists after the clean; it may be removed; it is a tombstone.
THERE, MAY_GO, TOMBSTONE = U64(1 << 61), U64(1 << 62), U64(1 << 63)
#: `last` of a free slot; `value_there` of a key without an existing value.
FREE = NO_VALUE = -1
#: Flags for all records of a batch: they count for their keys; their tombstones may be removed; they get an entry only
#: if they were removed.
COUNTS, TOMBSTONES_MAY_GO, ONLY_REMOVED = np.uint8(1), np.uint8(2), np.uint8(4)

PRIME = U64((1 << 61) - 1)
_CHUNK_BYTES = 7
_CHUNK_MASK = U64((1 << 56) - 1)
_MIX_0, _MIX_1 = U64(0x9E3779B97F4A7C15), U64(0xD6E8FEB86659FD93)
_AHEAD = 8


def ranked(kind: np.dtype[np.void]) -> np.dtype[np.void]:
    """Return the dtype of entries, or slots, with a rank besides the offset."""
    return np.dtype([*kind.descr, ("rank", "<i8")])


@njit(inline="always")
def _rank_at(array, i):
    """Return the address of the rank of an entry, or a slot."""
    return array.ctypes.data + item_bytes(array) * (i + 1) - _RANK_BYTES


@njit(inline="always")
def _step(number, point, chunk):
    """Return number * point + chunk modulo the prime, not fully reduced. Number and result are below 2^62."""
    high, low = multiply(number, point)
    # 2^61 is 1 modulo the prime, so 2^64 is 8. The product is below 2^123, the sum below 2^63.
    total = (low & PRIME) + ((low >> U64(61)) | (high << U64(3))) + chunk
    return (total & PRIME) + (total >> U64(61))


@njit(inline="always")
def _reduced(number):
    """Return the number modulo the prime; results of `_step` are at most three above it."""
    return number - PRIME if number >= PRIME else number


@njit(inline="always")
def _last_chunk(end, size, left):
    """Return the last 1 to 7 bytes, `left`, of `size` bytes that end at an address, without a loop."""
    if size >= 8:
        return load64(end - 8) >> U64(64 - 8 * left)
    # The key has only these bytes. Overlapping loads agree on the bytes they share.
    if left >= 4:
        return U64(load32(end - left)) | (U64(load32(end - 4)) << U64(8 * (left - 4)))
    middle = left >> 1
    chunk = U64(load8(end - left)) | (U64(load8(end - left + middle)) << U64(8 * middle))
    return chunk | (U64(load8(end - 1)) << U64(8 * (left - 1)))


@njit(inline="always")
def _fingerprint(address, size, point0, point1):
    """Return the fingerprint (low, high) of `size` bytes at `address`."""
    low = high = U64(size + 1)
    end = address + size
    at = address
    while at + 8 <= end:
        chunk = load64(at) & _CHUNK_MASK
        low, high = _step(low, point0, chunk), _step(high, point1, chunk)
        at += _CHUNK_BYTES
    if at < end:
        chunk = _last_chunk(end, size, end - at)
        low, high = _step(low, point0, chunk), _step(high, point1, chunk)
    return _reduced(low), _reduced(high)


@njit(inline="always")
def enter(entries, used, address, row, rank, rule, is_there, between, points):
    """Make the entry of one record, if it counts; return the number of entries used. See `enter_records`."""
    offset = row["offset"]
    if is_there and rule & ONLY_REMOVED != 0:
        return used
    if rule & COUNTS == 0 or row["key_size"] < 0 or offset < between[0] or offset >= between[1]:
        return used
    low, high = _fingerprint(address + row["key_start"], row["key_size"], points[0], points[1])
    if is_there:
        high |= THERE
    else:
        low |= WENT
    if row["value_size"] < 0:
        high |= TOMBSTONE
        if rule & TOMBSTONES_MAY_GO != 0:
            high |= MAY_GO
    entry = entries[used]
    entry["low"], entry["high"], entry["offset"] = low, high, offset
    if has_rank(entries):
        store64(_rank_at(entries, used), U64(rank))
    return used + 1


@njit(cache=True, nogil=True)
def enter_records(data_address, rows, ranks, rules, there, between, points, entries, used):
    """Make an entry of each record that counts for its key.

    Args:
        data_address: address of the bytes that contain the keys.
        rows: RECORD_ROW[records].
        ranks: int64[records]; the offsets, unless the entries are ranked.
        rules: uint8[batches], by `rows["batch"]`: `COUNTS` if records of the batch count, `TOMBSTONES_MAY_GO`,
            `ONLY_REMOVED`.
        there: bool[records]: the record exists after the clean, too.
        between: int64[2]: offsets [low, high) count.
        points: uint64[2], secret, below `PRIME`.
        entries: ENTRY[at least used + records], filled from `used` on.

    Returns:
        the number of entries used.
    """
    for i in range(rows.size):
        row = rows[i]
        used = enter(entries, used, data_address, row, ranks[i], rules[row["batch"]], there[i], between, points)
    return used


@njit(inline="always")
def mixed(low):
    """Return 64 bits that each depend on all bits of a fingerprint; fingerprints of short keys are close together."""
    low = (low & PRIME) * _MIX_0
    low ^= low >> U64(32)
    return low * _MIX_1


@njit(inline="always")
def _section(entry, ranges):
    """Return the section of an entry: removed and remaining records have separate sections in each hash range."""
    number = ((mixed(entry["low"]) >> U64(32)) * U64(ranges)) >> U64(32)
    return np.int64(number) * 2 + (0 if entry["low"] & WENT != U64(0) else 1)


@njit(cache=True, nogil=True)
def divide(entries, ranges, target, starts):
    """Sort entries into sections: 2n has the removed records of hash range n, 2n + 1 the remaining ones.

    Args:
        entries: ENTRY[n].
        ranges: number of hash ranges; at most 2^31.
        target: ENTRY[n], filled.
        starts: int64[2 * ranges + 1], zeros, filled: start of each section in `target`, and the end.
    """
    for i in range(entries.size):
        starts[_section(entries[i], ranges) + 1] += 1
    for section in range(1, starts.size):
        starts[section] += starts[section - 1]
    nexts = starts[:-1].copy()
    for i in range(entries.size):
        section = _section(entries[i], ranges)
        to, one = target[nexts[section]], entries[i]
        to["low"], to["high"], to["offset"] = one["low"], one["high"], one["offset"]
        if has_rank(target):
            store64(_rank_at(target, nexts[section]), load64(_rank_at(entries, i)))
        nexts[section] += 1


@njit(inline="always")
def _is_same_key(left, right):
    return (left["low"] ^ right["low"]) & PRIME == U64(0) and (left["high"] ^ right["high"]) & PRIME == U64(0)


@njit(cache=True, nogil=True)
def keep_last(entries, starts, slots):
    """Keep only the last removed record of each key, by offset: an older one adds no information.

    Args:
        entries: ENTRY[n] in sections, see `divide`; the offsets of a section ascend. Moved to the front.
        starts: int64[sections + 1], changed to the new start of each section, and the end.
        slots: int32[a power of two, above the size of each section of removed records].

    Returns:
        the remaining number of entries.
    """
    to = np.int64(0)
    start = starts[0]
    for section in range(starts.size - 1):
        end = starts[section + 1]
        starts[section] = to
        is_there = section & 1 == 1
        size = 2
        while not is_there and size < min(2 * (end - start), slots.size):
            size *= 2
        if not is_there:
            slots[:size] = FREE
        for i in range(start, end):
            one = entries[i]
            place = to
            if not is_there:
                at = np.int64(mixed(one["low"]) & U64(size - 1))
                while slots[at] != FREE and not _is_same_key(entries[slots[at]], one):
                    at = (at + 1) & (size - 1)
                if slots[at] == FREE:
                    slots[at] = to
                place = np.int64(slots[at])
            kept = entries[place]
            kept["low"], kept["high"], kept["offset"] = one["low"], one["high"], one["offset"]
            to += place == to
        start = end
    starts[starts.size - 1] = to
    return to


@njit(inline="always")
def _home(table, low):
    # Within a hash range the upper bits are almost the same.
    return np.int64(mixed(low) & U64(table.size - 1))


@njit(inline="always")
def _slot(table, low, high):
    """Return the slot of a key, or the free slot for it."""
    mask = table.size - 1
    at = _home(table, low)
    while table[at]["last"] != FREE and (
        (table[at]["low"] ^ low) & PRIME != U64(0) or (table[at]["high"] ^ high) & PRIME != U64(0)
    ):
        at = (at + 1) & mask
    return at


@njit(inline="always")
def _is_within(offset, firsts, lasts):
    """Return whether an offset is in one of some ascending ranges, including their ends."""
    low, high = 0, firsts.size
    while low < high:
        middle = (low + high) // 2
        if firsts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low > 0 and offset <= lasts[low - 1]


@njit(cache=True, nogil=True)
def merge_entries(addresses, counts, piece, start, firsts, lasts, insert, table, used, used_max):
    """Merge entries into a table, until it is full.

    Args:
        addresses: int64[pieces], addresses of ENTRY[counts] each; ranked if the table is.
        counts: int64[pieces].
        piece, start: index of the piece to start with, and index of the entry in it.
        firsts, lasts: int64[ranges], ascending: the offsets of uncommitted records, which do not count.
        insert: insert keys that are not in the table; otherwise skip them.
        table: SLOT[a power of two] with at least one free slot.
        used_max: maximum number of used slots.

    Returns:
        (index of the piece, and index of the first entry in it that found no room; number of used slots).
    """
    entry_bytes = item_bytes(table) - _MORE_BYTES
    while piece < counts.size:
        address, count = addresses[piece], counts[piece]
        for i in range(start, count):
            at = address + entry_bytes * i
            if i + _AHEAD < count:
                prefetch(table.ctypes.data + item_bytes(table) * _home(table, load64(at + _AHEAD * entry_bytes)))
            if used >= used_max:
                return piece, i, used
            low, high, offset = load64(at), load64(at + _HIGH_AT), np.int64(load64(at + _OFFSET_AT))
            if firsts.size > 0 and _is_within(offset, firsts, lasts):
                continue
            slot_at = _slot(table, low, high)
            slot, rank_at = table[slot_at], _rank_at(table, slot_at)
            rank, largest = offset, slot["last"]
            if has_rank(table):
                rank, largest = np.int64(load64(at + entry_bytes - _RANK_BYTES)), np.int64(load64(rank_at))
            is_new = slot["last"] == FREE
            if is_new:
                if not insert:
                    continue
                used += 1
                slot["low"], slot["value_there"] = low, NO_VALUE
            elif (low & ~slot["low"]) & WENT != U64(0):
                slot["low"] |= WENT
            if is_new or rank > largest or (rank == largest and offset > slot["last"]):
                slot["high"], slot["last"] = high, offset
                if has_rank(table):
                    store64(rank_at, U64(rank))
            if high & THERE != U64(0) and high & TOMBSTONE == U64(0) and offset > slot["value_there"]:
                slot["value_there"] = offset
        piece, start = piece + 1, 0
    return piece, 0, used


@njit(cache=True, nogil=True)
def move_slots(table, larger):
    """Move the used slots of a table to an empty, larger one; return their number."""
    used = 0
    for i in range(table.size):
        one = table[i]
        if one["last"] == FREE:
            continue
        at = _slot(larger, one["low"], one["high"])
        to = larger[at]
        to["low"], to["high"], to["last"] = one["low"], one["high"], one["last"]
        to["value_there"] = one["value_there"]
        if has_rank(table):
            store64(_rank_at(larger, at), load64(_rank_at(table, i)))
        used += 1
    return used
