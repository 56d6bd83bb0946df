"""Write files of a table without Spark: parquet, CSV or lines of JSON.

CSV and JSON have times and bytes in Spark's format, so that a table looks the same whichever engine wrote it.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cordwood.common.errors import RequestError
from cordwood.common.json_text import json_text, real_text

if TYPE_CHECKING:
    from collections.abc import Iterator

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
