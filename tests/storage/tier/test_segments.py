"""Records of `__remote_log_metadata` as events; expectations are Kafka's own encodings and answers."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.metadata_log import metadata_partition
from cordwood.storage.tier.segments import (
    NEXT_STATES,
    CopyState,
    DeleteState,
    PartitionDelete,
    RemoteSegment,
    SegmentEvent,
    Snapshot,
    TopicIdPartition,
    UpdateEvent,
    decode_event,
)
from tests.storage.messages import internal_record, mutated
from tests.storage.tier.events import TOPIC, segment_id, segment_record, update_record

TOPIC_ID, ID = "_g7okdM1Sa2skkomIJ_ErA", "x8XOsuT1SV2jRD44LazHyA"
IDENTITY = "0274fe0ee891d33549adac924a26209fc4ac0000000000c7c5ceb2e4f5495da3443e382dacc7c800"
#: A segment and its update, as a broker wrote them.
SEGMENT = bytes.fromhex(
    f"010000{IDENTITY}000000000000000000000000000000ae000000010000018bcfe80c0e000001a2221ab63d"
    "020000000000000000000000000000003ea4000001000101"
)
UPDATE = bytes.fromhex(f"010100{IDENTITY}00000001000001a2221ab6c4000100")


def test_the_record_of_a_copy_becomes_a_segment() -> None:
    expected = RemoteSegment(
        topic="t", topic_id=TOPIC_ID, partition=0, id=ID, start_offset=0, end_offset=174, size_bytes=16036,
        max_timestamp_ms=1700000173070, event_time_ms=1795868505661, broker=1, epochs=(EpochEntry(0, 0),),
        custom_metadata=None, state=CopyState.COPY_STARTED, transaction_index_empty=True,
    )  # fmt: skip
    assert decode_event(SEGMENT) == SegmentEvent(expected)


@pytest.mark.parametrize(("custom", "metadata"), [("00", None), ("01", b""), ("0403e821", b"\3\xe8!")])
def test_an_update_has_a_state_and_custom_metadata(custom: str, metadata: bytes | None) -> None:
    assert decode_event(UPDATE[:-3] + bytes.fromhex(f"{custom}0100")) == UpdateEvent(
        TopicIdPartition(TOPIC_ID, "t", 0), ID, 1, 1795868505796, metadata, CopyState.COPY_FINISHED
    )


def test_records_that_no_broker_writes_are_decoded_too() -> None:
    fields = {"topic_id_partition": TOPIC, "broker_id": 3, "remote_partition_delete_state": 2}
    _, delete = internal_record("RemotePartitionDeleteMetadataRecord", fields)
    assert decode_event(delete) == PartitionDelete(
        TopicIdPartition(str(TOPIC["id"]), "t", 0), 3, 0, DeleteState.FINISHED
    )
    _, snapshot = internal_record(
        "RemoteLogSegmentMetadataSnapshotRecord", {"segment_id": ID, "remote_log_segment_state": 1}
    )
    assert decode_event(snapshot) == Snapshot(ID, CopyState.COPY_FINISHED)


def test_a_transaction_index_may_exist_unless_the_record_denies_it() -> None:
    absent, present = decode_event(SEGMENT[:-4] + b"\0"), decode_event(SEGMENT)
    assert isinstance(absent, SegmentEvent) and isinstance(present, SegmentEvent)
    assert not absent.segment.transaction_index_empty and present.segment.transaction_index_empty


REFUSED = {
    "null": (None, "a record whose value is null"),
    "empty": (b"", "1 bytes at byte 0, where 0 are left"),
    "frame 0": (b"\0" + SEGMENT[1:], "frame version 0, not 1"),
    "frame 2": (b"\2" + SEGMENT[1:], "frame version 2, not 1"),
    "apiKey 4": (b"\1\4" + SEGMENT[2:], "record type 4 is not known"),
    "version 1": (b"\1\0\1" + SEGMENT[3:], "RemoteLogSegmentMetadataRecord of version 1"),
    "a byte too many": (SEGMENT + b"\0", "RemoteLogSegmentMetadataRecord: 1 bytes follow the message"),
    "cut": (SEGMENT[:-1], "0 are left"),
    "state 7": (update_record("A", 7), "a segment in state 7, which does not exist"),
    "state -1": (update_record("A", -1), "a segment in state -1, which does not exist"),
    "no epochs": (segment_record(lineage="{}"), "a segment without a leader epoch"),
    "end below start": (segment_record(start=5, end=4), "a segment of offsets 5 to 4"),
    "negative start": (segment_record(start=-1, end=4), "a segment of offsets -1 to 4"),
    "begins finished": (segment_record(remote_log_segment_state=1), "a segment that begins in state 1, not 0"),
    "many epochs": (SEGMENT.replace(b"\x3d\2\0", b"\x3d\xff\xff\xff\xff\7\0"), "items at byte"),
    "delete state 3": (
        internal_record("RemotePartitionDeleteMetadataRecord", {"remote_partition_delete_state": 3})[1],
        "the deletion of a partition in state 3, which does not exist",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_ends_a_brokers_consumer_is_refused_in_words(name: str) -> None:
    value, problem = REFUSED[name]
    with pytest.raises(CorruptMessageError) as caught:
        decode_event(value)
    assert problem in str(caught.value)


def test_epochs_are_sorted_and_the_last_entry_of_an_epoch_counts() -> None:
    event = decode_event(segment_record(start=10, end=19, lineage="{4:15, 2:5, 4:16}"))
    assert isinstance(event, SegmentEvent)
    assert event.segment.epochs == (EpochEntry(2, 5), EpochEntry(4, 16))


def test_damaged_records_are_events_or_errors_in_words() -> None:
    random = Random(52)
    refused = 0
    for _ in range(300):
        try:
            decode_event(mutated(random.choice((SEGMENT, UPDATE)), random))
        except CorruptMessageError:
            refused += 1
    assert 0 < refused < 300


@pytest.mark.parametrize(("partition", "count", "expected"), [(0, 3, 2), (0, 50, 19), (1, 3, 0)])
def test_the_records_of_a_partition_are_in_the_metadata_partition_of_its_id(
    partition: int, count: int, expected: int
) -> None:
    assert metadata_partition(TopicIdPartition(TOPIC_ID, "", partition), count) == expected


def test_states_follow_one_another_as_in_kafka() -> None:
    allowed = {(before, after) for before, nexts in NEXT_STATES.items() for after in nexts}
    one_by_one = {(None, 0), (0, 1), (0, 2), (1, 2), (2, 3)} | {(state, state) for state in CopyState}
    assert allowed == one_by_one
    assert len(list(itertools.product((None, *CopyState), CopyState))) == 20


def test_ids_are_in_the_form_of_kafka() -> None:
    event = decode_event(segment_record("A"))
    assert isinstance(event, SegmentEvent) and len(segment_id("A")) == 22
    assert event.segment.topic_id_partition == event.topic_id_partition == TopicIdPartition(str(TOPIC["id"]), "t", 0)
    assert event.segment.id == segment_id("A")
