"""Restores partitions from a tier alone, without a log directory and its `__remote_log_metadata`.

The objects of a tier describe themselves, but not which of several overlapping segments counts. That depends on the
leader epochs of the partition, and each segment has them up to its own end. The segment with the newest epoch decides:
after an unclean election, it belongs to the log that the cluster went on with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cordwood.common.errors import NotFoundError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import TargetStore
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.formats.properties import PartitionMetadata, decode_id, encode_partition_metadata
from cordwood.storage.log.files import write_file
from cordwood.storage.tier.local import Layout
from cordwood.storage.tier.remote_log import RemoteLog
from cordwood.storage.tier.segments import CopyState, RemoteSegment, SegmentEvent, TopicIdPartition, UpdateEvent

#: The finished segments of partitions, in the order in which they were copied.
Segments = Mapping[TopicIdPartition, Sequence[RemoteSegment]]


@dataclass(frozen=True, slots=True)
class OlderTopic:
    """A topic that is left out of a restore, as a newer topic has its name.

    Attributes:
        last_copy_ms: time at which the last of its segments was copied.
    """

    topic: str
    topic_id: str
    segments: int
    last_copy_ms: int


def segments_in(layout: Layout, topics: Collection[str] = ()) -> tuple[Segments, Sequence[OlderTopic]]:
    """Return the segments that a tier has, and the topics without them: of one name, only the newest topic has them.

    Args:
        topics: only these topics.

    Raises:
        NotFoundError: the tier has no such segment.
    """
    found: dict[TopicIdPartition, list[RemoteSegment]] = {}
    by_topic: dict[str, dict[str, list[RemoteSegment]]] = {}
    for segment in layout.segments():
        if not topics or segment.topic in topics:
            found.setdefault(segment.topic_id_partition, []).append(segment)
            by_topic.setdefault(segment.topic, {}).setdefault(segment.topic_id, []).append(segment)
    if not found:
        raise NotFoundError(f"The tier has no segment of {', '.join(sorted(topics)) or 'any topic'}")
    older = []
    for topic, by_id in by_topic.items():
        times = {topic_id: max(map(_copied_at, segments)) for topic_id, segments in by_id.items()}
        *outdated, _ = sorted(times, key=lambda topic_id: (times[topic_id], topic_id))
        older += [OlderTopic(topic, topic_id, len(by_id[topic_id]), times[topic_id]) for topic_id in outdated]
    left_out = {one.topic_id for one in older}
    kept = {key: sorted(segments, key=_copied_at) for key, segments in found.items() if key.topic_id not in left_out}
    return kept, older


def _copied_at(segment: RemoteSegment) -> int:
    return segment.event_time_ms


def logs_of(found: Segments) -> dict[TopicIdPartition, RemoteLog]:
    """Return the remote log of each partition, as if its copies had been recorded one after another."""
    return {key: _log_of(key, segments) for key, segments in found.items()}


def _log_of(key: TopicIdPartition, segments: Sequence[RemoteSegment]) -> RemoteLog:
    log = RemoteLog()
    for one in segments:
        log.apply(SegmentEvent(replace(one, state=CopyState.COPY_STARTED)))
        finished = CopyState.COPY_FINISHED
        log.apply(UpdateEvent(key, one.id, one.broker, one.event_time_ms, one.custom_metadata, finished))
    return log


def lay_out(fs: TargetStore, layout: Layout, found: Segments, directory: str) -> None:
    """Make the directory of each partition, with its topic id and leader epochs, and without a segment."""
    for key, segments in sorted(found.items()):
        path = f"{directory}/{TopicPartition(key.topic, key.partition)}"
        fs.make_directory(path)
        topic_id = decode_id(key.topic_id)
        assert topic_id is not None, "a layout yields no other ids"
        write_file(fs, f"{path}/{FileKind.PARTITION_METADATA}", encode_partition_metadata(PartitionMetadata(topic_id)))
        newest = max(segments, key=lambda one: (one.epochs[-1].epoch, one.end_offset))
        with layout.open(newest, FileKind.LEADER_EPOCHS) as file:
            entries = leader_epochs.decode(file.read(0, file.size()), file.path)
        write_file(fs, f"{path}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(entries))
