"""Encode batches of magic 2 from their kept records, and collect index entries of appended batches.

A rebuilt batch keeps keys, values and headers byte for byte. Only the timestamp deltas of its records are relative to
another base timestamp, which may change their encoded length.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.crc import crc32c
from cordwood.kernels.decode import varint, varlong
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
)
from cordwood.kernels.native import copy, put16, put32, put64, store8

#: Upper bound of a rebuilt record's bytes besides its key, value and headers: length 5, attributes 1, timestamp 10,
#: offset 5, and three sizes of 5.
RECORD_EXTRA_BYTES = 36
_MAX_INT32 = 0x7FFFFFFF

#: Indexes into the state that `index_batches` keeps between calls: bytes of the log, and bytes since the last index
#: entry; the largest timestamp, and the last offset of its batch; number of entries in each index, and the timestamp of
#: the last entry of the time index.
LOG_BYTES, BYTES_SINCE_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, ENTRIES, TIME_ENTRIES, LAST_TIMESTAMP = range(7)
INDEX_STATE = 7


@njit(inline="always")
def _varint_size(value):
    """Return the size in bytes of a number as a varint or varlong."""
    raw = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(inline="always")
def _put_varint(at, value):
    """Store a varint or varlong; return the address behind it."""
    raw = np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))
    while raw >= np.uint64(0x80):
        store8(at, np.uint8(raw & np.uint64(0x7F) | np.uint64(0x80)))
        raw >>= np.uint64(7)
        at += 1
    store8(at, np.uint8(raw))
    return at + 1


@njit
def headers_size(address, start, count):
    """Return the size in bytes of `count` headers, which the decoder has checked."""
    a = address + start
    far = a + _MAX_INT32
    for _ in range(2 * count):
        size, a = varint(a, far)
        a += max(size, np.int32(0))
    return a - address - start


@njit(cache=True, nogil=True)
def measure_bodies(address, rows, keep, index_of, chosen):
    """Return an upper bound of the bytes that `encode_bodies` writes without batch headers. Arguments are the same."""
    total = np.int64(0)
    for i in range(rows.size):
        row = rows[i]
        if keep[i] and chosen[index_of[row["batch"]]]:
            total += RECORD_EXTRA_BYTES + max(row["key_size"], 0) + max(row["value_size"], 0)
            if row["header_count"]:
                total += headers_size(address, row["headers_start"], row["header_count"])
    return total


@njit
def _encode_record(address, row, base_offset, base_timestamp, at):
    timestamp_delta = row["timestamp"] - base_timestamp
    offset_delta = row["offset"] - base_offset
    key_size = np.int64(row["key_size"])
    value_size = np.int64(row["value_size"])
    count = np.int64(row["header_count"])
    headers = headers_size(address, row["headers_start"], count) if count else 0
    size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta) + _varint_size(key_size) + max(key_size, 0)
    size += _varint_size(value_size) + max(value_size, 0) + _varint_size(count) + headers
    at = _put_varint(at, size)
    store8(at, np.uint8(0))
    at = _put_varint(at + 1, timestamp_delta)
    at = _put_varint(at, offset_delta)
    at = _put_varint(at, key_size)
    if key_size > 0:
        copy(at, address + row["key_start"], key_size)
        at += key_size
    at = _put_varint(at, value_size)
    if value_size > 0:
        copy(at, address + row["value_start"], value_size)
        at += value_size
    at = _put_varint(at, count)
    if headers:
        copy(at, address + row["headers_start"], headers)
        at += headers
    return at


@njit(cache=True, nogil=True)
def encode_bodies(address, rows, keep, index_of, chosen, batches, target, with_headers, starts, ends):
    """Encode the kept records of some batches, one body after the other.

    Args:
        address: address of the data that contains keys, values and headers of the rows.
        rows: RECORD_ROW[records]; rows["batch"] never decreases.
        keep: bool[records], the records to encode.
        index_of: int64, maps each number in rows["batch"] to the batch's index in `batches`.
        chosen: bool[batches], the batches to encode.
        batches: BATCH_ROW[batches], the new headers; deltas are relative to their base_offset and base_timestamp.
        target: address to write to, with room for `measure_bodies` bytes and the headers.
        with_headers: leave room for a header before each body.
        starts, ends: int64[batches], filled for batches with kept records: start and end of each, relative to target.

    Returns:
        the number of bytes written.
    """
    at = target
    current = np.int64(-1)
    for i in range(rows.size):
        b = index_of[rows[i]["batch"]]
        if not keep[i] or not chosen[b]:
            continue
        if b != current:
            if current >= 0:
                ends[current] = at - target
            starts[b] = at - target
            current = b
            if with_headers:
                at += HEADER_BYTES
        at = _encode_record(address, rows[i], batches[b]["base_offset"], batches[b]["base_timestamp"], at)
    if current >= 0:
        ends[current] = at - target
    return at - target


@njit(cache=True, nogil=True)
def write_headers(batches, chosen, starts, target):
    """Write the headers of batches whose bodies are in memory, with their CRCs.

    Args:
        batches: BATCH_ROW[batches]; size_bytes is the size of the whole batch. crc and computed_crc are filled in.
        chosen: bool[batches], the batches to write.
        starts: int64[batches], start of each batch relative to target.
        target: address of the buffer.
    """
    for b in range(batches.size):
        if not chosen[b]:
            continue
        header = batches[b]
        a = target + starts[b]
        put64(a + BASE_OFFSET_AT, header["base_offset"])
        put32(a + SIZE_AT, header["size_bytes"] - PREFIX_BYTES)
        put32(a + LEADER_EPOCH_AT, header["leader_epoch"])
        store8(a + MAGIC_AT, np.uint8(2))
        put16(a + ATTRIBUTES_AT, header["attributes"])
        put32(a + LAST_OFFSET_DELTA_AT, header["last_offset"] - header["base_offset"])
        put64(a + BASE_TIMESTAMP_AT, header["base_timestamp"])
        put64(a + MAX_TIMESTAMP_AT, header["max_timestamp"])
        put64(a + PRODUCER_ID_AT, header["producer_id"])
        put16(a + PRODUCER_EPOCH_AT, header["producer_epoch"])
        put32(a + BASE_SEQUENCE_AT, header["base_sequence"])
        put32(a + RECORD_COUNT_AT, header["record_count"])
        crc = crc32c(a + CRC_START, header["size_bytes"] - CRC_START)
        put32(a + CRC_AT, crc)
        header["crc"] = crc
        header["computed_crc"] = crc


@njit(cache=True, nogil=True)
def index_batches(
    sizes, last_offsets, max_timestamps, interval_bytes, state, index, time_index, capacity, time_capacity
):
    """Collect the index entries of batches that are appended to a segment.

    Args:
        sizes, last_offsets, max_timestamps: int64[batches], fields of the appended batches.
        interval_bytes: `index.interval.bytes`.
        state: int64[INDEX_STATE], updated.
        index: int64[room, 2], rows (offset, position), filled after the existing entries.
        time_index: int64[room, 2], rows (timestamp, offset), filled likewise.
        capacity: maximum number of entries in the offset index.
        time_capacity: maximum number of entries in the time index; the last is reserved for the end of the segment.

    Returns:
        the number of batches appended; fewer than given if an index is full.
    """
    position, since = state[LOG_BYTES], state[BYTES_SINCE_ENTRY]
    largest, largest_offset = state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET]
    entries, time_entries = state[ENTRIES], state[TIME_ENTRIES]
    last_time = state[LAST_TIMESTAMP]
    done = 0
    for b in range(sizes.size):
        if max_timestamps[b] > largest:
            new_largest, new_largest_offset = max_timestamps[b], last_offsets[b]
        else:
            new_largest, new_largest_offset = largest, largest_offset
        if since > interval_bytes:
            # With a full time index Kafka fails even for an entry that it would skip, also when it recovers a segment.
            if entries >= capacity or time_entries >= time_capacity - 1:
                break
            index[entries, 0] = last_offsets[b]
            index[entries, 1] = position
            entries += 1
            if new_largest > last_time:
                time_index[time_entries, 0] = new_largest
                time_index[time_entries, 1] = new_largest_offset
                time_entries += 1
                last_time = new_largest
            since = 0
        largest, largest_offset = new_largest, new_largest_offset
        position += sizes[b]
        since += sizes[b]
        done += 1
    state[LOG_BYTES], state[BYTES_SINCE_ENTRY] = position, since
    state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET] = largest, largest_offset
    state[ENTRIES], state[TIME_ENTRIES] = entries, time_entries
    state[LAST_TIMESTAMP] = last_time
    return done


# ---- records removed from a body -------------------------------------------------------------------------------------

# The bytes of a kept record behind its timestamp are copied unchanged: offsets are relative to the batch's base offset,
# which does not change, and only timestamps are relative to another record. So no rows per record are needed. Encodings
# that Kafka does not write, such as a number with more bytes than needed, are left to the decoder and the encoder.

#: Upper bound of the bytes by which a record grows: its timestamp may need 9 more, its length 4.
GROWTH_BYTES = 13


@njit(inline="always")
def _is_usual(a, stop):
    """Return whether the bytes after a record's timestamp are encoded as by Kafka, with a key and a value."""
    value, after = varint(a, stop)
    if after <= 0 or after - a != _varint_size(np.int64(value)):
        return False
    for _ in range(2):
        a = after
        value, after = varint(a, stop)
        if after <= 0 or after - a != _varint_size(np.int64(value)) or value < 0 or value > stop - after:
            return False
        after += value
    a = after
    value, after = varint(a, stop)
    if after <= 0 or after - a != _varint_size(np.int64(value)) or value < 0:
        return False
    return value > 0 or after == stop


@njit(inline="always")
def _thin(body, end, header, ordinal, superseded, at):
    """Write the kept records of a body and update the header; return the end of the output, 0 if no record is kept."""
    kept = 0
    first, largest = np.int64(0), np.int64(0)
    for i in range(header["record_count"]):
        size, a = varint(body, end)
        if a <= 0 or size < 1 or size > end - a:
            return 0
        body = a + size
        if (superseded[(ordinal + i) >> 3] >> np.uint8((ordinal + i) & 7)) & np.uint8(1):
            continue
        delta, rest = varlong(a + 1, body)
        if rest <= 0 or not _is_usual(rest, body):
            return 0
        timestamp = header["base_timestamp"] + delta
        if kept == 0:
            first, largest = timestamp, timestamp
        kept += 1
        largest = max(largest, timestamp)
        at = _put_varint(at, 1 + _varint_size(timestamp - first) + body - rest)
        store8(at, np.uint8(0))
        at = _put_varint(at + 1, timestamp - first)
        copy(at, rest, body - rest)
        at += body - rest
    if body != end or kept == 0:
        return 0
    header["base_timestamp"], header["max_timestamp"], header["record_count"] = first, largest, kept
    return at


@njit(cache=True, nogil=True)
def thin_batches(address, first_position, batches, chosen, first_ordinals, superseded, target, starts, ends):
    """Rebuild batches, with room for their headers; each is checked while its bytes are in a near cache.

    Args:
        address: address of bytes that contain all of the chosen batches.
        first_position: position in the file of the first byte.
        batches: BATCH_ROW[batches]; timestamps and record count of rebuilt batches are updated.
        chosen: bool[batches], uncompressed batches of magic 2 in which some records are kept and some are removed.
            Set to False for batches left to the decoder, and for batches with a wrong checksum.
        first_ordinals: int64[batches], ordinal of each batch's first record.
        superseded: uint8, a bit per ordinal, for all records of the chosen batches.
        target: address to write to, with room for the bytes of the chosen batches and GROWTH_BYTES for each record.
        starts, ends: int64[batches], filled for rebuilt batches: start and end of each, relative to target.
    """
    at = target
    for b in range(batches.size):
        if not chosen[b]:
            continue
        start, size = address + batches[b]["position"] - first_position, batches[b]["size_bytes"]
        if crc32c(start + CRC_START, size - CRC_START) != batches[b]["crc"]:
            chosen[b] = False
            continue
        end = _thin(
            start + HEADER_BYTES,
            start + size,
            batches[b],
            first_ordinals[b],
            superseded,
            at + HEADER_BYTES,
        )
        if end == 0:
            chosen[b] = False
            continue
        starts[b], ends[b] = at - target, end - target
        at = end
