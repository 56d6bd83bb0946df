"""Charts of lines over time as SVG. All lines have values at the same times; a table beside the chart repeats them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cordwood.common.text import time_text
from cordwood.view.pages.charts import tick
from cordwood.view.pages.drawing import both, line, svg, text, text_width
from cordwood.view.pages.markup import Content, Markup, tag

_HEIGHT, _TOP, _BOTTOM, _GAP = 190, 10, 24, 8
_DAY_MS = 86_400_000
#: Number of line styles; each has its own colour and dashes, so that lines differ without colours too.
_STYLES = 3


def utc_time(at_ms: int, span_ms: int) -> str:
    """Format a time, as precisely as the span of a chart needs it."""
    words = time_text(at_ms)
    return f"{words[5:16] if span_ms > _DAY_MS else words[11:]} UTC"


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        values: one for each time; None leaves a gap in the line.
    """

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class TimeChart:
    """A chart.

    Attributes:
        title: the measured thing.
        times_ms: ascending.
        words: formats a value of the y axis.
        when: formats a time, given the span of the chart.
        most: minimum upper end of the y axis, so that two charts can share a scale.
        at_last: words for the last value of a line, in the legend beside the line's name.
    """

    title: str
    times_ms: Sequence[int]
    lines: Sequence[ChartLine]
    words: Callable[[float], str]
    when: Callable[[int, int], str] = utc_time
    most: float = 0.0
    at_last: str = ""

    def figure(self) -> Markup:
        """Draw the chart for wide and narrow screens, with its legend."""
        assert len(self.times_ms) > 1, "a line has two ends"
        assert len(self.lines) <= _STYLES
        label = f"{self.title}; the table below has the figures"
        legend = tag(
            "ul", [_legend(at, one, self.words, self.at_last) for at, one in enumerate(self.lines, 1)], class_="legend"
        )
        return tag("figure", tag("figcaption", self.title), both(lambda width: self._draw(width, label)), legend)

    def _draw(self, width: int, label: str) -> Markup:
        values = (value for one in self.lines for value in one.values if value is not None)
        most = max([self.most, *values])
        step = tick(most) if most else 1.0
        steps = max(1, math.ceil(most / step - 1e-9))
        marks = [self.words(step * number) for number in range(steps + 1)] if most else [self.words(0.0)]
        left, right = max(map(text_width, marks)) + _GAP, width - _GAP
        bottom, high = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP
        first, last = self.times_ms[0], self.times_ms[-1]

        def place(at_ms: int, value: float) -> tuple[float, float]:
            return (
                left + (right - left) * (at_ms - first) / max(last - first, 1),
                bottom - high * value / (step * steps),
            )

        shapes: list[Content] = []
        for number, words in enumerate(marks):
            y = bottom - high * number / steps
            shapes += [line(left, y, right, y, "grid"), text(left - _GAP / 2, y + 4, words, anchor="end")]
        for at_ms, x, anchor in ((first, left, "start"), (last, right, "end")):
            shapes.append(text(x, _HEIGHT - 6, self.when(at_ms, last - first), anchor=anchor, class_="quiet"))
        for style, one in enumerate(self.lines, 1):
            shapes += [_line(points, style) for points in _runs(self.times_ms, one.values, place)]
        return svg(width, _HEIGHT, label, shapes)


def _runs(
    times_ms: Sequence[int], values: Sequence[float | None], place: Callable[[int, float], tuple[float, float]]
) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of a line, divided at its gaps."""
    points: list[tuple[float, float]] = []
    for at_ms, value in zip(times_ms, values, strict=True):
        if value is not None:
            points.append(place(at_ms, value))
        elif points:
            yield points
            points = []
    if points:
        yield points


def _line(points: Sequence[tuple[float, float]], style: int) -> Markup:
    if len(points) == 1:  # a line of no length is not drawn
        (x, y) = points[0]
        points = [(x - 1, y), (x + 1, y)]
    words = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", points=words, class_=f"line line-{style}")


def _legend(style: int, drawn: ChartLine, words: Callable[[float], str], at_last: str) -> Markup:
    sample = tag(
        "svg",
        tag("polyline", points="0,7 28,7", class_=f"line line-{style}"),
        viewBox="0 0 28 14",
        aria_hidden="true",
        class_="wide-sample",
    )
    last = drawn.values[-1]
    return tag("li", sample, drawn.label if last is None else f"{drawn.label}: {at_last}{words(last)}")
