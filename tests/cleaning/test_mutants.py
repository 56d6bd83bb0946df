"""Each rule of the cleaner broken once: the comparison with Kafka or `verify` notices. Neither reports an error about
the unbroken cleaner.

The rules are in `mutants`; a run tests some of them, see `knobs`, and its summary lists who noticed each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cleaning import mutants, mutated_logs
from tests.cleaning.mutants import MUTANTS
from tests.cleaning.proof.proving import verify_pairs
from tests.knobs import drawn

pytestmark = pytest.mark.more

#: The number of the cleaner that is no mutant.
AS_IT_IS = -1
_ROOT = Path(__file__).parents[2]
_AT_ONCE, _SECONDS_MAX = 2, 300


@dataclass
class Outcome:
    """Result of one mutant.

    Attributes:
        kafka: its difference to Kafka's results; empty if there is no difference.
        failed: error of its clean; empty if it succeeded.
        violations: that `verify` named, with the logs that they are in.
    """

    kafka: str
    failed: str
    violations: list[str]

    @property
    def verify(self) -> str:
        kinds = list(dict.fromkeys(one.partition(" ")[0] for one in self.violations))
        return ", ".join([*kinds, "the clean fails"] if self.failed else kinds)

    @property
    def noticed(self) -> bool:
        return bool(self.kafka or self.verify)


def run(number: int, logs: Path, folder: Path) -> dict[str, Any]:
    """Let a mutant work, by its number."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cleaning.mutated", str(number), str(logs), str(folder)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{number}: {done.stderr}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def outcomes_of_some(spark: SparkSession, folder: Path) -> dict[int, Outcome]:
    """The results of the mutants, by their number; `verify` judges them all in one run."""
    logs = folder / "logs"
    mutated_logs.write(logs)
    numbers = [AS_IT_IS, *drawn(range(len(MUTANTS)))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = dict(zip(numbers, pool.map(lambda n: run(n, logs, folder / str(n)), numbers), strict=True))
    pairs = {(n, key): one for n in numbers for key, one in mutated_logs.pairs(logs, folder / str(n) / "logs").items()}
    # Many mutants leave most logs as the cleaner does.
    states = {(n, key): (key, mutated_logs.digest(Path(one.after.path))) for (n, key), one in pairs.items()}
    different = {state: pairs[at] for at, state in states.items()}
    verdicts = dict(zip(different, verify_pairs(list(different.values())), strict=True))
    found = {n: Outcome(told[n]["kafka"], told[n]["failed"], []) for n in numbers}
    for (n, key), state in states.items():
        found[n].violations += [f"{kind} ({key})" for kind in verdicts[state].totals]
    return found


def table(outcomes: Mapping[int, Outcome]) -> list[str]:
    """Per mutant: the rule, and who noticed."""
    found = {MUTANTS[number]: one for number, one in outcomes.items()}
    counts = (sum(bool(getattr(one, by)) for one in found.values()) for by in ("noticed", "kafka", "verify"))
    both, kafka, verify = counts
    lines = [f"mutants: {both} of {len(found)} noticed, {kafka} by Kafka's results, {verify} by verify"]
    for mutant, one in found.items():
        where = f"{mutant.module.rpartition('.')[2]}: {mutant.rule}"
        lines.append(f"  {where:<76}{one.kafka.partition(':')[0] or '-':<27}{one.verify or '-'}")
    return lines


def test_the_table_is_of_the_sources_as_they_are() -> None:
    for one in MUTANTS:
        assert one.times == 1, f"{one.source} has {one.text!r} {one.times} times: write the mutant anew"
    assert len({one.rule for one in MUTANTS}) == len(MUTANTS) >= 25


@pytest.mark.slow
def test_every_broken_rule_is_detected_and_the_intact_cleaner_passes(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    outcomes = outcomes_of_some(spark, tmp_path)
    as_it_is = outcomes.pop(AS_IT_IS)
    record_property(mutants.PROPERTY, json.dumps(table(outcomes)))
    assert [MUTANTS[number].rule for number, one in outcomes.items() if not one.noticed] == []
    assert as_it_is == Outcome("", "", [])
