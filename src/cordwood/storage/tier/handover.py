"""The manifest or the records of a tier that changes its owner, a broker or a program with a live log; values only.

A broker finds its remote segments by the records of `__remote_log_metadata`, a live log by its manifest. A change of
the owner makes one from the other, and objects stay where they are:

    manifest → records    of each segment: its copy began, and finished
    records → manifest    the segments that answer for the log; all others are to be deleted
                          and records: of each segment, it is deleted

After a change of leaders segments overlap, and a manifest names none that do. Then parts of them are copied first.
Both ways are refused unless the new owner would read exactly the log that the old one had.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace

from cordwood.common.errors import RequestError
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.manifest import GoneSegment, TierState, empty_state
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.remote_log import Answer, RemoteLog, answers
from cordwood.storage.tier.segments import CopyState, RemoteSegment, SegmentEvent, TopicIdPartition, UpdateEvent

Events = Sequence[SegmentEvent | UpdateEvent]


def export_start(state: TierState, local_start: int) -> int:
    """Return the log start offset that a broker needs.

    A clean of a live log may have left no record at its start, and so no segment there. A broker would answer
    OFFSET_OUT_OF_RANGE for such an offset, so its log begins behind it.

    Args:
        local_start: first offset on the disk.

    Raises:
        RequestError: offsets between the last segment of the tier and the disk are missing.
    """
    segments = state.segments
    first = segments[0].segment.start_offset if segments else local_start
    if segments and segments[-1].segment.end_offset + 1 < local_start:
        raise RequestError(
            f"the tier ends at offset {segments[-1].segment.end_offset}, and the disk begins at {local_start}. Open "
            "the log once with the program that it belongs to, and close it"
        )
    return max(first, state.log_start_offset)


def export_events(
    state: TierState, log: RemoteLog, lineage: Sequence[EpochEntry], log_start: int, broker: int, now_ms: int
) -> Events:
    """Return the events by which a broker learns of the segments of a live log.

    Args:
        log: the remote log by the records so far; it has no segment.
        lineage: leader epochs of the broker's log.
        log_start: its log start offset.

    Raises:
        RequestError: the broker would not read the log that the manifest describes.
    """
    events: list[SegmentEvent | UpdateEvent] = []
    for segment in (one.segment for one in state.segments):
        began = replace(segment, state=CopyState.COPY_STARTED, broker=broker, event_time_ms=now_ms)
        events += [SegmentEvent(began), _update(began, CopyState.COPY_FINISHED, now_ms)]
    after = copy.deepcopy(log)
    for event in events:
        after.apply(event)
    found = [
        (one.first_offset, one.last_offset, one.segment.id) for one in answers(after, lineage, log_start, MAX_OFFSET)
    ]
    segments = [one.segment for one in state.segments if one.segment.end_offset >= log_start]
    wanted = [(max(one.start_offset, log_start), one.end_offset, one.id) for one in segments]
    if found != wanted:
        differing = [one for one in wanted if one not in found] or found
        raise RequestError(
            "a broker would not find all of its remote segments by the leader epochs in leader-epoch-checkpoint, such "
            f"as offsets {differing[0][0]} to {differing[0][1]} in segment {differing[0][2]}"
        )
    return events


def adoptable(
    log: RemoteLog, lineage: Sequence[EpochEntry], log_start: int, local_bases: Collection[int]
) -> list[Answer]:
    """Return the segments of a broker's tier, or parts of segments, that a live log gets.

    A live log copies whole segments from its disk. So of segments in both places, it gets those up to an offset at
    which a segment begins on the disk, too.

    Args:
        lineage: leader epochs of the broker's log.
        log_start: its log start offset.
        local_bases: base offsets of its segments on the disk.

    Raises:
        RequestError: offsets are in no segment.
    """
    local_start = min(local_bases, default=MAX_OFFSET)
    found: list[Answer] = []
    for one in answers(log, lineage, log_start, MAX_OFFSET):
        if one.last_offset < local_start or (not is_cut(one, log_start) and one.last_offset + 1 in local_bases):
            found.append(one)
            continue
        if one.first_offset < local_start:
            found.append(one._replace(last_offset=local_start - 1))
        break
    firsts = [one.first_offset for one in found] + ([] if local_start == MAX_OFFSET else [local_start])
    ends = [log_start, *(one.last_offset + 1 for one in found)]
    for end, first in zip(ends, firsts, strict=False):
        if end < first:
            raise RequestError(f"offsets {end} to {first - 1} are in no segment. Look: cordwood check --tier")
    return found


def is_cut(answer: Answer, log_start: int) -> bool:
    """Return whether an answer is only a part of its segment. Records below the log start do not count."""
    segment = answer.segment
    whole = max(segment.start_offset, log_start), segment.end_offset
    return (answer.first_offset, answer.last_offset) != whole


def adopted_state(
    partition: TopicIdPartition, log: RemoteLog, segments: Sequence[TierSegment], log_start: int, now_ms: int
) -> TierState:
    """Return the state of a live log that takes over a broker's tier; the objects of all other segments are to go."""
    named = {one.segment.id for one in segments}
    rest = [replace(one, state=CopyState.COPY_FINISHED) for one in log.segments.values() if one.id not in named]
    return replace(
        empty_state(partition),
        log_start_offset=log_start,
        segments=tuple(segments),
        gone=tuple(GoneSegment(one, now_ms) for one in rest),
    )


def forgotten_events(log: RemoteLog, broker: int, now_ms: int) -> Events:
    """Return the events after which brokers know of no segment; they delete no object."""
    events: list[SegmentEvent | UpdateEvent] = []
    for one in log.segments.values():
        states = [CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED]
        changed = replace(one, broker=broker)
        events += [_update(changed, state, now_ms) for state in states if one.state is not state]
    return events


def _update(segment: RemoteSegment, state: CopyState, now_ms: int) -> UpdateEvent:
    return UpdateEvent(segment.topic_id_partition, segment.id, segment.broker, now_ms, segment.custom_metadata, state)
