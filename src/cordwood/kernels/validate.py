"""Checks the records of one batch that a producer sends, in one pass over its body; nothing is copied.

Most appends are one uncompressed batch in which nothing is wrong or has to change but its offset and epoch.
`assign_plain` does such a batch in one call. It leaves any other batch as it is, for its caller to validate.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.crc import crc32c
from cordwood.kernels.decode import BAD_LENGTH, DONE, TRAILING_BYTES, one_record
from cordwood.kernels.layout import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CRC_AT,
    CRC_START,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PREFIX_BYTES,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    SIZE_AT,
    TRANSACTIONAL,
)
from cordwood.kernels.native import be16, be32, be32u, be64, load8, put32, put64

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


#: What `assign_plain` tells of a batch, by index.
LAST_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, COUNT, ATTRIBUTES, CRC = range(
    9
)
TOLD = 9


@njit(cache=True, nogil=True)
def assign_plain(address, size, offset, leader_epoch, lowest, highest, keyed, scratch, told):
    """Give a batch its offsets, if it is one that a log takes as it is.

    That is: one whole batch of magic 2, uncompressed, of a client; with base offset 0, as many offsets as records, the
    right checksum and the right largest timestamp; each record well formed, with a timestamp within the limits.

    Args:
        address: of the append's bytes.
        size: of them.
        offset: of the first record.
        leader_epoch: for the header.
        lowest, highest: the timestamps that are allowed.
        keyed: whether each record must have a key.
        scratch: RECORD_ROW[1], overwritten.
        told: int64[TOLD]; what the header says.

    Returns:
        whether the batch was such a one; otherwise nothing was changed.
    """
    if size < HEADER_BYTES or load8(address + MAGIC_AT) != 2 or be32(address + SIZE_AT) != size - PREFIX_BYTES:
        return False
    attributes = np.int64(be16(address + ATTRIBUTES_AT))
    count = np.int64(be32(address + RECORD_COUNT_AT))
    producer_id = np.int64(be64(address + PRODUCER_ID_AT))
    base_sequence = np.int64(be32(address + BASE_SEQUENCE_AT))
    if (
        attributes & ~np.int64(TRANSACTIONAL)
        or be64(address + BASE_OFFSET_AT) != 0
        or count < 1
        or be32(address + LAST_OFFSET_DELTA_AT) != count - 1
        or (producer_id >= 0 and base_sequence < 0)
    ):
        return False
    crc = be32u(address + CRC_AT)
    if crc32c(address + CRC_START, size - CRC_START) != crc:
        return False
    base_timestamp = np.int64(be64(address + BASE_TIMESTAMP_AT))
    status, _, largest, found = check_records(
        address + HEADER_BYTES, size - HEADER_BYTES, count, base_timestamp, np.int64(-1), lowest, highest, scratch
    )
    max_timestamp = np.int64(be64(address + MAX_TIMESTAMP_AT))
    if status != DONE or largest != max_timestamp or found & BAD_TIMESTAMP or (keyed and found & NULL_KEY):
        return False
    put64(address + BASE_OFFSET_AT, offset)
    put32(address + LEADER_EPOCH_AT, leader_epoch)
    told[LAST_OFFSET] = offset + count - 1
    told[BASE_TIMESTAMP] = base_timestamp
    told[MAX_TIMESTAMP] = max_timestamp
    told[PRODUCER_ID] = producer_id
    told[PRODUCER_EPOCH] = np.int64(be16(address + PRODUCER_EPOCH_AT))
    told[BASE_SEQUENCE] = base_sequence
    told[COUNT] = count
    told[ATTRIBUTES] = attributes
    told[CRC] = np.int64(crc)
    return True
