"""Walk the entries of a log file from header to header, and compute their CRCs.

The input is a window of the file; the output is one row per entry (`kernels.layout.BATCH_ROW`), and why the walk ended.
As in Kafka's file reader, fewer than 18 bytes or an entry that does not fit end the walk without an error, while a size
that no entry can have is corruption.
"""

from __future__ import annotations

import numpy as np

from cordwood.kernels.compiling import njit
from cordwood.kernels.crc import crc32, crc32c
from cordwood.kernels.decode import varint, varlong
from cordwood.kernels.layout import (
    ATTRIBUTES_AT,
    BAD_MAGIC,
    BAD_SIZE,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    CONTROL_BYTES,
    CRC_AT,
    CRC_START_BY_MAGIC,
    END,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LEGACY_ATTRIBUTES_AT,
    LEGACY_CRC_AT,
    LEGACY_TIMESTAMP_AT,
    MAGIC_AT,
    MAGIC_END,
    MAX_TIMESTAMP_AT,
    MIN_ENTRY_BYTES,
    MIN_SIZE_FIELD,
    PARTIAL,
    PREFIX_BYTES,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    ROWS,
    SIZE_AT,
    UNREAD,
    WINDOW,
)
from cordwood.kernels.native import be16, be32, be32u, be64, call5, load8

#: `walk_headers` skips entries above this size, with a separate read for each; reading through smaller ones costs less.
_FAR_BYTES = 8192
#: Such a read includes the control batches of all brokers.
_HEADER_READ_BYTES = 128


@njit
def _control_type(address, size):
    """The control type in the first record of a control batch's body; -1 if it is unknown or the bytes are invalid."""
    end = address + size
    length, a = varint(address, end)
    if a <= 0 or length < 1 or length > end - a:
        return -1
    _, a = varlong(a + 1, end)
    if a <= 0:
        return -1
    _, a = varint(a, end)
    if a <= 0:
        return -1
    key_size, a = varint(a, end)
    if a <= 0 or key_size < 4 or end - a < 4 or be16(a) < 0:
        return -1
    kind = be16(a + 2)
    return kind if 0 <= kind <= 6 else -1


@njit(inline="always")
def _fill(row, a, magic, size, position):
    row["position"] = position
    row["size_bytes"] = size
    row["magic"] = magic
    if magic == 2:
        base_offset = be64(a + BASE_OFFSET_AT)
        row["base_offset"] = base_offset
        row["last_offset"] = base_offset + be32(a + LAST_OFFSET_DELTA_AT)
        row["leader_epoch"] = be32(a + LEADER_EPOCH_AT)
        row["crc"] = be32u(a + CRC_AT)
        row["attributes"] = be16(a + ATTRIBUTES_AT)
        row["base_timestamp"] = be64(a + BASE_TIMESTAMP_AT)
        row["max_timestamp"] = be64(a + MAX_TIMESTAMP_AT)
        row["producer_id"] = be64(a + PRODUCER_ID_AT)
        row["producer_epoch"] = be16(a + PRODUCER_EPOCH_AT)
        row["base_sequence"] = be32(a + BASE_SEQUENCE_AT)
        row["record_count"] = be32(a + RECORD_COUNT_AT)
    else:
        offset = be64(a + BASE_OFFSET_AT)
        attributes = load8(a + LEGACY_ATTRIBUTES_AT)
        # A wrapper's offset is the offset of its last message; its first offset is known only after decompression.
        wrapper = attributes & CODEC_MASK != 0
        row["base_offset"] = -1 if wrapper else offset
        row["last_offset"] = offset
        row["leader_epoch"] = -1
        row["crc"] = be32u(a + LEGACY_CRC_AT)
        row["attributes"] = attributes
        timestamp = be64(a + LEGACY_TIMESTAMP_AT) if magic == 1 else -1
        row["base_timestamp"] = timestamp
        row["max_timestamp"] = timestamp
        row["producer_id"] = -1
        row["producer_epoch"] = -1
        row["base_sequence"] = -1
        row["record_count"] = -1 if wrapper else 1
    row["computed_crc"] = row["crc"]
    row["control_type"] = -1


@njit(inline="always")
def _crc(a, magic, size):
    """Compute the CRC of the entry at an address."""
    start = CRC_START_BY_MAGIC[magic]
    return crc32c(a + start, size - start) if magic == 2 else crc32(a + start, size - start)


@njit(cache=True, nogil=True)
def compute_crcs(address, window_size, first_position, rows):
    """Fill in computed_crc of the entries that are completely within a window.

    Args:
        window_size: size of the window in bytes.
        first_position: position in the file of the window's first byte.
        rows: BATCH_ROW[entries], filled by `scan_batches` from this window or part of it.
    """
    for i in range(rows.size):
        row = rows[i]
        at, size = row["position"] - first_position, row["size_bytes"]
        if at >= 0 and at + size <= window_size:
            row["computed_crc"] = _crc(address + at, row["magic"], size)


@njit(cache=True, nogil=True)
def scan_batches(address, window_size, file_left, first_position, whole_entries, rows):
    """Walk entries from the start of a window.

    Args:
        address: address of the window; its first byte is the first byte of an entry.
        window_size: size of the window in bytes.
        file_left: bytes from the window's start to the end of the file; >= window_size.
        first_position: position in the file of the window's first byte.
        whole_entries: return only entries that are completely within the window. Otherwise the header is enough, and
            the last entry may extend beyond the window.
        rows: BATCH_ROW[capacity], filled from the start; computed_crc is set to crc until `compute_crcs` computes it.

    Returns:
        (count, consumed, status): rows filled, the size of their entries in bytes, why the walk ended.
    """
    at = 0
    count = 0
    while True:
        left = file_left - at
        # Like Kafka, require one byte more than the end of the magic. Every valid entry is longer.
        if left <= MAGIC_END:
            return count, at, END if left == 0 else PARTIAL
        if window_size - at < MAGIC_END:
            return count, at, WINDOW
        if count == rows.size:
            return count, at, ROWS
        a = address + at
        size_field = np.int64(be32(a + SIZE_AT))
        if size_field < MIN_SIZE_FIELD:
            return count, at, BAD_SIZE
        size = size_field + PREFIX_BYTES
        magic = np.int8(load8(a + MAGIC_AT))
        if magic < 0 or magic > 2:
            return count, at, BAD_MAGIC
        smallest = MIN_ENTRY_BYTES[magic]
        if size < smallest:
            return count, at, BAD_SIZE
        if size > left:
            return count, at, PARTIAL
        control = (
            magic == 2
            and window_size - at >= HEADER_BYTES
            and be16(a + ATTRIBUTES_AT) & (CONTROL | CODEC_MASK) == CONTROL
        )
        whole = whole_entries or (control and size <= CONTROL_BYTES)
        if window_size - at < (size if whole else smallest):
            return count, at, WINDOW
        row = rows[count]
        _fill(row, a, magic, size, first_position + at)
        if control and whole and row["record_count"] > 0:
            row["control_type"] = _control_type(a + HEADER_BYTES, size - HEADER_BYTES)
        count += 1
        at += size


@njit(cache=True, nogil=True)
def walk_headers(read, descriptor, flags, position, end, buffer, rows):
    """Walk the entries of an open file from header to header, reading little else if entries are large.

    Args:
        read: address of the C function preadv2.
        descriptor: its first argument.
        flags: its last argument.
        position: position of the first byte of an entry.
        end: end of the walk, at or before the end of the file; > position.
        buffer: uint8[bytes] for reading; as large as the largest read.
        rows: BATCH_ROW[capacity], filled from the start as `scan_batches` does.

    Returns:
        (count, position, status): rows filled, the end of their last entry, why the walk ended there; WINDOW: the next
        entry needs more bytes than the buffer can hold.
    """
    vector = np.empty(2, np.int64)
    count = 0
    wanted = buffer.size
    while True:
        vector[0], vector[1] = buffer.ctypes.data, min(wanted, end - position)
        got = call5(read, descriptor, vector.ctypes.data, 1, position, flags)
        if got <= 0:
            return count, position, UNREAD
        found, consumed, status = scan_batches(buffer.ctypes.data, got, end - position, position, False, rows[count:])
        count += found
        position += consumed
        if status != WINDOW or (found == 0 and wanted == buffer.size):
            return count, position, status
        wanted = _HEADER_READ_BYTES if consumed > _FAR_BYTES * found else buffer.size


@njit(cache=True, nogil=True)
def find_batch(address, window_size, file_left, above_offset, below_offset, budget):
    """Find the next complete, valid entry after damaged bytes.

    An entry is valid if its header is plausible, its offsets are in the given range, and its CRC matches.

    Args:
        address: address of the window to search.
        window_size: size of the window in bytes.
        file_left: bytes from the window's start to the end of the file.
        above_offset: the entry's last offset must be larger.
        below_offset: the entry's offset must be smaller.
        budget: bytes for which CRCs may be computed; bounds the work on data made to look like headers.

    Returns:
        (at, budget): position in the window where an entry starts, or -1; and the remaining budget, negative if it ran
        out. Entries that do not fit into the window are skipped.
    """
    for at in range(window_size - MAGIC_END):
        a = address + at
        magic = load8(a + MAGIC_AT)
        if magic > 2:
            continue
        size_field = np.int64(be32(a + SIZE_AT))
        if size_field < MIN_SIZE_FIELD:
            continue
        size = size_field + PREFIX_BYTES
        smallest = MIN_ENTRY_BYTES[magic]
        if size < smallest or size > window_size - at:
            continue
        offset = be64(a + BASE_OFFSET_AT)
        last = offset + be32(a + LAST_OFFSET_DELTA_AT) if magic == 2 else offset
        if offset < 0 or last <= above_offset or offset >= below_offset or last < offset:
            continue
        budget -= size
        if budget < 0:
            return -1, budget
        if _crc(a, magic, size) == be32u(a + (CRC_AT if magic == 2 else LEGACY_CRC_AT)):
            return at, budget
    return -1, budget
