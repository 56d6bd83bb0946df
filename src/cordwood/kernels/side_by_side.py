"""Compares the records of two states of a log, in the order of their offsets.

Both come as rows of the decoder, which has checked every position and size. Fields are compared, not encoded bytes: a
batch that is encoded anew has other deltas and sizes for the same records.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.decode import varint
from cordwood.kernels.native import load8, load64

#: What of a record of the state after is not as it was; `INVENTED`: the state before has no record of its offset.
INVENTED, TIMESTAMP, KEY, VALUE, HEADERS = (np.uint8(1 << bit) for bit in range(5))

_FAR = 0x7FFFFFFF


@njit(inline="always")
def _same_bytes(a, b, size):
    different = np.uint64(0)
    at = 0
    # Four words without a branch between them.
    while at + 32 <= size:
        different |= load64(a + at) ^ load64(b + at)
        different |= load64(a + at + 8) ^ load64(b + at + 8)
        different |= load64(a + at + 16) ^ load64(b + at + 16)
        different |= load64(a + at + 24) ^ load64(b + at + 24)
        if different != np.uint64(0):
            return False
        at += 32
    while at + 8 <= size:
        different |= load64(a + at) ^ load64(b + at)
        at += 8
    while at < size:
        different |= np.uint64(load8(a + at) ^ load8(b + at))
        at += 1
    return different == np.uint64(0)


@njit
def _same_headers(a, b, count):
    """Whether so many headers at two addresses are equal; a value that is null differs from an empty one."""
    a_far, b_far = a + _FAR, b + _FAR
    for _ in range(count):
        for _ in range(2):  # the name, and the value
            a_size, a = varint(a, a_far)
            b_size, b = varint(b, b_far)
            a_size, b_size = max(a_size, np.int32(-1)), max(b_size, np.int32(-1))
            if a_size != b_size or not _same_bytes(a, b, a_size):
                return False
            a += max(a_size, np.int32(0))
            b += max(b_size, np.int32(0))
    return True


@njit(cache=True, nogil=True)
def match_records(before_address, before, before_at, after_address, after, after_at, there, differs):
    """Compare records until one state has no more rows.

    Args:
        before_address, after_address: of the bytes that the rows point into.
        before, after: RECORD_ROW[records]; the offsets of each ascend.
        before_at, after_at: indexes to start at.
        there: bool[records before], all false; set where the state after has a record of that offset.
        differs: uint8[records after], all `INVENTED`; set to what differs, 0 for nothing, where the offset is known.

    Returns:
        the indexes of the first rows that have not been compared.
    """
    while before_at < before.size and after_at < after.size:
        was, now = before[before_at], after[after_at]
        if was["offset"] < now["offset"]:
            before_at += 1
            continue
        if was["offset"] > now["offset"]:
            after_at += 1
            continue
        found = np.uint8(0)
        if was["timestamp"] != now["timestamp"]:
            found |= TIMESTAMP
        size = was["key_size"]
        a, b = before_address + was["key_start"], after_address + now["key_start"]
        if size != now["key_size"] or not _same_bytes(a, b, size):
            found |= KEY
        size = was["value_size"]
        a, b = before_address + was["value_start"], after_address + now["value_start"]
        if size != now["value_size"] or not _same_bytes(a, b, size):
            found |= VALUE
        count = was["header_count"]
        if count != now["header_count"]:
            found |= HEADERS
        elif count > 0:
            a, b = before_address + was["headers_start"], after_address + now["headers_start"]
            if not _same_headers(a, b, count):
                found |= HEADERS
        there[before_at] = True
        differs[after_at] = found
        before_at += 1
        after_at += 1
    return before_at, after_at


@njit(cache=True, nogil=True)
def look_over(rows, last, ascends, batch_first, batch_count, batch_newest):
    """One pass over decoded records: do their offsets ascend, and which records are those of each batch?

    Args:
        rows: RECORD_ROW[records], those of a batch side by side.
        last: the offset of the record before them.
        ascends: bool[records], filled: the offset is above all before it.
        batch_first, batch_count, batch_newest: int64[records], filled for each batch that has records: the index of the
            first, how many there are, their largest timestamp.

    Returns:
        (batches with records, records that do not ascend).
    """
    batches = 0
    wrong = 0
    current = np.int64(-1)
    for i in range(rows.size):
        row = rows[i]
        above = row["offset"] > last
        ascends[i] = above
        if above:
            last = row["offset"]
        else:
            wrong += 1
        if row["batch"] != current:
            current = row["batch"]
            batch_first[batches], batch_count[batches], batch_newest[batches] = i, 0, row["timestamp"]
            batches += 1
        batch_count[batches - 1] += 1
        batch_newest[batches - 1] = max(batch_newest[batches - 1], row["timestamp"])
    return batches, wrong
