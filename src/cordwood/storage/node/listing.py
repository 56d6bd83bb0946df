"""The contents of log directories, partition by partition: the facts behind `cordwood ls`.

Batch headers are walked from one to the next; CRCs are not checked, and records are not looked at. One exception: a
wrapper (compressed messages of magic 0 or 1) does not say how many messages it holds, so a few are opened. In an object
store, where each segment's headers take a request, they are walked only if all is asked for; otherwise just the end of
the last segment is read.

The node adds a partition's policy and its source, the replicas, and the first dirty offset of the cleaner's checkpoint.
Bytes below that are clean, as Kafka counts: a segment that starts below the first dirty offset is clean as a whole.

In a running broker's directories, files that vanish are looked up again, or left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np

from cordwood.config import SourceKind
from cordwood.errors import ConfigError, CorruptFileError, DataError, NotFoundError
from cordwood.kernels.layout import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchRows
from cordwood.presentable import Presentable
from cordwood.record.columns import BatchWindow, decode
from cordwood.record.headers import is_control
from cordwood.storage.formats.filenames import (
    CLUSTER_METADATA_TOPIC,
    LOCK,
    LOG_START_OFFSETS,
    DirectoryState,
    FileKind,
    index_folder,
    parse_key_index,
)
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.files import why_unreadable
from cordwood.storage.log.recovery import INDEX_KINDS
from cordwood.storage.log.segment import Segment, gap_error
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind, read_headers
from cordwood.storage.node.directory import LogDirectory, is_wanted, nothing_selected
from cordwood.storage.node.disk_usage import Counted, DiskUsage, own_bytes, usage_of
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.types import Codec, TopicPartition

#: Bytes of wrappers up to which a segment's messages are counted.
WRAPPER_BYTES_MAX = 1 << 20
_WRAPPER_DECOMPRESSED_BYTES_MAX = 64 << 20
_ATTEMPTS = 5

_Number = TypeVar("_Number", int, float)


class State(StrEnum):
    """A special state of a partition or a log directory; most have none."""

    LIVE = "live"  #: a broker runs on it
    LOCKED = "locked"  #: another program holds it
    CRASHED = "crashed"  #: its broker did not shut down cleanly
    STRAY = "stray"
    TO_BE_DELETED = "to be deleted"
    FUTURE = "future"  #: being copied from another log directory of the broker
    OFFLINE = "offline"  #: a broker does not serve it after its next start
    STARTS_EMPTY = "starts empty"  #: a broker replaces it by an empty log at its next start
    CUT = "will be cut"  #: a broker cuts it at damage at its next start
    DUPLICATE = "duplicate"  #: in more than one log directory
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"  #: some of it cannot be read


_OF_NAME = {
    DirectoryState.STRAY: State.STRAY,
    DirectoryState.DELETED: State.TO_BE_DELETED,
    DirectoryState.FUTURE: State.FUTURE,
}


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """One segment.

    Attributes:
        size_bytes: of its `.log` file.
        batches: how many; magic 0 and 1: messages and wrappers.
        records: those of batches that are no control batches.
        records_exact: False when `records` counts a wrapper as one record.
        last_offset: of the last batch; None without any.
        max_timestamp_ms: the largest of any batch, markers included; None without any.
        oldest_ms: of the times that open a batch the smallest; None without records that have a time.
        newest_ms: the largest time of a record; None as above.
        codecs: of batches with records, by Kafka's names.
        index_entries: by index, those in use; None when not asked for, or for an index that cannot be read.
        files: kinds of files it has, by the ends of their names.
        damage: where its batches do not follow each other.
        headers_read: False: its batches were not read. Then all that comes from them is 0, None or empty.
        unreadable: why its batches cannot be read, so that nothing is known of them; None if they can.
    """

    base_offset: int
    size_bytes: int
    batches: int
    records: int
    records_exact: bool
    last_offset: int | None
    max_timestamp_ms: int | None
    oldest_ms: int | None
    newest_ms: int | None
    codecs: tuple[str, ...]
    index_entries: Mapping[str, int | None] | None
    files: tuple[str, ...]
    damage: tuple[DataError, ...]
    unreadable: str | None = None
    headers_read: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """A partition's `cleanup.policy`.

    Attributes:
        value: compact, delete, both or neither; None: unknown.
        source: the source of the value; for an unknown policy, why it is unknown. KRaft's own log has `snapshots`
            instead.
        kind: the kind of source, if it is a config's.
    """

    value: tuple[str, ...] | None
    source: str
    kind: SourceKind | None = None


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """One partition's directory.

    Attributes:
        topic_partition: None if the directory is not named like a partition.
        states: what is special about it.
        segments: by base offset, as a broker would have them once it loaded the partition.
        replicas: how many the cluster has of it; None: unknown.
        first_dirty_offset: where the cleaner goes on; None where nothing is compacted, as far as is known.
        notes: what else there is to say.
        unreadable: what of it cannot be read, and why.
        index_bytes: of its key indexes, whether they are believed or not.
        usage: what all its files take on the disk.
        disk_share: of the whole disk; None where its size is not known.
    """

    path: str
    topic_partition: TopicPartition | None
    states: tuple[State, ...]
    segments: tuple[SegmentListing, ...]
    log_start_offset: int
    log_end_offset: int
    policy: Policy
    replicas: int | None
    first_dirty_offset: int | None
    recovery: tuple[str, ...]
    notes: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    index_bytes: int = 0
    usage: DiskUsage = field(default_factory=DiskUsage)
    disk_share: float | None = None

    def __str__(self) -> str:
        states = f", {', '.join(self.states)}" if self.states else ""
        return (
            f"{self.name}: {len(self.segments)} segments, {self.size_bytes} bytes, "
            f"start offset {self.log_start_offset}, log end offset {self.log_end_offset}{states}"
        )

    @property
    def name(self) -> str:
        """Topic and partition; of a directory that is not named so, its name."""
        return posixpath.basename(self.path) if self.topic_partition is None else str(self.topic_partition)

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self.segments)

    @property
    def disk_bytes(self) -> int:
        """What all its files and directories take on the disk, as `du` counts."""
        return self.usage.total_bytes

    @property
    def clean_bytes(self) -> int | None:
        """Bytes of the segments that start below the first dirty offset."""
        first_dirty = self.first_dirty_offset
        if first_dirty is None:
            return None
        return sum(segment.size_bytes for segment in self.segments if segment.base_offset < first_dirty)

    @property
    def dirty_bytes(self) -> int | None:
        """Bytes of the other segments, the active one included."""
        clean = self.clean_bytes
        return None if clean is None else self.size_bytes - clean

    @property
    def records(self) -> int:
        """Records of all segments, those below the log start offset and of aborted transactions included."""
        return sum(segment.records for segment in self.segments)

    @property
    def records_exact(self) -> bool:
        """Whether `records` is exact; otherwise there are at least so many."""
        return not self.unreadable and all(segment.records_exact for segment in self.segments)

    @property
    def headers_read(self) -> bool:
        """Whether batches were read, so that records, codecs, times and damage are known."""
        return all(segment.headers_read for segment in self.segments)

    @property
    def oldest_ms(self) -> int | None:
        """Of the times that open a batch the smallest."""
        return min((one.oldest_ms for one in self.segments if one.oldest_ms is not None), default=None)

    @property
    def newest_ms(self) -> int | None:
        """The largest time of a record."""
        return max((one.newest_ms for one in self.segments if one.newest_ms is not None), default=None)

    @property
    def codecs(self) -> tuple[str, ...]:
        """Of batches with records, by Kafka's names."""
        return tuple(dict.fromkeys(codec for segment in self.segments for codec in segment.codecs))

    @property
    def damage(self) -> tuple[DataError, ...]:
        """Where batches do not follow each other."""
        return tuple(error for segment in self.segments for error in segment.damage)


@dataclass(frozen=True, slots=True)
class TopicListing:
    """The partitions of one topic together, as far as they are listed; what is unknown of one is unknown of all.

    Attributes:
        states: what is special about partitions of it, with how many these are, and their bytes on disk.
        policies: of its partitions, each once.
    """

    name: str
    partitions: int
    states: tuple[tuple[State, int, int], ...]
    segment_count: int
    size_bytes: int
    disk_bytes: int
    disk_share: float | None
    records: int
    records_exact: bool
    headers_read: bool
    policies: tuple[Policy, ...]
    clean_bytes: int | None
    dirty_bytes: int | None
    oldest_ms: int | None
    newest_ms: int | None

    @classmethod
    def of(cls, name: str, partitions: Sequence[PartitionListing]) -> TopicListing:
        """The sums over some partitions."""
        return cls(
            name=name,
            partitions=len(partitions),
            states=tuple(
                (state, len(some), sum(one.disk_bytes for one in some))
                for state in State
                if (some := [one for one in partitions if state in one.states])
            ),
            segment_count=sum(one.segment_count for one in partitions),
            size_bytes=sum(one.size_bytes for one in partitions),
            disk_bytes=sum(one.disk_bytes for one in partitions),
            disk_share=_sum_if_known([one.disk_share for one in partitions]),
            records=sum(one.records for one in partitions),
            records_exact=all(one.records_exact for one in partitions),
            headers_read=all(one.headers_read for one in partitions),
            policies=tuple(dict.fromkeys(one.policy for one in partitions)),
            clean_bytes=_sum_if_known([one.clean_bytes for one in partitions]),
            dirty_bytes=_sum_if_known([one.dirty_bytes for one in partitions]),
            oldest_ms=min((one.oldest_ms for one in partitions if one.oldest_ms is not None), default=None),
            newest_ms=max((one.newest_ms for one in partitions if one.newest_ms is not None), default=None),
        )


def _sum_if_known(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """One log directory.

    Attributes:
        state: LIVE, LOCKED or CRASHED; None otherwise.
        summary: the same in words, with the lock holder.
        node_id, cluster_id: from meta.properties; None where there is none.
        problems: files of the directory itself that cannot be read.
        own_bytes: what the directory and its own files take on the disk, without its partitions.
        disk_size_bytes: of the disk that it is on; None if that is not known.
    """

    path: str
    state: State | None
    summary: str
    node_id: int | None
    cluster_id: str | None
    problems: tuple[DataError, ...]
    own_bytes: int = 0
    disk_size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listing(Presentable):
    """What is in a node's log directories.

    Attributes:
        metadata_path: of the metadata log; None without one.
        metadata_problems: why what it says does not count.
        topics: sums over the partitions of each topic, in the order of the partitions.
    """

    directories: tuple[DirectoryListing, ...]
    partitions: tuple[PartitionListing, ...]
    metadata_path: str | None
    metadata_next_offset: int | None
    metadata_problems: tuple[DataError, ...]
    topics: tuple[TopicListing, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.partitions))


def list_partitions(
    node: Node,
    paths: Sequence[str],
    topics: Sequence[str],
    partitions: Sequence[str],
    *,
    index_entries: bool,
    index_root: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Listing:
    """List the partitions of a node that was opened on some paths; see `commands.read.ls`.

    Args:
        on_progress: called with how many partitions were looked at, and how many there are.

    Raises:
        NotFoundError: nothing that was asked for is there.
    """
    wanted = [place for place in node.places if is_asked_for(place, topics, partitions)]
    if not wanted and (topics or partitions):
        raise nothing_selected((place.topic for place in node.places), paths, topics, partitions)
    counted: Counted = set()
    sizes = {one.path: node.fs.disk_size(one.path) for one in node.directories}
    looked = []
    for done, place in enumerate(wanted, 1):
        looked.append((place, _partition(node, place, index_entries, index_root, counted)))
        if on_progress is not None:
            on_progress(done, len(wanted))
    listed = [
        replace(one, disk_share=one.disk_bytes / size) if (size := sizes.get(place.directory.path)) else one
        for place, one in looked
        if one is not None
    ]
    return Listing(
        directories=tuple(_directory(one, sizes[one.path]) for one in node.directories),
        partitions=tuple(listed),
        metadata_path=node.metadata_path,
        metadata_next_offset=None if node.metadata is None else node.metadata.next_offset,
        metadata_problems=() if node.metadata is None else node.metadata.problems,
    )


def is_asked_for(place: LocatedPartition, topics: Sequence[str], partitions: Sequence[str]) -> bool:
    """Whether a place is one that a user asks for; arguments as for `directory.is_wanted`."""
    if place.name is None:
        return not topics and not partitions
    return is_wanted(place.name.topic_partition, topics, partitions)


# ---- log directories -------------------------------------------------------------------------------------------------


def _state(directory: LogDirectory) -> State | None:
    if directory.holder is not None:
        return State.LIVE if directory.live else State.LOCKED
    # Brokers before 4.0 leave the lock file behind after a clean shutdown, too.
    return State.CRASHED if directory.crashed and directory.info(LOCK) is not None else None


def _directory(directory: LogDirectory, size_bytes: int | None) -> DirectoryListing:
    state = _state(directory)
    summary = {
        State.LIVE: f"live: a broker is running on it, {directory.holder}",
        State.LOCKED: f"locked by {directory.holder}",
        State.CRASHED: "no clean shutdown",
        None: "clean shutdown" if directory.clean_shutdown else "not in use",
    }[state]
    meta = directory.meta
    # In an object store each file takes a request: there, what the listing has no need of is not read.
    by_request = directory.fs.reads_by_request(directory.path)
    return DirectoryListing(
        path=directory.path,
        state=state,
        summary=summary,
        node_id=None if meta is None else meta.node_id,
        cluster_id=None if meta is None else meta.cluster_id,
        problems=tuple(directory.problems) if by_request else directory.unreadable,
        own_bytes=own_bytes(directory),
        disk_size_bytes=size_bytes,
    )


# ---- partitions ------------------------------------------------------------------------------------------------------


def _partition(
    node: Node, place: LocatedPartition, index_entries: bool, index_root: str | None, counted: Counted
) -> PartitionListing | None:
    """A partition; None if it is gone."""
    unreadable: tuple[str, ...]
    usage = DiskUsage()
    for _ in range(_ATTEMPTS):
        try:
            log = place.log()
            if index_entries or not node.fs.reads_by_request(place.path):
                segments = tuple(_segments(log, index_entries))
            else:
                segments = tuple(
                    _segment(log, one, _Tally(), index_entries=False, is_read=False) for one in log.segments
                )
            log_start = log.log_start_offset
            log_end = _log_end_offset(log, segments)
            # A running broker is still to delete these files, or is writing them: no start is needed for that.
            live = place.directory.live
            recovery = () if live else log.recovery.actions
            is_emptied = not live and bool(segments) and log.ends_below_start
            usage = usage_of(node.fs, log, counted)
            unreadable = tuple(one.unreadable for one in segments if one.unreadable is not None)
            break
        except FileNotFoundError:
            continue  # deleted, or replaced by the cleaner
        except NotFoundError:
            return None
        except OSError as error:
            segments, log_start, log_end, recovery, is_emptied = (), 0, 0, (), False
            unreadable = (f"{error.filename or place.path} {why_unreadable(error)}",)
            break
    else:
        return None
    name = place.name
    topic_partition = None if name is None else name.topic_partition
    policy = _policy(node, place.topic)
    current = topic_partition is not None and name is not None and name.state is DirectoryState.CURRENT
    return PartitionListing(
        path=place.path,
        topic_partition=topic_partition,
        states=(
            *_states(node, place, segments, unreadable),
            *([State.STARTS_EMPTY] if is_emptied else [State.CUT] if _is_cut(place, segments) else []),
        ),
        segments=segments,
        log_start_offset=log_start,
        log_end_offset=log_end,
        policy=policy,
        replicas=node.replica_count(topic_partition) if topic_partition is not None and current else None,
        first_dirty_offset=(
            _first_dirty(place, topic_partition, policy, log_start, log_end)
            if topic_partition is not None and current
            else None
        ),
        recovery=tuple(str(action) for action in recovery),
        notes=(*_notes(node, place), *(_emptied(log_start) if is_emptied else ())),
        unreadable=unreadable,
        index_bytes=_index_bytes(node, place, index_root, asks=index_entries),
        usage=usage,
    )


def _is_cut(place: LocatedPartition, segments: Sequence[SegmentListing]) -> bool:
    """Whether a recovery finds damage in what it reads: the segments from the recovery point on."""
    if place.directory.live or place.name is None:
        return False
    point = place.directory.stop_of(place.name).recovery_point
    return point is not None and any(
        one.damage and (one.last_offset is None or one.last_offset >= point) for one in segments
    )


def _index_bytes(node: Node, place: LocatedPartition, root: str | None, *, asks: bool) -> int:
    folder = index_folder(place.path, root)
    if node.fs.reads_by_request(folder) and not asks:
        return 0
    try:
        files = node.fs.list(folder) if node.fs.exists(folder) else ()
    except OSError:
        return 0
    return sum(info.size_bytes for info in files if parse_key_index(info.name) is not None)


def _states(
    node: Node, place: LocatedPartition, segments: Sequence[SegmentListing], unreadable: Sequence[str]
) -> Iterator[State]:
    state = _state(place.directory)
    if state is not None:
        yield state
    if place.name is not None:
        if place.name.state in _OF_NAME:
            yield _OF_NAME[place.name.state]
        elif node.duplicates(place.name.topic_partition):
            yield State.DUPLICATE
    if any(segment.damage for segment in segments):
        yield State.DAMAGED
    if unreadable:
        yield State.UNREADABLE


def _notes(node: Node, place: LocatedPartition) -> Iterator[str]:
    if place.name is None:
        yield "not named like a partition (topic-number), so nothing is known of its topic"
    elif place.name.state is DirectoryState.CURRENT:
        name = place.name.topic_partition
        for other in node.duplicates(name):
            if other.path != place.path:
                yield f"is also in {other.path}; a broker refuses to start with both"
        for other in node.futures(name):
            yield f"is being copied to {other.path}"


def _emptied(log_start: int) -> Iterator[str]:
    yield (
        f"ends below its log start offset, {log_start}: the next load empties it; if it is not to go, correct its line "
        f"in {LOG_START_OFFSETS}"
    )


def _policy(node: Node, topic: str | None) -> Policy:
    if topic is None:
        return Policy(None, "no topic")
    if topic == CLUSTER_METADATA_TOPIC:
        return Policy((), "snapshots")
    try:
        doubt = node.doubt(topic)
        said = node.config_of(topic)["cleanup.policy"]
    except ConfigError as error:
        return Policy(None, f"wrong configs: {error}")
    if doubt is not None:
        return Policy(None, doubt)
    assert isinstance(said.value, tuple)
    return Policy(said.value, str(said.source), said.source.kind)


def _first_dirty(
    place: LocatedPartition, partition: TopicPartition, policy: Policy, log_start: int, log_end: int
) -> int | None:
    """Where the cleaner would continue. An entry in Kafka's checkpoint shows compaction where no policy is known."""
    said = place.directory.cleaner_offsets.get(partition)
    if "compact" not in (policy.value or ()) and (policy.value is not None or said is None):
        return None
    said = _own_checkpoint(place) or said
    return said if said is not None and log_start <= said <= log_end else log_start


def _own_checkpoint(place: LocatedPartition) -> int | None:
    """How far a clean with `--min-dead` has come, which Kafka's checkpoint does not say; None: there was none."""
    own = believed_checkpoint(place.log())
    return None if own is None else own.cleaned_to


def _log_end_offset(log: LogView, segments: Sequence[SegmentListing]) -> int:
    if not segments:
        return log.log_start_offset
    if not segments[-1].headers_read:
        return log.next_offset
    last = segments[-1].last_offset
    return segments[-1].base_offset if last is None else last + 1


# ---- segments --------------------------------------------------------------------------------------------------------


def _segments(log: LogView, index_entries: bool) -> Iterator[SegmentListing]:
    for segment in log.segments:
        tally = _Tally()
        last = segment is log.segments[-1]
        try:
            with segment.open() as file:
                for item in read_headers(file, base_offset=segment.base_offset, search=not log.live):
                    if not isinstance(item, Gap):
                        tally.add(item)
                    elif not last or (item.kind is GapKind.DAMAGE and not log.live):
                        # Otherwise it is an end that a stop may leave, and a running broker any.
                        tally.damage.append(gap_error(segment, item))
        except FileNotFoundError:
            raise
        except OSError as error:
            tally.unreadable = f"{segment.path} {why_unreadable(error)}"
        yield _segment(log, segment, tally, index_entries)


@dataclass
class _Tally:
    """What the headers of a segment add up to. Times are those that their batches tell."""

    batches: int = 0
    records: int = 0
    wrapper_bytes: int = 0
    last_offset: int | None = None
    codecs: set[int] = field(default_factory=set)
    max_timestamps: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    damage: list[DataError] = field(default_factory=list)
    unreadable: str | None = None

    def add(self, batches: BatchRows) -> None:
        """Go on with the next headers (BATCH_ROW[some])."""
        self.batches += batches.size
        self.last_offset = int(batches["last_offset"][-1])
        self.max_timestamps.append(int(batches["max_timestamp"].max()))
        data = batches[~is_control(batches) & (batches["record_count"] != 0)]
        wrappers = _is_wrapper(data)
        self.wrapper_bytes += int(data["size_bytes"][wrappers].sum())
        self.records += int(np.maximum(data["record_count"], wrappers).sum())
        self.codecs.update(np.flatnonzero(np.bincount(data["attributes"] & CODEC_MASK)).tolist())
        # The base timestamp is the first record's, unless a delete horizon has its place or the broker's clock counts.
        from_base = data["attributes"] & (DELETE_HORIZON | LOG_APPEND_TIME) == 0
        first = np.where(from_base, data["base_timestamp"], data["max_timestamp"])
        first = first[first >= 0]
        if first.size:
            self.times += [int(first.min()), int(data["max_timestamp"].max())]


def _segment(
    log: LogView, segment: Segment, tally: _Tally, index_entries: bool, *, is_read: bool = True
) -> SegmentListing:
    records, exact = tally.records, is_read and tally.wrapper_bytes == 0 and tally.unreadable is None
    if tally.unreadable is None and 0 < tally.wrapper_bytes <= WRAPPER_BYTES_MAX:
        more, exact = _in_wrappers(segment)
        records += more
    return SegmentListing(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        batches=tally.batches,
        records=records,
        records_exact=exact,
        last_offset=tally.last_offset,
        max_timestamp_ms=max((time for time in tally.max_timestamps if time >= 0), default=None),
        oldest_ms=min(tally.times, default=None),
        newest_ms=max(tally.times, default=None),
        codecs=tuple(Codec(one).label if one <= Codec.ZSTD else f"unknown({one})" for one in sorted(tally.codecs)),
        index_entries=_index_entries(segment) if index_entries else None,
        files=tuple(_files(log, segment)),
        damage=tuple(tally.damage),
        unreadable=tally.unreadable,
        headers_read=is_read,
    )


def _is_wrapper(batches: BatchRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray((batches["magic"] < 2) & (batches["record_count"] < 0))


def _in_wrappers(segment: Segment) -> tuple[int, bool]:
    """How many messages wrappers hold beyond one each, and whether all could be read."""
    messages = 0
    unreadable: list[DataError] = []
    for item in segment.windows():
        if isinstance(item, Gap):
            continue
        wrappers = item.batches[_is_wrapper(item.batches)]
        window = BatchWindow(item.position, item.data, wrappers, item.read)
        messages -= wrappers.size
        for columns in decode(window, on_damage=unreadable.append, max_batch_bytes=_WRAPPER_DECOMPRESSED_BYTES_MAX):
            messages += columns.rows.size
            del columns
    return messages + len(unreadable), not unreadable


def _index_entries(segment: Segment) -> dict[str, int | None]:
    readers = {
        FileKind.OFFSET_INDEX: segment.offset_index,
        FileKind.TIME_INDEX: segment.time_index,
        FileKind.TRANSACTION_INDEX: segment.transaction_index,
    }
    entries: dict[str, int | None] = {}
    for kind, read in readers.items():
        if kind in segment.files.indexes:
            try:
                index = read()
                entries[kind.removeprefix(".")] = None if index is None else index.entries
            except (OSError, CorruptFileError):
                entries[kind.removeprefix(".")] = None
    return entries


def _files(log: LogView, segment: Segment) -> Iterator[str]:
    yield "log"
    for kind in INDEX_KINDS:
        if kind in segment.files.indexes:
            yield kind.removeprefix(".")
    if segment.base_offset in log.recovery.snapshots:
        yield FileKind.PRODUCER_SNAPSHOT.removeprefix(".")
