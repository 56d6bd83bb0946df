"""Rebuild uncompressed batches of magic 2 without some of their records, directly from their bytes.

The bytes of a kept record behind its timestamp are copied unchanged: offsets are relative to the batch's base offset,
which does not change, and only timestamps are relative to another record. So no rows per record are needed. Encodings
that Kafka does not write, such as a number with more bytes than needed, are left to the decoder and the encoder.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cordwood.kernels.crc import crc32c
from cordwood.kernels.decode import varint, varlong
from cordwood.kernels.encode import put_varint, varint_size
from cordwood.kernels.layout import CRC_START, HEADER_BYTES
from cordwood.kernels.native import copy, store8

#: Upper bound of the bytes by which a record grows: its timestamp may need 9 more, its length 4.
GROWTH_BYTES = 13


@njit(inline="always")
def _is_usual(a, stop):
    """Return whether the bytes after a record's timestamp are encoded as by Kafka, with a key and a value."""
    value, after = varint(a, stop)
    if after <= 0 or after - a != varint_size(np.int64(value)):
        return False
    for _ in range(2):
        a = after
        value, after = varint(a, stop)
        if after <= 0 or after - a != varint_size(np.int64(value)) or value < 0 or value > stop - after:
            return False
        after += value
    a = after
    value, after = varint(a, stop)
    if after <= 0 or after - a != varint_size(np.int64(value)) or value < 0:
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
        at = put_varint(at, 1 + varint_size(timestamp - first) + body - rest)
        store8(at, np.uint8(0))
        at = put_varint(at + 1, timestamp - first)
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
