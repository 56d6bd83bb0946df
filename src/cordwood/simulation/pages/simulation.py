"""The page of a simulation: the disk over time under each set of configs, its figures, and the limits in effect."""

from __future__ import annotations

from cordwood.common.config import DAY_MS
from cordwood.simulation import report as report
from cordwood.simulation.pages.outcomes import Times, figures_table, lines, over_time
from cordwood.simulation.sizing.result import SimulationResult
from cordwood.view.pages.frame import paragraph, section
from cordwood.view.pages.markup import Content, tag

_DAYS = Times("DAY", lambda ms: f"{ms / DAY_MS:.2f}", lambda ms: f"day {round(ms / DAY_MS, 1):g}")


def body(result: SimulationResult) -> Content:
    """Return the page's content."""
    outcomes, partitions = result.outcomes, result.workload.partitions
    first, *rest = report.head(result)
    return [
        tag("h1", "The disk of a topic"),
        paragraph(first),
        lines(rest, class_="quiet"),
        section("Configs", lines(report.configs(result))),
        section("The disk over time", over_time(outcomes, partitions, _DAYS, of="topic")),
        section("Figures", figures_table(outcomes, partitions, "What the simulation found", of="topic")),
        section("What limits it", lines(report.notes(outcomes)) or paragraph("Nothing is worth a thought.")),
        section("Verdict", lines(result.verdict)) if result.verdict else None,
    ]
