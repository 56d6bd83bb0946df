"""The page of a simulation: the disk over time under each set of configs, its figures, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cordwood.config import DAY_MS
from cordwood.pages.frame import paragraph, section, table
from cordwood.pages.markup import Content, Markup, tag
from cordwood.pages.time_chart import Line, TimeChart
from cordwood.report import simulation as report
from cordwood.sizing.result import Outcome, Point, SimulationResult
from cordwood.text import Column, bytes_text, number

#: Rows of the table of a chart.
_ROWS_MAX = 120


def body(result: SimulationResult) -> Content:
    """What is on the page."""
    columns, rows = report.figures(result.outcomes, result.workload.partitions)
    titles = [Column("FIGURE"), *(Column(one.title or "VALUE", right=True) for one in columns[1:])]
    first, *rest = report.head(result)
    return [
        tag("h1", "The disk of a topic"),
        paragraph(first),
        _lines(rest, class_="quiet"),
        section("Configs", _lines(report.configs(result))),
        section("The disk over time", _over_time(result)),
        section(
            "Figures",
            table("What the simulation found", titles, rows),
            paragraph(report.STAYS, class_="quiet") if report.has_stays(result.outcomes) else None,
        ),
        section("What limits it", _lines(report.notes(result)) or paragraph("Nothing is worth a thought.")),
        section("Verdict", _lines(result.verdict)) if result.verdict else None,
    ]


def _lines(lines: Iterable[str], class_: str | None = None) -> list[Content]:
    return [paragraph(line.strip(), class_=class_) for line in lines]


def _over_time(result: SimulationResult) -> Content:
    partitions = result.workload.partitions
    most = max(point.peak_bytes * partitions for one in result.outcomes for point in one.history)
    several = len(result.outcomes) > 1
    return [
        [_chart(one, partitions, most, several=several).figure() for one in result.outcomes],
        [_table(one, partitions, several=several) for one in result.outcomes],
    ]


def _chart(outcome: Outcome, partitions: int, most: float, *, several: bool) -> TimeChart:
    def line(label: str, value: Callable[[Point], int]) -> Line:
        return Line(label, [value(point) * partitions for point in outcome.history])

    lines = [
        line("disk", lambda point: point.disk_bytes),
        line("peaks, with files that wait for removal", lambda point: point.peak_bytes),
    ]
    if outcome.compact:
        lines.append(line("last values of keys", lambda point: point.values_bytes))
    return TimeChart(
        f"{outcome.label}: {report.policy(outcome)}" if several else f"Disk of the topic: {report.policy(outcome)}",
        [point.ms for point in outcome.history],
        lines,
        lambda value: bytes_text(round(value)),
        lambda at_ms, _: f"day {at_ms / DAY_MS:.3g}",
        most,
    )


def _table(outcome: Outcome, partitions: int, *, several: bool) -> Markup:
    columns = [Column(title, right=True) for title in ("DAY", "DISK", "PEAK", "LAST VALUES OF KEYS", "SEGMENTS")]
    every = -(-len(outcome.history) // _ROWS_MAX)
    rows = [
        [
            f"{point.ms / DAY_MS:.2f}",
            *(bytes_text(size * partitions) for size in (point.disk_bytes, point.peak_bytes, point.values_bytes)),
            f"{point.segments * partitions:,}",
        ]
        for point in outcome.history[every - 1 :: every]
    ]
    total = number(len(outcome.history), "point")
    which = total if every == 1 else f"each {every}th of {total}"
    name = f"{outcome.label}: {which}" if several else which
    summary = f"The figures of chart {outcome.label}" if several else "The figures of the chart"
    return tag("details", tag("summary", summary), table(name, columns, rows))
