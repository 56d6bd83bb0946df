"""The output of a table: its folder, on a disk or in an object store, or rows as text and JSON lines.

Spark's writers only write to this machine's disks. For an object store they write to a folder for temporary files, and
Cordwood uploads the files; that folder needs room for the table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import isfinite
from typing import Any

import pyarrow as pa

from cordwood.commands.replicas import healed_documents, replica_documents, replica_lines
from cordwood.commands.table_point import FACTS
from cordwood.common.errors import RequestError
from cordwood.common.json_text import json_text, real_text
from cordwood.common.text import Cells, Column, cells_of, cut_off, number, printable, register, table, time_text
from cordwood.common.threads import in_parallel
from cordwood.fs.base import TargetStore
from cordwood.fs.workspace import check_outside, temporary_directory
from cordwood.storage.log.files import write_file
from cordwood.storage.node.directory import check_outside_logs
from cordwood.tables.result import TableResult


@dataclass(frozen=True, slots=True)
class _TableFolder:
    """The folder to write a table to.

    Attributes:
        finish: called last, with the facts to store beside the files; it completes the table.
    """

    path: str
    finish: Callable[[bytes], None]


#: Formats that Spark writes by itself or with a well-known package. A dot marks the name of a class.
_FORMATS = ("avro", "csv", "delta", "hudi", "iceberg", "json", "orc", "parquet", "xml")


def check_format(format_name: str, schema: pa.Schema, *, is_own_session: bool) -> None:
    """Check that a format can hold a table; a user's session may have further formats than our own.

    Raises:
        RequestError: the format is unknown, or cannot hold a column.
    """
    if is_own_session and format_name.lower() not in _FORMATS and "." not in format_name:
        raise RequestError(f"--format {format_name}: Spark cannot write this. Give {' or '.join(_FORMATS)}, or a class")
    binary = [field.name for field in schema if pa.types.is_binary(field.type)]
    if format_name.lower() == "csv" and binary:
        raise RequestError(
            f"--format csv: the {' and the '.join(binary)} is bytes, which CSV cannot hold. Decode it as "
            f"{' or '.join(f'--{name} hex' for name in binary)}, or give json or parquet"
        )
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if format_name.lower() == "csv" and nested:
        raise RequestError(
            f"--format csv: the {' and the '.join(nested)} has fields, which CSV cannot hold. Give json or parquet"
        )


@contextmanager
def table_folder(fs: TargetStore, output: str, sources: Sequence[str]) -> Iterator[_TableFolder]:
    """Yield the folder to write a table to; on a disk, the writer creates it.

    In an object store, no file appears before the table is finished, and none after an error.

    Args:
        sources: directories that must not contain the folder.

    Raises:
        RequestError: it exists, or is in a source or a broker's log directory.
        LockedError: another run is making it.
    """
    if fs.path_on_disk(output) is None:
        with fs.target(output, sources) as copy, temporary_directory(fs, "cordwood-table-") as staging:
            staged = f"{staging}/table"

            def upload(facts: bytes) -> None:
                write_file(fs, f"{staged}/{FACTS}", facts)
                files = list(_files(fs, staged))
                targets = [f"{copy.data}/{posixpath.relpath(file, staged)}" for file in files]
                in_parallel(fs.concurrency, lambda pair: fs.copy(*pair), list(zip(files, targets, strict=True)))
                copy.publish()

            yield _TableFolder(staged, upload)
        return
    if fs.exists(output):
        raise RequestError(f"--output {output}: this exists; a table is written to a new folder")
    check_outside(fs, fs.real_path(output), sources)
    check_outside_logs(fs, output)
    # Remove nothing here: files that appear at this path before Spark writes belong to another process.
    yield _TableFolder(output, lambda facts: write_file(fs, f"{output}/{FACTS}", facts))


def _files(fs: TargetStore, folder: str) -> Iterator[str]:
    """Yield all files, except the checksums that Spark writes beside its files for its own use."""
    for info in fs.list(folder):
        path = f"{folder}/{info.name}"
        if info.is_directory:
            yield from _files(fs, path)
        elif not (info.name.startswith(".") and info.name.endswith(".crc")):
            yield path


# ---- rows as JSON lines ----------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: JSON texts have line breaks only between tokens, so a space may replace them.
_ON_ONE_LINE = str.maketrans("\r\n", "  ")


def json_lines(rows: Iterable[Mapping[str, Any]], json_columns: Sequence[str]) -> Iterator[str]:
    """Yield a line per row. Timestamps are milliseconds since the epoch; `json_text` encodes keys and values.

    Args:
        json_columns: columns whose texts are JSON; they are copied unchanged, except that line breaks become spaces.
    """
    for row in rows:
        cells = {name: json_text(value) for name, value in row.items()}
        cells["timestamp"] = json_text(_milliseconds(row["timestamp"]))
        for name in json_columns:
            cells[name] = "null" if row[name] is None else row[name].translate(_ON_ONE_LINE)
        yield f"{{{', '.join(f'{json_text(name)}: {cell}' for name, cell in cells.items())}}}"


def _milliseconds(time: datetime | None) -> int | None:
    """Convert a time to a Kafka timestamp."""
    return None if time is None else (time.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


# ---- rows as text ----------------------------------------------------------------------------------------------------

_RIGHT = ("partition", "offset")
#: Maximum number of characters in a cell on a terminal.
_CELL_MAX = 60


def row_lines(rows: Iterator[Mapping[str, Any]], columns: Sequence[str], shown_max: int) -> Iterator[str]:
    """Yield the first rows as a table, and the total count."""
    first = list(islice(rows, shown_max))
    titles = [Column(name.upper() if name != "timestamp" else "TIMESTAMP (UTC)", name in _RIGHT) for name in columns]
    yield from table(titles, [[_cell(row[name]) for name in columns] for row in first])
    more = sum(1 for _ in rows)
    yield ""
    if more:
        yield f"the first {len(first):,} of {number(len(first) + more, 'row')}; --limit shows more, a pipe all"
    else:
        yield number(len(first), "row")


def _cell(value: Any) -> str:
    if value is None:
        return "∅"
    if isinstance(value, bytes | bytearray):
        text = value.hex()
    elif isinstance(value, datetime):
        text = time_text(_milliseconds(value))
    elif isinstance(value, dict | list):
        text = json_text(value)
    else:
        text = real_text(value) if isinstance(value, float) and not isfinite(value) else str(value)
    return cut_off(text, _CELL_MAX)


# ---- the result of writing a table -----------------------------------------------------------------------------------


def _lines(result: TableResult) -> Iterator[str]:
    columns: Cells = (
        (Column("PARTITION"), lambda one: str(one.partition)),
        (Column("FROM OFFSET", right=True), lambda one: f"{one.start_offset:,}"),
        (Column("UP TO, NOT INCLUDED", right=True), lambda one: f"{one.end_offset:,}"),
    )
    yield from replica_lines(result.replicas)
    if result.replicas:
        yield ""
    yield from table(*cells_of(columns, result.partitions))
    yield ""
    what = f"changes of {result.topic}" if result.is_changes else f"table of {result.topic}"
    deletes = f", {number(result.deletes, 'delete')}" if result.deletes else ""
    yield f"{what}: {number(result.rows, 'row')}{deletes}, as {result.format} in {printable(result.output)}"
    if result.undecodable:
        yield f"{number(result.undecodable, 'row')} with a key or value that cannot be decoded, which is null"
    yield from (printable(str(one)) for one in result.healed)
    for note in result.notes:
        yield f"note: {printable(note)}"


def _document(result: TableResult) -> dict[str, Any]:
    return {
        "topic": result.topic,
        "output": result.output,
        "format": result.format,
        "changes": result.is_changes,
        "partitions": [
            {"partition": one.partition, "start_offset": one.start_offset, "end_offset": one.end_offset}
            for one in result.partitions
        ],
        "rows": result.rows,
        "deletes": result.deletes,
        "undecodable": result.undecodable,
        "notes": list(result.notes),
        "replicas": replica_documents(result.replicas),
        "healed": healed_documents(result.healed),
        "seconds": round(result.seconds, 3),
    }


register(TableResult, lines=_lines, document=_document)
