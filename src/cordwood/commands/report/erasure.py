"""The traces of keys that remain, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cordwood.cleaning.rules.plan import utc
from cordwood.commands.report.get import shown
from cordwood.commands.why.found_keys import CheckedFile, ErasureResult, FoundTrace, Role
from cordwood.common.json_text import json_value
from cordwood.common.presentable import register
from cordwood.common.text import Column, bytes_text, cells_of, html_table, number, printable, table
from cordwood.storage.index.traces import TraceKind

#: Maximum number of rows on a terminal.
_SHOWN_ROWS = 50


def _offset(trace: FoundTrace) -> str:
    return "-" if trace.record is None else str(trace.record.offset)


def _due(trace: FoundTrace) -> str:
    step = trace.next_step
    if step.from_ms is not None and step.from_ms == step.by_ms:
        return utc(step.from_ms)
    times = [f"{word} {utc(ms)}" for word, ms in (("from", step.from_ms), ("by", step.by_ms)) if ms is not None]
    return ", ".join(times) or "-"


def counts_text(counts: Mapping[TraceKind, int]) -> str:
    """Return the number of traces of each kind, without kinds that do not occur."""
    return ", ".join(f"{kind}: {count:,}" for kind, count in counts.items() if count) or "-"


#: Columns of a table of traces.
TRACES: Sequence[tuple[Column, Callable[[FoundTrace], str]]] = (
    (Column("KEY"), lambda one: shown(one.key)),
    (Column("TRACE"), lambda one: one.kind),
    (Column("IN"), lambda one: one.role),
    (Column("FILE"), lambda one: printable(one.path)),
    (Column("POSITION", right=True), lambda one: str(one.position)),
    (Column("OFFSET", right=True), _offset),
    (Column("SO THAT IT GOES"), lambda one: printable(one.next_step.what)),
    (Column("DUE (UTC)"), _due),
)
FILES: Sequence[tuple[Column, Callable[[CheckedFile], str]]] = (
    (Column("FILE"), lambda one: printable(one.found.path)),
    (Column("IS"), lambda one: one.role),
    (Column("BYTES", right=True), lambda one: f"{one.found.size_bytes:,}"),
    (Column("SHA-256"), lambda one: one.found.sha256),
    (Column("BATCHES", right=True), lambda one: f"{one.found.batches:,}"),
    (Column("RECORDS", right=True), lambda one: f"{one.found.records:,}"),
    (Column("TRACES"), lambda one: counts_text(one.counts)),
    (Column("NOT READ"), lambda one: "; ".join(map(printable, one.found.problems)) or "-"),
)


def _looked_at(result: ErasureResult) -> str:
    size = bytes_text(sum(one.found.size_bytes for one in result.files))
    records = sum(one.found.records for one in result.files)
    what = f"{number(len(result.files), 'file')}, {size}, {number(records, 'record')}"
    return f"{number(result.keys, 'key')} looked for in {what}, {utc(result.started_ms)} to {utc(result.ended_ms)}"


def lines(result: ErasureResult) -> Iterator[str]:
    """Yield lines for people: the traces, the searched files, and the limits of the search."""
    if result.traces:
        yield from table(*cells_of(TRACES, result.traces[:_SHOWN_ROWS]))
        yield ""
    found = sum(result.counts.values())
    if found > _SHOWN_ROWS:
        yield f"the first {_SHOWN_ROWS} of {number(found, 'trace')}; the certificate has more"
    for one in result.files:
        for problem in one.found.problems:
            yield f"not read: {printable(one.found.path)}: {printable(problem)}"
    roles = {role: sum(one.role is role for one in result.files) for role in Role}
    yield _looked_at(result)
    yield "of these: " + ", ".join(f"{role}: {count:,}" for role, count in roles.items() if count)
    for line in result.unknown:
        yield f"not known: {printable(line)}"
    yield f"{result.verdict.upper()}{'' if not found else ' (' + counts_text(result.counts) + ')'}"


def document(result: ErasureResult) -> dict[str, Any]:
    """Return the certificate as one JSON value."""
    return {
        "verdict": result.verdict,
        "cordwood": result.version,
        "started_ms": result.started_ms,
        "started": utc(result.started_ms),
        "ended_ms": result.ended_ms,
        "ended": utc(result.ended_ms),
        "paths": list(map(printable, result.paths)),
        "absolute_paths": list(map(printable, result.absolute_paths)),
        "topics": list(result.topics),
        "partitions": list(result.partitions),
        "keys": {"count": result.keys, "sha256": result.keys_sha256},
        "values_searched": result.values,
        "counts": dict(result.counts),
        "traces": [_trace(one) for one in result.traces],
        "files": [_file(one) for one in result.files],
        "unknown": list(map(printable, result.unknown)),
    }


def _trace(trace: FoundTrace) -> dict[str, Any]:
    record, step = trace.record, trace.next_step
    return {
        "path": printable(trace.path),
        "role": trace.role,
        "kind": trace.kind,
        "key": json_value(trace.key),
        "position": trace.position,
        "offset": None if record is None else record.offset,
        "timestamp": None if record is None else record.timestamp,
        "tombstone": None if record is None else record.is_tombstone,
        "superseded_by": None if record is None else record.superseded_by,
        "next": {"kind": step.kind, "what": printable(step.what), "from_ms": step.from_ms, "by_ms": step.by_ms},
    }


def _file(file: CheckedFile) -> dict[str, Any]:
    found = file.found
    return {
        "path": printable(found.path),
        "role": file.role,
        "size_bytes": found.size_bytes,
        "mtime_ms": found.mtime_ns // 1_000_000,
        "sha256": found.sha256,
        "batches": found.batches,
        "records": found.records,
        "traces": dict(file.counts),
        "problems": list(map(printable, found.problems)),
    }


def _notebook(result: ErasureResult) -> str:
    """Return the verdict and a table of the traces, for a notebook."""
    return html_table(*cells_of(TRACES, result.traces), f"{result}, {utc(result.ended_ms)}")


register(ErasureResult, lines=lines, document=document, html=_notebook)
