"""What a tier becomes when it changes its owner, a broker or a program with a live log; values only.

A broker finds its remote segments by the records of `__remote_log_metadata`, a live log by its manifest. To change the
owner, the one is made from the other, and no object moves:

    manifest → records    of each segment: its copy began, and finished
    records → manifest    the segments that answer for the log; all others are to be deleted
                          and records: of each segment, it is deleted

Both are refused unless the new owner would read exactly the log that the old one had.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from cordwood.common.errors import RequestError
from cordwood.common.text import number
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.tier.manifest import GoneSegment, TierState, empty_state
from cordwood.storage.tier.packed import TierSegment
from cordwood.storage.tier.remote_log import RemoteLog, answers
from cordwood.storage.tier.segments import CopyState, RemoteSegment, SegmentEvent, TopicIdPartition, UpdateEvent

Events = Sequence[SegmentEvent | UpdateEvent]
#: Maximum number of segments that one error names.
_NAMED = 5


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
        log: what the records say so far; it has no segment.
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


def adopted_state(
    partition: TopicIdPartition,
    log: RemoteLog,
    lineage: Sequence[EpochEntry],
    log_start: int,
    local_bases: Iterable[int],
    describe: Callable[[RemoteSegment], TierSegment],
    now_ms: int,
) -> TierState:
    """Return the state of a live log with the segments that a broker has in its tier.

    Args:
        lineage: leader epochs of the broker's log.
        log_start: its log start offset.
        local_bases: base offsets of its segments on the disk.
        describe: returns a segment as a manifest has it.

    Raises:
        RequestError: segments overlap, or offsets are missing, so a manifest cannot describe the log.
    """
    found = answers(log, lineage, log_start, MAX_OFFSET)
    cut = [
        one.segment
        for one in found
        if one.last_offset != one.segment.end_offset or one.first_offset != max(one.segment.start_offset, log_start)
    ]
    if cut:
        names = ", ".join(one.id for one in cut[:_NAMED])
        raise RequestError(
            f"{number(len(cut), 'segment')} overlap with others ({names}), as after a change of leaders, and a live "
            "log reads segments whole. Wait until remote retention has deleted them, or restore the topic with "
            "cordwood fetch"
        )
    at = log_start
    for one in found:
        if one.first_offset != at:
            raise RequestError(f"offsets {at} to {one.first_offset - 1} are in no segment. Look: cordwood check --tier")
        at = one.last_offset + 1
    bases = sorted(local_bases)
    if found and bases and at not in bases and bases[0] < at < bases[-1]:
        raise RequestError(
            f"the tier ends before offset {at}, and no segment on the disk begins there, as after a change of leaders. "
            "Start the broker, wait until it has copied the next segment, and stop it"
        )
    if bases and at < bases[0]:
        raise RequestError(f"offsets {at} to {bases[0] - 1} are in no segment. Look: cordwood check --tier")
    answering = {one.segment.id for one in found}
    rest = [one for one in log.segments.values() if one.id not in answering]
    return replace(
        empty_state(partition),
        log_start_offset=log_start,
        segments=tuple(describe(one.segment) for one in found),
        gone=tuple(GoneSegment(replace(one, state=CopyState.COPY_FINISHED), now_ms) for one in rest),
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
