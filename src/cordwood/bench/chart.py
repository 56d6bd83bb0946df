"""Charts that compare cleans with Kafka's cleaner, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.bench.workloads import BY_SHARE, WORKLOADS
from cordwood.view.pages.charts import COLORS, ChartBar, Curve, LineChart, bar_chart

if TYPE_CHECKING:
    from cordwood.bench.beside_kafka import Comparison


def ratio_chart(found: Sequence[Comparison]) -> str:
    """Draw a bar for each comparison; the bar ends at the ratio, and a line on it marks the target."""

    def bar(comparison: Comparison) -> ChartBar:
        target = WORKLOADS[comparison.workload].target(comparison.way)
        text = f"{comparison.ratio:.1f}  ({comparison.kafka.median:.1f} s : {comparison.cordwood.median:.1f} s)"
        return ChartBar(
            f"{comparison.workload}, {comparison.way}", comparison.ratio, text, None if target is None else target.ratio
        )

    return bar_chart("Times faster than Kafka's cleaner; the line: what is to be reached", [*map(bar, found)])


def shares_chart(found: Sequence[Comparison]) -> str:
    """Draw the seconds of Kafka and of each way of cleaning in place, by the dirty share of the log."""
    first = min(BY_SHARE[one.workload].dirty for one in found)

    def place(comparison: Comparison) -> float:
        """Return the position on a logarithmic axis."""
        return math.log10(BY_SHARE[comparison.workload].dirty / first)

    ways = list(dict.fromkeys(one.way for one in found if one.way != "copy"))
    each = [[one for one in found if one.way == way] for way in ways]
    curves = [
        Curve("Kafka", [(place(one), one.kafka.median) for one in each[0]], "#c33"),
        *(
            Curve(way, [(place(one), one.cordwood.median) for one in some], color, dashed="proved" in way)
            for way, some, color in zip(ways, each, [COLORS[0], COLORS[0], COLORS[2], COLORS[2]], strict=True)
        ),
    ]
    title = "Seconds of a clean in place, by the share of the log that is new"
    marks = [(place(one), one.workload) for one in each[0]]
    return LineChart(title, curves, lambda seconds: f"{seconds:g} s").file("new since the last clean", marks)
