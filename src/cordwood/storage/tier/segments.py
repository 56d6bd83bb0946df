"""Remote segments of tiered topics, their states, and the records of `__remote_log_metadata` about them.

A broker appends a record for each step in the life of a remote segment:

    (none) ──► 0 copy started ──► 1 copy finished ──► 2 delete started ──► 3 delete finished
                     └─────────────────────────────────────▲              forgotten by brokers

Key and layout of a record are in `formats.messages`; here it becomes an event. No record is trusted: `decode_event`
raises wherever Kafka's classes throw, and otherwise takes all values as they are.

Source: Kafka RemoteLogMetadataSerde, RemoteLogSegmentState, RemoteLogMetadataTopicPartitioner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.messages.schema import encode_uvarint
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, REMOTE_LOG_METADATA, decode_record
from cordwood.storage.formats.properties import decode_id

# ---- states and segments ---------------------------------------------------------------------------------------------


class CopyState(IntEnum):
    """The state of a remote segment: `RemoteLogSegmentState` in Kafka."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class DeleteState(IntEnum):
    """The state in which a whole partition's deletion is: `RemotePartitionDeleteState` in Kafka."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


#: The states that may follow each state; None before the first record. Brokers ignore all other changes.
NEXT_STATES: Mapping[CopyState | None, tuple[CopyState, ...]] = {
    None: (CopyState.COPY_STARTED,),
    CopyState.COPY_STARTED: (CopyState.COPY_STARTED, CopyState.COPY_FINISHED, CopyState.DELETE_STARTED),
    CopyState.COPY_FINISHED: (CopyState.COPY_FINISHED, CopyState.DELETE_STARTED),
    CopyState.DELETE_STARTED: (CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED),
    CopyState.DELETE_FINISHED: (CopyState.DELETE_FINISHED,),
}


class TopicIdPartition(NamedTuple):
    """A partition of a topic with this id. A topic that was deleted and created again has another id."""

    topic_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment in the tier, as of its last record that counts.

    Attributes:
        topic_id: as `encode_id` prints it, like `id`, which each attempt to copy a segment has anew.
        end_offset: offset of its last record.
        size_bytes: size of its `.log`, before compression and encryption by the tier.
        max_timestamp_ms: largest timestamp of its records; for a segment without records, the time of its file.
        event_time_ms: time of the last change, by the clock of `broker`, which made it.
        epochs: the part of the lineage within it, when it was copied; epochs increase.
        custom_metadata: bytes that the storage plugin added to the last change.
        transaction_index_empty: it has no transaction index; False in records of older brokers.
    """

    topic: str
    topic_id: str
    partition: int
    id: str
    start_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    event_time_ms: int
    broker: int
    epochs: tuple[EpochEntry, ...]
    custom_metadata: bytes | None
    state: CopyState
    transaction_index_empty: bool

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition that the segment belongs to."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    def last_offset_in(self, epoch: int) -> int:
        """Return the last offset of an epoch in this segment: where its next epoch starts, else its own end."""
        return next((entry.start_offset - 1 for entry in self.epochs if entry.epoch > epoch), self.end_offset)


# ---- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """The copy of a segment began."""

    segment: RemoteSegment

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition of the segment."""
        return self.segment.topic_id_partition


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """A segment changed its state."""

    topic_id_partition: TopicIdPartition
    id: str
    broker: int
    event_time_ms: int
    custom_metadata: bytes | None
    state: CopyState


@dataclass(frozen=True, slots=True)
class PartitionDelete:
    """All segments of a partition are deleted. No broker up to 4.3.1 writes this record."""

    topic_id_partition: TopicIdPartition
    broker: int
    event_time_ms: int
    state: DeleteState


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A segment in a snapshot file. No broker up to 4.3.1 writes one, and none can read it from the topic."""

    id: str
    state: CopyState


Event = SegmentEvent | UpdateEvent | PartitionDelete | Snapshot


def decode_event(value: bytes | memoryview | None) -> Event:
    """Decode the value of a record of `__remote_log_metadata`.

    Raises:
        CorruptMessageError: a broker could not decode it either. Its only consumer of this topic ends there, and reads
            of the tier fail for every partition that was not ready before.
    """
    decoded = decode_record(INTERNAL_TOPICS[REMOTE_LOG_METADATA], None, value)
    if decoded.problem:
        raise CorruptMessageError(decoded.problem)
    if decoded.rest:
        raise CorruptMessageError(f"{decoded.type}: {len(decoded.rest)} bytes follow the message")
    assert decoded.value is not None, "a framed record without a problem has fields"
    return _EVENTS[decoded.number](decoded.value)


def _segment_event(fields: Mapping[str, Any]) -> SegmentEvent:
    start, end, state = fields["start_offset"], fields["end_offset"], _copy_state(fields)
    if start < 0 or end < start:
        raise CorruptMessageError(f"a segment of offsets {start} to {end}")
    # As a broker does, keep the last entry of an epoch.
    epochs = {entry["leader_epoch"]: entry["offset"] for entry in fields["segment_leader_epochs"]}
    if not epochs:
        raise CorruptMessageError("a segment without a leader epoch")
    if state is not CopyState.COPY_STARTED:
        raise CorruptMessageError(f"a segment that begins in state {state}, not {CopyState.COPY_STARTED}")
    partition = _partition(fields["remote_log_segment_id"])
    return SegmentEvent(
        RemoteSegment(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            id=fields["remote_log_segment_id"]["id"],
            start_offset=start,
            end_offset=end,
            size_bytes=fields["segment_size_in_bytes"],
            max_timestamp_ms=fields["max_timestamp_ms"],
            event_time_ms=fields["event_timestamp_ms"],
            broker=fields["broker_id"],
            epochs=tuple(EpochEntry(epoch, epochs[epoch]) for epoch in sorted(epochs)),
            custom_metadata=fields["custom_metadata"],
            state=state,
            transaction_index_empty=fields["txn_index_empty"],
        )
    )


def _update_event(fields: Mapping[str, Any]) -> UpdateEvent:
    return UpdateEvent(
        _partition(fields["remote_log_segment_id"]),
        fields["remote_log_segment_id"]["id"],
        fields["broker_id"],
        fields["event_timestamp_ms"],
        fields["custom_metadata"],
        _copy_state(fields),
    )


def _partition_delete(fields: Mapping[str, Any]) -> PartitionDelete:
    state = fields["remote_partition_delete_state"]
    if state not in iter(DeleteState):
        raise CorruptMessageError(f"the deletion of a partition in state {state}, which does not exist")
    return PartitionDelete(_partition(fields), fields["broker_id"], fields["event_timestamp_ms"], DeleteState(state))


def _snapshot(fields: Mapping[str, Any]) -> Snapshot:
    return Snapshot(fields["segment_id"], _copy_state(fields))


_EVENTS: Mapping[int, Callable[[Mapping[str, Any]], Event]] = {
    0: _segment_event,
    1: _update_event,
    2: _partition_delete,
    3: _snapshot,
}


def encode_event(event: SegmentEvent | UpdateEvent) -> bytes:
    """Encode an event as the value of its record."""
    if isinstance(event, UpdateEvent):
        fields = _INT64.pack(event.event_time_ms) + _nullable(event.custom_metadata)
        body = _segment_id(event.topic_id_partition, event.id) + _INT32.pack(event.broker) + fields
        return _UPDATE + body + bytes([event.state]) + _NO_TAGS
    one = event.segment
    epochs = b"".join(_INT32.pack(epoch) + _INT64.pack(offset) + _NO_TAGS for epoch, offset in map(astuple, one.epochs))
    return b"".join(
        [
            _SEGMENT,
            _segment_id(one.topic_id_partition, one.id),
            _INT64.pack(one.start_offset),
            _INT64.pack(one.end_offset),
            _INT32.pack(one.broker),
            _INT64.pack(one.max_timestamp_ms),
            _INT64.pack(one.event_time_ms),
            encode_uvarint(len(one.epochs) + 1),
            epochs,
            _INT32.pack(one.size_bytes),
            _nullable(one.custom_metadata),
            bytes([one.state]),
            _EMPTY_TRANSACTION_INDEX if one.transaction_index_empty else _NO_TAGS,
        ]
    )


_INT32, _INT64 = Struct(">i"), Struct(">q")
#: Frame version 1, the number of the record's type, version 0.
_SEGMENT, _UPDATE = b"\1\0\0", b"\1\1\0"
_NO_TAGS = b"\0"
#: One tagged field: tag 0, one byte, true.
_EMPTY_TRANSACTION_INDEX = b"\1\0\1\1"


def _segment_id(partition: TopicIdPartition, segment_id: str) -> bytes:
    of_partition = _nullable(partition.topic.encode()) + _id(partition.topic_id) + _INT32.pack(partition.partition)
    return of_partition + _NO_TAGS + _id(segment_id) + _NO_TAGS


def _id(text: str) -> bytes:
    value = decode_id(text)
    assert value is not None, "an id that was decoded, or made here"
    return value.bytes


def _nullable(data: bytes | None) -> bytes:
    return _NO_TAGS if data is None else encode_uvarint(len(data) + 1) + data


def _partition(fields: Mapping[str, Any]) -> TopicIdPartition:
    inner = fields["topic_id_partition"]
    return TopicIdPartition(inner["id"], inner["name"], inner["partition"])


def _copy_state(fields: Mapping[str, Any]) -> CopyState:
    state = fields["remote_log_segment_state"]
    if state not in iter(CopyState):
        raise CorruptMessageError(f"a segment in state {state}, which does not exist")
    return CopyState(state)
