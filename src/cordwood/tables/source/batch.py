"""Plan a batch: which tasks read which offsets of which partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cordwood.common.errors import RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Store
from cordwood.fs.counted import CountedStore
from cordwood.storage.log.transactions import READ_COMMITTED
from cordwood.storage.node.node import Node
from cordwood.tables.source import filters
from cordwood.tables.source.counts import ReadCounts
from cordwood.tables.source.filters import Condition
from cordwood.tables.source.offsets import Limit, check_names, resolve
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.partitions import PartitionView, choose
from cordwood.tables.source.schema import TRANSACTION
from cordwood.tables.source.slices import OffsetRange, Slice, Slicer, TransactionsMet, divide, pack

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The slices that each task of a batch reads, and the counts of planning."""

    tasks: Sequence[tuple[Slice, ...]]
    counts: ReadCounts


def plan_batch(options: ReadOptions, fs: Store, names: Sequence[str], conditions: Sequence[Condition]) -> BatchPlan:
    """Plan a batch.

    Raises:
        NotFoundError: a path or a topic does not exist.
        RequestError: options cannot be met; or requested offsets are missing and `failOnDataLoss` is `true`.
    """
    starting, ending = options.batch_limits()
    counted = CountedStore(fs)
    paths = [fs.absolute_path(path) for path in options.path]
    for attempt in range(_ATTEMPTS):
        try:
            node = Node.open(counted, paths, options.metadata)
            plan = _Planner(options, node, names, conditions, fs.concurrency).plan(starting, ending)
            plan.counts.bytes_read = counted.bytes_read
            return plan
        except FileNotFoundError:
            # Retention, a cleaner, or a move to another disk deleted the file, so earlier results may be wrong as well.
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


class _Planner:
    def __init__(
        self,
        options: ReadOptions,
        node: Node,
        names: Sequence[str],
        conditions: Sequence[Condition],
        at_a_time: int,
    ) -> None:
        self._options = options
        self._at_a_time = at_a_time
        self._conditions = conditions
        self._judges_transactions = options.isolation_level == READ_COMMITTED or TRANSACTION in names
        self._views = {
            partition: PartitionView(partition, place, node, options)
            for partition, place in choose(node, options).items()
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
        return BatchPlan(pack(slices, self._options), sum((counts for _, counts in found), ReadCounts()))

    def _slices(self, view: PartitionView, parts: Sequence[OffsetRange]) -> tuple[list[Slice], ReadCounts]:
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
        return slices, counts

    def _range(self, view: PartitionView, starting: Limit, ending: Limit) -> OffsetRange:
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
                f"Offsets {asked} of {view.partition} were asked for, and {lowest} to {highest - 1} are there. To read "
                "what is there of them, set failOnDataLoss to false"
            )
        start, end = max(start, lowest), min(end, highest)
        low, behind = filters.offset_range(self._conditions)
        return OffsetRange(view.partition, max(start, low), min(end, behind))
