"""Charts as SVG: horizontal bars, and lines over time."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

#: Distinguishable for colour-blind people, too.
COLORS = ("#3b6ea5", "#d1802b", "#5a9a54", "#9a5a94")
_MARK = "#c33"
_GRID = "#ddd"


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
    lines = [_text(12, 24, title, size=15)]
    for number, bar in enumerate(bars):
        top, width = _HEAD + _ROW * number, _BARS * bar.value / most
        lines += [
            _text(_LABEL - 10, top + 15, bar.label, anchor="end"),
            f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_ROW - 6}" fill="{COLORS[0]}"/>',
            _text(_LABEL + width + 6, top + 15, bar.text),
        ]
        if bar.mark is not None:
            at = _LABEL + _BARS * bar.mark / most
            lines.append(_line(at, top - 2, at, top + _ROW - 4, _MARK))
    return _document(_LABEL + _BARS + _VALUE, _HEAD + _ROW * len(bars) + _FOOT, lines)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a line chart.

    Attributes:
        points: (x, y), by ascending x.
        filled: fill the area below the points instead of drawing a line.
        floor: lower edge of a filled area as (x, y); default: y = 0.
        marks: (x, y) of dots on the line.
    """

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    dashed: bool = False
    filled: bool = False
    floor: Sequence[tuple[float, float]] = ()
    marks: Sequence[tuple[float, float]] = ()


_WIDTH, _HEIGHT = 640, 280
_LEFT, _TOP, _RIGHT, _BOTTOM = 90, 44, 20, 44
#: Approximate number of ticks of an axis.
_TICKS = 5


def line_chart(
    title: str,
    curves: Sequence[Curve],
    *,
    x_title: str,
    y_text: Callable[[float], str],
    x_marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Draw curves over time, from 0 on both axes, with a legend below.

    Args:
        x_title: title of the x axis.
        x_marks: positions and texts of the x axis's labels; default: round numbers.
        y_text: formats a value of the y axis.
    """
    x_end = max([x for curve in curves for x, _ in curve.points], default=0) or 1
    y_end = max([y for curve in curves for _, y in curve.points], default=0) or 1
    y_step = tick(y_end)
    y_end = y_step * math.ceil(y_end / y_step - 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * x / x_end, _TOP + _HEIGHT * (1 - y / y_end)

    lines = [_text(12, 24, title, size=15)]
    for number in range(round(y_end / y_step) + 1):
        _, at = place(0, number * y_step)
        lines += [
            _line(_LEFT, at, _LEFT + _WIDTH, at, _GRID),
            _text(_LEFT - 8, at + 4, y_text(number * y_step), anchor="end"),
        ]
    x_step = tick(x_end)
    steps = (number * x_step for number in range(math.floor(x_end / x_step + 1e-9) + 1))
    for x, words in x_marks or [(x, f"{x:g}") for x in steps]:
        lines.append(_text(place(x, 0)[0], _TOP + _HEIGHT + 18, words, anchor="middle"))
    lines.append(_text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 36, x_title, anchor="middle"))
    for curve in curves:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        if curve.filled:
            ends = (curve.points[0][0], 0.0), (curve.points[-1][0], 0.0)
            below = [place(*point) for point in (curve.floor or ends)]
            corners = " ".join([path, *(f"{x:.1f},{y:.1f}" for x, y in reversed(below))])
            lines.append(f'<polygon points="{corners}" fill="{curve.color}" fill-opacity="0.18"/>')
        else:
            dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
            lines.append(f'<polyline points="{path}" fill="none" stroke="{curve.color}" stroke-width="1.5"{dash}/>')
        for x, y in (place(*point) for point in curve.marks):
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{curve.color}"/>')
    legend = _TOP + _HEIGHT + _BOTTOM
    for number, curve in enumerate(curves):
        at = legend + 20 * number + 10
        if curve.filled:
            lines.append(
                f'<rect x="{_LEFT}" y="{at - 9}" width="24" height="10" fill="{curve.color}" fill-opacity="0.18"/>'
            )
        else:
            lines.append(_line(_LEFT, at - 4, _LEFT + 24, at - 4, curve.color, dashed=curve.dashed))
        lines.append(_text(_LEFT + 32, at, curve.label))
    return _document(_LEFT + _WIDTH + _RIGHT, legend + 20 * len(curves) + 12, lines)


def tick(end: float) -> float:
    """Return a round distance of ticks, with about `_TICKS` of them up to an end."""
    power = 10.0 ** math.floor(math.log10(end / _TICKS))
    return min((step * power for step in (1, 2, 5, 10)), key=lambda step: abs(end / step - _TICKS))


def _text(x: float, y: float, text: str, *, anchor: str = "", size: int | None = None) -> str:
    more = (f' text-anchor="{anchor}"' if anchor else "") + (f' font-size="{size}"' if size else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{color}"{dash}/>'


def _document(width: float, height: float, lines: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            'font-family="sans-serif" font-size="13">',
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            "</svg>",
            "",
        ]
    )
