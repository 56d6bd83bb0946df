"""Outcomes of sets of configs on a page: a chart and a table of the disk over time for each set, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cordwood.common.text import Column, bytes_text, number
from cordwood.simulation import report as report
from cordwood.simulation.sizing.result import Outcome, Point
from cordwood.view.pages.charts import Curve, LineChart
from cordwood.view.pages.frame import paragraph, table
from cordwood.view.pages.markup import Content, Markup, tag

#: Maximum number of rows in a chart's table.
_ROWS_MAX = 120


@dataclass(frozen=True, slots=True)
class Times:
    """The format of times.

    Attributes:
        title: title of the time column.
        cell: formats a time since the start for a cell.
        mark: formats it for the axis of a chart.
    """

    title: str
    cell: Callable[[int], str]
    mark: Callable[[int], str]


def lines(texts: Iterable[str], class_: str | None = None) -> list[Content]:
    """Make a paragraph for each line of a report."""
    return [paragraph(text.strip(), class_=class_) for text in texts if text]


def figures_table(outcomes: Sequence[Outcome], partitions: int, caption: str, *, of: str) -> Content:
    """Make the same table of figures as on a terminal.

    Args:
        partitions: number of partitions to multiply the sizes by.
        of: name of the measured thing, a topic or a log.
    """
    columns, rows = report.figures(outcomes, partitions, of=of)
    titles = [Column("FIGURE"), *(Column(one.title or "VALUE", right=True) for one in columns[1:])]
    stays = paragraph(report.STAYS, class_="quiet") if report.has_stays(outcomes) else None
    return [table(caption, titles, rows), stays]


def over_time(outcomes: Sequence[Outcome], partitions: int, times: Times, *, of: str) -> Content:
    """Chart the disk over time under each set of configs; see `figures_table`."""
    most = max(point.peak_bytes * partitions for one in outcomes for point in one.history)
    several = len(outcomes) > 1
    titles = [f"{one.label if several else f'Disk of the {of}'}: {report.policy(one)}" for one in outcomes]
    return [
        [_chart(one, partitions, title, times, most) for one, title in zip(outcomes, titles, strict=True)],
        [_table(one, partitions, times, several=several) for one in outcomes],
    ]


def _chart(outcome: Outcome, partitions: int, title: str, times: Times, most: float) -> Markup:
    def line(label: str, value: Callable[[Point], int]) -> Curve:
        return Curve(label, [(point.ms, value(point) * partitions) for point in outcome.history])

    drawn = [
        line("disk", lambda point: point.disk_bytes),
        line("peaks, with files that wait for removal", lambda point: point.peak_bytes),
    ]
    if outcome.compact:
        drawn.append(line("last values of keys", lambda point: point.values_bytes))
    chart = LineChart(title, drawn, lambda value: bytes_text(round(value)), most)
    return chart.figure(lambda ms: times.mark(round(ms)), "at the end ")


def _table(outcome: Outcome, partitions: int, times: Times, *, several: bool) -> Markup:
    titles = (times.title, "DISK", "PEAK", "LAST VALUES OF KEYS", "SEGMENTS")
    every = -(-len(outcome.history) // _ROWS_MAX)
    rows = [
        [
            times.cell(point.ms),
            *(bytes_text(size * partitions) for size in (point.disk_bytes, point.peak_bytes, point.values_bytes)),
            f"{point.segments * partitions:,}",
        ]
        for point in outcome.history[every - 1 :: every]
    ]
    total = number(len(outcome.history), "point")
    which = total if every == 1 else f"each {every}th of {total}"
    name = f"{outcome.label}: {which}" if several else which
    summary = f"The figures of chart {outcome.label}" if several else "The figures of the chart"
    columns = [Column(title, right=True) for title in titles]
    return tag("details", tag("summary", summary), table(name, columns, rows))
