"""`check`: the findings of `storage.check`, as a value, as text, or as JSON lines.

The text groups findings by severity, then by directory. If many files have the same finding, the first few are
named and further files only counted. The meaning of a finding for a broker appears once per kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cordwood.commands.options import TierPlace
from cordwood.common.arguments import AnyPath, no_path, text_paths
from cordwood.common.text import bytes_text, names_text, number, printable, register
from cordwood.fs.base import Store
from cordwood.storage.check import Behind, Check, CheckResult, Finding, Kind, Severity, Summary
from cordwood.storage.check.cluster import check_metadata_logs, paths_by_broker
from cordwood.storage.check.sampling import Looked, Quick
from cordwood.storage.formats.filenames import DirectoryState
from cordwood.storage.log.header_sample import UNITS
from cordwood.storage.node.start import Start


def check(
    *paths: AnyPath,
    fs: Store | None = None,
    quick: bool = False,
    tier: AnyPath | None = None,
    tier_keys: Sequence[AnyPath] = (),
) -> CheckResult:
    """Find every inconsistency in the files at some paths. Damage has `Severity.DAMAGE`.

    Of several brokers, each is checked by itself, and then their metadata logs against each other.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.
        quick: read only the ends of large segments and of their indexes, and a sample of their batches;
            `summary.looked` of the result has the amounts.
        tier: where the closed segments of tiered topics are.
        tier_keys: files with private keys of encrypted segments.

    Raises:
        NotFoundError: there is nothing to check at a path.
        TypeError: no path is given.
    """
    given = text_paths(paths)
    if not given:
        raise no_path("check")
    fs = fs or TierPlace.of(tier, tier_keys).store(given)
    by_broker = paths_by_broker(fs, given)
    results = {}
    for broker, some in by_broker.items():
        found = Check(fs, quick=Quick() if quick else None)
        results[broker] = CheckResult(list(found.run(some)), found.summary, found.start)
    return joined(results, check_metadata_logs(fs, by_broker)) if len(results) > 1 else next(iter(results.values()))


def joined(results: Mapping[str, CheckResult], between: Sequence[Finding]) -> CheckResult:
    """Return the results of several brokers as one.

    Args:
        between: findings about files of several brokers.
    """
    summary = Summary()
    for one in (result.summary for result in results.values()):
        summary.partitions += one.partitions
        summary.files += one.files
        summary.size_bytes += one.size_bytes
        summary.findings += one.findings
        if one.looked is not None:
            summary.looked = summary.looked or Looked()
            summary.looked.add(one.looked)
            summary.looked.read_bytes += one.looked.read_bytes
    summary.findings.update(finding.severity for finding in between)
    starts = [one.start for one in results.values()]
    start = Start(
        any(one.is_node for one in starts),
        sum(one.partitions for one in starts),
        tuple(event for one in starts for event in one.events),
        offline=sum(one.offline for one in starts),
        unread_bytes=sum(one.unread_bytes for one in starts),
    )
    findings = [finding for one in results.values() for finding in one]
    return CheckResult([*findings, *between], summary, start, results)


# ---- findings as JSON ------------------------------------------------------------------------------------------------


_STATES = {
    DirectoryState.DELETED: "to be deleted",
    DirectoryState.FUTURE: "being moved",
    DirectoryState.STRAY: "stray",
}


def finding_document(finding: Finding, broker: str = "") -> dict[str, object]:
    """Return a finding as one JSON value; `broker` is empty unless there are several."""
    behind = finding.behind
    return {
        "type": "finding",
        "broker": broker,
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


def summary_document(summary: Summary, start: Start, broker: str = "") -> dict[str, object]:
    """Return the summary as one JSON value; `broker` is empty unless it is one of several."""
    return {
        "type": "summary",
        "broker": broker,
        "start": _start_document(start),
        "partitions": summary.partitions.total(),
        **{state.value.removeprefix("-"): summary.partitions[state] for state in _STATES},
        "files": summary.files,
        "size_bytes": summary.size_bytes,
        **{severity.value: summary.findings[severity] for severity in Severity},
        **({} if summary.looked is None else {"quick": _looked_document(summary.looked)}),
    }


def _looked_document(looked: Looked) -> dict[str, object]:
    """Return what a quick check read as one JSON value."""
    return {
        "read_bytes": looked.read_bytes,
        "sampled_segments": looked.sampled,
        "sampled_bytes": looked.sampled_bytes,
        "samples_per_segment_max": UNITS,
        "not_read": _not_read(looked) if looked.sampled else "",
        "recovered_bytes": looked.recovered_bytes,
        "ends_not_found": [printable(path) for path in looked.endless],
        "doubtful": [printable(path) for path in looked.doubtful],
    }


def _document(result: CheckResult) -> dict[str, Any]:
    names = {id(finding): broker for broker, one in result.brokers.items() for finding in one}
    findings = [finding_document(one, names.get(id(one), "")) for one in result]
    brokers = [summary_document(one.summary, one.start, broker) for broker, one in result.brokers.items()]
    return {"findings": findings, "summary": summary_document(result.summary, result.start), "brokers": brokers}


# ---- findings as text ------------------------------------------------------------------------------------------------


_TITLES = {
    Severity.DAMAGE: "ERRORS: a broker would reject, lose or misread data, or not start",
    Severity.RECOVERY: "REPAIRED ON START: left by a crash or a shutdown; a broker repairs it when it starts",
    Severity.NOTE: "NOTES: unusual, but harmless",
}
#: Maximum number of files named per kind and directory; damaged files are always named.
_FILES_SHOWN = 3


def lines(result: CheckResult) -> Iterator[str]:
    """Yield lines for people: a broker's actions at start, the findings and the summary; of several, one by one."""
    if not result.brokers:
        yield from _broker_lines(result, result.summary, result.start)
        return
    of_brokers = {id(finding) for one in result.brokers.values() for finding in one}
    for broker, one in result.brokers.items():
        yield f"broker {broker}"
        yield from _broker_lines(one, one.summary, one.start)
        yield ""
    between = [finding for finding in result if id(finding) not in of_brokers]
    yield f"all {number(len(result.brokers), 'broker')}"
    yield from _finding_lines(between)
    if not between:
        yield "their metadata logs agree, as far as each goes"
    yield summary_line(result.summary)


def _broker_lines(findings: Iterable[Finding], summary: Summary, start: Start) -> Iterator[str]:
    if start.is_node or start.partitions:
        yield start.line
        yield ""
    yield from _finding_lines(findings)
    yield summary_line(summary)
    if summary.looked is not None:
        yield from _looked_lines(summary.looked, summary.size_bytes)


def _finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
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


def _not_read(looked: Looked) -> str:
    segments = f"{number(looked.sampled, 'large segment')} ({bytes_text(looked.sampled_bytes)})"
    return (
        f"of {segments}, everything but the first and the last batches, up to {UNITS} batches between (of large "
        "ones, their headers), the ends of the indexes, and some entries"
    )


def _looked_lines(looked: Looked, size_bytes: int) -> Iterator[str]:
    """Yield lines with the extent of a quick check."""
    if not looked.sampled:
        yield f"everything was read, {bytes_text(looked.read_bytes)}: no segment is large enough for a sample"
        return
    total = f"looked at {bytes_text(looked.read_bytes)} of {bytes_text(size_bytes)}"
    yield f"{total}. Not read: {_not_read(looked)}. Run cordwood check without --quick to read all."
    for paths, why in (
        (looked.doubtful, "damaged by their samples, and together too large for a quick check"),
        (looked.endless, "without the entry of an offset index near their end, so their ends were not looked for"),
    ):
        if paths:
            yield f"{number(len(paths), 'segment')} {why}: {names_text(list(map(printable, paths)))}"


def megabytes(size_bytes: int) -> str:
    """Return a size in megabytes, or in bytes if it is small."""
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 50_000 else f"{size_bytes:,} bytes"


register(CheckResult, lines=lines, document=_document)
