"""The page of a what-if: a log as it is and under each set of configs, with immediate and later effects."""

from __future__ import annotations

from cordwood.common.text import Column, bytes_text
from cordwood.simulation import explain_report as report
from cordwood.simulation.pages.outcomes import Times, figures_table, lines, over_time
from cordwood.simulation.report import notes
from cordwood.simulation.sizing.result import ExplainResult, Outcome
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import paragraph, section, table
from cordwood.view.pages.markup import Content, tag

_AS_IT_IS = "the log as it is"
_CAPTION = "Each bar is the disk of the log: as it is now, and on average under each set of configs."
_YELLOW = " Yellow: superseded and aborted records and tombstones, which cleans remove in time."


def body(result: ExplainResult) -> Content:
    """Return the page's content."""
    first, *rest = report.head(result)
    return [
        tag("h1", "What if: ", result.log.name),
        paragraph(first),
        lines(rest, class_="quiet"),
        section("Configs", lines(report.configs(result))),
        section("Before and after", _before_and_after(result)),
        section("At once", lines(report.at_once(label, found) for label, found in result.at_once.items())),
        section("Over time", lines([report.replayed(result)]), over_time(result.outcomes, 1, _times(result), of="log")),
        section("Figures", figures_table(result.outcomes, 1, "What the replay found", of="log")),
        section("What limits it", lines(notes(result.outcomes)) or paragraph("Nothing is worth a thought.")),
        section("What to know", lines(result.notes)) if result.notes else None,
    ]


def _times(result: ExplainResult) -> Times:
    begin_ms = result.log.end_ms - result.outcomes[0].duration_ms

    def words(since_ms: int) -> str:
        return report.date(begin_ms + since_ms)

    return Times("TIME (UTC)", words, words)


def _before_and_after(result: ExplainResult) -> Content:
    rows = [
        Bar(_AS_IT_IS, result.log.log_bytes, 0, bytes_text(result.log.log_bytes)),
        *(_bar(one) for one in result.outcomes),
    ]
    sizes = ("AVERAGE", "PEAK", "AT THE END", "COULD GO")
    columns = [Column("CONFIGS"), *(Column(title, right=True) for title in sizes)]
    cells = [
        [_AS_IT_IS, "-", "-", bytes_text(result.log.log_bytes), "-"],
        *(
            [one.label, *map(bytes_text, (one.mean_bytes, one.peak_bytes, one.end_bytes, _could_go(one)))]
            for one in result.outcomes
        ),
    ]
    return [
        tag(
            "figure",
            both(lambda width: bars(rows, "The disk of the log; the table below has the figures", width)),
            tag("figcaption", _CAPTION, _YELLOW if any(one.compact for one in result.outcomes) else None),
        ),
        table("The disk of the log under each set of configs", columns, cells),
        lines(result.verdict),
    ]


def _bar(outcome: Outcome) -> Bar:
    mean, peak = bytes_text(outcome.mean_bytes), bytes_text(outcome.peak_bytes)
    share = min(1.0, _could_go(outcome) / max(outcome.mean_bytes, 1))
    return Bar(outcome.label, outcome.mean_bytes, share, f"{mean} on average, {peak} at its peak")


def _could_go(outcome: Outcome) -> int:
    """Return the bytes of the mean that cleans will remove."""
    contents = outcome.contents
    return contents.superseded + contents.aborted + contents.tombstones if outcome.compact else 0
