"""A batch, message or wrapper: its header as an object, and encoders for magic 0, 1 and 2; and control records.

`kernels.layout` shows the layout. `Batch` is for output and tests; code that reads whole logs uses arrays of rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypedDict, Unpack

import crc32c
import numpy as np

from cordwood.common.errors import BatchProblem, CorruptBatchError
from cordwood.common.types import NONE, Codec, ControlType, TimestampType
from cordwood.kernels.layout import (
    BATCH_ROW,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LEGACY_CRC_AT,
    LEGACY_CRC_START,
    LEGACY_HEADER,
    LOG_APPEND_TIME,
    PREFIX,
    TRANSACTIONAL,
    BatchRows,
    U8Array,
)
from cordwood.record.compression import compress
from cordwood.record.record import Record, encode_record

#: The largest sequence number; the next one is 0 again.
MAX_SEQUENCE = 2**31 - 1


def codec_of(attributes: int) -> Codec:
    """Return the codec in a batch's attributes.

    Raises:
        CorruptBatchError: Kafka has no codec of this number.
    """
    codec = Codec.of(attributes)
    if codec is None:
        what = f"unknown compression type {attributes & CODEC_MASK}; Kafka has 0 to {int(max(Codec))}"
        raise CorruptBatchError(what, kind=BatchProblem.COMPRESSION)
    return codec


def advance_sequence(sequence: int, by: int) -> int:
    """Return the sequence number `by` records after another; it wraps to 0 after `MAX_SEQUENCE`.

    Invalid numbers, as in a damaged batch, overflow like Java's 32-bit integers.
    """
    wraps = sequence > _as_int(MAX_SEQUENCE - by)
    return _as_int(sequence + by - (MAX_SEQUENCE + 1 if wraps else 0))


def _as_int(number: int) -> int:
    return (number + MAX_SEQUENCE + 1) % (1 << 32) - MAX_SEQUENCE - 1


class Batch(NamedTuple):
    """The header of one entry of a log; -1 for fields that its format lacks.

    Attributes:
        base_offset: first offset of the batch when it was created; -1 for a wrapper that was not decoded.
        last_offset: last offset of the batch when it was created.
        computed_crc: CRC of the bytes; equals `crc` if the batch is intact, or was not checked.
        base_timestamp: milliseconds; the base of the records' timestamp deltas. A clean may set it to the delete
            horizon.
        max_timestamp: milliseconds; the largest timestamp of its records, or the append time.
        record_count: current number of records; after compaction less than its range of offsets.
        control_type: a `ControlType`; -1 for data and for an emptied control batch.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    leader_epoch: int
    base_sequence: int
    record_count: int
    crc: int
    computed_crc: int
    attributes: int
    producer_epoch: int
    magic: int
    control_type: int = NONE

    @classmethod
    def of(cls, row: np.void) -> Batch:
        """Return one BATCH_ROW as an object."""
        return cls(*row.tolist())

    @property
    def codec(self) -> Codec:
        """Codec of its compressed records."""
        return codec_of(self.attributes)

    @property
    def codec_label(self) -> str:
        """Kafka's name of the codec; for an unknown codec, its number."""
        return Codec.label_in(self.attributes)

    @property
    def is_valid(self) -> bool:
        """Whether the CRC matches, or was not checked."""
        return self.crc == self.computed_crc

    @property
    def is_control(self) -> bool:
        """Whether it contains a marker or another control record."""
        return self.magic == 2 and self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return self.magic == 2 and self.attributes & TRANSACTIONAL != 0

    @property
    def timestamp_type(self) -> TimestampType:
        """The meaning of its records' timestamps."""
        if self.magic == 0:
            return TimestampType.NONE
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time in ms from which its tombstones, or its marker, may be removed; None until a cleaner has set it."""
        return self.base_timestamp if self.magic == 2 and self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 if the batch has no sequence."""
        if self.base_sequence == NONE:
            return NONE
        return advance_sequence(self.base_sequence, self.last_offset - self.base_offset)


assert Batch._fields == BATCH_ROW.names


def to_batches(rows: BatchRows) -> list[Batch]:
    """Convert rows to objects."""
    return [Batch(*row) for row in rows.tolist()]


class HeaderFields(TypedDict, total=False):
    """Header fields for `encode_batch`; all are optional.

    Attributes:
        base_offset: default: the first record's offset.
        last_offset: default: the last record's offset.
        timestamp_type: with LOG_APPEND_TIME, max_timestamp is the timestamp of all records.
        base_timestamp: default: the delete horizon if there is one, else the timestamp of the first record.
    """

    base_offset: int | None
    last_offset: int | None
    codec: Codec
    timestamp_type: TimestampType
    max_timestamp: int | None
    base_timestamp: int | None
    delete_horizon_ms: int | None
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool


def encode_batch(records: Sequence[Record], **fields: Unpack[HeaderFields]) -> bytes:
    """Encode a batch of magic 2, as Kafka's own builder does.

    Args:
        records: in offset order; may be empty, as after a clean, if both offsets are given.
        fields: see `HeaderFields`; a producer's fields and the leader epoch are -1 by default.
    """
    if (base_offset := fields.get("base_offset")) is None:
        base_offset = records[0].offset
    if (last_offset := fields.get("last_offset")) is None:
        last_offset = records[-1].offset
    delete_horizon_ms = fields.get("delete_horizon_ms")
    base_timestamp = fields.get("base_timestamp")
    if base_timestamp is None:
        first = records[0].timestamp if records else NONE
        base_timestamp = first if delete_horizon_ms is None else delete_horizon_ms
    if (max_timestamp := fields.get("max_timestamp")) is None:
        max_timestamp = max([record.timestamp for record in records], default=NONE)
    body = b"".join([encode_record(r, base_offset=base_offset, base_timestamp=base_timestamp) for r in records])
    attributes = 0
    if codec := fields.get("codec"):
        attributes = int(codec)
        body = compress(codec, body)
    if (timestamp_type := fields.get("timestamp_type")) and timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME
    attributes |= TRANSACTIONAL if fields.get("transactional") else 0
    attributes |= CONTROL if fields.get("control") else 0
    attributes |= DELETE_HORIZON if delete_horizon_ms is not None else 0
    header = HEADER.pack(
        base_offset,
        HEADER.size - PREFIX.size + len(body),
        fields.get("leader_epoch", NONE),
        2,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        fields.get("producer_id", NONE),
        fields.get("producer_epoch", NONE),
        fields.get("base_sequence", NONE),
        len(records),
    )
    crc = crc32c.crc32c(body, crc32c.crc32c(header[CRC_START:]))
    return b"".join([header[:CRC_AT], crc.to_bytes(4, "big"), header[CRC_START:], body])


def seal(batch: bytes) -> bytes:
    """Return a batch of magic 2 with its CRC computed and filled in."""
    covered = batch[CRC_START:]
    return batch[:CRC_AT] + crc32c.crc32c(covered).to_bytes(4, "big") + covered


def encode_header(batch: np.void, body: Iterable[U8Array]) -> bytes:
    """Encode the header of a batch of magic 2 whose body is in several buffers.

    Args:
        batch: BATCH_ROW, with the size of the whole batch.
    """
    header = HEADER.pack(
        batch["base_offset"],
        batch["size_bytes"] - PREFIX.size,
        batch["leader_epoch"],
        2,
        0,
        batch["attributes"],
        batch["last_offset"] - batch["base_offset"],
        batch["base_timestamp"],
        batch["max_timestamp"],
        batch["producer_id"],
        batch["producer_epoch"],
        batch["base_sequence"],
        batch["record_count"],
    )
    crc = crc32c.crc32c(header[CRC_START:])
    for piece in body:
        crc = crc32c.crc32c(piece, crc)
    return header[:CRC_AT] + crc.to_bytes(4, "big") + header[CRC_START:]


def encode_message(
    magic: int,
    *,
    offset: int,
    timestamp: int = NONE,
    key: bytes | None = None,
    value: bytes | None = None,
    attributes: int = 0,
) -> bytes:
    """Encode a message of magic 0 or 1: an entry of the log, an inner message of a wrapper, or a wrapper."""
    fields = b"".join((-1 if f is None else len(f)).to_bytes(4, "big", signed=True) + (f or b"") for f in (key, value))
    time = timestamp.to_bytes(8, "big", signed=True) if magic == 1 else b""
    size = LEGACY_HEADER.size - PREFIX.size + len(time) + len(fields)
    message = LEGACY_HEADER.pack(offset, size, 0, magic, attributes) + time + fields
    return (
        message[:LEGACY_CRC_AT] + zlib.crc32(message[LEGACY_CRC_START:]).to_bytes(4, "big") + message[LEGACY_CRC_START:]
    )


def encode_message_set(
    magic: int,
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time: int = NONE,
) -> bytes:
    """Encode records in magic 0 or 1: as one message each, or compressed in one wrapper.

    In magic 1, inner offsets are relative to the first record. The wrapper has the last offset, and the largest
    timestamp or, with LOG_APPEND_TIME, the append time.
    """
    late = LOG_APPEND_TIME if magic == 1 and timestamp_type == TimestampType.LOG_APPEND_TIME else 0
    if codec == Codec.NONE:
        return b"".join(
            encode_message(
                magic,
                offset=r.offset,
                timestamp=append_time if late else r.timestamp,
                key=r.key,
                value=r.value,
                attributes=late,
            )
            for r in records
        )
    first = records[0].offset if magic == 1 else 0
    inner = b"".join(
        encode_message(magic, offset=r.offset - first, timestamp=r.timestamp, key=r.key, value=r.value) for r in records
    )
    return encode_message(
        magic,
        offset=records[-1].offset,
        timestamp=append_time if late else max(r.timestamp for r in records),
        value=compress(codec, inner, magic=magic),
        attributes=int(codec) | late,
    )


# ---- control records -------------------------------------------------------------------------------------------------

# Brokers write them between data batches.
#
#     key     version i16 = 0, type i16
#     value   of ABORT and COMMIT: version i16 = 0, coordinator epoch i32
#
# A marker ends its producer's transaction. It is a batch with one record. The batch has the transactional and the
# control bit, the producer's id and epoch, and no sequence.

KEY = Struct(">hh")
MARKER_VALUE = Struct(">hi")

assert KEY.size == 4
assert MARKER_VALUE.size == 6


def control_type(key: bytes | memoryview | None) -> ControlType:
    """Decode the type in a control record's key. Versions above 0 are read as version 0.

    Raises:
        CorruptBatchError: the key is too short, or its version is negative.
    """
    if key is None or len(key) < KEY.size:
        raise CorruptBatchError(
            f"the key of a control record has {0 if key is None else len(key)} bytes, not 4 or more"
        )
    version, number = KEY.unpack(key[: KEY.size])
    if version < 0:
        raise CorruptBatchError(f"the key of a control record has version {version}")
    return ControlType(number) if 0 <= number <= max(ControlType) else ControlType.UNKNOWN


def coordinator_epoch(value: bytes | memoryview | None) -> int:
    """Decode the coordinator epoch in the value of a marker.

    Raises:
        CorruptBatchError: the value is too short, or its version is negative.
    """
    if value is None or len(value) < MARKER_VALUE.size:
        size = 0 if value is None else len(value)
        raise CorruptBatchError(f"the value of a transaction marker has {size} bytes, not 6 or more")
    version, epoch = MARKER_VALUE.unpack(value[: MARKER_VALUE.size])
    if version < 0:
        raise CorruptBatchError(f"the value of a transaction marker has version {version}")
    return int(epoch)


@dataclass(frozen=True, slots=True)
class Marker:
    """A transaction marker."""

    offset: int
    timestamp: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int = 0


def encode_marker(
    marker: Marker, *, leader_epoch: int = NONE, timestamp_type: TimestampType = TimestampType.CREATE_TIME
) -> bytes:
    """Encode a marker as a batch."""
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    record = Record(marker.offset, marker.timestamp, KEY.pack(0, kind), MARKER_VALUE.pack(0, marker.coordinator_epoch))
    return encode_batch(
        [record],
        leader_epoch=leader_epoch,
        timestamp_type=timestamp_type,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )
