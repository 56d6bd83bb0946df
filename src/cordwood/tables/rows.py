"""The rows of a table: as Arrow, and as files written without Spark.

key, value                      with the types of their decoders
partition, offset, timestamp    of the key's last record; the timestamp is null if the record has none, or if it is
                                after the year 9999, for which Python and Spark have no date
deleted                         the record is a tombstone; only in a table with deletes
undecodable                     key or value is null because it cannot be decoded; only if that raises no error
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cordwood.common.errors import RequestError
from cordwood.common.json_text import json_text, real_text
from cordwood.record.columns import RecordColumns
from cordwood.storage.log.arrow import byte_strings, in_calendar, numbers
from cordwood.tables.decoders.plain import Decoder
from cordwood.tables.decoders.plain import undecodable as undecodable_error
from cordwood.tables.newest import NewestTask, TableRun

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Spark's times are in microseconds.
TIME_TYPE = pa.timestamp("us", tz="UTC")
#: Small batches are joined up to this number of rows or bytes.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 << 20


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The columns of a table and the decoders of keys and values.

    Attributes:
        deletes: include tombstones, marked in a column `deleted`.
        null_undecodable: replace undecodable keys and values by null instead of raising an error.
    """

    key: Decoder
    value: Decoder
    deletes: bool = False
    null_undecodable: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        fields = [
            pa.field("key", self.key.type),
            pa.field("value", self.value.type),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", TIME_TYPE),
        ]
        if self.deletes:
            fields.append(pa.field("deleted", pa.bool_(), nullable=False))
        if self.null_undecodable:
            fields.append(pa.field("undecodable", pa.bool_(), nullable=False))
        return pa.schema(fields)

    def batches(self, tasks: Iterable[NewestTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table, or of a part of it.

        Raises:
            UndecodableError: a decoder cannot decode a key or value.
        """
        held: list[pa.RecordBatch] = []
        for run, columns in ((task.run, columns) for task in tasks for columns in task.records()):
            held.append(self._rows(run, columns))
            del columns
            if sum(one.num_rows for one in held) >= _BATCH_ROWS or sum(one.nbytes for one in held) >= _BATCH_BYTES:
                yield _joined(held)
                held = []
        if held:
            yield _joined(held)

    def _rows(self, run: TableRun, columns: RecordColumns) -> pa.RecordBatch:
        if not self.deletes:
            columns = columns.select(columns.rows["value_size"] >= 0)
        data, rows = columns.data, columns.rows
        key = self.key.decode(byte_strings(data, rows["key_start"], rows["key_size"], pa.binary()))
        value = self.value.decode(byte_strings(data, rows["value_start"], rows["value_size"], pa.binary()))
        undecodable = np.zeros(rows.size, np.bool_)
        for name, found in (("key", key), ("value", value)):
            if found.problems and not self.null_undecodable:
                raise undecodable_error(name, found, run.path, rows["offset"])
            undecodable[list(found.problems)] = True
        has_time = (rows["timestamp"] >= 0) & in_calendar(rows["timestamp"])
        micros = np.where(has_time, rows["timestamp"], 0) * 1000
        arrays = [
            key.values,
            value.values,
            numbers(np.full(rows.size, run.partition, np.int32), pa.int32()),
            numbers(rows["offset"], pa.int64()),
            numbers(micros, TIME_TYPE, has_time),
        ]
        if self.deletes:
            arrays.append(pa.array(rows["value_size"] < 0))
        if self.null_undecodable:
            arrays.append(pa.array(undecodable))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches() or [batches[0]]
    return joined


# ---- files -----------------------------------------------------------------------------------------------------------

# CSV and JSON have times and bytes in Spark's format, so that a table looks the same whichever engine wrote it.

#: Writes a batch to an open file.
Write = Callable[[pa.RecordBatch], None]
_TRUE_FALSE = {"true": True, "false": False}
#: Supported options of each format, by their names in Spark.
_OPTIONS = {"parquet": ("compression",), "csv": ("compression", "header", "sep"), "json": ("compression",)}
_CODECS = {"parquet": ("snappy", "gzip", "zstd", "lz4", "none"), "csv": ("gzip", "none"), "json": ("gzip", "none")}
_ADVICE = "Spark writes with more of them:  pip install 'cordwood[spark]', --engine spark"


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of rows that were written, that are deletes, and that could not be decoded."""

    rows: int = 0
    deletes: int = 0
    undecodable: int = 0

    def plus(self, other: RowCounts) -> RowCounts:
        """Return the sums of both counts."""
        sums = (self.rows + other.rows, self.deletes + other.deletes, self.undecodable + other.undecodable)
        return RowCounts(*sums)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The format of a table's files. A value that can be pickled.

    Attributes:
        options: options of Spark's writer of this format.
    """

    name: str
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        """Reject formats and options that only Spark supports.

        Raises:
            RequestError: the format or an option is unsupported.
        """
        if self.name not in _OPTIONS:
            raise RequestError(f"--format {self.name}: without Spark there are {', '.join(_OPTIONS)}. {_ADVICE}")
        for name, value in self.options.items():
            if name not in _OPTIONS[self.name]:
                what = f"without Spark, {self.name} has {', '.join(_OPTIONS[self.name])}"
                raise RequestError(f"--writer-option {name}={value}: {what}. {_ADVICE}")
        if (codec := self.options.get("compression", "none")) not in _CODECS[self.name]:
            codecs = ", ".join(_CODECS[self.name])
            raise RequestError(f"--writer-option compression={codec}: without Spark, there are {codecs}")
        if (header := self.options.get("header", "false")) not in _TRUE_FALSE:
            raise RequestError(f"--writer-option header={header}: give true or false")
        if len(self.options.get("sep", ",").encode()) != 1:
            raise RequestError(f"--writer-option sep={self.options['sep']}: without Spark this is one character")

    @property
    def suffix(self) -> str:
        """Suffix of file names."""
        return f".{self.name}.gz" if self._is_gzip and self.name != "parquet" else f".{self.name}"

    @property
    def _is_gzip(self) -> bool:
        return self.options.get("compression") == "gzip"

    def write(self, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> RowCounts:
        """Write rows to a new file.

        Raises:
            OSError: the disk is full or fails.
        """
        rows = deletes = undecodable = 0
        try:
            with _WRITERS[self.name](self, path, schema) as write:
                for batch in batches:
                    write(batch)
                    rows += batch.num_rows
                    deletes += _trues(batch, "deleted")
                    undecodable += _trues(batch, "undecodable")
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), error.filename or path) from error
        return RowCounts(rows, deletes, undecodable)

    @contextmanager
    def parquet(self, path: str, schema: pa.Schema) -> Iterator[Write]:
        """Open a parquet file."""
        from pyarrow import parquet

        with parquet.ParquetWriter(path, schema, compression=self.options.get("compression", "snappy")) as writer:
            yield writer.write_batch

    @contextmanager
    def csv(self, path: str, schema: pa.Schema) -> Iterator[Write]:
        """Open a CSV file with one line per row."""
        from pyarrow import csv

        shown = pa.schema([field.with_type(_csv_type(field.type)) for field in schema])
        header = _TRUE_FALSE[self.options.get("header", "false")]
        options = csv.WriteOptions(include_header=header, delimiter=self.options.get("sep", ","))
        with self._lines(path) as file, csv.CSVWriter(file, shown, write_options=options) as writer:
            yield lambda batch: writer.write_batch(_for_csv(batch, shown))

    @contextmanager
    def json(self, path: str, schema: pa.Schema) -> Iterator[Write]:
        """Open a file with one JSON object per line; nulls are left out."""
        with self._lines(path) as file:

            def write(batch: pa.RecordBatch) -> None:
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    file.write(f"{json_text(_for_json(row), separators=(',', ':'))}\n".encode())

            yield write

    @contextmanager
    def _lines(self, path: str) -> Iterator[Any]:
        with open(path, "xb") as file:
            if self._is_gzip:
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    yield packed
            else:
                yield file


_WRITERS = {"parquet": FileFormat.parquet, "csv": FileFormat.csv, "json": FileFormat.json}


def _trues(batch: pa.RecordBatch, column: str) -> int:
    return batch.column(column).true_count if column in batch.schema.names else 0


def _csv_type(kind: pa.DataType) -> pa.DataType:
    is_text = pa.types.is_timestamp(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    return pa.string() if is_text else kind


def _for_csv(batch: pa.RecordBatch, shown: pa.Schema) -> pa.RecordBatch:
    columns = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            column = pa.array([None if one is None else _time_text(one) for one in column.to_pylist()], pa.string())
        elif pa.types.is_boolean(column.type):
            column = column.cast(pa.string())
        elif pa.types.is_floating(column.type):
            column = _reals(column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=shown)


def _reals(column: pa.Array) -> pa.StringArray:
    """Convert numbers to text as Spark does, with Java's names for NaN and infinities."""
    import pyarrow.compute as pc

    texts = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    return pa.array(
        [
            text if value is None or math.isfinite(value) else real_text(value)
            for value, text in zip(column.to_pylist(), texts.to_pylist(), strict=True)
        ],
        pa.string(),
    )


def _time_text(time: datetime) -> str:
    """Format a time in milliseconds, as Spark does."""
    return f"{time.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _for_json(value: Any) -> Any:
    match value:
        case dict():
            return {name: _for_json(one) for name, one in value.items() if one is not None}
        case list():
            return [_for_json(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return _time_text(value)
        case Decimal():
            return float(value)
        case _:
            return value
