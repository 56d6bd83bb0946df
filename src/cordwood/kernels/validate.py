"""Checks the records of one batch that a producer sends, in one pass over its body; nothing is copied."""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.decode import BAD_LENGTH, DONE, TRAILING_BYTES, one_record

#: What `check_records` found, as bits.
NULL_KEY = 1  #: a record has no key
BAD_TIMESTAMP = 2  #: a timestamp is outside the limits
NO_TIMESTAMP = 4  #: a record has no timestamp
GAPS = 8  #: offset deltas are not 0, 1, 2, …


@njit(cache=True, nogil=True)
def check_records(address, size, count, base_timestamp, timestamp, lowest, highest, scratch):
    """Walk the records of a batch of magic 2.

    Args:
        address: of the batch's body, decompressed.
        size: of the body in bytes.
        count: of records, as the header says.
        base_timestamp: as the header says.
        timestamp: of all records, for a batch flagged LogAppendTime; -1: each has its own.
        lowest, highest: the timestamps that are allowed.
        scratch: RECORD_ROW[1], overwritten.

    Returns:
        (status, records, largest timestamp, found): with a negative status (`decode.PROBLEMS`), how many records were
        good; `found` has the bits above.
    """
    at = np.int64(0)
    found = 0
    largest = np.int64(-1)
    row = scratch[0]
    if count < 0:
        return BAD_LENGTH, 0, largest, found
    for i in range(count):
        at, status = one_record(address, at, size, True, np.int64(0), base_timestamp, row)
        if status != DONE:
            return status, i, largest, found
        own = row["timestamp"] if timestamp < 0 else timestamp
        if row["key_size"] < 0:
            found |= NULL_KEY
        if own == -1:
            found |= NO_TIMESTAMP
        elif own < lowest or own > highest:
            found |= BAD_TIMESTAMP
        if row["offset"] != i:
            found |= GAPS
        largest = max(largest, own)
    if count and at != size:
        return TRAILING_BYTES, count, largest, found
    return DONE, count, largest, found
