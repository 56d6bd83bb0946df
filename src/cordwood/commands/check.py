"""`check`: the findings of `storage.check`, as a value, as text, or as JSON lines.

The text groups findings by severity, then by directory. If many files have the same finding, the first few are
named and further files only counted. The meaning of a finding for a broker appears once per kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cordwood.common.arguments import AnyPath, no_path, text_paths
from cordwood.common.text import bytes_text, number, printable, register
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.check import Behind, Check, CheckResult, Finding, Kind, Severity, Summary
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.node.start import Start


def check(*paths: AnyPath, fs: Store | None = None) -> CheckResult:
    """Find every inconsistency in the files at some paths. Damage has `Severity.DAMAGE`.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.

    Raises:
        NotFoundError: there is nothing to check at a path.
        TypeError: no path is given.
    """
    given = text_paths(paths)
    if not given:
        raise no_path("check")
    found = Check(fs or file_system_for(given))
    return CheckResult(list(found.run(given)), found.summary, found.start)


# ---- findings as JSON ------------------------------------------------------------------------------------------------


_STATES = {
    DirectoryState.DELETED: "to be deleted",
    DirectoryState.FUTURE: "being moved",
    DirectoryState.STRAY: "stray",
}


def finding_document(finding: Finding) -> dict[str, object]:
    """Return a finding as one JSON value."""
    behind = finding.behind
    return {
        "type": "finding",
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "file": printable(finding.path),
        "position": finding.position,
        "offset": finding.offset,
        "what": printable(finding.what),
        "meaning": finding.meaning,
        "behind": None
        if behind is None
        else {"records": behind.records, "size_bytes": behind.size_bytes, "end_offset": behind.end_offset},
    }


def _start_document(start: Start) -> dict[str, object]:
    """Return a broker's actions at start as one JSON value."""
    return {
        "starts": start.starts,
        "line": start.line,
        "events": [
            {
                "what": event.effect.value,
                "path": printable(event.path),
                "topic": None if event.partition is None else event.partition.topic,
                "partition": None if event.partition is None else event.partition.partition,
                "why": printable(event.why),
                "offset": event.offset,
                "records": event.records,
            }
            for event in start.events
        ],
        "served": {
            str(name): {"log_start_offset": at.log_start_offset, "log_end_offset": at.log_end_offset}
            for name, at in sorted(start.served.items())
        },
    }


def summary_document(summary: Summary, start: Start) -> dict[str, object]:
    """Return the summary as one JSON value."""
    return {
        "type": "summary",
        "start": _start_document(start),
        "partitions": summary.partitions.total(),
        **{state.value.removeprefix("-"): summary.partitions[state] for state in _STATES},
        "files": summary.files,
        "size_bytes": summary.size_bytes,
        **{severity.value: summary.findings[severity] for severity in Severity},
    }


def _document(result: CheckResult) -> dict[str, Any]:
    findings = [finding_document(one) for one in result]
    return {"findings": findings, "summary": summary_document(result.summary, result.start)}


# ---- findings as text ------------------------------------------------------------------------------------------------


_TITLES = {
    Severity.DAMAGE: "ERRORS: a broker would reject, lose or misread data, or not start",
    Severity.RECOVERY: "REPAIRED ON START: left by a crash or a shutdown; a broker repairs it when it starts",
    Severity.NOTE: "NOTES: unusual, but harmless",
}
#: Maximum number of files named per kind and directory; damaged files are always named.
_FILES_SHOWN = 3


def lines(findings: Iterable[Finding], summary: Summary, start: Start) -> Iterator[str]:
    """Yield lines for people: a broker's actions at start, the findings and the summary."""
    if start.is_node or start.partitions:
        yield start.line
        yield ""
    by_severity: dict[Severity, dict[Kind, dict[tuple[str, str], list[Finding]]]] = {}
    for finding in findings:
        kinds = by_severity.setdefault(finding.severity, {})
        directory = finding.path.rpartition("/")[0]
        kinds.setdefault(finding.kind, {}).setdefault((directory, finding.meaning), []).append(finding)
    for severity in Severity:
        if severity not in by_severity:
            continue
        yield _TITLES[severity]
        for kind, places in by_severity[severity].items():
            explained = ""
            for (directory, meaning), group in places.items():
                if meaning != explained:
                    yield f"\n  {kind}: {meaning}"
                    explained = meaning
                shown = group if severity is Severity.DAMAGE else group[:_FILES_SHOWN]
                for finding in shown:
                    yield f"    {_place(finding)}\n      {printable(finding.what)}"
                    if finding.behind is not None:
                        yield f"      {_behind(finding.behind)}"
                if len(group) > len(shown):
                    yield f"    … and {len(group) - len(shown)} more in {printable(directory)}"
        yield ""
    yield summary_line(summary)


def _place(finding: Finding) -> str:
    place = printable(finding.path)
    if finding.position is not None:
        place += f" at position {finding.position:,}"
    if finding.offset is not None:
        place += f" (offset {finding.offset:,})"
    return place


def _behind(behind: Behind) -> str:
    size = f"{number(behind.records, 'record')} in {bytes_text(behind.size_bytes)}"
    return f"behind it, to offset {behind.end_offset:,}: {size}"


def summary_line(summary: Summary) -> str:
    """Return one line with the number of checked files and of findings."""
    total = summary.partitions.total()
    states = [f"{summary.partitions[state]} {words}" for state, words in _STATES.items() if summary.partitions[state]]
    partitions = f"{total:,} partition{'s' * (total != 1)}" + (f" ({', '.join(states)})" if states else "")
    files = f"{summary.files:,} file{'s' * (summary.files != 1)}"
    counts = []
    if damages := summary.findings[Severity.DAMAGE]:
        counts.append(f"{damages:,} error{'s' * (damages != 1)}")
    if recoveries := summary.findings[Severity.RECOVERY]:
        counts.append(f"{recoveries:,} that a broker repairs on start")
    if notes := summary.findings[Severity.NOTE]:
        counts.append(f"{notes:,} note{'s' * (notes != 1)}")
    result = ", ".join(counts) or "no problem found"
    return f"checked {partitions}, {files}, {megabytes(summary.size_bytes)}: {result}"


def megabytes(size_bytes: int) -> str:
    """Return a size in megabytes, or in bytes if it is small."""
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 50_000 else f"{size_bytes:,} bytes"


register(CheckResult, lines=lambda result: lines(result, result.summary, result.start), document=_document)
