"""The readers of the data source, as Spark's Python API defines them: of a batch, and of a stream.

Spark creates a reader in a separate planning process, and each task reads with a pickled copy of it. The modules that
plan and read are imported when they are needed.

Spark prints a traceback before the message of an error. Users need the message, so our own errors leave here with a
traceback of one line. Other exceptions are bugs, and keep their tracebacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator
from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    Filter,
    InputPartition,
    IsNotNull,
    IsNull,
    Not,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from cordwood.common.errors import CordwoodError
from cordwood.common.types import override
from cordwood.fs.base import Store
from cordwood.fs.location import Location
from cordwood.tables.source.filters import NULL, Condition, is_decided, microseconds, text
from cordwood.tables.source.offsets import Offsets, OffsetsDocument, from_document, marks_in, to_document
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.schema import RowFormat
from cordwood.tables.source.slices import ReadCounts
from cordwood.tasks.spark.worker import keep_loaded

if TYPE_CHECKING:
    import pyarrow as pa

    from cordwood.tables.source.following import Follower
    from cordwood.tables.source.slices import Slice

_TESTS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}
assert all(hasattr(spark_filters, name) for name in _TESTS)

_log = logging.getLogger(__name__)


class LogTask(InputPartition):
    """The slices that one task reads.

    Attributes:
        planned: counts of the planning, in the one task that reports them.
    """

    def __init__(self, slices: Sequence[Slice], planned: ReadCounts | None) -> None:
        self.slices = tuple(slices)
        self.planned = planned


class SliceReader:
    """Reads the slices of tasks; the part that batches and streams share."""

    def __init__(
        self,
        options: ReadOptions,
        names: tuple[str, ...],
        location: Location[Store],
        accumulator: Accumulator[ReadCounts] | None,
        row_format: RowFormat,
    ) -> None:
        self._options = options
        self._names = names
        self._row_format = row_format
        self._location = location
        self._accumulator = accumulator
        #: Conditions accepted from Spark, which rows must meet.
        self._decided: list[Condition] = []

    def _read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        from cordwood.fs.wrapped import CountedStore
        from cordwood.tables.source.reading import RowPlan, read_slice

        assert isinstance(task, LogTask), "it was planned here"
        _log.setLevel(logging.INFO)
        counts = ReadCounts()
        fs = CountedStore(self._location.open())
        plan = RowPlan.of(self._options, self._names, self._decided, self._row_format)
        try:
            for one in task.slices:
                yield from read_slice(plan, one, fs, counts)
        except CordwoodError as error:
            raise error.with_traceback(None) from None
        finally:
            counts.bytes_read = fs.bytes_read
            if task.planned is not None:
                counts += task.planned
            _log.info("%s", counts)
            if self._accumulator is not None:
                self._accumulator.add(counts)
        keep_loaded()


class LogReader(SliceReader, DataSourceReader):
    """Reads a batch."""

    @override
    def partitions(self) -> Sequence[InputPartition]:
        from cordwood.tables.source.batch import plan_batch

        _log.setLevel(logging.INFO)
        try:
            plan = plan_batch(self._options, self._location.open(), self._names, self._decided)
        except CordwoodError as error:
            raise error.with_traceback(None) from None
        _log.info("%d tasks where %s: %s", len(plan.tasks), text(self._decided) or "all is wanted", plan.counts)
        for replica in plan.replicas:
            _log.info("%s", replica)
        tasks = plan.tasks or [()]
        return [LogTask(slices, plan.counts if at == 0 else None) for at, slices in enumerate(tasks)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class FilteringLogReader(LogReader):
    """Reads a batch and accepts conditions from Spark. Spark rejects such a reader unless it pushes filters down."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            condition = _condition(one)
            # The conditions compare decoded keys and values, but tasks compare bytes.
            is_on_bytes = condition is not None and condition.column not in self._row_format.decoders
            if condition is not None and is_on_bytes and is_decided(condition):
                self._decided.append(condition)
            else:
                yield one


class LogStreamReader(SliceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows logs, batch by batch. One process calls the methods one at a time; only `read` runs in tasks."""

    def __init__(
        self,
        options: ReadOptions,
        names: tuple[str, ...],
        location: Location[Store],
        accumulator: Accumulator[ReadCounts] | None,
        row_format: RowFormat,
    ) -> None:
        super().__init__(options, names, location, accumulator, row_format)
        self._follower: Follower | None = None
        #: Fixed ends of a query that reads only the records present when it starts.
        self._target: Offsets | None = None
        self._ends_at_target = False
        self._latest: Offsets = {}
        #: When the last batch was released, for `minOffsetsPerTrigger`.
        self._triggered: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tasks do not need the state of the followed logs.
        return {**self.__dict__, "_follower": None}

    def _following(self) -> Follower:
        if self._follower is None:
            from cordwood.tables.source.following import Follower

            self._follower = Follower(self._options, self._location.open(), self._names)
        return self._follower

    @override
    def initialOffset(self) -> OffsetsDocument:  # noqa: N802
        return self._marked(self._following().starts(self._options.stream_start()))

    @override
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @override
    def latestOffset(self, start: OffsetsDocument, limit: ReadLimit) -> OffsetsDocument:  # noqa: N802
        from cordwood.tables.source.following import within

        begins, follower = from_document(start), self._following()
        if self._ends_at_target:
            if self._target is None:
                self._target = follower.final_ends()
            self._latest = self._target
        else:
            self._latest = follower.ends()
        ends = self._latest
        if isinstance(limit, ReadAllAvailable):
            return self._marked(ends)
        anew = follower.made_anew(begins, marks_in(start))
        begins = {partition: offset for partition, offset in begins.items() if partition not in anew}
        if not self._ends_at_target and self._waits(begins, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = within(limit.max_rows, begins, ends, follower.earliest)
        return self._marked(ends)

    def _marked(self, offsets: Offsets) -> OffsetsDocument:
        return to_document(offsets, self._following().marks(offsets))

    def _waits(self, begins: Offsets, ends: Offsets) -> bool:
        """Return whether a batch must wait for more offsets."""
        from cordwood.tables.source.following import count_between

        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        now = time.monotonic()
        is_overdue = self._triggered is None or now - self._triggered >= self._options.max_trigger_delay / 1000
        if not is_overdue and count_between(begins, ends) < least:
            return True
        self._triggered = now
        return False

    @override
    def reportLatestOffset(self) -> OffsetsDocument | None:  # noqa: N802
        return to_document(self._latest) or None

    @override
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends_at_target = True

    @override
    def partitions(self, start: OffsetsDocument, end: OffsetsDocument) -> Sequence[InputPartition]:
        offsets, marks = (from_document(start), from_document(end)), (marks_in(start), marks_in(end))
        plan = self._following().plan(*offsets, *marks)
        _log.setLevel(logging.INFO)
        _log.info("%d tasks: %s", len(plan.tasks), plan.counts)
        return [LogTask(slices, plan.counts if at == 0 else None) for at, slices in enumerate(plan.tasks)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    @override
    def commit(self, end: OffsetsDocument) -> None:
        self._following().forget_below(from_document(end))


def _condition(filter_: Filter) -> Condition | None:
    """Convert a Spark filter to a condition, or return None if no condition can express it."""
    negated = isinstance(filter_, Not)
    if isinstance(filter_, Not):
        filter_ = filter_.child
    column = ".".join(filter_.attribute) if hasattr(filter_, "attribute") else ""
    if isinstance(filter_, IsNull | IsNotNull):
        return Condition(column, NULL, negated=negated is not isinstance(filter_, IsNotNull))
    if isinstance(filter_, EqualNullSafe) and not negated:
        return Condition(column, "=", microseconds(filter_.value))
    test = _TESTS.get(type(filter_).__name__)
    if test is None:
        return None
    value = getattr(filter_, "value", None)
    if test == "in":
        return Condition(column, test, tuple(map(microseconds, value or ())), negated)
    return Condition(column, test, microseconds(value), negated)
