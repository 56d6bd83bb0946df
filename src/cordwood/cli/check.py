"""`cordwood check`: prints what `storage.check` finds, for people or as JSON lines.

For people findings are grouped by how bad they are, then by directory; of many files with the same finding the first is
named and the others counted. What it means for a broker stands once per kind.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterable
from typing import Annotated

import typer

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK, named
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check import Check, Finding, Kind, Severity, Summary
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.tables import printable

_TITLES = {
    Severity.DAMAGE: "ERRORS: a broker would reject, lose or misread data, or not start",
    Severity.RECOVERY: "REPAIRED ON START: left by a crash or a shutdown; a broker repairs it when it starts",
    Severity.NOTE: "NOTES: unusual, but harmless",
}
_STATES = {
    DirectoryState.DELETED: "to be deleted",
    DirectoryState.FUTURE: "being moved",
    DirectoryState.STRAY: "stray",
}
#: Files named one by one under one kind in one directory; damage is always named.
_FILES_SHOWN = 3
_PROGRESS_AFTER_SECONDS = 2.0
_PROGRESS_EVERY_SECONDS = 0.2


def main(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories, partitions, or single files.", show_default=False),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line per finding, and one with the summary in the end.")
    ] = False,
) -> int:
    """Find every inconsistency, with its place and what it means for a broker.

    Changes nothing, also where a broker is running. Exits with 1 if anything is damaged. What a crash left and the
    next load repairs is explained, and is no damage.
    """
    found = []
    with contextlib.closing(_Progress(enabled=sys.stderr.isatty())) as progress:
        check = Check(PosixFileSystem(), progress.update)
        for finding in check.run([named(path) for path in paths]):
            if as_json:
                print(json.dumps(_finding_json(finding)), flush=True)
            else:
                found.append(finding)
    if as_json:
        print(json.dumps(_summary_json(check.summary)))
    else:
        _print_findings(found)
        print(summary_line(check.summary))
    return EXIT_DAMAGE if check.summary.damaged else EXIT_OK


def _finding_json(finding: Finding) -> dict[str, object]:
    return {
        "type": "finding",
        "severity": finding.severity.value,
        "kind": finding.kind.value,
        "file": printable(finding.path),
        "position": finding.position,
        "offset": finding.offset,
        "what": printable(finding.what),
        "meaning": finding.meaning,
    }


def _summary_json(summary: Summary) -> dict[str, object]:
    return {
        "type": "summary",
        "partitions": summary.partitions.total(),
        **{state.value.removeprefix("-"): summary.partitions[state] for state in _STATES},
        "files": summary.files,
        "size_bytes": summary.size_bytes,
        **{severity.value: summary.findings[severity] for severity in Severity},
    }


def _print_findings(findings: Iterable[Finding]) -> None:
    by_severity: dict[Severity, dict[Kind, dict[tuple[str, str], list[Finding]]]] = {}
    for finding in findings:
        kinds = by_severity.setdefault(finding.severity, {})
        directory = finding.path.rpartition("/")[0]
        kinds.setdefault(finding.kind, {}).setdefault((directory, finding.meaning), []).append(finding)
    for severity in Severity:
        if severity not in by_severity:
            continue
        print(_TITLES[severity])
        for kind, places in by_severity[severity].items():
            explained = ""
            for (directory, meaning), group in places.items():
                if meaning != explained:
                    print(f"\n  {kind}: {meaning}")
                    explained = meaning
                shown = group if severity is Severity.DAMAGE else group[:_FILES_SHOWN]
                for finding in shown:
                    print(f"    {_place(finding)}\n      {printable(finding.what)}")
                if len(group) > len(shown):
                    print(f"    … and {len(group) - len(shown)} more in {printable(directory)}")
        print()


def _place(finding: Finding) -> str:
    place = printable(finding.path)
    if finding.position is not None:
        place += f" at position {finding.position:,}"
    if finding.offset is not None:
        place += f" (offset {finding.offset:,})"
    return place


def summary_line(summary: Summary) -> str:
    """What was checked, and what came of it, in one line."""
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
    return f"checked {partitions}, {files}, {_megabytes(summary.size_bytes)}: {result}"


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 50_000 else f"{size_bytes:,} bytes"


class _Progress:
    """A line on a person's terminal, once it takes long enough to be wanted."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._started = self._shown = time.monotonic()
        self._width = 0

    def update(self, check: Check) -> None:
        now = time.monotonic()
        waited = now - self._started
        if not self._enabled or waited < _PROGRESS_AFTER_SECONDS or now - self._shown < _PROGRESS_EVERY_SECONDS:
            return
        self._shown = now
        done = min(check.bytes_done / max(check.bytes_total, 1), 1.0)
        left = f", {waited * (1 - done) / done:,.0f} s left" if done > 0.01 else ""
        line = f"{done:4.0%} of {_megabytes(check.bytes_total)}{left}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
