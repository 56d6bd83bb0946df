"""Cases of the damage tests, and their results: one tally per test, added up at the end of the run.

A test passes its tally to `record_property`, and pytest carries it to the process that writes the summary.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

PROPERTY = "damage"


@dataclass
class Tally:
    """The cases of one file.

    Attributes:
        what: `flips` or `cuts`.
        group: the format.
        reported: cases whose reading reported damage in the right place.
        same: cases with unchanged contents.
        torn: cut logs that read like one after a crash: all batches before the cut, no more.
        uncovered: cases that no checksum caught, by the field that was hit.
        caught: uncovered cases that a check of the log directory found, by the field.
        checked: uncovered cases with a check.
    """

    what: str
    group: str
    reported: int = 0
    same: int = 0
    torn: int = 0
    uncovered: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        """Number of files read."""
        return self.reported + self.same + self.torn + self.uncovered.total()

    def to_json(self) -> str:
        """For `record_property`."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """The tally that `to_json` wrote."""
        tally = cls(**json.loads(text))
        for name in ("uncovered", "caught", "checked"):
            setattr(tally, name, Counter(getattr(tally, name)))
        return tally


def tallies(properties: Iterable[tuple[str, object]]) -> Iterator[Tally]:
    """The tallies among the properties of tests that ran."""
    return (Tally.from_json(str(value)) for name, value in properties if name == PROPERTY)


def lines_for(reporter: pytest.TerminalReporter) -> list[str]:
    """The summary of all tests that this run has finished, in all of its processes."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    return table(list(tallies(one for report in reports if report.when == "call" for one in report.user_properties)))


def table(found: Sequence[Tally]) -> list[str]:
    """The summary, as lines; none if no damage was tried."""
    if not found:
        return []
    lines = []
    for what in ("flips", "cuts"):
        some = [tally for tally in found if tally.what == what]
        if some:
            lines.append(
                f"damage: {sum(t.cases for t in some):,} {what} of {len(some)} small files:"
                f" {sum(t.reported for t in some):,} reported, {sum(t.same for t in some):,} read the same,"
                + (f" {sum(t.torn for t in some):,} a torn tail," if what == "cuts" else "")
                + f" {sum(t.uncovered.total() for t in some):,} in fields that no checksum covers"
            )
    for group in dict.fromkeys(tally.group for tally in found):
        uncovered: Counter[str] = Counter()
        for tally in found:
            if tally.group == group:
                uncovered += tally.uncovered
        if uncovered:
            fields = " · ".join(f"{name} {count:,}" for name, count in uncovered.most_common())
            lines.append(f"  {group + ':':<26}{fields}")
    caught: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    for tally in found:
        caught.update({f"{tally.group}: {name}": count for name, count in tally.caught.items()})
        checked.update({f"{tally.group}: {name}": count for name, count in tally.checked.items()})
    if checked:
        lines.append(
            f"  of such flips in a whole directory `cordwood check` finds {caught.total():,} of {checked.total():,}:"
        )
        for group in dict.fromkeys(tally.group for tally in found if tally.checked):
            names = [name for name in checked if name.startswith(f"{group}: ")]
            fields = " · ".join(f"{name[len(group) + 2 :]} {caught[name]}/{checked[name]}" for name in names)
            lines.append(f"  {group + ':':<26}{fields}")
    return lines
