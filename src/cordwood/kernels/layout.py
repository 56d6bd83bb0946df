"""The layout of batch headers, defined once for struct formats, kernels, rows and the pages in `docs/format`.

This module contains only constants. Numba compiles positions and bits into the kernels; the name of the cache folder
depends on this file, so a change takes effect at once.

Every entry of a `.log` file, of any format, starts with the same 17 bytes:

    0         8       12       16   17
    +---------+-------+--------+----+---
    | offset  | size  | epoch  | mag|      magic 2; in magic 0 and 1 the four bytes from 12 are the CRC
    +---------+-------+--------+----+---

`size` counts the bytes after itself. The rest depends on the magic:

    magic 2, 61 bytes                     magic 0                          magic 1
    0   base offset          i64          0  offset              i64       0  offset              i64
    8   size                 i32          8  size                i32       8  size                i32
    12  leader epoch         i32          12 CRC-32 of [16, end) u32       12 CRC-32 of [16, end) u32
    16  magic                i8           16 magic               i8        16 magic               i8
    17  CRC-32C of [21, end) u32          17 attributes          i8        17 attributes          i8
    21  attributes           i16          18 key size            i32       18 timestamp           i64
    23  last offset delta    i32          22 key, value size, value        26 key size            i32
    27  base timestamp       i64                                           30 key, value size, value
    35  max timestamp        i64
    43  producer id          i64
    51  producer epoch       i16
    53  base sequence        i32
    57  record count         i32
    61  records

Attributes, from the lowest bit: 0–2 codec · 3 timestamp type is LogAppendTime · 4 transactional · 5 control ·
6 base timestamp is a delete horizon. Magic 0 has only the codec, magic 1 the first four.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cordwood.common.types import CODEC_MASK as CODEC_MASK

#: base offset, size, leader epoch, magic, CRC, attributes, last offset delta, base and max timestamp, producer id and
#: epoch, base sequence, record count.
HEADER = struct.Struct(">qiibIhiqqqhii")
#: offset, size: common to all entries. `size` does not count these 12 bytes.
PREFIX = struct.Struct(">qi")
#: offset, size, CRC, magic, attributes of magic 0 and, followed by an i64 timestamp, of magic 1.
LEGACY_HEADER = struct.Struct(">qiIbb")


def _positions(form: struct.Struct) -> list[int]:
    """Return the position of each field of a format, and of the end."""
    order, codes = form.format[0], form.format[1:]
    return [struct.calcsize(order + codes[:count]) for count in range(len(codes) + 1)]


# Positions in an entry: `X_AT` is the start of the field X.
(
    BASE_OFFSET_AT,
    SIZE_AT,
    LEADER_EPOCH_AT,
    MAGIC_AT,
    CRC_AT,
    ATTRIBUTES_AT,
    LAST_OFFSET_DELTA_AT,
    BASE_TIMESTAMP_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    PRODUCER_EPOCH_AT,
    BASE_SEQUENCE_AT,
    RECORD_COUNT_AT,
    HEADER_BYTES,
) = _positions(HEADER)
*_, LEGACY_CRC_AT, _LEGACY_MAGIC_AT, LEGACY_ATTRIBUTES_AT, LEGACY_TIMESTAMP_AT = _positions(LEGACY_HEADER)

#: The bytes of offset and size, which `size` does not count.
PREFIX_BYTES = PREFIX.size
#: The end of the magic: the bytes up to here determine an entry's format.
MAGIC_END = MAGIC_AT + 1
#: Start of the bytes that the CRC covers; they extend to the end of the entry.
CRC_START = ATTRIBUTES_AT
LEGACY_CRC_START = MAGIC_AT

# By magic: 0, 1, 2.

#: Bytes before the key size of a message, or before the records of a batch.
HEADER_BYTES_BY_MAGIC = (LEGACY_TIMESTAMP_AT, LEGACY_TIMESTAMP_AT + 8, HEADER_BYTES)
#: The smallest whole entry: a message has at least a key size and a value size.
MIN_ENTRY_BYTES = (HEADER_BYTES_BY_MAGIC[0] + 8, HEADER_BYTES_BY_MAGIC[1] + 8, HEADER_BYTES)
#: Start of the bytes that the CRC covers.
CRC_START_BY_MAGIC = (LEGACY_CRC_START, LEGACY_CRC_START, CRC_START)

#: The smallest size field that an entry of any magic can have.
MIN_SIZE_FIELD = MIN_ENTRY_BYTES[0] - PREFIX_BYTES

assert (LEGACY_HEADER.size, HEADER.size, PREFIX.size) == (18, 61, 12)
assert (MAGIC_AT, CRC_AT, ATTRIBUTES_AT, RECORD_COUNT_AT) == (16, 17, 21, 57), "as drawn above"
assert _LEGACY_MAGIC_AT == MAGIC_AT, "the magic of every format is at the same position"
assert SIZE_AT + 4 == PREFIX_BYTES, "size counts what follows it"
assert MIN_ENTRY_BYTES == (26, 34, 61)

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

#: A control batch up to this size is read completely even if only headers are needed: its type is in its record.
CONTROL_BYTES = 4096

#: Why a walk from header to header ended.
END = 0  #: exactly at the end of the file
PARTIAL = 1  #: the file ends inside an entry
WINDOW = 2  #: the window ends inside an entry, but the file continues
ROWS = 3  #: no room for another row
BAD_SIZE = 4  #: a size that no entry can have
BAD_MAGIC = 5  #: a magic that no Kafka release writes
UNREAD = 6  #: the bytes at the start of the next entry were not read

#: One row per batch, message or wrapper, as the scan kernel reads it from its header.
#:
#: `position` is relative to the start of the file. Fields that a format lacks are -1: a message has no producer and no
#: leader epoch; a wrapper (compressed message set) has no first offset and no message count.
#: `control_type` is a `ControlType`; -1 for data, for empty control batches and unknown types.
#: `computed_crc` equals `crc` unless the CRC was checked and differs.
BATCH_ROW = np.dtype(
    [
        ("position", np.int64),
        ("size_bytes", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("leader_epoch", np.int32),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
        ("crc", np.uint32),
        ("computed_crc", np.uint32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("magic", np.int8),
        ("control_type", np.int8),
    ],
    align=True,
)

#: One row per record. `*_start` are positions in the data that belongs to the rows; sizes of -1 are null.
#:
#: `batch` is the index of the record's batch among the batches that were decoded together. Headers are not decoded:
#: `header_count` of them start at `headers_start`.
RECORD_ROW = np.dtype(
    [
        ("offset", np.int64),
        ("timestamp", np.int64),
        ("batch", np.int32),
        ("key_start", np.int32),
        ("key_size", np.int32),
        ("value_start", np.int32),
        ("value_size", np.int32),
        ("headers_start", np.int32),
        ("header_count", np.int32),
    ],
    align=True,
)

#: Minimum size in bytes of a record of magic 2: seven numbers of one byte.
MIN_RECORD_BYTES = 7

BatchRows = npt.NDArray[np.void]
RecordRows = npt.NDArray[np.void]
U8Array = npt.NDArray[np.uint8]


def joined_rows(parts: Sequence[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Join arrays of the same structured dtype. `np.concatenate` compares the fields of each, which takes far longer
    than copying a few rows.
    """
    if len(parts) == 1:
        return parts[0]
    rows = np.empty(sum(part.size for part in parts), parts[0].dtype)
    at = 0
    for part in parts:
        rows[at : at + part.size] = part
        at += part.size
    return rows


# ---- attributes, as masks over rows ----------------------------------------------------------------------------------

# `record.batch.Batch` has the same properties for one batch.

BoolArray = npt.NDArray[np.bool_]


def has_flag(batches: BatchRows, flag: int) -> BoolArray:
    """Mark the batches of magic 2 with this bit (TRANSACTIONAL, CONTROL or DELETE_HORIZON), bool[batches]."""
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & flag != 0))


def is_control(batches: BatchRows) -> BoolArray:
    """Mark the control batches, transactional or not, bool[batches]."""
    return has_flag(batches, CONTROL)


def is_marker(batches: BatchRows) -> BoolArray:
    """Mark the control batches that end a transaction, bool[batches]."""
    return _has_exactly(batches, CONTROL | TRANSACTIONAL)


def is_transactional_data(batches: BatchRows) -> BoolArray:
    """Mark the batches with data of a transaction, bool[batches]."""
    return _has_exactly(batches, TRANSACTIONAL)


def concerns_transactions(batches: BatchRows) -> BoolArray:
    """Mark the data of transactions and all control batches, bool[batches]: all that a replay of transactions needs."""
    return is_control(batches) | is_transactional_data(batches)


def _has_exactly(batches: BatchRows, flags: int) -> BoolArray:
    return np.asarray((batches["magic"] == 2) & (batches["attributes"] & (CONTROL | TRANSACTIONAL) == flags))
