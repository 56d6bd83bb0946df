"""The partitions of a read, the readable offsets of each, and the plan of a batch: which tasks read which offsets.

With `read_uncommitted`, reading ends at the high watermark: records at and behind it may still be truncated. A
directory does not always contain the high watermark:

    metadata lists one replica            the log's end: each written record is on all replicas
    not a broker's directory              the log's end: it has no other replicas
    otherwise                             the entry in replication-offset-checkpoint, which a broker writes every
                                          five seconds and when it stops; never above the log's end
    and the entry is missing              no record can be read. A live broker has no entry yet for a new partition

With `read_committed`, reading ends at the last stable offset below the high watermark. The end of a log that a broker
is writing to is the end of its last whole batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.text import names_text
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS
from cordwood.storage.log.healing import Healer, OtherReplica
from cordwood.storage.log.searches import first_since
from cordwood.storage.log.segment import MAX_OFFSET, Cut
from cordwood.storage.log.tail import find_tail, follow, outcomes
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.node.cluster import ChosenReplica, Cluster, Replica
from cordwood.storage.node.node import LocatedPartition, Node
from cordwood.storage.node.read_replica import ReadReplica
from cordwood.tables.source import filters
from cordwood.tables.source.filters import Condition
from cordwood.tables.source.offsets import Limit, check_names, resolve
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.schema import TRANSACTION
from cordwood.tables.source.slices import HEAL, OffsetRange, ReadCounts, Slice, Slicer, TransactionsMet, divide, pack

# ---- partitions ------------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


def choose(cluster: Cluster, options: ReadOptions) -> dict[TopicPartition, LocatedPartition]:
    """Return the partitions selected by the options, sorted by name; of several brokers, one replica of each.

    Raises:
        NotFoundError: a named topic or partition is missing, or the named broker has no replica of a partition.
        RequestError: a partition is in two directories of a broker, or no directory belongs to the named broker.
    """
    return {name: replica.place for name, (replica, _) in choose_replicas(cluster, options).items()}


def choose_replicas(
    cluster: Cluster, options: ReadOptions
) -> dict[TopicPartition, tuple[Replica, ChosenReplica | None]]:
    """Like `choose`, but return replicas, of several brokers with the choice among them."""
    if options.replica is not None:
        cluster.named(options.replica)
    there = {
        place.name.topic_partition: place
        for node in cluster.nodes
        for place in node.places
        if place.name is not None and place.name.state is DirectoryState.CURRENT
    }
    topics = sorted({partition.topic for partition in there})
    assigned = {one.topic for one in options.assign or () if options.fail_on_data_loss}
    named = options.subscribe or sorted(assigned)
    if missing := [topic for topic in named if topic not in topics]:
        raise NotFoundError(
            f"There is no topic {', '.join(missing)} in {', '.join(options.all_paths)}. There are: {names_text(topics)}"
            + (". To read the other partitions of assign, set failOnDataLoss to false" if assigned else "")
        )
    if absent := sorted((options.assign or frozenset()) - there.keys()):
        what = f"There is no partition {', '.join(map(str, absent))} in {', '.join(options.all_paths)}"
        if options.fail_on_data_loss:
            raise NotFoundError(f"{what}. To read the other partitions of assign, set failOnDataLoss to false")
        _warn_once(what)
    # The path of one partition's directory selects an internal topic too.
    own = {partition for partition, place in there.items() if place.path in _stripped(options.all_paths)}

    def is_wanted(partition: TopicPartition) -> bool:
        if options.assign is not None:
            return partition in options.assign
        if options.subscribe is not None:
            return partition.topic in options.subscribe
        # As in Kafka's consumer, a pattern never matches Kafka's internal topics.
        if partition.topic in INTERNAL_TOPICS and partition not in own:
            return False
        return options.subscribe_pattern is None or options.subscribe_pattern.search(partition.topic) is not None

    chosen: dict[TopicPartition, tuple[Replica, ChosenReplica | None]] = {}
    for partition in sorted(filter(is_wanted, there)):
        for node in cluster.nodes:
            if twins := node.duplicates(partition):
                raise RequestError(
                    f"{partition} is there twice: {', '.join(one.path for one in twins)}. Give one of them"
                )
        if cluster.is_one_broker:
            chosen[partition] = Replica(partition, cluster.nodes[0], there[partition]), None
        else:
            choice = cluster.choose_replica(partition, options.replica)
            chosen[partition] = choice.replica, choice
    return chosen


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _stripped(paths: Iterable[str]) -> set[str]:
    return {path.rstrip("/") for path in paths}


def readable_end(
    place: LocatedPartition, node: Node, options: ReadOptions, start_offset: int, log_end_offset: int
) -> int:
    """Return the high watermark of a partition.

    Raises:
        RequestError: it is unknown, and no running broker or clean will write it.
    """
    name = place.name
    assert name is not None, "it was chosen by its name"
    # When a broker loads a log that ends below its start offset, it replaces the log by an empty one.
    log_end = max(log_end_offset, start_offset)
    if options.high_watermark == "end" or node.ends_at_log_end(place):
        return log_end
    entry = place.directory.high_watermarks.get(name.topic_partition)
    if entry is None and log_end > start_offset and place.directory.holder is None:
        raise RequestError(
            f"{place.directory.no_high_watermark(name.topic_partition)}. To read all that is there, set highWatermark "
            "to end"
        )
    return start_offset if entry is None else max(start_offset, min(entry, log_end))


def transactions_of(
    log: LogView, place: LocatedPartition, partition: TopicPartition, options: ReadOptions, end_offset: int
) -> Transactions:
    """Find the transactions of a log below an offset."""
    if not options.use_indexes:
        found = Transactions(open=log.open_below_start(), next_offset=log.first_offset)
        follow(found, log, end_offset)
        return found
    directory = place.directory
    # After a crash, only the log's recovery can decide which index entries behind the recovery point are valid.
    crashed = directory.crashed and directory.holder is None
    flushed = directory.recovery_points.get(partition, 0) if crashed else MAX_OFFSET
    return outcomes(log, end_offset, flushed_below=flushed)


@dataclass
class _PartitionView:
    """One partition, opened for reading as a batch; each property reads the files once."""

    partition: TopicPartition
    place: LocatedPartition
    node: Node
    options: ReadOptions
    healer: Healer
    others: tuple[OtherReplica, ...]

    @cached_property
    def log(self) -> LogView:
        """The log, with its key indexes in `index_dir` if the option is set, and as far as it is healed."""
        log, folder = self.place.log(), self.options.index_dir
        self.healer.know(log, self.others)
        log = self.healer.healed(log)
        return log if folder is None else log.with_indexes_in(self.node.fs.absolute_path(folder))

    @property
    def is_written(self) -> bool:
        """Whether a broker or another program has locked the directory, and may be writing to the log."""
        return self.place.directory.holder is not None

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return self.log.log_start_offset

    @cached_property
    def _log_end(self) -> tuple[int, Cut | None]:
        if not self.log.segments:
            return 0, None
        if self.is_written:
            tail = find_tail(self.log)
            return tail.next_offset, tail.end
        return self.log.next_offset, None

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last record, whether or not the high watermark has reached it."""
        return self._log_end[0]

    @property
    def end(self) -> Cut | None:
        """The cut at the log's end; None if the log ends where its file does."""
        return self._log_end[1]

    @cached_property
    def readable_end(self) -> int:
        """The high watermark; see the function `readable_end`."""
        return readable_end(self.place, self.node, self.options, self.start_offset, self.log_end_offset)

    @cached_property
    def transactions(self) -> Transactions:
        """Transactions below the high watermark."""
        return transactions_of(self.log, self.place, self.partition, self.options, self.readable_end)

    @property
    def end_offset(self) -> int:
        """The high watermark, or with read_committed the last stable offset."""
        if self.options.isolation_level != READ_COMMITTED:
            return self.readable_end
        stable = self.transactions.last_stable_offset
        # An open transaction may have begun below the log start.
        return self.readable_end if stable is None else max(min(stable, self.readable_end), self.start_offset)

    def first_since(self, timestamp: int) -> int | None:
        """Return the offset of the first record at or after a time; see `offsets.Readable`."""
        return first_since(self.log, timestamp, start_offset=self.start_offset, end_offset=self.end_offset)


_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices that each task of a batch reads, and the counts of planning.

    Attributes:
        replicas: the replica of each partition, if directories of several brokers were given.
    """

    tasks: Sequence[tuple[Slice, ...]]
    counts: ReadCounts
    replicas: tuple[ReadReplica, ...] = ()


def _others(choice: ChosenReplica | None) -> tuple[OtherReplica, ...]:
    return () if choice is None else tuple(OtherReplica(one.broker, one.path) for one in choice.others)


def plan_batch(options: ReadOptions, fs: Store, names: Sequence[str], conditions: Sequence[Condition]) -> BatchPlan:
    """Plan a batch.

    Raises:
        NotFoundError: a path or a topic does not exist.
        RequestError: options cannot be met; or requested offsets are missing and `failOnDataLoss` is `true`.
    """
    starting, ending = options.batch_limits()
    counted = CountedStore(fs)
    paths = [fs.absolute_path(path) for path in options.path]
    named = [(name, fs.absolute_path(path)) for name, path in options.brokers]
    healer = Healer(options.heal, HEAL)
    for attempt in range(_ATTEMPTS):
        try:
            cluster = Cluster.open(counted, paths, options.metadata, named=named)
            chosen = choose_replicas(cluster, options)
            planner = partial(_Planner, options, chosen, names, conditions, fs.concurrency, healer)
            plan = healer.until_healed(partial(_planned, planner, starting, ending))
            plan.counts.bytes_read = counted.bytes_read
            return plan
        except FileNotFoundError:
            # Retention, a cleaner, or a move to another disk deleted the file, so earlier results may be wrong as well.
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _planned(planner: Callable[[], _Planner], starting: Limit, ending: Limit) -> BatchPlan:
    return planner().plan(starting, ending)


class _Planner:
    def __init__(
        self,
        options: ReadOptions,
        chosen: Mapping[TopicPartition, tuple[Replica, ChosenReplica | None]],
        names: Sequence[str],
        conditions: Sequence[Condition],
        at_a_time: int,
        healer: Healer,
    ) -> None:
        self._options = options
        self._replicas = tuple(ReadReplica.of(choice) for _, choice in chosen.values() if choice is not None)
        self._at_a_time = at_a_time
        self._conditions = conditions
        self._judges_transactions = options.isolation_level == READ_COMMITTED or TRANSACTION in names
        self._views = {
            partition: _PartitionView(partition, replica.place, replica.node, options, healer, _others(choice))
            for partition, (replica, choice) in chosen.items()
        }

    def plan(self, starting: Limit, ending: Limit) -> BatchPlan:
        check_names(starting, self._views, self._options.starting_name)
        check_names(ending, self._views, self._options.ending_name)
        selected = [view for name, view in self._views.items() if filters.selects(self._conditions, name)]
        # In threads, as most of the time is spent waiting for the disk or store.
        ranges = in_parallel(self._at_a_time, lambda view: self._range(view, starting, ending), selected)
        parts: dict[TopicPartition, list[OffsetRange]] = {view.partition: [] for view in selected}
        for part in divide(ranges, self._options):
            parts[part.partition].append(part)
        found = in_parallel(self._at_a_time, lambda view: self._slices(view, parts[view.partition]), selected)
        slices = [one for some, _ in found for one in some]
        return BatchPlan(
            pack(slices, self._options), sum((counts for _, counts in found), ReadCounts()), self._replicas
        )

    def _slices(self, view: _PartitionView, parts: Sequence[OffsetRange]) -> tuple[list[Slice], ReadCounts]:
        """Return the slices of a partition, and counts of the skipped segments and bytes."""
        oldest_ms, keys = filters.oldest_ms(self._conditions), filters.keys_in(self._conditions)
        slicer = Slicer(view.log, view.partition, self._options, oldest_ms, keys=keys)
        slices: list[Slice] = []
        for part in parts:
            at_end = part.end >= view.log_end_offset
            slices += slicer.slices(part, end=view.end if at_end else None, to_end=at_end and not view.is_written)
        counts = slicer.counts(slices)
        if self._judges_transactions and slices:
            met = TransactionsMet(view.transactions)
            slices = [met.added_to(one) for one in slices]
        if view.others:
            slices = [replace(one, others=view.others) for one in slices]
        return slices, counts

    def _range(self, view: _PartitionView, starting: Limit, ending: Limit) -> OffsetRange:
        """Return the offsets within the requested limits and the filters."""
        options = self._options
        newest_if_none = options.starting_offsets_by_timestamp_strategy == "latest"
        start = resolve(starting, view.partition, view, what=options.starting_name, newest_if_none=newest_if_none)
        end = resolve(ending, view.partition, view, what=options.ending_name, newest_if_none=True)
        lowest, highest = view.start_offset, view.end_offset
        if start > end and lowest <= end and start <= highest:
            raise RequestError(f"{view.partition} cannot be read from offset {start} to {end}: the end comes first")
        # If the start is above the end here, the start is above the log or the end is below it.
        if start != end and (start < lowest or end > highest or start > end) and options.fail_on_data_loss:
            asked = f"{start} to {end - 1}" if start < end else f"{start} on" if start > highest else f"below {end}"
            raise RequestError(
                f"Offsets {asked} of {view.partition} were requested, but the log has only {lowest} to {highest - 1}. "
                "To read the existing ones, set failOnDataLoss to false"
            )
        start, end = max(start, lowest), min(end, highest)
        low, behind = filters.offset_range(self._conditions)
        return OffsetRange(view.partition, max(start, low), min(end, behind))
