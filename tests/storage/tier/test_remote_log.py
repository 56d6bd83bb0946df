"""The segments of a log in a tier: states, look-ups and lineage, by tables that Kafka's own classes also answer."""

from __future__ import annotations

from random import Random

import pytest

from cordwood.common.errors import CorruptMessageError
from cordwood.storage.tier.remote_log import RemoteLog, answers, apply_event, within_lineage
from cordwood.storage.tier.segments import (
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
from tests.kafka_tools import Oracle
from tests.knobs import SEED, scaled
from tests.storage.tier.events import (
    TOPIC,
    ask,
    ask_kafka,
    epochs,
    event_of,
    kafkas_answers,
    kafkas_epochs,
    random_events,
    remote_log,
    segment_id,
    segment_record,
)

#: What happened, and the answers after it.
LOOK_UPS = {
    "an unfinished copy answers for nothing": ("A[0..99]", "L(0,0)=- list(0)=A0 H(0)=-"),
    "a finished copy answers for its offsets": (
        "A[0..99]; A=1", "L(0,0)=A L(0,99)=A L(0,100)=- L(1,0)=- H(0)=99 list(0)=A1",
    ),
    "a deletion ends the answers, not the highest offset": (
        "A[0..99]; A=1; A=2", "L(0,50)=- list(0)=A2 H(0)=99",
    ),
    "a deleted segment is forgotten": ("A[0..99]; A=1; A=2; A=3", "L(0,50)=- list(0)=- H(0)=99"),
    "a failed copy is deleted": ("A[0..99]; A=2", "L(0,50)=- list(0)=A2 H(0)=-"),
    "each epoch has its own offsets": (
        "A[90..150] {0:90, 2:120}; A=1",
        "L(0,119)=A L(0,120)=- L(2,119)=- L(2,120)=A L(2,150)=A H(0)=119 H(2)=150 list(0)=A1 list(2)=A1",
    ),
    "a longer copy replaces a shorter one": (
        "A[0..99]; A=1; B[0..199] {0:0}; B=1", "L(0,50)=B L(0,150)=B list(0)=A1,B1",
    ),
    "a copy that begins earlier and ends later replaces": (
        "A[10..90] {0:10}; A=1; B[5..100] {0:5}; B=1", "L(0,7)=B L(0,95)=B L(0,50)=B list(0)=B1,A1",
    ),
    "a copy that begins and ends earlier hides nothing": (
        "A[10..90] {0:10}; A=1; B[5..85] {0:5}; B=1", "L(0,7)=B L(0,50)=A L(0,88)=A",
    ),
    "a later start hides a tail": ("A[0..99]; A=1; B[60..150] {0:60}; B=1", "L(0,59)=A L(0,60)=B L(0,150)=B"),
    "a hidden tail does not depend on the order": (
        "B[60..150] {0:60}; B=1; A[0..99]; A=1", "L(0,59)=A L(0,60)=B L(0,150)=B",
    ),
    "a shorter copy at the same start takes the longer one out of all listings": (
        "A[0..99]; A=1; B[0..49] {0:0}; B=1", "L(0,30)=B L(0,60)=- H(0)=99 list(0)=B1",
    ),
    "the next segment fills the gap behind it": (
        "A[0..99]; A=1; B[0..49] {0:0}; B=1; C[50..120] {0:50}; C=1", "L(0,60)=C list(0)=B1,C1",
    ),
    "a gap has no segment": ("A[0..9]; A=1; C[20..29] {0:20}; C=1", "L(0,15)=- L(0,20)=C"),
    "the next transaction index is before the next gap": (
        "A[0..99]; A=1; B[100..199] {0:100} aborted; B=1; C[300..399] {0:300} aborted; C=1",
        "next(0,50)=B next(0,200)=- next(0,300)=C",
    ),
    "a change that skips a state is ignored": ("A[0..99]; A=1; A=3", "L(0,50)=A list(0)=A1"),
    "a second deletion is ignored": ("A[0..99]; A=1; A=2; A=3; A=3", "L(0,50)=- list(0)=-"),
    "an unknown segment is ignored": ("B[0..9]; A=1; A=3", "list(0)=B0"),
    "a copy does not begin again": ("A[0..99]; A=1; A[0..99]; A=0", "L(0,50)=A list(0)=A1"),
    "a replaced segment is deleted like others": (
        "A[0..99]; A=1; B[0..49] {0:0}; B=1; A=2", "L(0,30)=B list(0)=A2,B1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_UPS)
def test_look_ups_follow_the_events(name: str) -> None:
    events, text = LOOK_UPS[name]
    log = remote_log(events)
    assert [ask(log, one) for one in text.split()] == text.split()


@pytest.mark.parametrize("name", LOOK_UPS)
def test_the_same_records_twice_give_the_same_answers(name: str) -> None:
    log, again = remote_log(LOOK_UPS[name][0]), remote_log("; ".join([LOOK_UPS[name][0]] * 2))
    assert log.segments == again.segments
    assert [log.lookup(0, at) for at in range(200)] == [again.lookup(0, at) for at in range(200)]


def test_an_event_that_counts_is_distinguished_from_an_ignored_one() -> None:
    log = RemoteLog()
    texts = ["A=1", "A[0..9]", "A=3", "A=1", "A=1", "A[0..9]", "A=0", "A=2", "A=1", "A=3", "A=3"]
    counts = [log.apply(event_of(text)) for text in texts]
    assert counts == [False, True, False, True, True, False, False, True, False, True, False]
    assert not log.segments


def test_an_update_to_a_started_copy_is_refused_as_it_ends_a_brokers_consumer() -> None:
    log = remote_log("A[0..9]")
    with pytest.raises(CorruptMessageError, match="to state 0, which it has already"):
        log.apply(event_of("A=0"))


def test_an_update_brings_its_own_custom_metadata_broker_and_time() -> None:
    log = remote_log("A[0..9]")
    known = log.segments[segment_id("A")]
    for metadata in (b"x", None):
        log.apply(UpdateEvent(known.topic_id_partition, known.id, 7, 99, metadata, CopyState.COPY_FINISHED))
        found = log.segments[known.id]
        assert (found.broker, found.event_time_ms, found.custom_metadata) == (7, 99, metadata)
        assert (found.start_offset, found.epochs) == (known.start_offset, known.epochs)


def test_segments_without_offsets_and_without_a_listing_are_found() -> None:
    log = remote_log("A[0..99]; A=1; B[0..49] {0:0}; B=1; C[50..60] {0:50}; D[50..70] {0:50}; D=2")
    assert [one.id for one in log.unreferenced] == [segment_id(name) for name in "ACD"]
    assert [one.id for one in log.unlisted] == [segment_id("A")]


def test_each_partition_has_its_log_until_its_deletion_ends() -> None:
    logs: dict[TopicIdPartition, RemoteLog] = {}
    assert apply_event(logs, event_of("A[0..9]"))
    other = decode_event(
        segment_record("A", remote_log_segment_id={"topic_id_partition": TOPIC | {"partition": 1}, "id": "A" * 22})
    )
    assert apply_event(logs, other) and isinstance(other, SegmentEvent)
    partition = TopicIdPartition(str(TOPIC["id"]), "t", 0)
    assert {one.partition: len(log.segments) for one, log in logs.items()} == {0: 1, 1: 1}
    assert apply_event(logs, PartitionDelete(partition, 1, 0, DeleteState.STARTED)) and len(logs) == 2
    assert apply_event(logs, PartitionDelete(partition, 1, 0, DeleteState.FINISHED))
    assert list(logs) == [other.topic_id_partition]


def test_a_snapshot_is_refused_as_it_names_no_partition() -> None:
    with pytest.raises(CorruptMessageError, match="names no partition"):
        apply_event({}, Snapshot("A" * 22, CopyState.COPY_FINISHED))


# ---- lineage ---------------------------------------------------------------------------------------------------------

#: A segment, a lineage, the log end, and whether the segment is within it.
WITHIN = [
    ("A[90..150] {0:90, 2:120}", "{0:0, 2:120}", 151, True),
    ("A[90..150] {0:90, 2:120}", "{0:0, 2:120}", 150, False),
    ("A[90..150] {1:90}", "{0:0, 2:120}", 300, False),
    ("A[90..150] {0:90, 2:121}", "{0:0, 2:120}", 300, False),
    ("A[90..150] {0:90, 1:100, 2:120}", "{0:0, 2:120}", 300, False),
    ("A[90..150] {0:90}", "{0:0, 2:120}", 300, False),
    ("A[90..119] {0:90}", "{0:0, 2:120}", 300, True),
    ("A[90..150] {3:130}", "{0:0, 2:120}", 300, False),
    ("A[90..150] {2:110}", "{0:0, 2:120}", 300, False),
    ("A[90..150] {2:110}", "{2:120}", 300, True),
    ("A[90..150] {0:90, 2:120}", "{2:130}", 300, True),
    ("A[90..150] {0:0}", "{2:120}", 300, False),
    ("A[0..9] {0:0, 1:0, 2:5}", "{1:0, 2:5}", 300, True),
    ("A[0..9] {1:0, 2:5}", "{0:0, 1:0, 2:5}", 300, True),
    ("A[0..9] {0:0, 1:5, 2:5}", "{0:0, 2:5}", 300, True),
    ("A[0..9] {0:0, 2:5}", "{0:0, 1:5, 2:5}", 300, True),
]


def segment_of(text: str) -> RemoteSegment:
    event = event_of(text)
    assert isinstance(event, SegmentEvent)
    return event.segment


@pytest.mark.parametrize(("segment", "lineage", "log_end", "expected"), WITHIN)
def test_a_segment_is_within_a_lineage_that_has_its_epochs(
    segment: str, lineage: str, log_end: int, expected: bool
) -> None:
    assert within_lineage(segment_of(segment), epochs(lineage), log_end) is expected


def test_nothing_is_within_an_empty_lineage() -> None:
    assert not within_lineage(segment_of("A[0..9]"), (), 300)


def ranges(log: RemoteLog, lineage: str, start: int, end: int) -> list[tuple[str, int, int]]:
    names = {segment_id(name): name for name in "ABCDEF"}
    found = answers(log, epochs(lineage), start, end)
    return [(names[one.segment.id], one.first_offset, one.last_offset) for one in found]


def test_the_offsets_of_a_log_are_ranges_of_its_segments() -> None:
    log = remote_log("A[0..99]; A=1; B[60..150] {0:60}; B=1; C[200..250] {0:200}; C=1; D[251..260] {0:251}")
    assert ranges(log, "{0:0}", 0, 300) == [("A", 0, 59), ("B", 60, 150), ("C", 200, 250)]
    assert ranges(log, "{0:0}", 30, 210) == [("A", 30, 59), ("B", 60, 150), ("C", 200, 209)]
    assert ranges(log, "{0:0}", 151, 200) == []
    assert ranges(log, "{0:70}", 0, 300) == [("B", 70, 150), ("C", 200, 250)]


def test_an_abandoned_branch_interrupts_the_segment_that_goes_on_behind_it() -> None:
    log = remote_log("A[683..785] {0:683}; A=1; C[751..853] {0:751, 2:819}; C=1; B[786..887] {0:786}; B=1")
    assert ranges(log, "{0:0, 2:819}", 700, 1000) == [
        ("A", 700, 750),
        ("C", 751, 785),
        ("B", 786, 818),
        ("C", 819, 853),
    ]
    assert ranges(log, "{0:0, 1:700}", 0, 1000) == [("A", 683, 699)]


def test_epochs_within_a_segment_do_not_divide_it() -> None:
    log = remote_log("A[0..99] {0:0, 1:40, 3:70}; A=1")
    assert ranges(log, "{0:0, 1:40, 3:70}", 10, 200) == [("A", 10, 99)]
    assert ranges(log, "{0:0, 1:40, 2:50}", 10, 200) == [("A", 10, 49)]


#: Questions about all epochs of `random_events`.
QUESTIONS = [
    f"{kind}({numbers})=?"
    for epoch in range(5)
    for kind, numbers in (
        ("H", str(epoch)),
        ("list", str(epoch)),
        *((kind, f"{epoch},{at}") for kind in ("L", "next") for at in range(0, 240, 5)),
    )
]


def test_ranges_are_the_look_ups_of_single_offsets() -> None:
    random = Random(SEED)
    for _ in range(scaled(60, 600)):
        log = remote_log(random_events(random))
        lineage = epochs(random.choice(("{0:0, 1:40, 2:70, 4:130}", "{0:0, 1:40, 3:80}", "{1:55, 3:80}")))
        start, end = random.randint(0, 60), random.randint(100, 250)
        single: list[tuple[int, RemoteSegment]] = []
        for offset in range(start, end):
            epoch = next((entry.epoch for entry in reversed(lineage) if entry.start_offset <= offset), None)
            segment = None if epoch is None else log.lookup(epoch, offset)
            single += [(offset, segment)] if segment else []
        found = answers(log, lineage, start, end)
        assert single == [(at, one.segment) for one in found for at in range(one.first_offset, one.last_offset + 1)]


# ---- Kafka's own classes ---------------------------------------------------------------------------------------------


def in_any_order(answer: str) -> str:
    """An answer whose list is in the order of names; Kafka lists segments with the same start in any order."""
    what, _, listed = answer.partition("=")
    return f"{what}={','.join(sorted(listed.split(',')))}"


def test_kafkas_classes_give_the_same_answers(kafka_oracle: Oracle) -> None:
    random = Random(SEED)
    drawn = [(events, text.split()) for events, text in LOOK_UPS.values()]
    drawn += [(random_events(random), QUESTIONS) for _ in range(scaled(100, 1000))]
    kafkas = kafka_oracle.tier(ask_kafka(*one) for one in drawn)
    for (events, questions), line in zip(drawn, kafkas, strict=True):
        log = remote_log(events)
        ours = [in_any_order(ask(log, one)) for one in questions]
        assert ours == [in_any_order(one) for one in kafkas_answers(line, questions)], events


def test_kafkas_classes_find_the_same_segments_within_a_lineage(kafka_oracle: Oracle) -> None:
    random = Random(SEED)
    drawn = [(segment_of(segment), epochs(lineage), end) for segment, lineage, end, _ in WITHIN]
    while len(drawn) < scaled(500, 10_000):
        start, offset = random.randint(0, 30), 0
        lineages = []
        for first in (start, 0):
            numbers, offset = sorted(random.sample(range(5), random.randint(1, 4))), first
            entries = []
            for number in numbers:
                entries.append(f"{number}:{offset}")
                offset += random.choice((0, 10, 20))
            lineages.append(f"{{{', '.join(entries)}}}")
        segment = segment_of(f"A[{start}..{start + random.randint(0, 60)}] {lineages[0]}")
        drawn.append((segment, epochs(lineages[1]), random.randint(20, 100)))
    kafkas = kafka_oracle.tier(
        {"do": "within", "start": segment.start_offset, "end": segment.end_offset,
         "epochs": kafkas_epochs(segment.epochs), "lineage": kafkas_epochs(lineage), "log_end": end}
        for segment, lineage, end in drawn
    )  # fmt: skip
    assert [line.get("within") for line in kafkas] == [within_lineage(*one) for one in drawn]
