"""The page of a proof: which guarantees of a clean hold between two states of a log, and each violation."""

from __future__ import annotations

from cordwood.cleaning.proof.pairs import Count
from cordwood.cleaning.proof.violations import VerifyResult
from cordwood.cleaning.rules.plan import utc
from cordwood.commands import verify as report
from cordwood.common.text import Column, cells_of, number
from cordwood.view.pages.frame import cut, facts, figures, paragraph, section, table
from cordwood.view.pages.markup import Content, tag

_ROWS_MAX = 2_000


def body(result: VerifyResult) -> Content:
    """Return the page's content."""
    violations = sum(result.totals.values())
    return [
        tag("h1", "Proof of a clean"),
        paragraph(report.verdict(result), class_="verdict clear" if result.holds else "verdict not-clear"),
        figures(
            ("Partitions", f"{len(result.verdicts):,}"),
            ("Records before", f"{result.counts[Count.RECORDS_BEFORE]:,}"),
            ("Records after", f"{result.counts[Count.RECORDS_AFTER]:,}"),
            ("Violations", f"{violations:,}"),
        ),
        section(
            "Compared",
            facts([("Before", result.before), ("After", result.after), ("Delete horizons as of", utc(result.now_ms))]),
        ),
        section("Violations", _violations(result, violations)) if violations else None,
        section("Proved", tag("ul", [tag("li", line.strip()) for line in report.proved(result)])),
    ]


def _violations(result: VerifyResult, total: int) -> Content:
    columns, rows = cells_of(report.VIOLATIONS, report.all_violations(result)[:_ROWS_MAX])
    kinds = [[kind, f"{count:,}", meaning] for kind, count, meaning in report.kinds(result)]
    return [
        table(number(len(kinds), "kind"), [Column("KIND"), Column("VIOLATIONS", right=True), Column("MEANING")], kinds),
        table(cut(len(rows), total, "violation"), columns, rows),
    ]
