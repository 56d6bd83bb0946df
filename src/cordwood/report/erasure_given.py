"""The result of an erasure check from the JSON of its certificate, which may come from anybody; see `given`."""

from __future__ import annotations

from typing import Any

from cordwood.cleaning.found_keys import CheckedFile, ErasureResult, FoundTrace, Role, TraceRecord
from cordwood.cleaning.next_step import NextStep, StepKind
from cordwood.report import erasure as report
from cordwood.report.given import Given
from cordwood.storage.index.traces import LookedAt, TraceKind

#: What follows from the rest.
_DERIVED = ("verdict", "started", "ended", "counts")


def result_of(given: Given) -> ErasureResult:
    """The result that a document is of.

    Raises:
        RequestError: it is of none; with the place.
    """
    paths, absolute = given["paths"].texts(), given["absolute_paths"].texts()
    if len(paths) != len(absolute):
        raise given["absolute_paths"].wrong(f"there are {len(paths)} paths, and {len(absolute)} absolute ones")
    result = ErasureResult(
        version=given["cordwood"].text(),
        started_ms=given["started_ms"].count(),
        ended_ms=given["ended_ms"].count(),
        paths=paths,
        absolute_paths=absolute,
        topics=given["topics"].texts(),
        partitions=given["partitions"].texts(),
        keys=given["keys"]["count"].count(),
        keys_sha256=given["keys"]["sha256"].text(),
        values=given["values_searched"].flag(),
        files=tuple(map(_file, given["files"].items())),
        traces=tuple(map(_trace, given["traces"].items())),
        unknown=given["unknown"].texts(),
    )
    again: dict[str, Any] = report.document(result)
    for name in _DERIVED:
        given[name].same(again[name])
    if len(result.traces) > sum(result.counts.values()):
        raise given["traces"].wrong(f"there are {len(result.traces)}, more than the files have")
    return result


def _trace(given: Given) -> FoundTrace:
    step = given["next"]
    return FoundTrace(
        path=given["path"].text(),
        role=given["role"].word(Role),
        kind=given["kind"].word(TraceKind),
        key=given["key"].plain(),
        position=given["position"].count(),
        record=given["offset"].maybe(lambda _: _record(given)),
        next_step=NextStep(
            step["kind"].word(StepKind),
            step["what"].text(),
            step["from_ms"].maybe(Given.count),
            step["by_ms"].maybe(Given.count),
        ),
    )


def _record(given: Given) -> TraceRecord:
    return TraceRecord(
        offset=given["offset"].count(),
        timestamp=given["timestamp"].whole(),
        is_tombstone=given["tombstone"].flag(),
        superseded_by=given["superseded_by"].maybe(Given.count),
    )


def _file(given: Given) -> CheckedFile:
    traces = given["traces"]
    counts = {Given(name, f"{traces.where}.{name}").word(TraceKind): traces[name].count() for name in traces.names()}
    looked_at = LookedAt(
        given["path"].text(),
        given["size_bytes"].count(),
        given["mtime_ms"].whole() * 1_000_000,
        given["sha256"].text(),
        given["batches"].count(),
        given["records"].count(),
        problems=list(given["problems"].texts()),
    )
    return CheckedFile(given["role"].word(Role), looked_at, {kind: count for kind, count in counts.items() if count})
