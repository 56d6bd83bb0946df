"""Determines the logs of a table, and its start and end offset in each.

The end of a log, for a table, is its last stable offset: the high watermark, or the start of the first open transaction
below it. A directory does not always contain the high watermark:

    a topic with one replica, by the metadata     the log end
    not a broker's directory                      the log end: it has no other replicas
    otherwise                                     the entry in replication-offset-checkpoint, which a broker writes
                                                  every five seconds and when it stops
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cordwood.cleaning.engine.progress import CountedLog, Counters
from cordwood.commands.options import TableOptions, Time, parse_point
from cordwood.commands.replicas import replica_documents
from cordwood.common.errors import ConfigError, CorruptFileError, NotFoundError, RequestError
from cordwood.common.text import names_text, time_text
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.storage.formats import properties
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS
from cordwood.storage.log.files import read_file
from cordwood.storage.log.healing import Healer
from cordwood.storage.log.searches import first_since
from cordwood.storage.log.view import LogSource, LogView
from cordwood.storage.node.cluster import ChosenReplica, Cluster
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.node.read_replica import ReadReplica
from cordwood.tables.newest import SegmentHeaders, SegmentTask, TableSlice, read_segment_headers, transactions_of

#: File beside a table's files with its facts, such as the offsets.
FACTS = "_cordwood.json"
_FACTS_VERSION = 1
#: Runs a function on each item, given the items' sizes, in any order.
Each = Callable[[Callable[[SegmentTask], SegmentHeaders], Sequence[SegmentTask], Sequence[int]], list[SegmentHeaders]]


@dataclass(frozen=True, slots=True)
class PartitionPoint:
    """The range of a partition in a table.

    Attributes:
        is_end: no point was requested, so the end is the last stable offset.
        topic_id: id from the partition's directory, or None without one.
    """

    partition: int
    start_offset: int
    end_offset: int
    is_end: bool
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class TablePoint:
    """The logs and offsets of a table.

    Attributes:
        replicas: the replica of each partition, if directories of several brokers were given.
    """

    topic: str
    partitions: tuple[PartitionPoint, ...]
    slices: tuple[TableSlice, ...]
    notes: tuple[str, ...]
    replicas: tuple[ReadReplica, ...] = ()

    @property
    def offsets(self) -> dict[int, int]:
        """The end offset of the table by partition."""
        return {one.partition: one.end_offset for one in self.partitions}


# ---- which partitions ------------------------------------------------------------------------------------------------


def partitions_of(
    cluster: Cluster, paths: Sequence[str], topic: str | None, broker: str | None = None
) -> tuple[dict[int, LocatedPartition], tuple[ChosenReplica, ...]]:
    """Return the partitions of a topic, by number; and of several brokers the choice among their replicas.

    Args:
        broker: name of the broker whose replicas the user wants; None: the newest replicas.

    Raises:
        NotFoundError: the topic is missing, or the broker has no replica of a partition.
        RequestError: there are several topics, and none was named; or a partition occurs twice in a broker's
            directories; or no directory belongs to the broker.
    """
    if broker is not None:
        cluster.named(broker)
    all_places = [place for node in cluster.nodes for place in node.places]
    places = [place for place in all_places if place.name is not None and place.name.state is DirectoryState.CURRENT]
    topics = sorted({place.topic for place in places if place.topic is not None})
    where = ", ".join(paths)
    if not topics:
        raise NotFoundError(f"There is no partition of any topic in {where}")
    if topic is None:
        # Internal topics count only if named, or without other topics.
        own = [one for one in topics if one not in INTERNAL_TOPICS] or topics
        if len(own) > 1:
            raise RequestError(f"{where} has more than one topic; name one with --topic: {names_text(own)}")
        (topic,) = own
    if topic not in topics:
        raise NotFoundError(f"There is no topic {topic} in {where}. There are: {names_text(topics)}")
    found: dict[tuple[TopicPartition, str], LocatedPartition] = {}
    for place in places:
        if place.topic == topic and place.name is not None:
            name = place.name.topic_partition
            twin = found.setdefault((name, cluster.node_of(place).name), place)
            if twin is not place:
                raise RequestError(f"{name} is there twice: {twin.path}, {place.path}. Name one of them")
    if cluster.is_one_broker:
        return {name.partition: place for (name, _), place in sorted(found.items())}, ()
    choices = tuple(cluster.choose_replica(name, broker) for name in sorted({name for name, _ in found}))
    return {one.replica.name.partition: one.replica.place for one in choices}, choices


# ---- the point -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Opened:
    """A partition that is being read.

    Attributes:
        tasks: read the headers from the start offset to the log end.
    """

    place: LocatedPartition
    log: LogView
    counted: CountedLog
    start_offset: int
    tasks: tuple[SegmentTask, ...]


def find_point(
    fs: Store,
    cluster: Cluster,
    places: Mapping[int, LocatedPartition],
    options: TableOptions,
    each: Each,
    run_bytes: Callable[[int], int],
    now_ms: int,
    *,
    healer: Healer,
    counters: Counters | None = None,
) -> TablePoint:
    """Determine the offsets of a table.

    Args:
        run_bytes: returns the run size for a log of some size.
        healer: its patches are applied to the logs.

    Raises:
        RequestError: the log does not reach to the point, or no longer reaches back to the earlier table.
        CorruptBatchError: a log is damaged.
    """
    point = parse_point(options.as_of)
    if isinstance(point, int) and len(places) > 1:
        raise RequestError(
            f"--as-of {point}: there are {len(places)} partitions; give an offset for each, as 0:120,1:95, or a time"
        )
    earlier = None if options.since is None else _earlier(fs, options.since)
    topic = next(str(place.topic) for place in places.values())
    if earlier is not None:
        earlier.check(topic, {number: _topic_id(place) for number, place in places.items()})
    root = options.index_place.root(fs, [place.path for place in places.values()])
    opened = {
        number: _open(fs, place, number, earlier, run_bytes, counters, root, healer) for number, place in places.items()
    }
    tasks = [task for one in opened.values() for task in one.tasks]
    sizes = {
        (one.place.path, segment.base_offset): segment.size_bytes
        for one in opened.values()
        for segment in one.log.segments
    }
    answers = iter(each(read_segment_headers, tasks, [sizes[task.path, task.base_offset] for task in tasks]))
    partitions, slices, notes = [], [], []
    for number, one in opened.items():
        node = cluster.node_of(one.place)
        headers = [next(answers) for _ in one.tasks]
        transactions = transactions_of(headers)
        name = TopicPartition(topic, number)
        mark = _high_watermark(node, one, options, headers, is_only=len(cluster.replicas(name)) == 1)
        stable = _stable_end(one, headers, mark, transactions.last_stable_offset)
        end = _end(number, one, point, stable)
        partitions.append(PartitionPoint(number, one.start_offset, end, point is None, _topic_id(one.place)))
        slices.append(TableSlice(one.counted, number, one.start_offset, end, headers, transactions.aborted))
        notes += _notes(node, one, end, earlier, now_ms)
    return TablePoint(topic, tuple(partitions), tuple(slices), tuple(notes))


def _open(
    fs: Store,
    place: LocatedPartition,
    number: int,
    earlier: Earlier | None,
    run_bytes: Callable[[int], int],
    counters: Counters | None,
    index_root: str | None,
    healer: Healer,
) -> _Opened:
    log = healer.healed(place.log())
    start = log.log_start_offset
    before = None if earlier is None else earlier.offsets.get(number)
    if before is not None:
        if before < start:
            raise RequestError(
                f"{place.path}: the earlier table ends at offset {before}, and the log starts at {start} by now. The "
                "records in between are deleted; make the whole table again"
            )
        start = before
    path, live = fs.absolute_path(place.path), place.directory.live
    source = LogSource(healer.location(fs.location()), path, log.log_start_offset, live, index_root)
    counted = CountedLog(source, counters)
    # A transaction that is still open may have begun below the log start. It cannot have begun below the end of an
    # earlier table, which was stable, unless that end is the log start itself.
    segments = log.segments_from(start if start > log.log_start_offset else 0)
    size = run_bytes(sum(segment.size_bytes for segment in segments))
    tasks = tuple(SegmentTask(counted, segment.base_offset, segment is segments[-1], size) for segment in segments)
    return _Opened(place, log, counted, start, tasks)


def _log_end(headers: Sequence[SegmentHeaders]) -> int:
    return headers[-1].next_offset if headers else 0


def _stable_end(
    opened: _Opened, headers: Sequence[SegmentHeaders], high_watermark: int, last_stable_offset: int | None
) -> int:
    """Return the last stable offset."""
    readable = min(_log_end(headers), high_watermark)
    stable = readable if last_stable_offset is None else min(readable, last_stable_offset)
    # An open transaction may have begun below the log start.
    return max(stable, opened.log.log_start_offset)


def _high_watermark(
    node: Node, opened: _Opened, options: TableOptions, headers: Sequence[SegmentHeaders], *, is_only: bool
) -> int:
    """Return the high watermark of a partition.

    Args:
        is_only: no directory has another replica.
    """
    name, directory, log_end = opened.place.name, opened.place.directory, _log_end(headers)
    assert name is not None, "it was chosen by its name"
    if isinstance(options.high_watermark, int):
        if options.high_watermark < 0:
            raise RequestError(
                f"--high-watermark {options.high_watermark}: an offset is 0 or more; end is the log's end"
            )
        return options.high_watermark
    ends_at_log_end = node.ends_at_log_end(opened.place)
    if options.high_watermark == "end" or (ends_at_log_end and is_only):
        return log_end
    entry = directory.high_watermarks.get(name.topic_partition)
    if entry is None and ends_at_log_end:
        return log_end
    if entry is None and log_end > opened.log.log_start_offset:
        raise RequestError(
            f"{directory.no_high_watermark(name.topic_partition)}. For all that is there:  --high-watermark end"
        )
    return entry or 0


def _end(
    number: int,
    opened: _Opened,
    point: int | Mapping[int, int] | Time | None,
    stable: int,
) -> int:
    """Return the end offset of the table in a partition."""
    if isinstance(point, Time):
        since = first_since(opened.log, point.ms, start_offset=opened.log.log_start_offset, end_offset=stable)
        end = stable if since is None else since
        what = f"{time_text(point.ms)} UTC, which is offset {end}"
    elif point is None:
        end = stable
        what = f"offset {end}, the last that is stable"
    else:
        if not isinstance(point, int) and number not in point:
            raise RequestError(f"--as-of has no offset for partition {number}, which is there: {opened.place.path}")
        end = point if isinstance(point, int) else point[number]
        what = f"offset {end}"
        if end > stable:
            raise RequestError(
                f"{opened.place.path}: there is no table as of {what}; the last stable offset is {stable}"
            )
    if end < opened.log.log_start_offset:
        raise RequestError(
            f"{opened.place.path}: there is no table as of {what}; the log starts at {opened.log.log_start_offset}, "
            "as earlier records are deleted"
        )
    if end < opened.start_offset:
        raise RequestError(
            f"{opened.place.path}: the earlier table ends at offset {opened.start_offset}, behind {what}"
        )
    return end


# ---- an earlier table ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earlier:
    """The facts of an earlier table.

    Attributes:
        where: its folder, or a description.
        end_ms: a time at which the end offsets were the last stable offsets, or None if unknown.
    """

    where: str
    offsets: Mapping[int, int]
    topic: str | None = None
    topic_ids: Mapping[int, str | None] | None = None
    end_ms: int | None = None

    def check(self, topic: str, topic_ids: Mapping[int, str | None]) -> None:
        """Raise RequestError unless the topic is the same, and all partitions of the earlier table are present."""
        if self.topic is not None and self.topic != topic:
            raise RequestError(f"{self.where} is a table of the topic {self.topic}, not of {topic}")
        for partition, topic_id in (self.topic_ids or {}).items():
            if None not in (topic_id, now := topic_ids.get(partition)) and now != topic_id:
                raise RequestError(
                    f"{self.where} is a table of a topic {topic} that was deleted: its topic id is {topic_id}, and "
                    f"that of the topic here is {now}. Make the whole table again"
                )
        if missing := sorted(set(self.offsets) - set(topic_ids)):
            raise RequestError(
                f"{self.where} has partition {', '.join(map(str, missing))} of {topic}, which is not here; name all "
                "directories that the earlier table was made of"
            )


def _earlier(fs: Store, since: str | Mapping[int, int]) -> Earlier:
    if not isinstance(since, str):
        return Earlier("the earlier table", since)
    path = f"{since.rstrip('/')}/{FACTS}"
    try:
        facts: Any = json.loads(read_file(fs, path))
    except FileNotFoundError:
        raise NotFoundError(
            f"{since} holds no {FACTS}, so it is no table that was written by `cordwood table`, or not written whole"
        ) from None
    except ValueError as error:
        raise CorruptFileError(f"this is not JSON: {error}", path=path) from None
    try:
        if facts["version"] != _FACTS_VERSION:
            raise CorruptFileError(f"version {facts['version']} is none that is known", path=path)
        if facts.get("limit") is not None:
            raise RequestError(
                f"{since} has only {facts['limit']} rows of its table (--limit), which changes would not complete"
            )
        partitions = {int(one["partition"]): one for one in facts["partitions"]}
        return Earlier(
            since,
            {number: int(one["end_offset"]) for number, one in partitions.items()},
            str(facts["topic"]),
            {number: one["topic_id"] for number, one in partitions.items()},
            None if facts["end_ms"] is None else int(facts["end_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"these are no facts of a table: {error!r}", path=path) from None


def encode_facts(
    point: TablePoint, options: TableOptions, now_ms: int, format_name: str, limit: int | None = None
) -> bytes:
    """Encode the facts file of a table."""
    facts = {
        "version": _FACTS_VERSION,
        "topic": point.topic,
        "changes": options.since is not None,
        "key": options.key,
        "value": options.value,
        "format": format_name,
        "limit": limit,
        "written_ms": now_ms,
        "end_ms": now_ms if all(one.is_end for one in point.partitions) else None,
        "partitions": [
            {
                "partition": one.partition,
                "topic_id": one.topic_id,
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
            }
            for one in point.partitions
        ],
        "replicas": replica_documents(point.replicas),
    }
    return json.dumps(facts, indent=1).encode() + b"\n"


def _topic_id(place: LocatedPartition) -> str | None:
    found = place.topic_id()
    return None if found is None else properties.encode_id(found)


# ---- records that a clean removed ------------------------------------------------------------------------------------


def _notes(node: Node, opened: _Opened, end: int, earlier: Earlier | None, now_ms: int) -> list[str]:
    """Return notes on records that cleaning may have removed from a table.

    Raises:
        RequestError: cleaning may have removed requested deletes.
    """
    name = opened.place.name
    assert name is not None, "it was chosen by its name"
    cleaned = opened.place.directory.cleaner_offsets.get(name.topic_partition, 0)
    is_change = earlier is not None and name.topic_partition.partition in earlier.offsets
    if is_change and earlier is not None and opened.start_offset < cleaned and earlier.topic is not None:
        retention_ms = _delete_retention_ms(node, name.topic_partition.topic)
        if earlier.end_ms is None or now_ms - earlier.end_ms >= retention_ms:
            raise RequestError(
                f"{opened.place.path} was cleaned up to offset {cleaned} since {earlier.where} was made, longer ago "
                f"than tombstones are kept (delete.retention.ms={retention_ms}). So tombstones may be missing; make "
                "the whole table again"
            )
    if opened.start_offset < end < cleaned:
        return [
            f"{name.topic_partition} was cleaned up to offset {cleaned}: values as of offset {end} may be missing, if "
            "their keys were written again below that offset"
        ]
    return []


def _delete_retention_ms(node: Node, topic: str) -> int:
    try:
        return node.config_of(topic).integer("delete.retention.ms")
    except ConfigError:
        return 0
