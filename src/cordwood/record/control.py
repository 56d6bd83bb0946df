"""Control records, which brokers write between data batches.

    key     version i16 = 0, type i16
    value   of ABORT and COMMIT: version i16 = 0, coordinator epoch i32

A marker ends its producer's transaction. It is a batch with one record. The batch has the transactional and the control
bit, the producer's id and epoch, and no sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from cordwood.common.errors import CorruptBatchError
from cordwood.common.types import NONE, ControlType, TimestampType
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record

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
