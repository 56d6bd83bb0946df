"""Charts as SVG: valid XML, with each element in its place."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from cordwood.view.pages.charts import ChartBar, Curve, LineChart, bar_chart

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ElementTree.Element) -> list[str | None]:
    return [one.text for one in root.iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_values_and_marks_stand_on_them() -> None:
    root = ElementTree.fromstring(bar_chart("a & b", [ChartBar("<one>", 2, "2 s", mark=4), ChartBar("two", 1, "1 s")]))
    assert texts(root) == ["a & b", "<one>", "2 s", "two", "1 s"]
    widths = [float(one.attrib["width"]) for one in root.iter(f"{SVG}rect") if one.attrib["width"] != "100%"]
    assert widths[0] == 2 * widths[1]
    (mark,) = root.iter(f"{SVG}line")
    first = next(one for one in root.iter(f"{SVG}rect") if one.attrib["width"] != "100%")
    assert float(mark.attrib["x1"]) == float(first.attrib["x"]) + 2 * widths[0]


def test_curves_go_through_their_points_and_axes_have_round_numbers() -> None:
    curves = [
        Curve("area", [(0, 10), (30, 95)], "#000", filled=True),
        Curve("line", [(0, 0), (15, 50), (30, 95)], "#111"),
        Curve("dashes", [(0, 5)], "#222", dashed=True),
    ]
    root = ElementTree.fromstring(LineChart("disk", curves, lambda value: f"{value:g} B").file("days"))
    assert texts(root) == [
        *("disk", "0 B", "20 B", "40 B", "60 B", "80 B", "100 B"),
        *("0", "5", "10", "15", "20", "25", "30", "days", "area", "line", "dashes"),
    ]
    line = next(root.iter(f"{SVG}polyline"))
    points = [tuple(map(float, one.split(","))) for one in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert (x1 - x0) == (x2 - x1) and (y0 - y1) / (y0 - y2) == pytest.approx(50 / 95)
    assert len(next(root.iter(f"{SVG}polygon")).attrib["points"].split()) == 4


@pytest.mark.parametrize("end", [1e-3, 7, 999, 1e12])
def test_any_size_has_some_ticks(end: float) -> None:
    root = ElementTree.fromstring(
        LineChart("t", [Curve("c", [(0, 0), (end, end)])], lambda value: f"y{value:g}").file("x")
    )
    assert 3 <= sum(str(text).startswith("y") for text in texts(root)) <= 9


def test_a_line_at_zero_has_one_tick() -> None:
    chart = LineChart("t", [Curve("c", [(0, 0), (1, 0)])], lambda value: f"y{value:g}")
    assert texts(ElementTree.fromstring(chart.file("x")))[1] == "y0"
    assert chart.figure(str).count("y0") == 3, "for each width, and in the legend"


def test_a_gap_divides_the_line_of_a_page_and_the_legend_has_the_last_value() -> None:
    curves = [Curve("whole", [(0, 1), (1, 2), (2, 4)]), Curve("gap", [(0, 1), (1, None), (2, 3)])]
    figure = LineChart("t", curves, lambda value: f"{value:g} B").figure(lambda x: f"x{x:g}", "now ")
    root = ElementTree.fromstring(figure)
    lines = [one.attrib["class"] for one in root.iter("polyline")]
    assert lines.count("line line-1") == 2 + 1 and lines.count("line line-2") == 4 + 1
    assert ["".join(one.itertext()) for one in root.iter("li")] == ["whole: now 4 B", "gap: now 3 B"]
    assert {one.text for one in root.iter("text")} == {"0 B", "1 B", "2 B", "3 B", "4 B", "x0", "x2"}


def test_a_chart_without_bars_is_a_title() -> None:
    assert texts(ElementTree.fromstring(bar_chart("nothing", []))) == ["nothing"]
