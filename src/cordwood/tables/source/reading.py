"""Read a slice: from windows of a log to rows; only wanted fields are copied.

Each step takes the output of the step before:

    windows      the slice's bytes, with checksums computed
    batches      visible and new enough; damaged batches are reported, never skipped silently
    records      decoded, not copied; then reduced to records that meet the conditions
    rows         keys, values and other columns of these records, one Arrow array per column
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute

from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.types import NONE, Isolation
from cordwood.fs.base import Store
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.storage.log.outcomes import contradicts
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error, locate_damage
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap, GapKind
from cordwood.tables.source import filters
from cordwood.tables.source.counts import ReadCounts
from cordwood.tables.source.filters import NULL, BoolArray, Condition
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.rows import Origin, keys, microseconds, to_rows
from cordwood.tables.source.schema import AS_BYTES, TRANSACTION, RowFormat
from cordwood.tables.source.slices import Slice

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The rows wanted from each slice. Plain values, to be pickled.

    Attributes:
        indexed: whether transactions were found by indexes, which the log may contradict.
    """

    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    isolation: Isolation
    fail_on_data_loss: bool
    fail_on_damage: bool
    indexed: bool
    row_format: RowFormat

    @classmethod
    def of(
        cls,
        options: ReadOptions,
        names: tuple[str, ...],
        conditions: Sequence[Condition] = (),
        row_format: RowFormat = AS_BYTES,
    ) -> RowPlan:
        """Build the plan from the options."""
        return cls(
            names=names,
            conditions=tuple(conditions),
            isolation=options.isolation_level,
            fail_on_data_loss=options.fail_on_data_loss,
            fail_on_damage=options.fail_on_damage,
            indexed=options.use_indexes,
            row_format=row_format,
        )


def read_slice(plan: RowPlan, slice_: Slice, fs: Store, counts: ReadCounts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice.

    Args:
        counts: updated with the data that is read and skipped.

    Raises:
        DataError: a file is damaged.
        RequestError: offsets of the slice are missing.
    """
    yield from _Reader(plan, slice_, fs, counts).rows()


class _Reader:
    def __init__(self, plan: RowPlan, slice_: Slice, fs: Store, counts: ReadCounts) -> None:
        self._plan = plan
        self._slice = slice_
        self._fs = fs
        self._counts = counts
        self._transactions = Transactions(
            open=dict(slice_.open), aborted={producer: list(some) for producer, some in slice_.aborted.items()}
        )
        self._oldest_ms = filters.oldest_ms(plan.conditions)
        self._judges_transactions = plan.isolation == READ_COMMITTED or TRANSACTION in plan.names
        #: Producers with records in a transaction that is open at the current position.
        self._has_data: set[int] = set()
        #: The last offset of the batches read so far.
        self._reached = slice_.start_offset - 1

    def rows(self) -> Iterator[pa.RecordBatch]:
        one = self._slice
        try:
            log = LogView(one.path, fs=self._fs)
        except NotFoundError as error:
            self._lost(one.start_offset, one.end_offset, str(error))
            return
        if log.first_offset > one.start_offset or not log.segments:
            self._lost(one.start_offset, min(log.first_offset, one.end_offset) if log.segments else one.end_offset)
        for segment, item in log.windows(
            start_offset=one.start_offset,
            # At the log's end, a batch with wrong offsets is behind all correct batches, and must be read to be found.
            end_offset=MAX_OFFSET if one.to_end else one.end_offset,
            start=one.start,
            end=one.end,
            on_lost=self._lost,
        ):
            if isinstance(item, Gap):
                self._gap(log, segment, item)
                continue
            lasts = item.batches["last_offset"][is_valid(item.batches)]
            self._reached = max(self._reached, int(lasts[-1]) if lasts.size else NONE)
            yield from self._window(segment, item)
            del item  # free a large window before reading the next
        if self._reached < one.end_offset - 1 and (end := log.next_offset) < one.end_offset:
            self._lost(max(end, one.start_offset), one.end_offset)

    def _window(self, segment: Segment, window: BatchWindow) -> Iterator[pa.RecordBatch]:
        batches = window.batches
        if self._judges_transactions and self._plan.indexed:
            self._check_transactions(segment, batches)
        keep = self._transactions.visible(batches, self._plan.isolation) & (batches["record_count"] != 0)
        if self._oldest_ms is not None:
            keep &= batches["max_timestamp"] >= self._oldest_ms
        # A damaged header is not reliable, so its fields cannot justify skipping the batch.
        keep |= ~is_valid(batches)
        self._counts.batches += int(np.count_nonzero(keep))
        self._counts.batches_skipped += int(np.count_nonzero(~keep))
        if not keep.any():
            return
        if not keep.all():
            window = BatchWindow(window.position, window.data, batches[keep], window.read)
        origin = Origin(self._slice.partition, segment.path, self._transactions)
        for columns in decode(window, on_damage=locate_damage(self._damaged, segment)):
            selected = columns.select(self._wanted(columns))
            count = selected.rows.size
            self._counts.records += count
            self._counts.records_skipped += columns.rows.size - count
            if count:
                yield to_rows(selected, self._plan.names, origin, self._plan.row_format)
            # Free a large record before decoding the next.
            del columns, selected

    def _wanted(self, columns: RecordColumns) -> BoolArray:
        """bool[records]: records of the slice that meet all conditions."""
        conditions, offsets = self._plan.conditions, columns.rows["offset"]
        wanted: BoolArray = (offsets >= self._slice.start_offset) & (offsets < self._slice.end_offset)
        if not conditions:
            return wanted
        wanted &= filters.meets_numbers(conditions, "offset", offsets)
        if any(one.column == "timestamp" for one in conditions):
            found, valid = microseconds(columns)
            for one in conditions:
                if one.column == "timestamp":
                    wanted &= _with_nulls(one, filters.meets_numbers([one], "timestamp", found), valid)
        for column in ("key", "value"):
            sizes = columns.rows[f"{column}_size"]
            for one in conditions:
                if one.column == column:
                    met = wanted if one.test == NULL else _equal_keys(one, columns)
                    wanted = wanted & _with_nulls(one, met, sizes >= 0)
        return wanted

    def _check_transactions(self, segment: Segment, batches: np.ndarray) -> None:
        wrong = contradicts(self._transactions, batches[is_valid(batches)], self._has_data)
        if wrong is not None:
            raise CorruptFileError(
                f"The transaction indexes of {self._slice.partition} do not say what its log says: offset "
                f"{wrong.last_offset} ends a transaction of producer {wrong.producer_id} that they do not list, or "
                "list as aborted elsewhere. To read all headers instead, set useIndexes to false",
                path=segment.path,
                offset=wrong.last_offset,
            )

    def _gap(self, log: LogView, segment: Segment, gap: Gap) -> None:
        if self._reached >= self._slice.end_offset - 1 and not self._slice.to_end:
            return  # it is behind the slice
        if segment.base_offset == log.segments[-1].base_offset and gap.kind is not GapKind.DAMAGE:
            return  # a normal end: an incomplete write, or space preallocated by the broker
        self._damaged(gap_error(segment, gap))

    def _damaged(self, error: DataError) -> None:
        if self._plan.fail_on_damage:
            raise error
        self._counts.damaged += 1
        _log.warning("passed over damage: %s", error)

    def _lost(self, start: int, end: int, why: str = "") -> None:
        count = end - start
        # Report each loss once.
        self._reached = max(self._reached, end - 1)
        what = f"Offsets {start} to {end - 1} of {self._slice.partition} are not in {self._slice.path}"
        hint = why or "Retention may have deleted them meanwhile, or the log ends before"
        if self._plan.fail_on_data_loss:
            raise RequestError(f"{what}. {hint}. To go on without them, set failOnDataLoss to false")
        self._counts.offsets_lost += count
        _log.warning("%s. %s", what, hint)


def _with_nulls(condition: Condition, met: BoolArray, valid: BoolArray) -> BoolArray:
    """Evaluate a condition on a column with nulls, given `met`, its result wherever the column is not null."""
    if condition.test == NULL:
        return valid if condition.negated else ~valid
    return met & valid


def _equal_keys(condition: Condition, columns: RecordColumns) -> BoolArray:
    """bool[records]: where keys that are not null meet a condition."""
    values: Sequence[bytes] = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    found = pyarrow.compute.is_in(keys(columns), value_set=pa.array(values, pa.binary()))
    met: BoolArray = found.to_numpy(zero_copy_only=False)
    return ~met if condition.negated else met
