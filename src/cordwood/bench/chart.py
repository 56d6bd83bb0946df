"""A bar chart of how many times faster than Kafka's cleaner ours is, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.bench.workloads import WORKLOADS
from cordwood.charts import Bar, bar_chart

if TYPE_CHECKING:
    from cordwood.bench.beside_kafka import Comparison


def ratio_chart(found: Sequence[Comparison]) -> str:
    """A row for each comparison: its bar ends at the ratio; a line on it is at what is to be reached."""

    def bar(comparison: Comparison) -> Bar:
        target = WORKLOADS[comparison.workload].target(comparison.way)
        text = f"{comparison.ratio:.1f}  ({comparison.kafka.median:.1f} s : {comparison.cordwood.median:.1f} s)"
        return Bar(
            f"{comparison.workload}, {comparison.way}", comparison.ratio, text, None if target is None else target.ratio
        )

    return bar_chart("Times faster than Kafka's cleaner; the line: what is to be reached", [*map(bar, found)])
