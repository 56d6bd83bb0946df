"""Charts: lines over time, as part of a page or as a file of their own; and bars as a file.

On a page, the style sheet sets the colours, so that they follow its light and dark modes, and a table beside the chart
repeats the figures. A file contains its colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cordwood.common.text import time_text
from cordwood.view.pages.drawing import both, svg, text, text_width
from cordwood.view.pages.markup import Content, Markup, tag

#: Distinguishable for colour-blind people, too.
COLORS = ("#3b6ea5", "#d1802b", "#5a9a54", "#9a5a94")
_MARK = "#c33"
_GRID = "#ddd"
_DAY_MS = 86_400_000
_GAP = 8
#: Height of a page's chart, and the margins above and below its lines.
_PAGE_HEIGHT, _PAGE_TOP, _PAGE_BOTTOM = 190, 10, 24
#: Size of a file's lines, and its margins.
_FILE_WIDTH, _FILE_HEIGHT = 640, 280
_FILE_TOP, _FILE_RIGHT, _FILE_BOTTOM = 44, 20, 44
#: Number of line styles of a page; each has its own colour and dashes, so that lines differ without colours too.
_STYLES = 3
#: Approximate number of ticks of an axis.
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart.

    Attributes:
        points: (x, y), by ascending x; a y that is None leaves a gap in the line.
        color: its colour in a file.
        filled: fill the area below the points instead of drawing a line.
        floor: lower edge of a filled area as (x, y); default: y = 0.
        marks: (x, y) of dots on the line.
    """

    label: str
    points: Sequence[tuple[float, float | None]]
    color: str = COLORS[0]
    dashed: bool = False
    filled: bool = False
    floor: Sequence[tuple[float, float]] = ()
    marks: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves with the same axes; the y axis begins at 0.

    Attributes:
        title: the measured thing.
        y_text: formats a value of the y axis.
        most: minimum upper end of the y axis, so that two charts can share a scale.
    """

    title: str
    curves: Sequence[Curve]
    y_text: Callable[[float], str]
    most: float = 0.0

    def figure(self, x_text: Callable[[float], str], at_last: str = "") -> Markup:
        """Draw the chart for wide and narrow screens, with its legend.

        Args:
            x_text: formats the ends of the x axis.
            at_last: words for the last value of a line, in the legend beside the line's name.
        """
        assert len(self.curves) <= _STYLES
        label = f"{self.title}; the table below has the figures"
        xs = [x for curve in self.curves for x, _ in curve.points]
        first, last = min(xs), max(xs)
        assert first < last, "a line has two ends"

        def draw(width: int) -> Markup:
            axes = _Axes(self, first, last, width - _GAP, _PAGE_TOP, _PAGE_HEIGHT - _PAGE_BOTTOM)
            ends = [
                text(x, _PAGE_HEIGHT - 6, x_text(value), anchor=anchor, class_="quiet")
                for value, x, anchor in ((first, axes.left, "start"), (last, axes.right, "end"))
            ]
            lines = [axes.lines(curve, class_=f"line line-{style}") for style, curve in enumerate(self.curves, 1)]
            return svg(width, _PAGE_HEIGHT, label, axes.grid(class_="grid"), ends, lines)

        legend = tag("ul", [self._legend(*one, at_last) for one in enumerate(self.curves, 1)], class_="legend")
        return tag("figure", tag("figcaption", self.title), both(draw), legend)

    def _legend(self, style: int, curve: Curve, at_last: str) -> Markup:
        sample = tag(
            "svg",
            tag("polyline", points="0,7 28,7", class_=f"line line-{style}"),
            viewBox="0 0 28 14",
            aria_hidden="true",
            class_="wide-sample",
        )
        _, last = curve.points[-1]
        return tag("li", sample, curve.label if last is None else f"{curve.label}: {at_last}{self.y_text(last)}")

    def file(self, x_title: str, x_marks: Sequence[tuple[float, str]] = ()) -> str:
        """Draw the chart as a file, from 0 on both axes, with a legend below.

        Args:
            x_title: title of the x axis.
            x_marks: positions and texts of the x axis's labels; default: round numbers.
        """
        end = max([x for curve in self.curves for x, _ in curve.points], default=0) or 1
        bottom = _FILE_TOP + _FILE_HEIGHT
        axes = _Axes(self, 0, end, None, _FILE_TOP, bottom)
        step = _tick(end)
        round_numbers = [(number * step, f"{number * step:g}") for number in range(math.floor(end / step + 1e-9) + 1)]
        shapes: list[Content] = [_title(self.title), *axes.grid(stroke=_GRID)]
        shapes += [
            text(axes.place(x, 0)[0], bottom + 18, words, anchor="middle") for x, words in x_marks or round_numbers
        ]
        shapes.append(text((axes.left + axes.right) / 2, bottom + 36, x_title, anchor="middle"))
        for curve in self.curves:
            shapes += axes.area(curve) if curve.filled else axes.lines(curve, fill="none", **_stroke(curve))
            shapes += [
                tag("circle", cx=x, cy=y, r=2.5, fill=curve.color)
                for x, y in (axes.place(*mark) for mark in curve.marks)
            ]
        y = bottom + _FILE_BOTTOM
        for curve in self.curves:
            y += 20
            sample = tag("rect", x=axes.left, y=y - 19, width=24, height=10, **_fill(curve))
            if not curve.filled:
                sample = tag("line", x1=axes.left, y1=y - 14, x2=axes.left + 24, y2=y - 14, **_stroke(curve))
            shapes += [sample, text(axes.left + 32, y - 10, curve.label)]
        return _file(axes.right + _FILE_RIGHT, y + 12, shapes)


class _Axes:
    """The place of each value in a drawing, with the labels of the y axis on its left."""

    def __init__(
        self, chart: LineChart, first: float, last: float, right: float | None, top: float, bottom: float
    ) -> None:
        """Place the values.

        Args:
            first, last: ends of the x axis.
            right: right edge of the lines; None for the width of a file.
        """
        most = max([chart.most, *(y for curve in chart.curves for _, y in curve.points if y is not None)])
        step = _tick(most) if most else 1.0
        steps = max(1, math.ceil(most / step - 1e-9))
        self._labels = [(step * number, chart.y_text(step * number)) for number in range(steps + 1 if most else 1)]
        self._first, self._last, self._most = first, last, step * steps
        self.left = max(text_width(words) for _, words in self._labels) + _GAP
        self.right = self.left + _FILE_WIDTH if right is None else right
        self._top, self._bottom = top, bottom

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a value."""
        return (
            self.left + (self.right - self.left) * (x - self._first) / (self._last - self._first),
            self._bottom - (self._bottom - self._top) * y / self._most,
        )

    def grid(self, **style: str) -> list[Markup]:
        """Draw the labels of the y axis, with a line at each."""
        shapes = []
        for value, words in self._labels:
            _, y = self.place(self._first, value)
            shapes.append(tag("line", x1=self.left, y1=y, x2=self.right, y2=y, **style))
            shapes.append(text(self.left - _GAP / 2, y + 4, words, anchor="end"))
        return shapes

    def lines(self, curve: Curve, **style: str | float | None) -> list[Markup]:
        """Draw a line through the points of a curve, divided at its gaps."""
        runs: list[list[tuple[float, float]]] = [[]]
        for x, y in curve.points:
            if y is None:
                runs.append([])
            else:
                runs[-1].append(self.place(x, y))
        return [tag("polyline", points=_path(run), **style) for run in runs if run]

    def area(self, curve: Curve) -> list[Markup]:
        """Fill the area below a curve."""
        points = [(x, y or 0.0) for x, y in curve.points]
        below = curve.floor or [(points[0][0], 0.0), (points[-1][0], 0.0)]
        corners = [self.place(*point) for point in (*points, *reversed(below))]
        return [tag("polygon", points=_path(corners), **_fill(curve))]


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:  # a line of no length is not drawn
        ((x, y),) = points
        points = [(x - 1, y), (x + 1, y)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _tick(end: float) -> float:
    """Return a round distance of ticks, with about `_TICKS` of them up to an end."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    return min((step * power for step in (1, 2, 5, 10)), key=lambda step: abs(end / step - _TICKS))


def _stroke(curve: Curve) -> dict[str, str | float | None]:
    return {"stroke": curve.color, "stroke_width": 1.5, "stroke_dasharray": "5 4" if curve.dashed else None}


def _fill(curve: Curve) -> dict[str, str | float | None]:
    return {"fill": curve.color, "fill_opacity": 0.18}


def utc_time(first_ms: int, last_ms: int) -> Callable[[float], str]:
    """Return a function that formats times as precisely as a chart from the first to the last needs it."""

    def words(at_ms: float) -> str:
        time = time_text(round(at_ms))
        return f"{time[5:16] if last_ms - first_ms > _DAY_MS else time[11:]} UTC"

    return words


# ---- bars ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A row of a bar chart.

    Attributes:
        mark: value at which to draw a line across the bar, or None.
    """

    label: str
    value: float
    text: str
    mark: float | None = None


_ROW, _LABEL, _BARS, _VALUE = 26, 230, 420, 120
_HEAD, _FOOT = 44, 12


def bar_chart(title: str, bars: Sequence[ChartBar]) -> str:
    """Draw a row for each bar; the largest value or mark, but at least 1, has the whole width."""
    most = max([*(bar.value for bar in bars), *(bar.mark for bar in bars if bar.mark), 1.0])
    shapes = [_title(title)]
    for number, bar in enumerate(bars):
        top, width = _HEAD + _ROW * number, _BARS * bar.value / most
        shapes += [
            text(_LABEL - 10, top + 15, bar.label, anchor="end"),
            tag("rect", x=_LABEL, y=top, width=width, height=_ROW - 6, fill=COLORS[0]),
            text(_LABEL + width + 6, top + 15, bar.text),
        ]
        if bar.mark is not None:
            x = _LABEL + _BARS * bar.mark / most
            shapes.append(tag("line", x1=x, y1=top - 2, x2=x, y2=top + _ROW - 4, stroke=_MARK))
    return _file(_LABEL + _BARS + _VALUE, _HEAD + _ROW * len(bars) + _FOOT, shapes)


def _title(words: str) -> Markup:
    return tag("text", words, x=12, y=24, font_size=15)


def _file(width: float, height: float, shapes: Iterable[Content]) -> str:
    size: dict[str, float] = {"width": width, "height": height}
    ground = tag("rect", width="100%", height="100%", fill="white")
    lines = [[shape, "\n"] for shape in (ground, *shapes)]
    namespace = "http://www.w3.org/2000/svg"
    return tag("svg", "\n", lines, xmlns=namespace, **size, font_family="sans-serif", font_size=13) + "\n"
