"""The records of some keys and their fate, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from cordwood.commands.report.values import cut_off
from cordwood.commands.why.found_keys import FoundRecord, GetResult
from cordwood.common.json_text import json_text, json_value
from cordwood.common.presentable import register
from cordwood.common.text import Column, cells_of, number, printable, table, time_text
from cordwood.common.types import NONE

#: Maximum number of characters in a cell on a terminal.
_CELL_MAX = 40


def shown(value: Any) -> str:
    """Return a key or value on one line; bytes as hexadecimal digits."""
    if value is None:
        return "∅"
    if isinstance(value, bytes | bytearray):
        text = f"hex:{value[:_CELL_MAX].hex()}"
    else:
        text = value if isinstance(value, str) else json_text(value)
    return cut_off(text, _CELL_MAX)


RECORD_COLUMNS: Sequence[tuple[Column, Callable[[FoundRecord], str]]] = (
    (Column("OFFSET", right=True), lambda one: str(one.record.offset)),
    (Column("TIME (UTC)"), lambda one: "-" if one.record.timestamp == NONE else time_text(one.record.timestamp)),
    (Column("VALUE"), lambda one: shown(one.value)),
    (Column("TRANSACTION"), lambda one: one.record.outcome if one.record.producer_id >= 0 else "-"),
    (Column("BATCH", right=True), lambda one: str(one.record.base_offset)),
    (Column("SEGMENT", right=True), lambda one: str(one.record.segment)),
    (Column("POSITION", right=True), lambda one: str(one.record.position)),
    (Column("NEXT"), lambda one: printable(one.next_step.what)),
)


def lines(result: GetResult, limit: int | None = None) -> Iterator[str]:
    """Yield a table for each key and partition, then notes and problems.

    Args:
        limit: maximum rows of each table, the newest records; older records are counted by their fate.
    """
    for found in _by_key(result):
        older = [] if limit is None else found[: max(len(found) - limit, 0)]
        yield f"{printable(str(found[0].topic_partition))}, key {shown(found[0].key)}"
        if newest := found[len(older) :]:
            yield from table(*cells_of(RECORD_COLUMNS, newest))
        for what, some in _by_reason(older).items():
            offsets = f"offset {some[0]}" if len(some) == 1 else f"offsets {some[0]} to {some[-1]}"
            yield f"and {len(some):,} older, {offsets}: {printable(what)}"
        yield ""
    for one in result.unknown:
        yield f"there is no record of key {shown(one)}"
    indexed, scanned = (sum(getattr(one, name) for one in result.searched) for name in ("indexed", "scanned"))
    how = f"{number(indexed, 'segment')} searched by index, {scanned:,} read"
    yield f"{number(len(result.records), 'record')} in {number(len(result.searched), 'log')}; {how}"
    for note in result.notes:
        yield f"note: {printable(note)}"
    for problem in result.problems:
        yield f"DAMAGE, whose records are not known: {printable(str(problem))}"


def _by_key(result: GetResult) -> Iterator[list[FoundRecord]]:
    """Yield the records of each key in each partition, by offset."""
    for _, some in groupby(result.records, lambda one: (one.topic_partition, one.path, one.record.key)):
        yield list(some)


def _by_reason(records: Sequence[FoundRecord]) -> dict[str, list[int]]:
    """Group the offsets of records by fate. All superseded records form one group, whichever record superseded them."""
    found: dict[str, list[int]] = {}
    for one in records:
        what = re.sub(r"^superseded by offset [0-9]+", "superseded", one.next_step.what)
        found.setdefault(what, []).append(one.record.offset)
    return found


def document(result: GetResult, limit: int | None = None) -> dict[str, Any]:
    """Return the result as one JSON value, with at most the `limit` newest records per key and partition."""
    records = [one for found in _by_key(result) for one in found[0 if limit is None else max(len(found) - limit, 0) :]]
    return {
        "records": [_record(one) for one in records],
        "unknown": json_value(result.unknown),
        "searched": [
            {"path": printable(one.path), "keys": one.keys, "indexed": one.indexed, "scanned": one.scanned}
            for one in result.searched
        ],
        "notes": list(result.notes),
        "problems": [printable(str(one)) for one in result.problems],
    }


def _record(found: FoundRecord) -> dict[str, Any]:
    record, step = found.record, found.next_step
    return {
        "topic": found.topic_partition.topic,
        "partition": found.topic_partition.partition,
        "path": printable(found.path),
        "key": json_value(found.key),
        "value": json_value(found.value),
        "offset": record.offset,
        "timestamp": record.timestamp,
        "tombstone": record.is_tombstone,
        "batch": record.base_offset,
        "segment": record.segment,
        "position": record.position,
        "transactional": record.producer_id >= 0,
        "outcome": record.outcome,
        "superseded_by": record.superseded_by,
        "delete_horizon_ms": record.delete_horizon_ms,
        "next": {"kind": step.kind, "what": printable(step.what), "from_ms": step.from_ms, "by_ms": step.by_ms},
    }


register(GetResult, lines=lines, document=document)
