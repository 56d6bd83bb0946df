"""Follow the ends of growing logs for a stream: how far it may read now, and the slices of each batch.

One object lives as long as the query, in its own process. For each partition it keeps the end of the log and the open
transactions, so that the next look reads only newer headers. All of this can be rebuilt from the files: a restarted
query has only the offsets of its checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import NONE, TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats.properties import encode_id
from cordwood.storage.log.searches import first_since
from cordwood.storage.log.segment import Cut
from cordwood.storage.log.tail import PATIENCE_SECONDS, Tail, TailPatience, begin_of_newer, find_tail, follow
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, read_headers
from cordwood.storage.node.cluster import Cluster, brokers_text
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.tables.source.batch import choose, readable_end, transactions_of
from cordwood.tables.source.offsets import Limit, Marks, Offsets, check_names, resolve
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.schema import TRANSACTION
from cordwood.tables.source.slices import OffsetRange, ReadCounts, Slice, Slicer, TransactionsMet, divide, pack

#: The pause between two looks is at least this many seconds, and at least this multiple of the time a look takes. Spark
#: polls a hundred times per second.
_LOOK_SECONDS = 0.1
_LOOK_PAUSE = 4
#: A directory is listed when its mtime shows that a name in it changed; as mtimes are coarse, it is also listed at this
#: interval.
_LISTING_SECONDS = 5.0
#: The metadata is read again at this age, and at the second age if it lacks a new partition. The metadata log changes
#: all the time, but the facts needed here hardly ever do.
_METADATA_SECONDS = 60.0
_METADATA_OF_NEW_SECONDS = 1.0
_CUTS_MAX = 64
_MARKS_KEPT = 3
_ATTEMPTS = 5
_NONE: Marks = MappingProxyType({})

_log = logging.getLogger(__name__)


@dataclass
class _Followed:
    """The state of one partition; see `offsets.Readable`.

    Attributes:
        identity: path, device and inode of the directory.
        changed_ns: mtime of the directory at the last listing.
        cuts: positions of the last batches of earlier tails: a batch of the query begins near one of them.
        resume: a cut behind which `follow` reads the next headers.
        topic_id: the topic id in `partition.metadata`, or None.
        marks: marks of the batches before the most recently used offsets, by offset.
        truncated_to: begin of records that replaced others since the last plan; None if no record was replaced.
    """

    partition: TopicPartition
    place: LocatedPartition
    identity: tuple[str, int, int]
    log: LogView
    patience: TailPatience
    listed: float = 0.0
    changed_ns: int = 0
    tail: Tail | None = None
    cuts: deque[Cut] = field(default_factory=lambda: deque(maxlen=_CUTS_MAX))
    start_offset: int = 0
    readable_end: int = 0
    transactions: Transactions | None = None
    resume: Cut | None = None
    topic_id: str | None = None
    marks: dict[int, str] = field(default_factory=dict)
    truncated_to: int | None = None

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last record."""
        return 0 if self.tail is None else self.tail.next_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last one that the stream may read."""
        stable = None if self.transactions is None else self.transactions.last_stable_offset
        return max(self.start_offset, self.readable_end if stable is None else min(stable, self.readable_end))

    def first_since(self, timestamp: int) -> int | None:
        """Return the offset of the first record at or after a time."""
        return first_since(self.log, timestamp, start_offset=self.start_offset, end_offset=self.end_offset)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The slices that each task of a stream's batch reads.

    Attributes:
        counts: data that planning read and skipped since the last plan.
    """

    tasks: Sequence[tuple[Slice, ...]]
    counts: ReadCounts


@dataclass
class Follower:
    """Follows the partitions that the options select.

    Args:
        clock: monotonic time in seconds.
    """

    options: ReadOptions
    store: Store
    names: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _followed: dict[TopicPartition, _Followed] = field(default_factory=dict)
    _node: Node | None = None
    _metadata_read: float = 0.0
    _next_look: float | None = None

    def __post_init__(self) -> None:
        """Set up without reading any file."""
        self._fs = CountedStore(self.store)
        self._lost = 0
        self._judges_transactions = self.options.isolation_level == READ_COMMITTED or TRANSACTION in self.names

    # ---- how far -----------------------------------------------------------------------------------------------------

    def ends(self, *, now: bool = False) -> Offsets:
        """Return how far each partition may be read.

        Args:
            now: look at the files even if the last look is recent.
        """
        if now or self._next_look is None or self.clock() >= self._next_look:
            self._look()
        return {partition: one.end_offset for partition, one in self._followed.items()}

    def final_ends(self) -> Offsets:
        """Like `ends`, for a query that looks only once: wait until the last writes are complete or clearly damaged."""
        while True:
            ends = self.ends(now=True)
            times = [one.patience.damaged_since for one in self._followed.values()]
            since = [one for one in times if one is not None]
            if not since or self.clock() - max(since) >= PATIENCE_SECONDS:
                return ends
            self.sleep(_LOOK_SECONDS)

    def starts(self, limit: Limit) -> Offsets:
        """Return the start offsets of a new query.

        Raises:
            RequestError: the limit names other partitions than the existing ones, or no record is new enough.
        """
        self.ends(now=True)
        what = self.options.starting_name
        check_names(limit, self._followed, what)
        newest_if_none = self.options.starting_offsets_by_timestamp_strategy == "latest"
        return {
            partition: resolve(limit, partition, one, what=what, newest_if_none=newest_if_none)
            for partition, one in self._followed.items()
        }

    def earliest(self, partition: TopicPartition) -> int:
        """Return the log start offset of a followed partition."""
        return self._followed[partition].start_offset

    def forget_below(self, offsets: Offsets) -> None:
        """Forget the transactions that ended below offsets that the query has committed."""
        for partition, offset in offsets.items():
            one = self._followed.get(partition)
            if one is not None and one.transactions is not None:
                one.transactions.forget_below(offset)

    def marks(self, offsets: Offsets) -> Marks:
        """Return marks that later show whether a partition was recreated after it was read up to these offsets."""
        marks = {}
        for partition, offset in offsets.items():
            followed = self._followed.get(partition)
            if followed is not None and (mark := followed.topic_id or _mark(followed, offset)) is not None:
                marks[partition] = mark
        return marks

    def made_anew(self, offsets: Offsets, marks: Marks) -> set[TopicPartition]:
        """Return the partitions that were recreated since their marks were made at these offsets."""
        anew = set()
        for partition, mark in marks.items():
            if (followed := self._followed.get(partition)) is not None:
                now = followed.topic_id if _is_topic_id(mark) else _mark(followed, offsets.get(partition, 0))
                if _is_anew(mark, now):
                    anew.add(partition)
        return anew

    def _look(self) -> None:
        for attempt in range(_ATTEMPTS):
            began = self.clock()
            try:
                node, places = self._listed()
                one = partial(self._followed_now, node)
                followed = in_parallel(self._fs.concurrency, one, list(places.items()))
                self._followed = dict(zip(places, followed, strict=True))
                # Looking at many partitions takes long; the pause keeps it from occupying a whole core.
                self._next_look = self.clock() + max(_LOOK_SECONDS, _LOOK_PAUSE * (self.clock() - began))
                return
            except (FileNotFoundError, NotFoundError):
                # Renamed or deleted between two calls: a topic, a segment, a partition that moves to another disk.
                if attempt == _ATTEMPTS - 1:
                    raise
                self._list_all_again()
                time.sleep(_LOOK_SECONDS)

    def _list_all_again(self) -> None:
        """Invalidate all cached listings."""
        for one in self._followed.values():
            one.changed_ns = 0

    def _listed(self) -> tuple[Node, Mapping[TopicPartition, LocatedPartition]]:
        """Return the directories as they are now, with metadata that may be a minute old, and the partitions."""
        age = self.clock() - self._metadata_read
        if self._node is not None and age < _METADATA_SECONDS:
            node = self._node = self._node.listed_again()
            places = choose(Cluster.of(node), self.options)
            unknown = (one for one in places.keys() - self._followed.keys() if node.replica_count(one) is None)
            if age < _METADATA_OF_NEW_SECONDS or next(unknown, None) is None:
                return node, places
        self._metadata_read = self.clock()
        paths = [self._fs.absolute_path(path) for path in self.options.path]
        named = [(name, self._fs.absolute_path(path)) for name, path in self.options.brokers]
        cluster = Cluster.open(self._fs, paths, self.options.metadata, named=named)
        node = self._node = self._one_of(cluster)
        return node, choose(Cluster.of(node), self.options)

    def _one_of(self, cluster: Cluster) -> Node:
        """Return the broker whose logs are followed.

        Raises:
            RequestError: there are several, and none was named.
        """
        if self.options.replica is not None:
            return cluster.named(self.options.replica)
        if not cluster.is_one_broker:
            raise RequestError(
                f"A stream follows the logs of one broker, and the directories are those of "
                f"{brokers_text(cluster.brokers)}: set replica to the name of one"
            )
        return cluster.nodes[0]

    def _followed_now(self, node: Node, named: tuple[TopicPartition, LocatedPartition]) -> _Followed:
        """Update and return the state of a partition."""
        partition, place = named
        one = self._listed_log(partition, place)
        if one.log.segments:
            tail = self._tail(one)
            if one.tail is not None and tail is not one.tail and one.tail.is_replaced(one.log):
                one.transactions = None  # truncated, cleaned or deleted since: no earlier header is known to be there
                self._note_truncation(one, one.tail)
            one.tail = tail
            if not one.cuts or one.cuts[-1] != one.tail.last_batch:
                one.cuts.append(one.tail.last_batch)
        one.readable_end = readable_end(place, node, self.options, one.start_offset, one.log_end_offset)
        if self._judges_transactions:
            self._follow_transactions(one, one.readable_end)
        return one

    def _note_truncation(self, followed: _Followed, known: Tail) -> None:
        """Note where records of a later leader replaced records below the former end, even if the log is longer now."""
        begin = begin_of_newer(followed.log, known.leader_epoch) if known.leader_epoch != NONE else None
        if begin is not None and begin < known.next_offset:
            before = followed.truncated_to
            followed.truncated_to = begin if before is None else min(before, begin)

    def _listed_log(self, partition: TopicPartition, place: LocatedPartition) -> _Followed:
        """Return a partition's state with an up-to-date list of segments."""
        info = self._fs.stat(place.path)
        identity = (place.path, info.device, info.inode)
        start = place.directory.log_start_offsets.get(partition, 0)
        one = self._followed.get(partition)
        if one is not None and one.identity != identity:
            one = None  # recreated or moved: the old state is invalid
        if (
            one is None
            or info.mtime_ns != one.changed_ns
            or not info.mtime_ns  # a store without such times
            or self.clock() - one.listed >= _LISTING_SECONDS
        ):
            log = LogView(place.path, fs=self._fs, live=True, log_start_offset=start)
            if one is None:
                topic_id = place.topic_id()
                one = _Followed(partition, place, identity, log, TailPatience(self.clock))
                one.topic_id = None if topic_id is None else encode_id(topic_id)
            one.log, one.changed_ns, one.listed = log, info.mtime_ns, self.clock()
        one.place = place
        one.start_offset = max(start, one.log.first_offset)
        return one

    def _tail(self, followed: _Followed) -> Tail:
        tail = find_tail(followed.log, followed.tail)
        if not followed.patience.is_over(tail):
            return tail
        if self.options.fail_on_damage and tail.damage is not None:
            raise tail.damage
        return find_tail(followed.log, followed.tail, search=True)

    def _follow_transactions(self, followed: _Followed, end_offset: int) -> None:
        """Update the transactions of a partition to an offset, unless they already reach it."""
        known = followed.transactions
        if (
            known is None
            or known.next_offset < followed.log.first_offset
            or known.next_offset > max(followed.log_end_offset, followed.log.first_offset)  # truncated
        ):
            followed.transactions = transactions_of(
                followed.log, followed.place, followed.partition, self.options, end_offset
            )
            is_at_end = followed.tail is not None and followed.tail.next_offset == followed.transactions.next_offset
            followed.resume = followed.tail.last_batch if followed.tail is not None and is_at_end else None
        elif known.next_offset < end_offset:
            followed.resume = follow(known, followed.log, end_offset, followed.resume) or followed.resume

    # ---- the slices of a batch ---------------------------------------------------------------------------------------

    def plan(self, start: Offsets, end: Offsets, start_marks: Marks = _NONE, end_marks: Marks = _NONE) -> StreamPlan:
        """Plan the tasks of a batch.

        Args:
            start: start offsets of the batch; a partition without one begins at its log start.
            start_marks: marks of the partitions when the query had read up to `start`.
            end_marks: marks of the partitions when `end` was planned.

        Raises:
            RequestError: offsets are missing and `failOnDataLoss` is `true`.
        """
        if start == end and start_marks == end_marks:
            return StreamPlan((), ReadCounts())
        ends = self.ends()
        if any(offset > ends.get(partition, -1) for partition, offset in end.items()):
            self.ends(now=True)  # the plan of a batch that a query began before it was stopped
        if gone := sorted(start.keys() - end.keys()):
            self._report(0, f"{', '.join(map(str, gone))} are deleted. Their unread records are lost to this query")
        for attempt in range(_ATTEMPTS):
            lost = self._lost
            try:
                there, begins = self._without_those_made_anew(start, end, start_marks, end_marks)
                ranges = [self._range(partition, begins.get(partition), offset) for partition, offset in there.items()]
                slices = list(self._slices([one for one in ranges if one is not None]))
                break
            except FileNotFoundError:
                # A segment was deleted after it was listed.
                if attempt == _ATTEMPTS - 1:
                    raise
                self._lost = lost
                self._list_all_again()
                self.ends(now=True)
        for partition in there.keys() & self._followed.keys():
            self._followed[partition].truncated_to = None
        counts = ReadCounts(bytes_read=self._fs.bytes_read, offsets_lost=self._lost)
        self._fs.bytes_read = self._lost = 0
        return StreamPlan(pack(slices, self.options), counts)

    def _without_those_made_anew(
        self, start: Offsets, end: Offsets, start_marks: Marks, end_marks: Marks
    ) -> tuple[Offsets, Offsets]:
        """Return the ends and starts of a batch, without the partitions that were recreated since."""
        replaced, older = self.made_anew(end, end_marks), self.made_anew(start, start_marks)
        for partition in sorted(older | replaced):
            self._report(0, f"{partition} was deleted and recreated. Its old unread records are lost to this query")
        there = {partition: offset for partition, offset in end.items() if partition not in replaced}
        return there, {partition: offset for partition, offset in start.items() if partition not in older}

    def _slices(self, ranges: Sequence[OffsetRange]) -> Iterator[Slice]:
        for part in divide(ranges, self.options):
            one = self._followed[part.partition]
            assert one.tail is not None, "or its range would be empty"
            near = next((cut for cut in reversed(one.cuts) if cut.offset <= part.start), None)
            slicer = Slicer(one.log, part.partition, self.options, None, near)
            some = slicer.slices(part, end=one.tail.end if part.end >= one.log_end_offset else None, to_end=False)
            if one.transactions is not None:
                met = TransactionsMet(one.transactions)
                some = [met.added_to(each) for each in some]
            yield from some

    def _range(self, partition: TopicPartition, start: int | None, end: int) -> OffsetRange | None:
        """Return the existing offsets of a partition in a batch, or None if there are none."""
        one = self._followed.get(partition)
        if one is None:
            self._report(max(0, end - (start or 0)), f"{partition} is deleted, with its records up to offset {end - 1}")
            return None
        lowest, highest = one.start_offset, one.log_end_offset
        if start is None:
            if lowest > 0:
                self._report(lowest, f"{partition} is new, and begins at offset {lowest}: older records are deleted")
            start = lowest
        if one.truncated_to is not None and one.truncated_to < start:
            what = f"{partition} was read up to offset {start}, then truncated to {one.truncated_to}"
            self._report(0, f"{what}, where other records are now")
            start = one.truncated_to
        if end < start:
            self._report(0, f"{partition} ended at offset {start}, and now at {end}: it was truncated, or recreated")
            return None
        if start < min(lowest, end):
            behind = min(lowest, end)
            what = (
                f"Offsets {start} to {behind - 1} of {partition} are deleted: its log now starts at {lowest}; retention"
            )
            self._report(behind - start, f"{what} was faster than the query")
            start = behind
        if end > max(highest, start):
            behind = max(highest, start)
            self._report(
                end - behind, f"Offsets {behind} to {end - 1} of {partition} are missing: its log ends before them"
            )
            end = behind
        if self._judges_transactions:
            # The high watermark may be lower than when the batch was first planned.
            self._follow_transactions(one, end)
        return OffsetRange(partition, start, end)

    def _report(self, count: int, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise RequestError(f"{what}. To go on without them, set failOnDataLoss to false")
        self._lost += count
        _log.warning("%s", what)


def _mark(followed: _Followed, offset: int) -> str | None:
    """Return the mark of the batch before an offset."""
    if offset not in followed.marks:
        near = next((cut for cut in reversed(followed.cuts) if cut.offset < offset), None)
        if (mark := _batch_mark(followed.log, offset, near)) is None:
            return None
        followed.marks = {**dict(list(followed.marks.items())[-_MARKS_KEPT:]), offset: mark}
    return followed.marks[offset]


# ---- limits ----------------------------------------------------------------------------------------------------------


def within(limit: int, start: Offsets, end: Offsets, earliest: Callable[[TopicPartition], int]) -> Offsets:
    """Limit a batch to `limit` offsets; each partition gets a share in proportion to its size.

    Args:
        earliest: returns the start of a partition that is missing in `start`.

    Source: Spark KafkaMicroBatchStream.rateLimit. Differs: Spark gives each partition at least one offset, and may
    exceed the limit. Here partitions with a share below one offset take turns, chosen by the start of the batch.
    """
    begins = {partition: start[partition] if partition in start else earliest(partition) for partition in end}
    sizes = {partition: max(0, offset - begins[partition]) for partition, offset in end.items()}
    total = sum(sizes.values())
    if total <= limit:
        return end
    counts = {partition: limit * size // total for partition, size in sizes.items()}
    rest = [partition for partition, size in sizes.items() if counts[partition] < size]
    turn = sum(begins.values()) % len(rest)
    rest = sorted(rest[turn:] + rest[:turn], key=lambda partition: counts[partition] > 0)
    for partition in rest[: limit - sum(counts.values())]:
        counts[partition] += 1
    return {
        partition: begins[partition] + counts[partition] if sizes[partition] else offset
        for partition, offset in end.items()
    }


def count_between(start: Offsets, end: Offsets) -> int:
    """Count the offsets of a batch; a partition that is missing in `start` counts from 0."""
    return sum(offset - start.get(partition, 0) for partition, offset in end.items())


# ---- marks -----------------------------------------------------------------------------------------------------------

# A mark distinguishes the partition that a stream read from a recreated one of the same name. A checkpoint stores the
# mark with the partition's offset:
#
#     kh0ERQ6WToCnIzrMNpUr_A       the topic id
#     20:17ab03ff:1700000000000    without a topic id, the batch before the offset: base offset, checksum, max timestamp
#
# Compaction may change the checksum of a batch, but it never changes the base offset, and never makes the max timestamp
# newer. So it is another batch if the base offset differs, or if the checksum differs and the timestamp is newer.

_PART = ":"


def _batch_mark(log: LogView, offset: int, near: Cut | None = None) -> str | None:
    """Return the mark of the batch with the last record below an offset, or None if that batch is missing.

    Args:
        near: a cut at or before that record, which saves an index lookup.
    """
    segment = next((segment for segment in reversed(log.segments) if segment.base_offset < offset), None)
    if segment is None:
        return None
    with segment.open() as file:
        if near is not None and near.segment == segment.base_offset and near.still_holds(file):
            start = near.position
        else:
            start = segment.position_of(file, offset - 1)
        for item in read_headers(file, base_offset=segment.base_offset, start=start):
            if isinstance(item, Gap):
                continue
            for batch in item[item["last_offset"] >= offset - 1][:1]:
                if batch["magic"] < 2 or batch["base_offset"] >= offset:
                    return None
                return f"{batch['base_offset']}{_PART}{batch['crc']:08x}{_PART}{batch['max_timestamp']}"
    return None


def _is_topic_id(mark: str) -> bool:
    """Return whether a mark is a topic id."""
    return _PART not in mark


def _is_anew(was: str, now: str | None) -> bool:
    """Return whether two marks of the same kind show different partitions; `now` is None if it is unknown."""
    if now is None or _is_topic_id(was):
        return now is not None and now != was
    (base, crc, newest), (base_now, crc_now, newest_now) = was.split(_PART), now.split(_PART)
    return base != base_now or (crc != crc_now and int(newest_now) > int(newest))
