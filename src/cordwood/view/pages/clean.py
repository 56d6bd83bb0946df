"""The page of a clean: each log before and after, the dropped records by reason, and the proof."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.cleaning.engine.results import CleanResult, Fate, PartitionResult
from cordwood.cleaning.rules.plan import utc
from cordwood.commands import clean as report
from cordwood.common.text import Column, bytes_text, cells_of, printable
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import cut, figures, paragraph, section, table
from cordwood.view.pages.markup import Content, tag

#: Maximum number of bars, and of table rows.
_BARS_MAX, _ROWS_MAX = 40, 2_000


def body(result: CleanResult) -> Content:
    """Return the page's content."""
    before, after = (sum(getattr(one, name) for one in result.partitions) for name in ("bytes_before", "bytes_after"))
    counts, cleaned = result.counts, result.with_fate(Fate.CLEANED)
    where = result.target if result.in_place is None else ", ".join(result.in_place.directories)
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
        section("In all", tag("ul", [tag("li", line) for line in report.summary(result)])),
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
    columns, cells = cells_of(report.COLUMNS, cleaned[:_ROWS_MAX])
    return [
        tag(
            "figure",
            both(lambda width: bars(rows, "Logs before the clean, and the part that went", width)),
            tag("figcaption", "Each bar is a log before the clean. Yellow: what went; the rest is the log after it."),
        ),
        table(f"Cleaned: {cut(len(cells), len(cleaned), 'partition')}", columns, cells),
    ]


def _reasons(result: CleanResult) -> Content:
    rows = [[words, f"{value(result.counts):,}"] for _, words, value in report.REASONS]
    return table("Records that were dropped, by reason", [Column("WHY"), Column("RECORDS", right=True)], rows)


def _segments(cleaned: Sequence[PartitionResult]) -> Content:
    segments = [(one, part) for one in cleaned for part in one.segments]
    if not segments:
        return paragraph("No segment was rewritten, or Kafka's offset map made several rounds necessary.")
    columns, cells = cells_of(report.SEGMENT_COLUMNS, [part for _, part in segments[:_ROWS_MAX]])
    rows = [[printable(one.name), *row] for (one, _), row in zip(segments, cells, strict=False)]
    return table(cut(len(rows), len(segments), "segment"), [Column("PARTITION"), *columns], rows)


def _others(result: CleanResult) -> Content:
    others = [one for one in result.partitions if one.fate is not Fate.CLEANED]
    if not others:
        return paragraph("There is none.")
    rows = [[printable(one.name), one.fate, printable(one.why)] for one in others[:_ROWS_MAX]]
    return table(cut(len(rows), len(others), "partition"), [Column("PARTITION"), Column("RESULT"), Column("WHY")], rows)
