"""What a proof knows of each key: its last record, and its last value that is still there.

A key stands in the table as a fingerprint: two polynomials of its bytes, modulo the prime 2^61 - 1, at two secret
random points. Two keys of up to n bytes agree in both with a chance below (n/7 + 2)^2 / 2^122, whatever the keys are:
polynomials of degree d that differ are equal at d points at most. Of 10^10 keys of 16 bytes any two agree with a chance
below 10^-15. The cleaner compares keys by another hash, with a secret of its own, so that both are not wrong together.

An entry is four numbers. Both fingerprints take 61 bits, and what is known of the last record takes the other three of
the second one. Entries of one key that come from different parts of a log can be merged in any order.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.native import load8, load64, prefetch

U64 = np.uint64

ENTRY = np.dtype([("low", "<u8"), ("high", "<u8"), ("last", "<i8"), ("value_there", "<i8")])
#: What is known of the last record of a key, in the upper bits of `high`: it is there after the clean; it may be gone;
#: it is a tombstone.
THERE, MAY_GO, TOMBSTONE = U64(1 << 61), U64(1 << 62), U64(1 << 63)
#: `last` of a free slot; `value_there` of a key without a value that is there.
FREE = NO_VALUE = -1

PRIME = U64((1 << 61) - 1)
_LOW_32, _LOW_29 = U64((1 << 32) - 1), U64((1 << 29) - 1)
_CHUNK_BYTES = 7
_CHUNK_MASK = U64((1 << 56) - 1)
_MIX_0, _MIX_1 = U64(0x9E3779B97F4A7C15), U64(0xD6E8FEB86659FD93)
_AHEAD = 8


@njit(inline="always")
def _times(a, b):
    """A product modulo the prime; both factors are below it."""
    a_high, a_low = a >> U64(32), a & _LOW_32
    b_high, b_low = b >> U64(32), b & _LOW_32
    low, middle, high = a_low * b_low, a_high * b_low + a_low * b_high, a_high * b_high
    # 2^61 is 1 modulo the prime, so 2^64 is 8.
    total = (high << U64(3)) + (middle >> U64(29)) + ((middle & _LOW_29) << U64(32)) + (low & PRIME) + (low >> U64(61))
    return _reduced(total)


@njit(inline="always")
def _reduced(number):
    number = (number & PRIME) + (number >> U64(61))
    return number - PRIME if number >= PRIME else number


@njit(inline="always")
def _fingerprint(address, size, point0, point1):
    """(low, high) of `size` bytes at `address`."""
    low = high = U64(size + 1)
    end = address + size
    at = address
    while at < end:
        if at + 8 <= end:
            chunk = load64(at) & _CHUNK_MASK
        else:
            chunk = U64(0)
            for i in range(min(_CHUNK_BYTES, end - at)):
                chunk |= U64(load8(at + i)) << U64(8 * i)
        low = _reduced(_times(low, point0) + chunk)
        high = _reduced(_times(high, point1) + chunk)
        at += _CHUNK_BYTES
    return low, high


@njit(cache=True, nogil=True)
def fingerprints(data_address, starts, sizes, points, lows, highs):
    """Fingerprint keys.

    Args:
        data_address: of the bytes that hold the keys.
        starts, sizes: int32[keys], within these bytes.
        points: uint64[2], secret, below `PRIME`.
        lows, highs: uint64[keys], filled.
    """
    for i in range(starts.size):
        lows[i], highs[i] = _fingerprint(data_address + starts[i], sizes[i], points[0], points[1])


@njit(inline="always")
def _mixed(low):
    """64 bits that all depend on all bits of a fingerprint; those of short keys are neighbours."""
    low *= _MIX_0
    low ^= low >> U64(32)
    return low * _MIX_1


@njit(cache=True, nogil=True)
def number_buckets(lows, count, numbers):
    """The hash range of each key.

    Args:
        lows: uint64[keys], first halves of fingerprints.
        numbers: int64[keys], filled: 0 to count - 1.
    """
    for i in range(lows.size):
        numbers[i] = ((_mixed(lows[i]) >> U64(32)) * U64(count)) >> U64(32)


@njit(inline="always")
def _home(table, low):
    # Within a hash range the upper bits are much the same.
    return np.int64(_mixed(low) & U64(table.size - 1))


@njit(inline="always")
def _merge_one(table, low, high, last, value_there):
    """Enter one entry; returns whether its key is new."""
    mask = table.size - 1
    at = _home(table, low)
    while table[at]["last"] != FREE and (table[at]["low"] != low or (table[at]["high"] ^ high) & PRIME != U64(0)):
        at = (at + 1) & mask
    is_new = table[at]["last"] == FREE
    if last > table[at]["last"]:
        table[at]["low"], table[at]["high"], table[at]["last"] = low, high, last
    if is_new or value_there > table[at]["value_there"]:
        table[at]["value_there"] = value_there
    return is_new


@njit(cache=True, nogil=True)
def merge_entries(entries, start, table, used, used_max):
    """Merge entries into a table, until it is full.

    Args:
        entries: ENTRY[n]. `last` is not negative.
        start: index of the first that counts.
        table: ENTRY[a power of two], of which fewer than all slots are used.
        used_max: how many may be.

    Returns:
        (index of the first entry that found no room, how many slots are used).
    """
    for i in range(start, entries.size):
        if i + _AHEAD < entries.size:
            prefetch(table.ctypes.data + 32 * _home(table, entries[i + _AHEAD]["low"]))
        if used >= used_max:
            return i, used
        one = entries[i]
        if _merge_one(table, one["low"], one["high"], one["last"], one["value_there"]):
            used += 1
    return entries.size, used
