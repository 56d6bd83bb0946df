"""Read a slice: from windows of a log to rows; only wanted fields are copied.

Each step takes the output of the step before:

    windows      the slice's bytes, with checksums computed
    batches      visible and new enough; damaged batches are reported, never skipped silently
    records      decoded, not copied; then reduced to records that meet the conditions
    rows         keys, values and other columns of these records, one Arrow array per column
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from cordwood.common.errors import CorruptFileError, DataError, NotFoundError, RequestError
from cordwood.common.types import NONE, Codec, Isolation, TimestampType, TopicPartition
from cordwood.fs.base import Store
from cordwood.kernels.layout import CODEC_MASK, LOG_APPEND_TIME, is_transactional_data
from cordwood.record.columns import BatchWindow, RecordColumns, decode, is_valid
from cordwood.storage.log.arrow import byte_strings, header_lists, in_calendar, numbers
from cordwood.storage.log.healing import Healer
from cordwood.storage.log.segment import MAX_OFFSET, Segment, gap_error, locate_damage
from cordwood.storage.log.tail import contradicts
from cordwood.storage.log.transactions import READ_COMMITTED, Transactions
from cordwood.storage.log.view import LogView
from cordwood.storage.log.windows import Gap
from cordwood.tables.decoders.plain import undecodable
from cordwood.tables.source import filters
from cordwood.tables.source.filters import NULL, BoolArray, Condition
from cordwood.tables.source.options import ReadOptions
from cordwood.tables.source.schema import AS_BYTES, TRANSACTION, UNDECODABLE, RowFormat
from cordwood.tables.source.slices import HEAL, ReadCounts, Slice

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The rows wanted from each slice. Plain values, to be pickled.

    Attributes:
        indexed: whether transactions were found by indexes, which the log may contradict.
        heals: damaged batches are read from other replicas.
    """

    names: tuple[str, ...]
    conditions: tuple[Condition, ...]
    isolation: Isolation
    fail_on_data_loss: bool
    fail_on_damage: bool
    indexed: bool
    row_format: RowFormat
    heals: bool = False

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
            heals=options.heal,
        )


def read_slice(plan: RowPlan, slice_: Slice, fs: Store, counts: ReadCounts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice.

    Args:
        counts: updated with the data that is read and skipped.

    Raises:
        DataError: a file is damaged.
        RequestError: offsets of the slice are missing.
    """
    reader = _SliceReader(plan, slice_, fs, counts)
    while True:
        try:
            yield from reader.rows()
            return
        except _Healed:
            continue  # after the last row that was yielded


class _Healed(Exception):  # noqa: N818
    """Ends the reading of a slice whose log has new patches."""


class _SliceReader:
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
        self._healer = Healer(plan.heals, HEAL)
        #: The lowest offset that was not yielded yet.
        self._next_offset = slice_.start_offset
        #: Producers with records in a transaction that is open at the current position.
        self._has_data: set[int] = set()
        #: The last offset of the batches read so far.
        self._reached = slice_.start_offset - 1

    def rows(self) -> Iterator[pa.RecordBatch]:
        one, start_offset = self._slice, self._next_offset
        self._has_data.clear()
        try:
            log = LogView(one.path, fs=self._fs)
        except NotFoundError as error:
            self._lost(start_offset, one.end_offset, str(error))
            return
        self._healer.know(log, one.others)
        log = self._healer.healed(log)
        if log.first_offset > start_offset or not log.segments:
            self._lost(start_offset, min(log.first_offset, one.end_offset) if log.segments else one.end_offset)
        for segment, item in log.windows(
            start_offset=start_offset,
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
        origin = RecordOrigin(self._slice.partition, segment.path, self._transactions)
        for columns in decode(window, on_damage=locate_damage(self._damaged, segment)):
            selected = columns.select(self._wanted(columns))
            count = selected.rows.size
            self._counts.records += count
            self._counts.records_skipped += columns.rows.size - count
            if count:
                yield to_rows(selected, self._plan.names, origin, self._plan.row_format)
            if columns.rows.size:
                self._next_offset = max(self._next_offset, int(columns.rows["offset"][-1]) + 1)
            # Free a large record before decoding the next.
            del columns, selected

    def _wanted(self, columns: RecordColumns) -> BoolArray:
        """bool[records]: records of the slice that meet all conditions."""
        conditions, offsets = self._plan.conditions, columns.rows["offset"]
        wanted: BoolArray = (offsets >= self._next_offset) & (offsets < self._slice.end_offset)
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
                f"The transaction indexes of {self._slice.partition} contradict its log: offset "
                f"{wrong.last_offset} ends a transaction of producer {wrong.producer_id} that they do not list, or "
                "list with another end. To read all headers instead, set useIndexes to false",
                path=segment.path,
                offset=wrong.last_offset,
            )

    def _gap(self, log: LogView, segment: Segment, gap: Gap) -> None:
        if self._reached >= self._slice.end_offset - 1 and not self._slice.to_end:
            return  # it is behind the slice
        if not log.is_end(segment, gap):
            self._damaged(gap_error(segment, gap))

    def _damaged(self, error: DataError) -> None:
        if self._healer.heal([error]):
            self._counts.batches_healed += sum(
                patch.batches
                for patch in self._healer.patches[error.path or ""]
                if patch.start_offset < self._slice.end_offset and patch.end_offset > self._slice.start_offset
            )
            raise _Healed
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


# ---- columns ---------------------------------------------------------------------------------------------------------

# Convert records to rows of the data source: one Arrow array for each requested column.

_SEQUENCE_MAX = 2**31 - 1
_FATES = ("committed", "aborted", "open")
_COMMITTED, _ABORTED, _OPEN, _NO_TRANSACTION = range(4)

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
#: Arrow types by Spark's names of types.
_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", _HEADER)),
}


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The origin of records.

    Attributes:
        transactions: transactions that the records may belong to.
    """

    partition: TopicPartition
    path: str
    transactions: Transactions


def to_rows(
    columns: RecordColumns, names: Sequence[str], origin: RecordOrigin, row_format: RowFormat = AS_BYTES
) -> pa.RecordBatch:
    """Convert records to a record batch with these columns.

    Raises:
        BatchTooLargeError: keys, values or headers of the records have 2 GiB or more.
        UndecodableError: a decoder cannot decode a key or value.
    """
    made: dict[str, pa.Array] = {}
    wrong = np.zeros(columns.rows.size, np.bool_)
    for name, decoder in row_format.decoders.items():
        if name not in names and UNDECODABLE not in names:
            continue
        found = decoder.decode(_MADE[name](columns, origin))
        if found.problems and not row_format.null_undecodable:
            raise undecodable(name, found, origin.path, columns.rows["offset"])
        made[name] = found.values
        wrong[list(found.problems)] = True
    made[UNDECODABLE] = pa.array(wrong)
    arrays = [made[name] if name in made else _MADE[name](columns, origin) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def keys(columns: RecordColumns) -> pa.Array:
    """Return the keys of records as an Arrow array."""
    return byte_strings(columns.data, columns.rows["key_start"], columns.rows["key_size"], pa.binary())


def microseconds(columns: RecordColumns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the timestamps in microseconds, and where Spark has a date for them; the other timestamps are 0."""
    timestamps = columns.rows["timestamp"]
    valid = in_calendar(timestamps)
    return np.where(valid, timestamps, 0) * 1000, valid


def _values(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    return byte_strings(columns.data, columns.rows["value_start"], columns.rows["value_size"], pa.binary())


def _timestamps(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    found, valid = microseconds(columns)
    return numbers(found, _TYPES["timestamp"], valid)


def _timestamp_types(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    batches = columns.batches
    kinds = np.where(
        batches["attributes"] & LOG_APPEND_TIME != 0, TimestampType.LOG_APPEND_TIME, TimestampType.CREATE_TIME
    )
    kinds = np.where(batches["magic"] == 0, TimestampType.NONE, kinds).astype(np.int32)
    return numbers(kinds[columns.rows["batch"]], pa.int32())


def _headers(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    rows = columns.rows
    kind = _TYPES["array<struct<key:string,value:binary>>"]
    return header_lists(columns.data, rows["headers_start"], rows["header_count"], kind, none_is_null=True)


def _of_batch(field: str, kind: pa.DataType) -> Callable[[RecordColumns, RecordOrigin], pa.Array]:
    """Return a function that makes a column from a number in each record's batch header; negative ones are null."""

    def made(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
        found = columns.batches[field][columns.rows["batch"]].astype(kind.to_pandas_dtype())
        return numbers(found, kind, found >= 0)

    return made


def _of_record(field: str) -> Callable[[RecordColumns, RecordOrigin], pa.Array]:
    """Return a function that makes a column from a size in each record; negative ones are null."""

    def made(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
        found = columns.rows[field]
        return numbers(found, pa.int32(), found >= 0)

    return made


def _sequences(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    batches, rows = columns.batches, columns.rows
    base = batches["base_sequence"][rows["batch"]].astype(np.int64)
    delta = rows["offset"] - batches["base_offset"][rows["batch"]]
    # After the largest sequence, the next one is 0.
    found = ((base + delta) & _SEQUENCE_MAX).astype(np.int32)
    return numbers(found, pa.int32(), base >= 0)


def _codecs(columns: RecordColumns, _: RecordOrigin) -> pa.Array:
    labels = pa.array([codec.label for codec in Codec], pa.string())
    return labels.take(pa.array((columns.batches["attributes"] & CODEC_MASK)[columns.rows["batch"]].astype(np.int32)))


def _fates(columns: RecordColumns, origin: RecordOrigin) -> pa.Array:
    batches, known = columns.batches, origin.transactions
    found = np.where(is_transactional_data(batches), _COMMITTED, _NO_TRANSACTION).astype(np.int32)
    found[known.open_data(batches)] = _OPEN
    found[known.aborted_data(batches)] = _ABORTED
    rows = found[columns.rows["batch"]]
    return pa.array([*_FATES, None], pa.string()).take(pa.array(rows))


def _same(text: Callable[[RecordOrigin], str]) -> Callable[[RecordColumns, RecordOrigin], pa.Array]:
    """Return a function that makes a column with the same text in each row."""

    def made(columns: RecordColumns, origin: RecordOrigin) -> pa.Array:
        count, name = columns.rows.size, np.frombuffer(text(origin).encode(), np.uint8)
        offsets = np.arange(count + 1, dtype=np.int64) * name.size
        if offsets[-1] > np.iinfo(np.int32).max:  # a path of 4 KiB in half a million rows
            return pa.array([text(origin)], pa.string()).take(pa.array(np.zeros(count, np.int32)))
        data = pa.py_buffer(np.tile(name, count))
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets.astype(np.int32)), data])

    return made


_MADE: Mapping[str, Callable[[RecordColumns, RecordOrigin], pa.Array]] = {
    "key": lambda columns, _: keys(columns),
    "value": _values,
    "topic": _same(lambda origin: origin.partition.topic),
    "partition": lambda columns, origin: numbers(
        np.full(columns.rows.size, origin.partition.partition, np.int32), pa.int32()
    ),
    "offset": lambda columns, _: numbers(columns.rows["offset"], pa.int64()),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
    "keySize": _of_record("key_size"),
    "valueSize": _of_record("value_size"),
    "batchOffset": _of_batch("base_offset", pa.int64()),
    "batchSize": _of_batch("size_bytes", pa.int64()),
    "codec": _codecs,
    "leaderEpoch": _of_batch("leader_epoch", pa.int32()),
    "producerId": _of_batch("producer_id", pa.int64()),
    "producerEpoch": _of_batch("producer_epoch", pa.int32()),
    "sequence": _sequences,
    "transaction": _fates,
    "file": _same(lambda origin: origin.path),
    "position": _of_batch("position", pa.int64()),
}
