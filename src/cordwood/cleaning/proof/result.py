"""The result of `cordwood verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cordwood.cleaning.proof.pairs import Count, ViolationKind
from cordwood.cleaning.proof.violations import Verdict, Violation
from cordwood.common.presentable import Paged
from cordwood.common.text import number


@dataclass(frozen=True, slots=True)
class VerifyResult(Paged):
    """The comparison of two states.

    Attributes:
        now_ms: the time against which delete horizons were judged.
        verdicts: one per partition that both states have.
        violations: violations outside of any partition, or in files of a partition other than its log.
        excused: log start offsets that moved, where the caller allowed it.
        seconds: total time, without the start of Spark.
    """

    before: str
    after: str
    now_ms: int
    verdicts: tuple[Verdict, ...]
    violations: tuple[Violation, ...] = ()
    excused: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether everything is proved: there are no violations."""
        return not self.violations and all(verdict.holds for verdict in self.verdicts)

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of proved records, keys and so on, summed over all partitions."""
        return {name: sum(one.counts[name] for one in self.verdicts) for name in Count}

    @property
    def totals(self) -> Mapping[str, int]:
        """The number of violations of each kind."""
        found = {name: sum(one.totals.get(name, 0) for one in self.verdicts) for name in ViolationKind}
        for one in self.violations:
            found[one.kind] += 1
        return {name: count for name, count in found.items() if count}

    def __str__(self) -> str:
        total = sum(self.totals.values())
        what = "every guarantee holds" if self.holds else number(total, "violation")
        return f"{self.before} → {self.after}: {number(len(self.verdicts), 'partition')}, {what}"
