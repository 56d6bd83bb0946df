"""The pages of a clean, of its proof, and of an erasure check; `result_pages` is the table of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cordwood.cleaning.engine.results import CleanResult, Fate, PartitionResult
from cordwood.cleaning.proof.pairs import Count
from cordwood.cleaning.proof.violations import VerifyResult
from cordwood.cleaning.rules.plan import utc
from cordwood.commands import clean as clean_report
from cordwood.commands import compare as comparison_report
from cordwood.commands import erase_check as erasure_report
from cordwood.commands import verify as proof_report
from cordwood.commands.compare import CompareResult
from cordwood.commands.why.found_keys import ErasureResult, ErasureVerdict
from cordwood.common.text import Column, bytes_text, cells_of, number, printable
from cordwood.comparison.values import MEANINGS
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import cut, facts, figures, paragraph, section, table
from cordwood.view.pages.markup import Content, tag

#: Maximum number of bars, and of table rows.
_BARS_MAX, _CLEAN_ROWS_MAX = 40, 2_000


def clean_body(result: CleanResult) -> Content:
    """Return the page's content."""
    before, after = (sum(getattr(one, name) for one in result.partitions) for name in ("bytes_before", "bytes_after"))
    counts, cleaned = result.counts, result.with_fate(Fate.CLEANED)
    where = result.target if result.in_place is None else ", ".join(result.in_place.directories)
    where = where if result.in_tier is None else result.in_tier.tier
    return [
        tag("h1", "Clean"),
        paragraph(printable(where) or "nothing was written", f", as of {utc(result.now_ms)}", class_="quiet"),
        figures(
            ("Before", bytes_text(before)),
            ("After", bytes_text(after)),
            ("Records read", f"{counts.records_read:,}"),
            ("Records kept", f"{counts.records_kept:,}"),
            ("Cleaned", f"{len(cleaned):,}"),
            ("Failed", f"{len(result.with_fate(Fate.FAILED)):,}"),
        ),
        section("Before and after", _before_and_after(cleaned)),
        section("What went, and why", _reasons(result)),
        section("In all", tag("ul", [tag("li", line) for line in clean_report.summary(result)])),
        section("Segments", _segments(cleaned)),
        section("Other partitions", _others(result)),
    ]


def _before_and_after(cleaned: Sequence[PartitionResult]) -> Content:
    if not cleaned:
        return paragraph("Nothing was cleaned.")
    drawn = sorted(cleaned, key=lambda one: -one.bytes_before)[:_BARS_MAX]
    rows = [
        Bar(
            printable(one.name),
            one.bytes_before,
            max(0, one.bytes_before - one.bytes_after) / max(one.bytes_before, 1),
            f"{bytes_text(one.bytes_before)} before, {bytes_text(one.bytes_after)} after",
        )
        for one in drawn
    ]
    columns, cells = cells_of(clean_report.COLUMNS, cleaned[:_CLEAN_ROWS_MAX])
    return [
        tag(
            "figure",
            both(lambda width: bars(rows, "Logs before the clean, and the part that went", width)),
            tag("figcaption", "Each bar is a log before the clean. Yellow: what went; the rest is the log after it."),
        ),
        table(f"Cleaned: {cut(len(cells), len(cleaned), 'partition')}", columns, cells),
    ]


def _reasons(result: CleanResult) -> Content:
    rows = [[words, f"{value(result.counts):,}"] for _, words, value in clean_report.REASONS]
    return table("Records that were dropped, by reason", [Column("WHY"), Column("RECORDS", right=True)], rows)


def _segments(cleaned: Sequence[PartitionResult]) -> Content:
    segments = [(one, part) for one in cleaned for part in one.segments]
    if not segments:
        return paragraph("No segment was rewritten, or Kafka's offset map made several rounds necessary.")
    columns, cells = cells_of(clean_report.SEGMENT_COLUMNS, [part for _, part in segments[:_CLEAN_ROWS_MAX]])
    rows = [[printable(one.name), *row] for (one, _), row in zip(segments, cells, strict=False)]
    return table(cut(len(rows), len(segments), "segment"), [Column("PARTITION"), *columns], rows)


def _others(result: CleanResult) -> Content:
    others = [one for one in result.partitions if one.fate is not Fate.CLEANED]
    if not others:
        return paragraph("There is none.")
    rows = [[printable(one.name), one.fate, printable(one.why)] for one in others[:_CLEAN_ROWS_MAX]]
    return table(cut(len(rows), len(others), "partition"), [Column("PARTITION"), Column("RESULT"), Column("WHY")], rows)


# ---- proof -----------------------------------------------------------------------------------------------------------

# Which guarantees of a clean hold between two states of a log, and each violation.

_PROOF_ROWS_MAX = 2_000


def proof_body(result: VerifyResult) -> Content:
    """Return the page's content."""
    violations = sum(result.totals.values())
    return [
        tag("h1", "Proof of a clean"),
        paragraph(proof_report.verdict(result), class_="verdict clear" if result.holds else "verdict not-clear"),
        figures(
            ("Partitions", f"{len(result.verdicts):,}"),
            ("Records before", f"{result.counts[Count.RECORDS_BEFORE]:,}"),
            ("Records after", f"{result.counts[Count.RECORDS_AFTER]:,}"),
            ("Violations", f"{violations:,}"),
        ),
        section(
            "Compared",
            facts([("Before", result.before), ("After", result.after), ("Delete horizons as of", utc(result.now_ms))]),
        ),
        section("Violations", _violations(result, violations)) if violations else None,
        section("Proved", tag("ul", [tag("li", line.strip()) for line in proof_report.proved(result)])),
    ]


def _violations(result: VerifyResult, total: int) -> Content:
    columns, rows = cells_of(proof_report.VIOLATIONS, proof_report.all_violations(result)[:_PROOF_ROWS_MAX])
    kinds = [[kind, f"{count:,}", meaning] for kind, count, meaning in proof_report.kinds(result)]
    return [
        table(number(len(kinds), "kind"), [Column("KIND"), Column("VIOLATIONS", right=True), Column("MEANING")], kinds),
        table(cut(len(rows), total, "violation"), columns, rows),
    ]


# ---- replicas --------------------------------------------------------------------------------------------------------

# Whether the replicas of partitions agree, and each difference.

_DIFFERENCES_MAX = 2_000


def comparison_body(result: CompareResult) -> Content:
    """Return the page's content."""
    total = sum(result.totals.values())
    differing = [one for one in result.partitions if not one.agrees]
    return [
        tag("h1", "Replicas"),
        paragraph(comparison_report.verdict(result), class_="verdict clear" if result.agrees else "verdict not-clear"),
        figures(
            ("Brokers", f"{len(result.brokers):,}"),
            ("Partitions", f"{len(result.partitions):,}"),
            ("Differing", f"{len(differing):,}"),
            ("Differences", f"{total:,}"),
        ),
        section("Differences", _differences(result, total)) if total else None,
        section("Replicas", _replicas(result)),
        section("In all", tag("ul", [tag("li", line.strip()) for line in comparison_report.summary(result)])),
    ]


def _differences(result: CompareResult, total: int) -> Content:
    kinds = [[kind, f"{count:,}", MEANINGS[kind]] for kind, count in result.totals.items()]
    columns, rows = cells_of(comparison_report.DIFFERENCES, comparison_report.rows(result)[:_DIFFERENCES_MAX])
    return [
        table(
            number(len(kinds), "kind"), [Column("KIND"), Column("DIFFERENCES", right=True), Column("MEANING")], kinds
        ),
        table(cut(len(rows), total, "difference"), columns, rows),
    ]


def _replicas(result: CompareResult) -> Content:
    columns, rows = cells_of(comparison_report.REPLICAS, comparison_report.replicas(result)[:_DIFFERENCES_MAX])
    return table(cut(len(rows), len(comparison_report.replicas(result)), "replica"), columns, rows)


# ---- erasure ---------------------------------------------------------------------------------------------------------

# A certificate: remaining traces of keys, their files, and how to remove each.

#: Maximum number of table rows: a certificate should list all files. The JSON document has more traces.
_ERASURE_ROWS_MAX = 100_000


def erasure_body(result: ErasureResult) -> Content:
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
            return f"Traces of these keys remain ({erasure_report.counts_text(result.counts)})."


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
    columns, rows = cells_of(erasure_report.trace_columns(result), result.traces[:_ERASURE_ROWS_MAX])
    return table(cut(len(rows), sum(result.counts.values()), "trace"), columns, rows)


def _files(result: ErasureResult) -> Content:
    columns, rows = cells_of(erasure_report.FILES, result.files[:_ERASURE_ROWS_MAX])
    return table(cut(len(rows), len(result.files), "file"), columns, rows)
