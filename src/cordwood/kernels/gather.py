"""Copy scattered byte strings into the layout of an Arrow binary column.

A column of n strings has n + 1 offsets, a bitmap of the strings that are not null (least significant bit first), and
the bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.decode import varint
from cordwood.kernels.native import copy, load64, store64


@njit(cache=True, nogil=True)
def lay_out(sizes, offsets, validity):
    """Compute the offsets and the bitmap of a column.

    Args:
        sizes: int32[n]; negative for null.
        offsets: int32[n + 1], filled.
        validity: uint8[ceil(n / 8)], zeroed by the caller, filled.

    Returns:
        (total bytes, nulls); (-1, 0) if the total does not fit 32-bit offsets.
    """
    total = np.int64(0)
    nulls = 0
    offsets[0] = 0
    for i in range(sizes.size):
        size = sizes[i]
        if size >= 0:
            total += size
            if total > 0x7FFFFFFF:
                return np.int64(-1), 0
            validity[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
        offsets[i + 1] = total
    return total, nulls


@njit(cache=True, nogil=True)
def gather(address, starts, offsets, target):
    """Copy the strings at `starts`, int32[n] relative to `address`, to the positions in `offsets` relative to `target`.

    The caller ensures that all strings are within the source, and that the target has room for offsets[n] bytes.
    """
    for i in range(starts.size):
        at = offsets[i]
        size = offsets[i + 1] - at
        if size == 0:
            continue
        source = address + starts[i]
        if size == 16:
            store64(target + at, load64(source))
            store64(target + at + 8, load64(source + 8))
        else:
            copy(target + at, source, size)


@njit(cache=True, nogil=True)
def list_headers(address, starts, counts, name_starts, name_sizes, value_starts, value_sizes):
    """List the names and values of headers that the decoder has checked.

    Args:
        starts, counts: int32[records], position and number of each record's headers.
        name_starts, name_sizes, value_starts, value_sizes: int32[sum of counts], filled; a value size of -1 is null.

    Returns:
        the number of headers.
    """
    filled = 0
    far = address + 0x7FFFFFFF
    for i in range(starts.size):
        a = address + starts[i]
        for _ in range(counts[i]):
            size, a = varint(a, far)
            name_starts[filled] = a - address
            name_sizes[filled] = size
            a += size
            size, a = varint(a, far)
            value_starts[filled] = a - address
            value_sizes[filled] = max(size, np.int32(-1))
            a += max(size, np.int32(0))
            filled += 1
    return filled
