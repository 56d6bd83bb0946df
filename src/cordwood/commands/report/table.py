"""Tables of latest values: rows for a terminal and as JSON lines, and the result of writing a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import isfinite
from typing import Any

from cordwood.commands.report.values import cut_off
from cordwood.common.json_text import json_text, real_text
from cordwood.common.presentable import register
from cordwood.common.text import Column, cells_of, number, printable, table, time_text
from cordwood.tables.result import TableResult

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: JSON texts have line breaks only between tokens, so a space may replace them.
_ON_ONE_LINE = str.maketrans("\r\n", "  ")
_RIGHT = ("partition", "offset")
#: Maximum number of characters in a cell on a terminal.
_CELL_MAX = 60


def milliseconds(time: datetime | None) -> int | None:
    """Convert a time to a Kafka timestamp."""
    return None if time is None else (time.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)


# ---- JSON lines ------------------------------------------------------------------------------------------------------


def json_lines(rows: Iterable[Mapping[str, Any]], json_columns: Sequence[str]) -> Iterator[str]:
    """Yield a line per row. Timestamps are milliseconds since the epoch; `json_text` encodes keys and values.

    Args:
        json_columns: columns whose texts are JSON; they are copied unchanged, except that line breaks become spaces.
    """
    for row in rows:
        cells = {name: json_text(value) for name, value in row.items()}
        cells["timestamp"] = json_text(milliseconds(row["timestamp"]))
        for name in json_columns:
            cells[name] = "null" if row[name] is None else row[name].translate(_ON_ONE_LINE)
        yield f"{{{', '.join(f'{json_text(name)}: {cell}' for name, cell in cells.items())}}}"


# ---- text ------------------------------------------------------------------------------------------------------------


def lines(rows: Iterator[Mapping[str, Any]], columns: Sequence[str], shown_max: int) -> Iterator[str]:
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
        text = time_text(milliseconds(value))
    elif isinstance(value, dict | list):
        text = json_text(value)
    else:
        text = real_text(value) if isinstance(value, float) and not isfinite(value) else str(value)
    return cut_off(text, _CELL_MAX)


# ---- the result of writing a table -----------------------------------------------------------------------------------


def _lines(result: TableResult) -> Iterator[str]:
    columns: Sequence[tuple[Column, Callable[[Any], str]]] = (
        (Column("PARTITION"), lambda one: str(one.partition)),
        (Column("FROM OFFSET", right=True), lambda one: f"{one.start_offset:,}"),
        (Column("UP TO, NOT INCLUDED", right=True), lambda one: f"{one.end_offset:,}"),
    )
    yield from table(*cells_of(columns, result.partitions))
    yield ""
    what = f"changes of {result.topic}" if result.is_changes else f"table of {result.topic}"
    deletes = f", {number(result.deletes, 'delete')}" if result.deletes else ""
    yield f"{what}: {number(result.rows, 'row')}{deletes}, as {result.format} in {printable(result.output)}"
    if result.undecodable:
        yield f"{number(result.undecodable, 'row')} with a key or value that cannot be decoded, which is null"
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
        "seconds": round(result.seconds, 3),
    }


register(TableResult, lines=_lines, document=_document)
