"""Restores partitions from a tier alone, without a log directory and its `__remote_log_metadata`.

The objects of a tier describe themselves, but not which of several overlapping segments counts. That depends on the
leader epochs of the partition, and each segment has them up to its own end. The segment with the newest epoch decides:
after an unclean election, it belongs to the log that the cluster went on with. Of a live log, the manifest names the
segments that count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from cordwood.common.errors import NotFoundError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import TargetStore
from cordwood.storage.formats import checkpoints, leader_epochs
from cordwood.storage.formats.filenames import CLEANER_OFFSETS, LOG_START_OFFSETS, FileKind
from cordwood.storage.formats.properties import PartitionMetadata, decode_id, encode_partition_metadata
from cordwood.storage.log.files import write_file
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import Generations, partitions_in
from cordwood.storage.tier.local import Layout
from cordwood.storage.tier.manifest import TierState
from cordwood.storage.tier.remote_log import RemoteLog, copied_log
from cordwood.storage.tier.segments import RemoteSegment, TopicIdPartition

#: The finished segments of partitions, in the order of their copies.
Segments = Mapping[TopicIdPartition, Sequence[RemoteSegment]]


@dataclass(frozen=True, slots=True)
class OlderTopic:
    """A topic that is left out of a restore, as a newer topic has its name.

    Attributes:
        last_copy_ms: time of the last copy of one of its segments.
    """

    topic: str
    topic_id: str
    segments: int
    last_copy_ms: int


@dataclass(frozen=True, slots=True)
class Restorable:
    """The partitions of a tier.

    Attributes:
        segments: of each partition that has any.
        states: the newest manifests of live logs.
        older_topics: topics that are left out.
    """

    segments: Segments
    states: Mapping[TopicIdPartition, TierState]
    older_topics: Sequence[OlderTopic]

    @property
    def logs(self) -> Mapping[TopicIdPartition, RemoteLog]:
        """The remote logs of partitions without a manifest, as if their copies had been recorded one after another."""
        return {key: copied_log(segments) for key, segments in self.segments.items() if key not in self.states}


def restorable(layout: Layout, topics: Collection[str] = ()) -> Restorable:
    """Return the partitions that a tier has; of several topics with one name only the newest.

    Args:
        topics: only these topics.

    Raises:
        NotFoundError: the tier has no segment of them.
        CorruptFileError: a manifest is damaged.
    """
    states = _states_in(layout, topics)
    found: dict[TopicIdPartition, list[RemoteSegment]] = {}
    by_topic: dict[str, dict[str, list[RemoteSegment]]] = {}
    in_manifests = (one.segment for state in states.values() for one in state.segments)
    for segment in chain(in_manifests, layout.segments(without=states)):
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
    return Restorable(kept, {key: state for key, state in states.items() if key in kept}, older)


def _states_in(layout: Layout, topics: Collection[str]) -> dict[TopicIdPartition, TierState]:
    states = {}
    if isinstance(layout, AivenLayout):
        for partition in partitions_in(layout):
            if topics and partition.topic not in topics:
                continue
            if (state := Generations(layout.store, layout, partition).newest()) is not None:
                states[partition] = state
    return states


def _copied_at(segment: RemoteSegment) -> int:
    return segment.event_time_ms


def lay_out(fs: TargetStore, layout: Layout, found: Restorable, directory: str) -> None:
    """Make the directory of each partition, with its topic id and leader epochs, and without a segment.

    The checkpoints of the log directory get the log starts and clean ends that manifests have.
    """
    log_starts, clean_ends = {}, {}
    for key, state in found.states.items():
        name = TopicPartition(key.topic, key.partition)
        log_starts[name] = state.log_start_offset
        if state.cleaner_checkpoint is not None:
            clean_ends[name] = state.cleaner_checkpoint
    for checkpoint, offsets in ((LOG_START_OFFSETS, log_starts), (CLEANER_OFFSETS, clean_ends)):
        if offsets:
            write_file(fs, f"{directory}/{checkpoint}", checkpoints.encode(offsets))
    for key, segments in sorted(found.segments.items()):
        path = f"{directory}/{TopicPartition(key.topic, key.partition)}"
        fs.make_directory(path)
        topic_id = decode_id(key.topic_id)
        assert topic_id is not None, "a layout yields no other ids"
        write_file(fs, f"{path}/{FileKind.PARTITION_METADATA}", encode_partition_metadata(PartitionMetadata(topic_id)))
        newest = max(segments, key=lambda one: (one.epochs[-1].epoch, one.end_offset))
        with layout.open(newest, FileKind.LEADER_EPOCHS) as file:
            entries = leader_epochs.decode(file.read(0, file.size()), file.path)
        write_file(fs, f"{path}/{FileKind.LEADER_EPOCHS}", leader_epochs.encode(entries))
