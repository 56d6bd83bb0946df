"""Decode batch bodies into a row per record (`kernels.layout.RECORD_ROW`), and copy fields of rows into Arrow columns.

The body of a magic 2 batch is a sequence of records made of zigzag varints; the body of an old compressed wrapper is a
sequence of messages. A body may arrive in pieces, because a small compressed batch may contain gigabytes: a kernel then
stops before the record that the piece cuts, and returns `MORE`.

If the bytes violate Kafka's format, a kernel stops with a negative status, which is a key of `PROBLEMS`.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.crc import crc32
from cordwood.kernels.layout import (
    BASE_OFFSET_AT,
    CODEC_MASK,
    HEADER_BYTES_BY_MAGIC,
    LEGACY_ATTRIBUTES_AT,
    LEGACY_CRC_AT,
    LEGACY_CRC_START,
    LEGACY_TIMESTAMP_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MIN_ENTRY_BYTES,
    MIN_SIZE_FIELD,
    PREFIX_BYTES,
    SIZE_AT,
)
from cordwood.kernels.native import be32, be32u, be64, copy, load8, load64, prefetch, store64

#: Why decoding stopped; negative numbers are problems.
DONE = 0
MORE = 1  #: the piece ends inside a record
ROWS = 2  #: no room for another row

BAD_VARINT = -1
BAD_LENGTH = -2
RECORD_OVERRUN = -3
LENGTH_MISMATCH = -4
BAD_HEADERS = -5
TRAILING_BYTES = -6
MISSING_RECORDS = -7
NESTED_WRAPPER = -8
BAD_MESSAGE_SIZE = -9
BAD_MESSAGE_MAGIC = -10
BAD_MESSAGE_CRC = -11

PROBLEMS = {
    BAD_VARINT: "a number is longer than its type allows",
    BAD_LENGTH: "a record has a length that nothing can have",
    RECORD_OVERRUN: "a record reaches beyond the end of its batch",
    LENGTH_MISMATCH: "a record's fields do not take the length it declares",
    BAD_HEADERS: "a record's headers cannot be",
    TRAILING_BYTES: "bytes follow the last record",
    MISSING_RECORDS: "the batch ends before its last record",
    NESTED_WRAPPER: "a message inside a compressed message set is compressed itself",
    BAD_MESSAGE_SIZE: "a message inside a compressed message set has a size that nothing can have",
    BAD_MESSAGE_MAGIC: "a message inside a compressed message set has an unknown magic",
    BAD_MESSAGE_CRC: "a message inside a compressed message set has a wrong CRC",
}

_AHEAD = 2


@njit(inline="always")
def varint(address, end):
    """Read a varint; return (value, next address). A next address of 0: it is truncated; -1: it is too long."""
    if address >= end:
        return np.int32(0), 0
    byte = np.uint32(load8(address))
    address += 1
    raw = byte & np.uint32(0x7F)
    shift = 7
    while byte >= np.uint32(0x80):
        if shift > 28:
            return np.int32(0), -1
        if address >= end:
            return np.int32(0), 0
        byte = np.uint32(load8(address))
        address += 1
        raw |= (byte & np.uint32(0x7F)) << np.uint32(shift)
        shift += 7
    # A fifth byte may have bits beyond the 32nd; like Kafka, drop them. (numba keeps them, as it widens to 64 bits.)
    raw &= np.uint32(0xFFFFFFFF)
    return np.int32(raw >> np.uint32(1)) ^ -np.int32(raw & np.uint32(1)), address


@njit(inline="always")
def varlong(address, end):
    """Like `varint`, for up to 64 bits."""
    if address >= end:
        return np.int64(0), 0
    byte = np.uint64(load8(address))
    address += 1
    raw = byte & np.uint64(0x7F)
    shift = 7
    while byte >= np.uint64(0x80):
        if shift > 63:
            return np.int64(0), -1
        if address >= end:
            return np.int64(0), 0
        byte = np.uint64(load8(address))
        address += 1
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        shift += 7
    return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), address


@njit(inline="always")
def _cut(next_address):
    # The end of the record is known here, so a truncated number means that the record's length is wrong.
    return BAD_VARINT if next_address < 0 else LENGTH_MISMATCH


@njit
def _headers(address, end, count):
    """Skip `count` headers; return (address after them, 0) or (0, status)."""
    for _ in range(count):
        size, address = varint(address, end)
        if address <= 0:
            return 0, _cut(address)
        if size < 0 or size > end - address:
            return 0, BAD_HEADERS
        address += size
        size, address = varint(address, end)
        if address <= 0:
            return 0, _cut(address)
        if size > 0:
            if size > end - address:
                return 0, BAD_HEADERS
            address += size
    return address, 0


@njit(inline="always")
def one_record(address, at, end, final, base_offset, base_timestamp, row):
    """Decode the record at `at` of a body that ends at `end`.

    Returns:
        (position, status): with DONE, the position after the record; with MORE, the position up to which bytes are
        needed.
    """
    stop = address + end
    size, a = varint(address + at, stop)
    if a <= 0:
        if a < 0:
            return at, BAD_VARINT
        return at + 5, MISSING_RECORDS if final else MORE
    if size < 0:
        return at, BAD_LENGTH
    if size > stop - a:
        # The record may end far beyond the piece; return its end, so that the caller fetches enough.
        return a - address + size, RECORD_OVERRUN if final else MORE
    stop = a + size
    if size < 1:
        return at, LENGTH_MISMATCH
    delta, a = varlong(a + 1, stop)
    if a <= 0:
        return at, _cut(a)
    row["timestamp"] = base_timestamp + delta
    offset_delta, a = varint(a, stop)
    if a <= 0:
        return at, _cut(a)
    row["offset"] = base_offset + offset_delta
    size, a = varint(a, stop)
    if a <= 0:
        return at, _cut(a)
    row["key_start"] = a - address
    row["key_size"] = max(size, np.int32(-1))
    if size > 0:
        if size > stop - a:
            return at, LENGTH_MISMATCH
        a += size
    size, a = varint(a, stop)
    if a <= 0:
        return at, _cut(a)
    row["value_start"] = a - address
    row["value_size"] = max(size, np.int32(-1))
    if size > 0:
        if size > stop - a:
            return at, LENGTH_MISMATCH
        a += size
    count, a = varint(a, stop)
    if a <= 0:
        return at, _cut(a)
    if count < 0 or count > stop - a:
        return at, BAD_HEADERS
    row["headers_start"] = a - address
    row["header_count"] = count
    if count > 0:
        a, status = _headers(a, stop, count)
        if status < 0:
            return at, status
    if a != stop:
        return at, LENGTH_MISMATCH
    return a - address, DONE


@njit(cache=True, nogil=True)
def decode_records(address, starts, ends, final, batches, batch, at, done, rows):
    """Decode the bodies of batches of magic 2, one after the other.

    Args:
        address: address of the data that contains all bodies.
        starts, ends: int64[batches], positions of each body in the data.
        final: False if the last body continues in a later piece.
        batches: BATCH_ROW[batches].
        batch, at, done: where to continue: index of the batch, position in the data, records of it already decoded.
            Start with (0, starts[0], 0).
        rows: RECORD_ROW[capacity], filled from the start.

    Returns:
        (status, count, batch, at, done, needed): rows filled, and where to continue or where the error is. With MORE,
        the next call needs the data up to position `needed`.
    """
    count = 0
    while batch < starts.size:
        header = batches[batch]
        base_offset = header["base_offset"]
        base_timestamp = header["base_timestamp"]
        append_time = header["attributes"] & LOG_APPEND_TIME != 0
        max_timestamp = header["max_timestamp"]
        total = header["record_count"]
        end = ends[batch]
        last = final or batch + 1 < starts.size
        if total < 0:
            return BAD_LENGTH, count, batch, at, done, 0
        while done < total:
            if count == rows.size:
                return ROWS, count, batch, at, done, 0
            row = rows[count]
            after, status = one_record(address, at, end, last, base_offset, base_timestamp, row)
            if status != DONE:
                return status, count, batch, at, done, after
            if append_time:
                row["timestamp"] = max_timestamp
            row["batch"] = batch
            count += 1
            # The starts of later records are unknown yet; guess that the next ones have the size of this one.
            prefetch(address + after + _AHEAD * (after - at))
            at = after
            done += 1
        if total == 0:
            # Kafka does not read the body of a batch with a record count of 0.
            at = end
        if at != end:
            return TRAILING_BYTES, count, batch, at, done, 0
        if not last:
            # All records are decoded, but whether trailing bytes follow is known only with the next piece.
            return MORE, count, batch, at, done, end + 1
        batch += 1
        done = 0
        if batch < starts.size:
            at = starts[batch]
    return DONE, count, batch, at, done, 0


@njit(inline="always")
def _message_fields(address, at, end, row):
    """Decode key and value of an old message that ends at `end`; its key size is at `at`. Return the status."""
    if end - at < 8:
        return BAD_MESSAGE_SIZE
    size = np.int64(be32(address + at))
    at += 4
    row["key_start"] = at
    row["key_size"] = max(size, np.int64(-1))
    if size > 0:
        if size > end - at - 4:
            return BAD_MESSAGE_SIZE
        at += size
    size = np.int64(be32(address + at))
    at += 4
    row["value_start"] = at
    row["value_size"] = max(size, np.int64(-1))
    if size > end - at:
        return BAD_MESSAGE_SIZE
    row["headers_start"] = at
    row["header_count"] = 0
    return DONE


@njit(cache=True, nogil=True)
def decode_messages(address, first_position, batches, first_batch, rows):
    """Decode uncompressed messages of magic 0 and 1, each of which is an entry of the file.

    Args:
        first_position: position in the file of the window's first byte.
        batches: BATCH_ROW[messages], none of them a wrapper, all within the window.
        first_batch: the `batch` index of the first message's row.
        rows: RECORD_ROW[>= messages], filled from the start.

    Returns:
        (status, count): messages decoded before the first error.
    """
    for i in range(batches.size):
        message = batches[i]
        row = rows[i]
        start = message["position"] - first_position
        at = start + HEADER_BYTES_BY_MAGIC[message["magic"]]
        status = _message_fields(address, at, start + message["size_bytes"], row)
        if status != DONE:
            return status, i
        row["offset"] = message["last_offset"]
        row["timestamp"] = message["max_timestamp"]
        row["batch"] = first_batch + i
    return DONE, batches.size


@njit(cache=True, nogil=True)
def decode_message_set(address, size, at, final, check_crcs, rows, magics):
    """Decode the inner messages of a wrapper. Offsets and timestamps are not adjusted.

    Like Kafka, treat an incomplete last message as the end of the set.

    Args:
        address: address of the decompressed set, or of a piece of it.
        size: its length in bytes.
        at: position to start at.
        final: whether this is the last piece of the set.
        check_crcs: whether inner CRCs are checked.
        rows: RECORD_ROW[capacity].
        magics: int8[capacity], each message's own magic.

    Returns:
        (status, count, at, needed), as in `decode_records`.
    """
    count = 0
    while True:
        if size - at < PREFIX_BYTES:
            return DONE if final else MORE, count, at, at + PREFIX_BYTES
        a = address + at
        message_size = np.int64(be32(a + SIZE_AT))
        if message_size < MIN_SIZE_FIELD:
            return BAD_MESSAGE_SIZE, count, at, 0
        end = at + PREFIX_BYTES + message_size
        if end > size:
            return DONE if final else MORE, count, at, end
        if count == rows.size:
            return ROWS, count, at, 0
        magic = load8(a + MAGIC_AT)
        if magic > 1:
            return BAD_MESSAGE_MAGIC, count, at, 0
        if PREFIX_BYTES + message_size < MIN_ENTRY_BYTES[magic]:
            return BAD_MESSAGE_SIZE, count, at, 0
        if load8(a + LEGACY_ATTRIBUTES_AT) & CODEC_MASK != 0:
            return NESTED_WRAPPER, count, at, 0
        if check_crcs and crc32(a + LEGACY_CRC_START, end - at - LEGACY_CRC_START) != be32u(a + LEGACY_CRC_AT):
            return BAD_MESSAGE_CRC, count, at, 0
        row = rows[count]
        row["offset"] = be64(a + BASE_OFFSET_AT)
        row["timestamp"] = be64(a + LEGACY_TIMESTAMP_AT) if magic == 1 else -1
        row["batch"] = 0
        status = _message_fields(address, at + HEADER_BYTES_BY_MAGIC[magic], end, row)
        if status != DONE:
            return status, count, at, 0
        magics[count] = magic
        count += 1
        at = end


# ---- columns ---------------------------------------------------------------------------------------------------------

# An Arrow column of n strings has n + 1 offsets, a bitmap of the strings that are not null (least significant bit
# first), and the bytes.


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
