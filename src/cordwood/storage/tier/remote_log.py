"""The part of a partition's log that is in a tier: which remote segment answers for which offsets.

Leaders change, and each new leader copies whole segments of its own. So segments overlap, and some hold a branch of the
log that was abandoned. Therefore brokers keep the finished segments by leader epoch: per epoch, a map from the first
offset with that epoch in a segment to the segment. The segment of an offset is found in the map of the epoch that the
offset has in the lineage, the entries of the replica's `leader-epoch-checkpoint`. An example, with the lineage {0:0,
2:819}:

    A   683..785   {0:683}           answers for 683 to 750
    B   751..853   {0:751, 2:819}    answers for 751 to 785, and for 819 to 853
    C   786..887   {0:786}           answers for 786 to 818; the rest is of the abandoned branch

Here B hides the end of A. A hidden tail ends where a batch ends, as all replicas have the same batches.

Source: Kafka RemoteLogMetadataCache, RemoteLogLeaderEpochState, RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from cordwood.common.config import DAY_MS
from cordwood.common.errors import CorruptMessageError
from cordwood.common.types import NONE
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.tier.segments import (
    NEXT_STATES,
    CopyState,
    DeleteState,
    Event,
    PartitionDelete,
    RemoteSegment,
    SegmentEvent,
    Snapshot,
    TopicIdPartition,
    UpdateEvent,
)


@dataclass(slots=True)
class _Epoch:
    """The segments with records of one leader epoch.

    Attributes:
        starts: first offsets of the epoch in finished segments, ascending; the keys of `ids`.
        ids: segment by first offset.
        unreferenced: ids of segments that are being copied or deleted, or were superseded by a later copy.
        highest: last offset of the epoch that was ever copied. Deletions do not lower it.
    """

    starts: list[int] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    unreferenced: set[str] = field(default_factory=set)
    highest: int | None = None

    def put(self, start: int, last: int, segment_id: str) -> None:
        """Let a finished segment answer from `start` to `last`; see the module's example."""
        while self.starts and self.starts[-1] >= start and self.highest is not None and self.highest <= last:
            self.unreferenced.add(self.ids.pop(self.starts.pop()))
        if start not in self.ids:
            insort(self.starts, start)
        # A segment that was there is in no listing from now on, and so retention never deletes it, as in Kafka.
        self.ids[start] = segment_id
        self.unreferenced.discard(segment_id)
        self.highest = last if self.highest is None else max(self.highest, last)

    def drop(self, start: int, segment_id: str) -> None:
        """End a segment's part in look-ups, unless another segment took its place."""
        if self.ids.get(start) == segment_id:
            del self.ids[start], self.starts[bisect_left(self.starts, start)]
        self.unreferenced.add(segment_id)


class Answer(NamedTuple):
    """A segment, and a range of offsets that it answers for; both ends are included."""

    segment: RemoteSegment
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Attempts:
    """Attempts at something that has not succeeded yet, with the times of the first and the last one."""

    count: int
    first_ms: int
    last_ms: int

    @classmethod
    def after(cls, before: Attempts | None, time_ms: int) -> Attempts:
        """Return the attempts with one more."""
        return cls(1, time_ms, time_ms) if before is None else cls(before.count + 1, before.first_ms, time_ms)


#: Failed attempts to copy one segment from which on its copies count as failing; a broker tries again in each round.
FAILED_COPIES = 3


@dataclass(slots=True)
class DayOfCopies:
    """The work of the brokers on a day: copies that began, the size of their logs, and deletions that began."""

    copies: int = 0
    copied_bytes: int = 0
    deletions: int = 0


class RemoteLog:
    """The remote segments of one topic partition, after the events that were applied so far.

    Attributes:
        segments: by id, in every state but `DELETE_FINISHED`.
        failed_copies: copies that were given up, by start offset; none where a copy succeeded later.
        deletions: attempts to delete each segment in state `DELETE_STARTED`, by id.
        days: copies and deletions, by day since 1970.
    """

    def __init__(self) -> None:
        self.segments: dict[str, RemoteSegment] = {}
        self.failed_copies: dict[int, Attempts] = {}
        self.deletions: dict[str, Attempts] = {}
        self.days: dict[int, DayOfCopies] = {}
        self._epochs: dict[int, _Epoch] = {}

    def apply(self, event: SegmentEvent | UpdateEvent) -> bool:
        """Apply the next event, in the order of their records.

        Returns:
            Whether it counts. Like a broker, ignore updates of unknown segments and impossible changes of state.

        Raises:
            CorruptMessageError: an update to `COPY_STARTED` of a segment in that state, which ends a broker's consumer.
        """
        segment_id = event.segment.id if isinstance(event, SegmentEvent) else event.id
        known = self.segments.get(segment_id)
        state = event.segment.state if isinstance(event, SegmentEvent) else event.state
        if state not in NEXT_STATES[None if known is None else known.state]:
            return False
        if isinstance(event, SegmentEvent):
            for entry in event.segment.epochs:
                self._epoch(entry.epoch).unreferenced.add(segment_id)
            self.segments[segment_id] = event.segment
            day = self._day(event.segment.event_time_ms)
            day.copies += 1
            day.copied_bytes += event.segment.size_bytes
            return True
        if known is None:
            return False
        if state is CopyState.COPY_STARTED:
            raise CorruptMessageError(f"an update of segment {segment_id} to state {state}, which it has already")
        for entry in known.epochs:
            epoch = self._epoch(entry.epoch)
            if state is CopyState.COPY_FINISHED:
                epoch.put(entry.start_offset, known.last_offset_in(entry.epoch), segment_id)
            elif state is CopyState.DELETE_STARTED:
                epoch.drop(entry.start_offset, segment_id)
            else:
                epoch.unreferenced.discard(segment_id)
        self._note(known, state, event.event_time_ms)
        if state is CopyState.DELETE_FINISHED:
            del self.segments[segment_id]
        else:
            self.segments[segment_id] = replace(
                known,
                state=state,
                broker=event.broker,
                event_time_ms=event.event_time_ms,
                custom_metadata=event.custom_metadata,
            )
        return True

    def _note(self, known: RemoteSegment, state: CopyState, time_ms: int) -> None:
        """Note an attempt that fails, or succeeds, with a segment's next state."""
        start = known.start_offset
        if state is CopyState.COPY_FINISHED:
            self.failed_copies.pop(start, None)
        elif state is CopyState.DELETE_FINISHED:
            self.deletions.pop(known.id, None)
        else:
            self._day(time_ms).deletions += 1
            self.deletions[known.id] = Attempts.after(self.deletions.get(known.id), time_ms)
            if known.state is CopyState.COPY_STARTED:
                self.failed_copies[start] = Attempts.after(self.failed_copies.get(start), time_ms)

    def _day(self, time_ms: int) -> DayOfCopies:
        return self.days.setdefault(time_ms // DAY_MS, DayOfCopies())

    def _epoch(self, number: int) -> _Epoch:
        return self._epochs.setdefault(number, _Epoch())

    def lookup(self, epoch: int, offset: int) -> RemoteSegment | None:
        """Return the segment that answers for an offset of an epoch, or None.

        Source: Kafka RemoteLogMetadataCache.remoteLogSegmentMetadata.
        """
        known = self._epochs.get(epoch, _NO_SEGMENTS)
        count = bisect_right(known.starts, offset)
        if not count:
            return None
        segment = self.segments[known.ids[known.starts[count - 1]]]
        return segment if offset <= segment.last_offset_in(epoch) else None

    def lookup_range(self, epoch: int, first_offset: int, end_offset: int) -> Iterator[Answer]:
        """Yield the answers of `lookup` for all offsets of [first_offset, end_offset), as ranges.

        A range ends with the offsets of its segment. So it is smaller than Kafka's answer if a segment's epochs reach
        beyond its own offsets, which no broker writes.
        """
        known = self._epochs.get(epoch, _NO_SEGMENTS)
        starts = known.starts[max(bisect_right(known.starts, first_offset) - 1, 0) :]
        for start, following in pairwise([*starts, end_offset]):
            if start >= end_offset:
                break
            segment = self.segments[known.ids[start]]
            first = max(start, first_offset, segment.start_offset)
            last = min(following - 1, end_offset - 1, segment.last_offset_in(epoch), segment.end_offset)
            if first <= last:
                yield Answer(segment, first, last)

    def listing(self, epoch: int) -> list[RemoteSegment]:
        """Return the segments with records of an epoch, in any state, by start offset; retention walks these.

        Source: Kafka RemoteLogMetadataCache.listRemoteLogSegments.
        """
        known = self._epochs.get(epoch, _NO_SEGMENTS)
        ids = [*(known.ids[start] for start in known.starts), *sorted(known.unreferenced)]
        # Without its segment is an id whose copy began a second time, with other epochs.
        return sorted((self.segments[one] for one in ids if one in self.segments), key=_start)

    def highest(self, epoch: int) -> int | None:
        """Return the last offset of an epoch that was ever copied, or None; deletions do not lower it.

        Source: Kafka RemoteLogMetadataCache.highestOffsetForEpoch.
        """
        return self._epochs.get(epoch, _NO_SEGMENTS).highest

    @property
    def unreferenced(self) -> list[RemoteSegment]:
        """The segments that answer for no offset of any epoch, by start offset."""
        referenced = {one for known in self._epochs.values() for one in known.ids.values()}
        return sorted((segment for segment in self.segments.values() if segment.id not in referenced), key=_start)

    @property
    def unlisted(self) -> list[RemoteSegment]:
        """The segments in no listing, by start offset. A broker deletes them only with their topic.

        Such a segment was replaced by a later copy with the same start offset.
        """
        listed = {segment.id for epoch in self._epochs for segment in self.listing(epoch)}
        return sorted((segment for segment in self.segments.values() if segment.id not in listed), key=_start)


#: An epoch without segments; never changed.
_NO_SEGMENTS = _Epoch()


def _start(segment: RemoteSegment) -> int:
    return segment.start_offset


def apply_event(logs: MutableMapping[TopicIdPartition, RemoteLog], event: Event) -> bool:
    """Apply an event to the log of its partition, as `RemoteLog.apply` does; begin that log if it is new.

    Raises:
        CorruptMessageError: the event ends a broker's consumer.
    """
    if isinstance(event, Snapshot):
        raise CorruptMessageError(f"a snapshot of segment {event.id}, which names no partition")
    if isinstance(event, PartitionDelete):
        if event.state is DeleteState.FINISHED:
            logs.pop(event.topic_id_partition, None)
        return True
    return logs.setdefault(event.topic_id_partition, RemoteLog()).apply(event)


def copied_log(segments: Iterable[RemoteSegment]) -> RemoteLog:
    """Return the remote log of a partition as if the copies of these segments had been recorded one after another."""
    log = RemoteLog()
    for one in segments:
        log.apply(SegmentEvent(replace(one, state=CopyState.COPY_STARTED)))
        where, finished = one.topic_id_partition, CopyState.COPY_FINISHED
        log.apply(UpdateEvent(where, one.id, one.broker, one.event_time_ms, one.custom_metadata, finished))
    return log


# ---- lineage ---------------------------------------------------------------------------------------------------------


def answers(log: RemoteLog, lineage: Sequence[EpochEntry], start: int, end: int) -> list[Answer]:
    """Return the segments that make up the log from `start` up to `end`, which is not included.

    Args:
        lineage: leader epochs of the replica; epochs and offsets increase.
        start: usually the log start offset.
        end: usually the first local offset.

    Returns:
        Ranges in ascending order, which do not overlap; a segment may have two. Offsets between them are in no segment
        of the lineage, and a broker answers OFFSET_OUT_OF_RANGE for them.
    """
    found: list[Answer] = []
    ends = [*(entry.start_offset for entry in lineage[1:]), end]
    for entry, epoch_end in zip(lineage, ends, strict=False):
        for answer in log.lookup_range(entry.epoch, max(entry.start_offset, start), min(epoch_end, end)):
            previous = found[-1] if found else None
            if previous and previous.segment is answer.segment and previous.last_offset + 1 == answer.first_offset:
                found[-1] = previous._replace(last_offset=answer.last_offset)
            else:
                found.append(answer)
    return found


def within_lineage(segment: RemoteSegment, lineage: Sequence[EpochEntry], log_end: int) -> bool:
    """Return whether the whole segment belongs to the log with this lineage and end, as remote retention asks.

    The log start may be within the segment, and the lineage begins there. So epochs of the segment before the first
    one of the lineage do not count, and neither does the start of that one.

    Source: Kafka RemoteLogManager.isRemoteSegmentWithinLeaderEpochs. Differs: without a lineage nothing is within it,
    where Kafka throws.
    """
    epochs, known = with_records(segment.epochs), with_records(lineage)
    if not known or not known[0].epoch <= epochs[-1].epoch <= known[-1].epoch:
        return False
    counted = [entry for entry in epochs if entry.epoch >= known[0].epoch]
    first = next((index for index, entry in enumerate(known) if entry.epoch == counted[0].epoch), None)
    if first is None or (first > 0 and counted[0].start_offset < known[first].start_offset):
        return False
    behind = first + len(counted)
    if counted[1:] != known[first + 1 : behind]:
        return False
    epoch_end = known[behind].start_offset if behind < len(known) else log_end
    return segment.end_offset < min(epoch_end, log_end)


def first_listed(log: RemoteLog, lineage: Sequence[EpochEntry]) -> int | None:
    """Return the start offset from which a new leader would begin the log; None without a remote segment.

    Source: Kafka RemoteLogManager.findLogStartOffset.
    """
    return next((listed[0].start_offset for entry in lineage if (listed := log.listing(entry.epoch))), None)


def epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    """Return the epoch of an offset; NONE below the first entry."""
    index = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
    return entries[index - 1].epoch if index else NONE


def with_records(entries: Sequence[EpochEntry]) -> list[EpochEntry]:
    """Leave out the epochs without records: the next epoch starts at the same offset."""
    return [
        entry
        for index, entry in enumerate(entries)
        if index + 1 == len(entries) or entries[index + 1].start_offset != entry.start_offset
    ]
