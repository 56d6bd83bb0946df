"""Whether traces of keys remain: for people, as JSON, and as a page that is a certificate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

from cordwood.cleaning.found_keys import CheckedFile, ErasureResult, FoundTrace, Role, Verdict
from cordwood.cleaning.plan import utc
from cordwood.presentable import register
from cordwood.report.get import shown
from cordwood.report.values import as_json
from cordwood.storage.index.traces import TraceKind
from cordwood.text import Column, bytes_text, cells_of, html_table, number, printable, table

#: Rows that a terminal shows.
_SHOWN_ROWS = 50
#: Rows of the page; the JSON document has all.
_PAGE_ROWS = 100_000

#: Every rule begins with the class of the page's only block, so that a notebook which shows it stays as it is.
_STYLE = """
.erasure { font: 15px/1.45 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222 }
.erasure h1 { font-size: 1.5em } .erasure h2 { font-size: 1.15em; margin-top: 2em }
.erasure .verdict { border-left: 6px solid; padding: .6em 1em; font-weight: 600 }
.erasure .clear { border-color: #1a7f37; background: #e9f6ec }
.erasure .not-clear { border-color: #b42318; background: #fdeceb }
.erasure table { border-collapse: collapse; font-size: .9em; width: 100% }
.erasure caption { text-align: left; padding: .3em 0 }
.erasure th, .erasure td { border-bottom: 1px solid #ddd; padding: .25em .6em; vertical-align: top }
.erasure td, .erasure dd { overflow-wrap: anywhere } .erasure dd { margin: 0 }
.erasure dt { font-weight: 600; margin-top: .4em }
"""


def _offset(trace: FoundTrace) -> str:
    return "-" if trace.record is None else str(trace.record.offset)


def _due(trace: FoundTrace) -> str:
    step = trace.next_step
    times = [f"{word} {utc(ms)}" for word, ms in (("from", step.from_ms), ("by", step.by_ms)) if ms is not None]
    return ", ".join(times) or "-"


def _counts(counts: Mapping[TraceKind, int]) -> str:
    return ", ".join(f"{kind}: {count:,}" for kind, count in counts.items() if count) or "-"


_TRACES: Sequence[tuple[Column, Callable[[FoundTrace], str]]] = (
    (Column("KEY"), lambda one: shown(one.key)),
    (Column("TRACE"), lambda one: one.kind),
    (Column("IN"), lambda one: one.role),
    (Column("FILE"), lambda one: printable(one.path)),
    (Column("POSITION", right=True), lambda one: str(one.position)),
    (Column("OFFSET", right=True), _offset),
    (Column("SO THAT IT GOES"), lambda one: printable(one.next_step.what)),
    (Column("DUE (UTC)"), _due),
)
_FILES: Sequence[tuple[Column, Callable[[CheckedFile], str]]] = (
    (Column("FILE"), lambda one: printable(one.found.path)),
    (Column("IS"), lambda one: one.role),
    (Column("BYTES", right=True), lambda one: f"{one.found.size_bytes:,}"),
    (Column("SHA-256"), lambda one: one.found.sha256),
    (Column("BATCHES", right=True), lambda one: f"{one.found.batches:,}"),
    (Column("RECORDS", right=True), lambda one: f"{one.found.records:,}"),
    (Column("TRACES"), lambda one: _counts(one.counts)),
    (Column("NOT READ"), lambda one: "; ".join(map(printable, one.found.problems)) or "-"),
)


def _looked_at(result: ErasureResult) -> str:
    size = bytes_text(sum(one.found.size_bytes for one in result.files))
    records = sum(one.found.records for one in result.files)
    what = f"{number(len(result.files), 'file')}, {size}, {number(records, 'record')}"
    return f"{number(result.keys, 'key')} looked for in {what}, {utc(result.started_ms)} to {utc(result.ended_ms)}"


def lines(result: ErasureResult) -> Iterator[str]:
    """The traces as lines for people, then what is known and what is not."""
    if result.traces:
        yield from table(*cells_of(_TRACES, result.traces[:_SHOWN_ROWS]))
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
    yield f"{result.verdict.upper()}{'' if not found else ' (' + _counts(result.counts) + ')'}"


def document(result: ErasureResult) -> dict[str, Any]:
    """The certificate as one JSON value."""
    found = {
        "verdict": result.verdict,
        "cordwood": version("cordwood"),
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
    plain: dict[str, Any] = json.loads(json.dumps(found, default=as_json))
    return plain


def _trace(trace: FoundTrace) -> dict[str, Any]:
    record, step = trace.record, trace.next_step
    return {
        "path": printable(trace.path),
        "role": trace.role,
        "kind": trace.kind,
        "key": trace.key,
        "position": trace.position,
        "offset": None if record is None else record.offset,
        "timestamp": None if record is None else record.timestamp,
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


# ---- a page ----------------------------------------------------------------------------------------------------------


def page(result: ErasureResult) -> str:
    """The certificate as one HTML file: no script, nothing that is loaded, all that comes from disk escaped."""
    is_clear = result.verdict is Verdict.CLEAR
    scope = [*(f"topic {one}" for one in result.topics), *(f"partition {one}" for one in result.partitions)]
    facts = (
        ("Directories", ", ".join(_directories(result))),
        ("Which partitions", ", ".join(scope) or "all"),
        ("Keys", f"{result.keys:,}; SHA-256 of the list: {result.keys_sha256}"),
        ("Looked at", f"{utc(result.started_ms)} to {utc(result.ended_ms)}"),
        ("Within values and headers", "yes" if result.values else "no"),
        ("By", f"cordwood {version('cordwood')}, erase-check"),
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>Erasure: {escape(result.verdict)}</title>',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f'<style>{_STYLE}</style></head><body><div class="erasure">',
            "<h1>Traces of erased keys</h1>",
            f'<p class="verdict {"clear" if is_clear else "not-clear"}">{escape(_sentence(result))}</p>',
            "<dl>",
            *(f"<dt>{escape(name)}</dt><dd>{escape(printable(text))}</dd>" for name, text in facts),
            "</dl>",
            *_section("What was found, and what still has to happen", _rows(_TRACES, result.traces, "traces")),
            "<h2>What cannot be known</h2>",
            "<ul>",
            *(f"<li>{escape(printable(one))}</li>" for one in result.unknown),
            "</ul>",
            *_section("What was looked at", _rows(_FILES, result.files, "files")),
            "</div></body></html>",
            "",
        ]
    )


def _directories(result: ErasureResult) -> Iterator[str]:
    for given, absolute in zip(result.paths, result.absolute_paths, strict=True):
        yield given if given == absolute else f"{given} ({absolute})"


def _sentence(result: ErasureResult) -> str:
    match result.verdict:
        case Verdict.CLEAR:
            return "No trace of these keys was found in any of the files."
        case Verdict.INCOMPLETE:
            return "No trace of these keys was found, but some files could not be read completely."
        case _:
            return f"Traces of these keys remain ({_counts(result.counts)})."


def _section(title: str, body: str) -> Iterator[str]:
    if body:
        yield f"<h2>{escape(title)}</h2>"
        yield body


def _rows(columns: Sequence[tuple[Column, Callable[[Any], str]]], values: Sequence[Any], noun: str) -> str:
    if not values:
        return ""
    return html_table(*cells_of(columns, values), f"{len(values):,} {noun}", rows_max=_PAGE_ROWS)


register(ErasureResult, lines=lines, document=document, html=page)
