"""Events of remote segments in a short notation, for Cordwood and for Kafka's own classes.

    A[90..150] {0:90, 2:120}       the copy of a segment begins; without epochs: {0: its start}
    A[90..150] aborted             the same, with a transaction index
    A[90..150] 30 bytes at 5       the same, with its size and largest timestamp
    A=1                            an update to this state

and questions about the log after them, with their answers; `-` is none:

    L(0,50)=A    H(0)=99    list(0)=A1,B2    next(0,50)=B

L is the segment of an offset in an epoch, H the highest offset, list a listing, with states; next is the first segment
with a transaction index.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from random import Random
from typing import Any

from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.tier.remote_log import RemoteLog
from cordwood.storage.tier.segments import Event, RemoteSegment, SegmentEvent, UpdateEvent, decode_event
from tests.storage.messages import internal_record

TOPIC = {"name": "t", "id": encode_id(uuid.UUID(int=1)), "partition": 0}
_ADD = re.compile(r"(\w+)\[(\d+)\.\.(\d+)\]\s*(\{.*\})?\s*(aborted)?\s*(?:(\d+) bytes)?\s*(?:at (\d+))?")
_EPOCH = re.compile(r"(\d+):(\d+)")
_QUESTION = re.compile(r"(\w+)\(([\d,]+)\)=(\S+)")


def next_with_transactions(log: RemoteLog, epoch: int, offset: int) -> RemoteSegment | None:
    """The first segment with a transaction index, from the segment of an offset up to the next gap."""
    while (segment := log.lookup(epoch, offset)) is not None and segment.transaction_index_empty:
        if segment.end_offset < offset:
            return None  # Kafka would loop forever; no broker writes such a segment
        offset = segment.end_offset + 1
    return segment


def segment_id(name: str) -> str:
    return encode_id(uuid.uuid5(uuid.NAMESPACE_URL, name))


def epochs(text: str) -> tuple[EpochEntry, ...]:
    """Entries of a lineage: `{0:0, 2:120}`."""
    return tuple(EpochEntry(int(epoch), int(offset)) for epoch, offset in _EPOCH.findall(text))


def segment_record(name: str = "A", start: int = 0, end: int = 9, lineage: str = "{0:0}", **fields: Any) -> bytes:
    """The value of the record with which a copy begins."""
    entries = [{"leader_epoch": entry.epoch, "offset": entry.start_offset} for entry in epochs(lineage)]
    value: dict[str, Any] = {
        "remote_log_segment_id": {"topic_id_partition": TOPIC, "id": segment_id(name)},
        "start_offset": start, "end_offset": end, "segment_leader_epochs": entries, "txn_index_empty": True,
    }  # fmt: skip
    _, record = internal_record("RemoteLogSegmentMetadataRecord", value | fields)
    assert record is not None
    return record


def update_record(name: str, state: int, **fields: Any) -> bytes:
    """The value of the record with which a segment changes its state."""
    identity = {"topic_id_partition": TOPIC, "id": segment_id(name)}
    value = {"remote_log_segment_id": identity, "remote_log_segment_state": state}
    _, record = internal_record("RemoteLogSegmentMetadataUpdateRecord", value | fields)
    assert record is not None
    return record


def event_of(text: str) -> SegmentEvent | UpdateEvent:
    """One event, decoded from its record."""
    if match := _ADD.fullmatch(text.strip()):
        name, start, end, lineage, aborted, size, time = match.groups()
        fields = {"segment_size_in_bytes": int(size or 0), "max_timestamp_ms": int(time or 0)}
        record = segment_record(
            name, int(start), int(end), lineage or f"{{0:{start}}}", txn_index_empty=aborted is None, **fields
        )
    else:
        name, state = text.strip().split("=")
        record = update_record(name, int(state))
    event: Event = decode_event(record)
    assert isinstance(event, SegmentEvent | UpdateEvent)
    return event


def remote_log(text: str) -> RemoteLog:
    """The log after some events, which `;` separates."""
    log = RemoteLog()
    for one in text.split(";"):
        log.apply(event_of(one))
    return log


def ask(log: RemoteLog, question: str) -> str:
    """A question with the log's answer."""
    match = _QUESTION.fullmatch(question)
    assert match, question
    what, numbers = match[1], [int(number) for number in match[2].split(",")]
    names = {segment_id(name): name for name in "ABCDEFGHIJKLMNOP"}
    if what == "H":
        highest = log.highest(*numbers)
        answer = "-" if highest is None else str(highest)
    elif what == "list":
        listed = [(one.start_offset, names[one.id], int(one.state)) for one in log.listing(*numbers)]
        assert [start for start, *_ in listed] == sorted(start for start, *_ in listed)
        answer = ",".join(f"{name}{state}" for _, name, state in sorted(listed)) or "-"
    else:
        segment = log.lookup(*numbers) if what == "L" else next_with_transactions(log, *numbers)
        answer = names[segment.id] if segment else "-"
    return f"{what}({match[2]})={answer}"


def random_events(random: Random) -> str:
    """Segments of some leaders, whose epochs are parts of two lineages, through random states."""
    lineages = [((0, 0), (1, 40), (2, 70), (4, 130)), ((0, 0), (1, 40), (3, 80))]
    events, alive = [], []
    for name in "ABCDEFGHIJ"[: random.randint(2, 10)]:
        lineage, start = random.choice(lineages), random.randrange(0, 160, 10)
        end = start + random.randrange(9, 80, 10)
        inside = [
            f"{epoch}:{max(at, start)}"
            for (epoch, at), (_, behind) in zip(lineage, [*lineage[1:], (0, 1000)], strict=True)
            if at <= end and behind > start
        ]
        events.append(f"{name}[{start}..{end}] {{{', '.join(inside)}}}{random.choice(('', ' aborted'))}")
        alive.append(name)
        for _ in range(random.randint(0, 4)):
            events.append(f"{random.choice(alive)}={random.choice((1, 1, 1, 2, 2, 3))}")
    return "; ".join(events)


# ---- the same for Kafka ----------------------------------------------------------------------------------------------


def kafkas_event(text: str) -> dict[str, object]:
    """An event in the form of `OracleTier.java`."""
    event = event_of(text)
    name = re.split(r"[\[=]", text.strip())[0]
    if isinstance(event, UpdateEvent):
        return {"set": name, "state": int(event.state)}
    segment = event.segment
    return {
        "add": name, "start": segment.start_offset, "end": segment.end_offset,
        "epochs": kafkas_epochs(segment.epochs), "txn_empty": segment.transaction_index_empty,
        "size": segment.size_bytes, "time": segment.max_timestamp_ms,
    }  # fmt: skip


def kafkas_epochs(entries: Iterable[EpochEntry]) -> dict[str, int]:
    return {str(entry.epoch): entry.start_offset for entry in entries}


def ask_kafka(events: str, questions: Iterable[str]) -> dict[str, object]:
    """A question of `OracleTier.java` that covers some questions."""
    asked: dict[str, list[object]] = {"lookup": [], "highest": [], "list": [], "next_transactions": []}
    words = {"L": "lookup", "H": "highest", "list": "list", "next": "next_transactions"}
    for question in questions:
        match = _QUESTION.fullmatch(question)
        assert match, question
        numbers = [int(number) for number in match[2].split(",")]
        asked[words[match[1]]].append(numbers[0] if match[1] in ("H", "list") else numbers)
    # A reader that begins with the first record, as Cordwood is.
    return {"do": "cache", "initialized": False, "events": [kafkas_event(one) for one in events.split(";")], **asked}


def kafkas_answers(line: dict[str, Any], questions: Iterable[str]) -> list[str]:
    """Kafka's answers to `ask_kafka`, as `ask` writes them."""
    answers = {"L": iter(line["lookup"]), "next": iter(line["next_transactions"]), "H": iter(line["highest"])}
    lists = iter(line["list"])
    found = []
    for question in questions:
        what, left = question.split("(")[0], question.split("=")[0]
        if what == "list":
            answer = ",".join(f"{name}{state}" for name, state in next(lists)) or "-"
        else:
            given = next(answers[what])
            answer = "-" if given is None else str(given)
        found.append(f"{left}={answer}")
    return found
