"""The metadata that real brokers left of their tiers, against Kafka's own decoding and the facts of the fixtures."""

from __future__ import annotations

import functools
import gzip
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import checkpoints, leader_epochs
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.metadata_log import metadata_partition
from cordwood.storage.tier.remote_log import RemoteLog, answers, apply_event, within_lineage
from cordwood.storage.tier.segments import (
    CopyState,
    Event,
    PartitionDelete,
    RemoteSegment,
    SegmentEvent,
    Snapshot,
    TopicIdPartition,
    UpdateEvent,
    decode_event,
    encode_event,
)
from tests.fixtures import PACKED, fixture
from tests.fixtures import facts as facts_of

NAMES = ("local-tiered", "aiven-s3", "local-tiered-pair")
#: Log directories; the second of the pair is the other replica's.
DIRECTORIES = [*((name, "kafka-logs") for name in NAMES), ("local-tiered-pair", "kafka-logs-1")]
METADATA_PARTITIONS = 3


@functools.cache
def events(name: str, directory: str = "kafka-logs") -> list[tuple[int, int, Event]]:
    """All events, each with its metadata partition and offset."""
    found = []
    for partition in range(METADATA_PARTITIONS):
        log = LogView(str(fixture(name) / directory / f"__remote_log_metadata-{partition}"), fs=PosixFileSystem())
        for record in log.records():
            assert record.key is None
            found.append((partition, record.offset, decode_event(record.value)))
    return found


@functools.cache
def logs(name: str, directory: str = "kafka-logs") -> dict[TopicIdPartition, RemoteLog]:
    found: dict[TopicIdPartition, RemoteLog] = {}
    for _, _, event in events(name, directory):
        apply_event(found, event)
    return found


def log_of(name: str, partition: str, directory: str = "kafka-logs") -> RemoteLog:
    (found,) = (log for one, log in logs(name, directory).items() if f"{one.topic}-{one.partition}" == partition)
    return found


def lineage(name: str, partition: str, directory: str = "kafka-logs") -> tuple[EpochEntry, ...]:
    path = fixture(name) / directory / partition / "leader-epoch-checkpoint"
    return leader_epochs.history(leader_epochs.decode(path.read_bytes())).entries


def ranges(name: str, partition: str, directory: str = "kafka-logs") -> list[tuple[int, int, int]]:
    """Start of a segment, first and last offset of a range that it answers for; up to the end of the log."""
    facts = facts_of(name)["partitions"][partition]
    found = answers(
        log_of(name, partition, directory), lineage(name, partition, directory),
        facts["log_start_offset"], facts["end_offset"],
    )  # fmt: skip
    return [(one.segment.start_offset, one.first_offset, one.last_offset) for one in found]


# ---- records ---------------------------------------------------------------------------------------------------------


def kafkas_text(event: Event) -> str:
    """An event as Kafka's `toString` shows it."""
    assert isinstance(event, SegmentEvent | UpdateEvent)
    one = event.segment if isinstance(event, SegmentEvent) else event
    of = event.topic_id_partition
    identity = (
        "remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition="
        f"{of.topic_id}:{of.topic}-{of.partition}, id={one.id}}}"
    )
    custom = one.custom_metadata
    metadata = f"Optional[CustomMetadata{{{len(custom)} bytes}}]" if custom is not None else "Optional.empty"
    state = {0: "COPY_SEGMENT_", 1: "COPY_SEGMENT_", 2: "DELETE_SEGMENT_", 3: "DELETE_SEGMENT_"}[one.state]
    state += one.state.name.split("_")[1]
    if isinstance(one, UpdateEvent):
        return (
            f"RemoteLogSegmentMetadataUpdate{{{identity}, customMetadata={metadata}, state={state}, "
            f"eventTimestampMs={one.event_time_ms}, brokerId={one.broker}}}"
        )
    epochs = ", ".join(f"{entry.epoch}={entry.start_offset}" for entry in one.epochs)
    return (
        f"RemoteLogSegmentMetadata{{{identity}, startOffset={one.start_offset}, endOffset={one.end_offset}, "
        f"brokerId={one.broker}, maxTimestampMs={one.max_timestamp_ms}, eventTimestampMs={one.event_time_ms}, "
        f"segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={one.size_bytes}, customMetadata={metadata}, "
        f"state={state}, txnIdxEmpty={str(one.transaction_index_empty).lower()}}}"
    )


@pytest.mark.parametrize(("name", "count"), [*zip(NAMES, (460, 70, 174), strict=True)])
def test_every_record_is_decoded_as_by_kafka(name: str, count: int) -> None:
    with gzip.open(PACKED / "tiered" / f"{name}.remote_log_metadata.txt.gz", "rt") as lines:
        kafkas = sorted(line.rstrip("\n") for line in lines)
    ours = [f"partition: {partition}, offset: {at}, value: {kafkas_text(one)}" for partition, at, one in events(name)]
    assert len(ours) == count
    assert sorted(ours) == kafkas


@pytest.mark.parametrize("name", NAMES)
def test_every_event_is_encoded_as_by_kafka(name: str) -> None:
    for partition in range(METADATA_PARTITIONS):
        log = LogView(str(fixture(name) / "kafka-logs" / f"__remote_log_metadata-{partition}"), fs=PosixFileSystem())
        for record in log.records():
            event = decode_event(record.value)
            assert isinstance(event, SegmentEvent | UpdateEvent)
            assert encode_event(event) == record.value


@pytest.mark.parametrize("name", NAMES)
def test_every_record_is_in_the_metadata_partition_of_its_topic_partition(name: str) -> None:
    for partition, _, event in events(name):
        assert not isinstance(event, Snapshot | PartitionDelete)
        of = event.topic_id_partition
        assert metadata_partition(of, METADATA_PARTITIONS) == partition


def states(name: str, topic: str, partition: int) -> list[int]:
    """Number of records per state, of one partition."""
    found: Counter[CopyState] = Counter()
    for _, _, event in events(name):
        assert isinstance(event, SegmentEvent | UpdateEvent)
        if event.topic_id_partition[1:] == (topic, partition):
            found[event.segment.state if isinstance(event, SegmentEvent) else event.state] += 1
    return [found[state] for state in CopyState]


@pytest.mark.parametrize(
    ("topic", "partition", "expected"),
    [
        ("orders", 0, [7, 7, 0, 0]),
        ("orders", 1, [7, 7, 1, 1]),
        ("trimmed", 0, [12, 12, 4, 4]),
        ("expired", 0, [4, 4, 3, 3]),
        ("stuck", 0, [112, 0, 112, 112]),
        ("gone", 0, [3, 3, 3, 3]),
    ],
)
def test_each_change_of_state_has_a_record(topic: str, partition: int, expected: list[int]) -> None:
    assert states("local-tiered", topic, partition) == expected


# ---- segments and ranges ---------------------------------------------------------------------------------------------


def shown(segment: RemoteSegment, partition: str, name: str) -> dict[str, Any]:
    """A segment as the facts have it."""
    own = lineage(name, partition)
    end = facts_of(name)["partitions"][partition]["end_offset"]
    return {
        "start": segment.start_offset, "end": segment.end_offset, "id": segment.id, "size": segment.size_bytes,
        "epochs": {str(entry.epoch): entry.start_offset for entry in segment.epochs},
        "max_timestamp_ms": segment.max_timestamp_ms, "txn_index_empty": segment.transaction_index_empty,
        "in_lineage": within_lineage(segment, own, end),
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_segments_and_their_place_in_the_lineage_are_those_of_the_facts(name: str) -> None:
    for partition, facts in facts_of(name)["partitions"].items():
        if not facts.get("remote"):
            continue
        segments = {one.id: one for one in log_of(name, partition).segments.values()}
        assert all(one.state is CopyState.COPY_FINISHED for one in segments.values())
        assert segments.keys() == {one["id"] for one in facts["remote"]}
        for one in facts["remote"]:
            ours = shown(segments[one["id"]], partition, name)
            assert ours == {word: one[word] for word in ours}


@pytest.mark.parametrize(("name", "directory"), DIRECTORIES)
def test_each_segment_answers_for_the_offsets_that_consumers_got_from_it(name: str, directory: str) -> None:
    for partition, facts in facts_of(name)["partitions"].items():
        if not facts.get("remote"):
            continue
        own = lineage(name, partition, directory)
        start, end = facts["log_start_offset"], facts["end_offset"]
        # The other replica has no entry yet for a leader that wrote nothing.
        with_records = [one for one in facts["lineage"] if one[1] < end]
        assert [[entry.epoch, entry.start_offset] for entry in own][: len(with_records)] == with_records
        found = defaultdict(list)
        for one in answers(log_of(name, partition, directory), own, start, end):
            found[one.segment.id].append([one.first_offset, one.last_offset])
        for one in facts["remote"]:
            whole = {"all": [[max(one["start"], start), one["end"]]], "hidden": []}
            read = "all" if one["read"] == "local" else one["read"]
            assert found[one["id"]] == (whole[read] if isinstance(read, str) else read), (partition, one)


def test_a_log_is_whole_from_its_start_to_the_local_start() -> None:
    firsts = [0, 175, 500, 825, 1000, 1150, 1325]
    assert ranges("local-tiered", "orders-0") == [
        (first, first, following - 1) for first, following in zip(firsts, [*firsts[1:], 1400], strict=True)
    ]


def test_a_log_may_start_within_a_segment_whose_epochs_begin_before_the_lineage() -> None:
    log, own = log_of("local-tiered", "orders-1"), lineage("local-tiered", "orders-1")
    assert own == (EpochEntry(0, 300), EpochEntry(2, 1000))
    first = min(log.segments.values(), key=lambda one: one.start_offset)
    assert (first.start_offset, first.end_offset, first.epochs) == (150, 474, (EpochEntry(0, 150),))
    assert within_lineage(first, own, 1400)
    found = ranges("local-tiered", "orders-1")
    assert found[0] == (150, 300, 474) and sum(last + 1 - start for _, start, last in found) == 1100


def test_the_epochs_of_a_segment_are_its_part_of_the_lineage() -> None:
    log = log_of("local-tiered", "kept-local-0")
    (segment,) = (one for one in log.segments.values() if one.start_offset == 350)
    assert (segment.end_offset, segment.epochs) == (514, (EpochEntry(0, 350), EpochEntry(2, 400)))
    folder = fixture("local-tiered") / "kafka-tiered-storage" / f"kept-local-0-{segment.topic_id}"
    path = folder / f"{350:020d}-{segment.id}.leader_epoch_checkpoint"
    assert path.read_bytes() == b"0\n2\n0 0\n2 400\n"


def test_deleted_segments_are_forgotten_and_their_highest_offset_stays() -> None:
    expired = log_of("local-tiered", "expired-0")
    (last,) = expired.segments.values()
    assert (last.start_offset, last.end_offset) == (400, 499)
    assert lineage("local-tiered", "expired-0") == (EpochEntry(2, 400),)
    gone = log_of("local-tiered", "gone-0")
    assert not gone.segments and gone.highest(0) is not None and not gone.listing(0)


def test_a_copy_that_always_fails_has_a_new_id_each_time() -> None:
    log, ids = log_of("local-tiered", "stuck-0"), set()
    for _, _, event in events("local-tiered"):
        if isinstance(event, SegmentEvent) and event.segment.topic == "stuck":
            assert event.segment.start_offset == 0
            ids.add(event.segment.id)
    assert len(ids) == 112 and not log.segments and log.highest(0) is None


def test_every_tiered_log_has_its_start_in_the_checkpoint() -> None:
    path = fixture("local-tiered") / "kafka-logs" / "log-start-offset-checkpoint"
    found = {str(one): offset for one, offset in checkpoints.decode(path.read_bytes()).items()}
    facts = facts_of("local-tiered")["partitions"]
    assert found == {one: facts[one]["log_start_offset"] for one in facts if facts[one].get("remote") is not None}
    assert len(found) == 7 and list(found.values()).count(0) == 4 and "plain-0" not in found


def test_leaders_that_copy_the_same_offsets_hide_tails_of_each_other() -> None:
    found = ranges("local-tiered-pair", "moves-0")
    assert found[0][1] == 0 and found[-1][2] == 3913
    assert all(before[2] + 1 == after[1] for before, after in pairwise(found))
    log = log_of("local-tiered-pair", "moves-0")
    ends = {one.start_offset: one.end_offset for one in log.segments.values()}
    cut = {start: last for start, _, last in found if last < ends[start]}
    assert cut == {1698: 1753, 2315: 2340, 2808: 2858, 3564: 3587}


def test_of_two_copies_of_a_segment_the_later_one_counts() -> None:
    log = log_of("local-tiered-pair", "moves-0")
    twins = [one for one in log.segments.values() if (one.start_offset, one.end_offset) == (1079, 1176)]
    assert len(twins) == 2
    first, second = sorted(twins, key=lambda one: one.event_time_ms)
    assert log.lookup(1, 1100) is second and first in log.unreferenced


def test_a_segment_has_two_ranges_around_an_abandoned_branch() -> None:
    found = ranges("local-tiered-pair", "split-0")
    at = next(index for index, one in enumerate(found) if one[0] == 683)
    assert found[at : at + 4] == [(683, 683, 750), (751, 751, 785), (786, 786, 818), (751, 819, 853)]


def test_segments_of_an_abandoned_branch_answer_for_nothing_but_stay() -> None:
    log, own = log_of("local-tiered-pair", "split-0"), lineage("local-tiered-pair", "split-0")
    outside = [one for one in log.segments.values() if not within_lineage(one, own, 1459)]
    bounds = sorted((one.start_offset, one.end_offset) for one in outside)
    assert bounds[0] == (786, 887) and bounds[1] == (888, 988) and bounds[-1] == (1856, 1940)
    used = {one.segment.id for one in answers(log, own, 0, 1459)}
    assert len(bounds) == 12 and [one.start_offset for one in outside if one.id in used] == [786]
    assert max(one.end_offset for one in log.segments.values() if one.id not in used) == 1940
