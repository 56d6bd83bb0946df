"""The pages of `simulate` and `explain`: the disk over time under each set of configs, its figures, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cordwood.common.config import DAY_MS
from cordwood.common.text import Column, bytes_text, number
from cordwood.simulation import report
from cordwood.simulation.sizing.result import ExplainResult, Outcome, Point, SimulationResult
from cordwood.view.pages.charts import Curve, LineChart
from cordwood.view.pages.drawing import Bar, bars, both
from cordwood.view.pages.frame import paragraph, section, table
from cordwood.view.pages.markup import Content, Markup, tag

# ---- simulate --------------------------------------------------------------------------------------------------------


def simulation_body(result: SimulationResult) -> Content:
    """Return the page's content."""
    outcomes, partitions = result.outcomes, result.workload.partitions
    days = _Times("DAY", lambda ms: f"{ms / DAY_MS:.2f}", lambda ms: f"day {round(ms / DAY_MS, 1):g}")
    first, *rest = report.head(result)
    return [
        tag("h1", "The disk of a topic"),
        paragraph(first),
        _lines(rest, class_="quiet"),
        section("Configs", _lines(report.configs(result))),
        section("The disk over time", _over_time(outcomes, partitions, days, of="topic")),
        section("Figures", _figures_table(outcomes, partitions, "What the simulation found", of="topic")),
        section("What limits it", _lines(report.notes(outcomes)) or paragraph("Nothing is worth a thought.")),
        section("Verdict", _lines(result.verdict)) if result.verdict else None,
    ]


# ---- explain ---------------------------------------------------------------------------------------------------------

_AS_IT_IS = "the log as it is"
_CAPTION = "Each bar is the disk of the log: as it is now, and on average under each set of configs."
_YELLOW = " Yellow: superseded and aborted records and tombstones, which cleans remove in time."


def explain_body(result: ExplainResult) -> Content:
    """Return the page's content."""
    first, *rest = report.explain_head(result)
    return [
        tag("h1", "What if: ", result.log.name),
        paragraph(first),
        _lines(rest, class_="quiet"),
        section("Configs", _lines(report.explain_configs(result))),
        section("Before and after", _before_and_after(result)),
        section("At once", _lines(report.at_once(label, found) for label, found in result.at_once.items())),
        section(
            "Over time", _lines([report.replayed(result)]), _over_time(result.outcomes, 1, _times(result), of="log")
        ),
        section("Figures", _figures_table(result.outcomes, 1, "What the replay found", of="log")),
        section("What limits it", _lines(report.notes(result.outcomes)) or paragraph("Nothing is worth a thought.")),
        section("What to know", _lines(result.notes)) if result.notes else None,
    ]


def _times(result: ExplainResult) -> _Times:
    begin_ms = result.log.end_ms - result.outcomes[0].duration_ms

    def words(since_ms: int) -> str:
        return report.date(begin_ms + since_ms)

    return _Times("TIME (UTC)", words, words)


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
        _lines(result.verdict),
    ]


def _bar(outcome: Outcome) -> Bar:
    mean, peak = bytes_text(outcome.mean_bytes), bytes_text(outcome.peak_bytes)
    share = min(1.0, _could_go(outcome) / max(outcome.mean_bytes, 1))
    return Bar(outcome.label, outcome.mean_bytes, share, f"{mean} on average, {peak} at its peak")


def _could_go(outcome: Outcome) -> int:
    """Return the bytes of the mean that cleans will remove."""
    contents = outcome.contents
    return contents.superseded + contents.aborted + contents.tombstones if outcome.compact else 0


# ---- parts of both ---------------------------------------------------------------------------------------------------

#: Maximum number of rows in a chart's table.
_ROWS_MAX = 120


@dataclass(frozen=True, slots=True)
class _Times:
    """The format of times.

    Attributes:
        title: title of the time column.
        cell: formats a time since the start for a cell.
        mark: formats it for the axis of a chart.
    """

    title: str
    cell: Callable[[int], str]
    mark: Callable[[int], str]


def _lines(texts: Iterable[str], class_: str | None = None) -> list[Content]:
    """Make a paragraph for each line of a report."""
    return [paragraph(text.strip(), class_=class_) for text in texts if text]


def _figures_table(outcomes: Sequence[Outcome], partitions: int, caption: str, *, of: str) -> Content:
    """Make the same table of figures as on a terminal.

    Args:
        partitions: number of partitions to multiply the sizes by.
        of: name of the measured thing, a topic or a log.
    """
    columns, rows = report.figures(outcomes, partitions, of=of)
    titles = [Column("FIGURE"), *(Column(one.title or "VALUE", right=True) for one in columns[1:])]
    stays = paragraph(report.STAYS, class_="quiet") if report.has_stays(outcomes) else None
    return [table(caption, titles, rows), stays]


def _over_time(outcomes: Sequence[Outcome], partitions: int, times: _Times, *, of: str) -> Content:
    """Chart the disk over time under each set of configs; see `_figures_table`."""
    most = max(point.peak_bytes * partitions for one in outcomes for point in one.history)
    several = len(outcomes) > 1
    titles = [f"{one.label if several else f'Disk of the {of}'}: {report.policy(one)}" for one in outcomes]
    return [
        [_chart(one, partitions, title, times, most) for one, title in zip(outcomes, titles, strict=True)],
        [_table(one, partitions, times, several=several) for one in outcomes],
    ]


def _chart(outcome: Outcome, partitions: int, title: str, times: _Times, most: float) -> Markup:
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


def _table(outcome: Outcome, partitions: int, times: _Times, *, several: bool) -> Markup:
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
