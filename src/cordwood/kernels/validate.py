"""Check the records of one batch that a producer sends, in one pass over its body, without copying.

Most appends are one valid uncompressed batch, and only its offset and epoch have to change. `assign_plain` handles
such a batch in one call. It leaves any other batch unchanged, for its caller to validate.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.crc import crc32c
from cordwood.kernels.decode import (
    BAD_HEADERS,
    BAD_LENGTH,
    BAD_VARINT,
    DONE,
    MISSING_RECORDS,
    RECORD_OVERRUN,
    TRAILING_BYTES,
    one_record,
    varint,
    varlong,
)
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
    LOG_APPEND_TIME,
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

#: Findings of `check_records`, as bits.
NULL_KEY = 1  #: a record has no key
BAD_TIMESTAMP = 2  #: a timestamp is outside the limits
NO_TIMESTAMP = 4  #: a record has no timestamp
GAPS = 8  #: offsets are not 0, 1, 2, …

#: Indexes into the limits of timestamps: the current time, and how far before and after it timestamps may be.
NOW, BEFORE_MAX, AFTER_MAX = range(3)
LIMITS = 3


@njit(inline="always")
def _skip(address, end):
    """Skip a size and as many bytes; return (size, address behind them or 0, status)."""
    size, address = varint(address, end)
    if address <= 0:
        return size, 0, BAD_VARINT if address < 0 else RECORD_OVERRUN
    if size > end - address:
        return size, 0, RECORD_OVERRUN
    return size, address + max(size, np.int32(0)), DONE


@njit
def _partial_record(address, at, end, base_offset, base_timestamp, row):
    """Decode the record at `at` like `one_record`, but ignore its length.

    Kafka reads the records of a compressed batch this way if it keeps the batch unchanged: the fields alone decide
    where a record ends.
    """
    stop = address + end
    _, a = varint(address + at, stop)
    if a <= 0:
        return at, BAD_VARINT if a < 0 else MISSING_RECORDS
    delta, a = varlong(a + 1, stop)
    if a <= 0:
        return at, BAD_VARINT if a < 0 else RECORD_OVERRUN
    row["timestamp"] = base_timestamp + delta
    offset_delta, a = varint(a, stop)
    if a <= 0:
        return at, BAD_VARINT if a < 0 else RECORD_OVERRUN
    row["offset"] = base_offset + offset_delta
    row["key_size"], a, status = _skip(a, stop)
    if status != DONE:
        return at, status
    _, a, status = _skip(a, stop)
    if status != DONE:
        return at, status
    count, a = varint(a, stop)
    if a <= 0:
        return at, BAD_VARINT if a < 0 else RECORD_OVERRUN
    if count < 0:
        return at, BAD_HEADERS
    for _ in range(count):
        size, a, status = _skip(a, stop)
        if status == DONE and size < 0:
            status = BAD_HEADERS
        if status == DONE:
            _, a, status = _skip(a, stop)
        if status != DONE:
            return at, status
    return a - address, DONE


@njit(cache=True, nogil=True)
def check_records(header, body, size, is_partial, limits, rows):
    """Check the records of a batch of magic 2.

    Args:
        header: address of the batch, for the fields of its header.
        body: address of its records, decompressed.
        size: size of the records in bytes.
        is_partial: ignore the lengths of records, see `_partial_record`.
        limits: int64[LIMITS].
        rows: RECORD_ROW[1 or more], filled with offset, timestamp and key size of each record; records beyond its size
            overwrite the last row.

    Returns:
        (status, records, largest timestamp, found): with a negative status (`decode.PROBLEMS`), the number of good
        records; `found` has the bits above.
    """
    count = np.int64(be32(header + RECORD_COUNT_AT))
    base_offset = np.int64(be64(header + BASE_OFFSET_AT))
    base_timestamp = np.int64(be64(header + BASE_TIMESTAMP_AT))
    append_time = be16(header + ATTRIBUTES_AT) & LOG_APPEND_TIME != 0
    at, found, largest = np.int64(0), 0, np.int64(-1)
    if count < 0:
        return BAD_LENGTH, 0, largest, found
    for i in range(count):
        row = rows[min(i, rows.size - 1)]
        if is_partial:
            at, status = _partial_record(body, at, size, base_offset, base_timestamp, row)
        else:
            at, status = one_record(body, at, size, True, base_offset, base_timestamp, row)
        if status != DONE:
            return status, i, largest, found
        if append_time:
            row["timestamp"] = np.int64(be64(header + MAX_TIMESTAMP_AT))
        timestamp = row["timestamp"]
        if row["key_size"] < 0:
            found |= NULL_KEY
        age = limits[NOW] - timestamp  # may overflow, as in Kafka
        if timestamp == -1:
            found |= NO_TIMESTAMP
        elif age > limits[BEFORE_MAX] or -age > limits[AFTER_MAX]:
            found |= BAD_TIMESTAMP
        if row["offset"] != i:
            found |= GAPS
        largest = max(largest, timestamp)
    if count and at != size:
        return TRAILING_BYTES, count, largest, found
    return DONE, count, largest, found


#: Output of `assign_plain`, by index: the leader epoch that the batch had, then the fields of a BATCH_ROW.
(SENT_LEADER_EPOCH, POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, BASE_TIMESTAMP) = range(6)
(MAX_TIMESTAMP, PRODUCER_ID, LEADER_EPOCH, BASE_SEQUENCE, COUNT, CRC) = range(6, 12)
(COMPUTED_CRC, ATTRIBUTES, PRODUCER_EPOCH, MAGIC, CONTROL_TYPE) = range(12, 17)
TOLD = 17


@njit(cache=True, nogil=True)
def assign_plain(address, size, offset, leader_epoch, limits, keyed, scratch, told):
    """Assign offsets to a batch, if a log accepts it unchanged.

    The conditions: one whole batch of magic 2, uncompressed, from a client; with base offset 0, as many offsets as
    records, the right checksum and the right largest timestamp; each record well formed, with a timestamp within the
    limits.

    Args:
        address: address of the append's bytes.
        limits: int64[LIMITS].
        keyed: whether each record must have a key.
        scratch: RECORD_ROW[1], overwritten.
        told: int64[TOLD], filled: the batch after the change, and the leader epoch that it had.

    Returns:
        whether the batch met the conditions; otherwise nothing was changed.
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
        address, address + HEADER_BYTES, size - HEADER_BYTES, False, limits, scratch
    )
    max_timestamp = np.int64(be64(address + MAX_TIMESTAMP_AT))
    if status != DONE or largest != max_timestamp or found & BAD_TIMESTAMP or (keyed and found & NULL_KEY):
        return False
    told[SENT_LEADER_EPOCH] = np.int64(be32(address + LEADER_EPOCH_AT))
    put64(address + BASE_OFFSET_AT, offset)
    put32(address + LEADER_EPOCH_AT, leader_epoch)
    told[POSITION] = 0
    told[SIZE] = size
    told[BASE_OFFSET] = offset
    told[LAST_OFFSET] = offset + count - 1
    told[BASE_TIMESTAMP] = base_timestamp
    told[MAX_TIMESTAMP] = max_timestamp
    told[PRODUCER_ID] = producer_id
    told[LEADER_EPOCH] = leader_epoch
    told[BASE_SEQUENCE] = base_sequence
    told[COUNT] = count
    told[CRC] = np.int64(crc)
    told[COMPUTED_CRC] = np.int64(crc)
    told[ATTRIBUTES] = attributes
    told[PRODUCER_EPOCH] = np.int64(be16(address + PRODUCER_EPOCH_AT))
    told[MAGIC] = 2
    told[CONTROL_TYPE] = -1
    return True
