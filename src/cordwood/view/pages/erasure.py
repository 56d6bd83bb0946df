"""The page of an erasure check, a certificate: remaining traces of keys, their files, and how to remove each."""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.cleaning.rules.plan import utc
from cordwood.commands import erase_check as report
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict
from cordwood.common.text import bytes_text, cells_of
from cordwood.view.pages.frame import cut, facts, figures, paragraph, section, table
from cordwood.view.pages.markup import Content, tag

#: Maximum number of table rows: a certificate should list all files. The JSON document has more traces.
_ROWS_MAX = 100_000


def body(result: ErasureResult) -> Content:
    """Return the page's content."""
    is_clear = result.verdict is ErasureVerdict.CLEAR
    return [
        tag("h1", "Traces of erased keys"),
        paragraph(_sentence(result), class_="verdict clear" if is_clear else "verdict not-clear"),
        figures(
            ("Keys", f"{result.keys:,}"),
            ("Traces", f"{sum(result.counts.values()):,}"),
            ("Files", f"{len(result.files):,}"),
            ("Bytes", bytes_text(sum(one.found.size_bytes for one in result.files))),
            ("Records", f"{sum(one.found.records for one in result.files):,}"),
            ("Not read completely", f"{sum(bool(one.found.problems) for one in result.files):,}"),
        ),
        section("What was asked", facts(_asked(result))),
        section("What was found, and what still has to happen", _traces(result)),
        section("What cannot be known", tag("ul", [tag("li", one) for one in result.unknown])),
        section("What was looked at", _files(result)),
    ]


def _sentence(result: ErasureResult) -> str:
    match result.verdict:
        case ErasureVerdict.CLEAR:
            return "No trace of these keys was found in any of the files."
        case ErasureVerdict.INCOMPLETE:
            return "No trace of these keys was found, but some files could not be read completely."
        case _:
            return f"Traces of these keys remain ({report.counts_text(result.counts)})."


def _asked(result: ErasureResult) -> Iterator[tuple[str, Content]]:
    yield "Directories", ", ".join(_directories(result))
    scope = [*(f"topic {one}" for one in result.topics), *(f"partition {one}" for one in result.partitions)]
    yield "Which partitions", ", ".join(scope) or "all"
    yield "SHA-256 of the list of keys", tag("code", result.keys_sha256)
    yield "Looked at", f"{utc(result.started_ms)} to {utc(result.ended_ms)}"
    yield "Within values and headers", "yes" if result.values else "no"
    yield "By", f"cordwood {result.version}, erase-check"


def _directories(result: ErasureResult) -> Iterator[str]:
    for given, absolute in zip(result.paths, result.absolute_paths, strict=True):
        yield given if given == absolute else f"{given} ({absolute})"


def _traces(result: ErasureResult) -> Content:
    if not result.traces:
        return paragraph("Nothing was found.")
    columns, rows = cells_of(report.TRACES, result.traces[:_ROWS_MAX])
    return table(cut(len(rows), sum(result.counts.values()), "trace"), columns, rows)


def _files(result: ErasureResult) -> Content:
    columns, rows = cells_of(report.FILES, result.files[:_ROWS_MAX])
    return table(cut(len(rows), len(result.files), "file"), columns, rows)
