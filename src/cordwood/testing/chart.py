"""A bar chart of how many times faster than Kafka's cleaner ours is, as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cordwood.testing.workloads import WORKLOADS

if TYPE_CHECKING:
    from cordwood.testing.beside_kafka import Comparison

_ROW, _LABEL, _BARS, _VALUE = 26, 230, 420, 120
_HEAD, _FOOT = 44, 12


def ratio_chart(found: Sequence[Comparison]) -> str:
    """A row for each comparison: its bar ends at the ratio; a line on it is at what is to be reached."""
    targets = [WORKLOADS[one.workload].target(one.way) for one in found]
    most = max([*(one.ratio for one in found), *(one.ratio for one in targets if one), 1.0])
    height = _HEAD + _ROW * len(found) + _FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL + _BARS + _VALUE}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="24" font-size="15">Times faster than Kafka\'s cleaner; the line: what is to be reached</text>',
    ]
    for number, (one, target) in enumerate(zip(found, targets, strict=True)):
        top, width = _HEAD + _ROW * number, _BARS * one.ratio / most
        label = html.escape(f"{one.workload}, {one.way}")
        value = f"{one.ratio:.1f}  ({one.kafka.median:.1f} s : {one.cordwood.median:.1f} s)"
        lines += [
            f'<text x="{_LABEL - 10}" y="{top + 15}" text-anchor="end">{label}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_ROW - 6}" fill="#3b6ea5"/>',
            f'<text x="{_LABEL + width + 6:.1f}" y="{top + 15}">{value}</text>',
        ]
        if target is not None:
            at = _LABEL + _BARS * target.ratio / most
            lines.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 2}" y2="{top + _ROW - 4}" stroke="#c33"/>')
    return "\n".join([*lines, "</svg>", ""])
