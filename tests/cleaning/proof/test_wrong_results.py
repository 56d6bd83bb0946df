"""Hundreds of wrong results of a clean, of many kinds: the proof rejects each of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.cleaning.proof.pairs import Pair, Side
from tests import knobs
from tests.cleaning.proof.planting import NOW, State, cleaned_example
from tests.cleaning.proof.proving import verify_pairs
from tests.cleaning.proof.wrong_results import HORIZON, wrong_results

pytestmark = pytest.mark.more

#: One in this number of runs plants an error.
EVERY = 4


@pytest.fixture(scope="module")
def cleaned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """The example, and the output of a correct clean."""
    folder = tmp_path_factory.mktemp("wrong")
    before, _ = cleaned_example(folder, spark)
    return before, State.read(folder / "after" / "t-0", 63)


def test_every_wrong_result_is_rejected(cleaned: tuple[Path, State], tmp_path: Path) -> None:
    before, state = cleaned
    every = wrong_results(state)
    kinds = Counter(wrong.kind for wrong in every)
    assert len(every) >= 300
    assert len(kinds) >= 75
    chosen = every if knobs.IS_FULL else every[knobs.SEED % EVERY :: knobs.step(EVERY)]
    pairs = []
    for number, wrong in enumerate(chosen):
        planted = state.copy()
        wrong.plant(planted)
        after = planted.write(tmp_path / str(number) / "t-0")
        pairs.append(Pair(None, Side(str(before), 0), Side(str(after), 0), now_ms=NOW, new_horizon_ms=HORIZON))
    verdicts = verify_pairs(pairs)
    missed = [str(wrong) for wrong, verdict in zip(chosen, verdicts, strict=True) if verdict.holds]
    assert not missed, "; ".join(missed)
    print(f"wrong results: {len(chosen)} of {len(every)}, of {len(kinds)} kinds, rejected")
