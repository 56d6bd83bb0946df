"""A run of the tests is a function of the commit unless a variable requests fresh data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

from tests import knobs

ROOT = Path(__file__).parents[1]


def told(expression: str, **environment: str) -> object:
    """The value of an expression over `knobs` in a process with these variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CORDWOOD_")}
    code = f"import json; from tests import knobs; print(json.dumps({expression}))"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


@pytest.mark.parametrize("environment", [{}, {"CORDWOOD_SEED": ""}])
def test_without_a_seed_it_is_the_fixed_one(environment: dict[str, str]) -> None:
    assert told("[knobs.SEED, knobs.IS_FRESH]", **environment) == [knobs.FIXED_SEED, False]


def test_seed_now_is_the_time_in_all_processes_of_a_run() -> None:
    before = int(time.time())
    answer = told("[knobs.SEED, knobs.IS_FRESH, int(__import__('os').environ['CORDWOOD_SEED'])]", CORDWOOD_SEED="now")
    assert isinstance(answer, list)
    seed, fresh, inherited = answer
    assert fresh
    assert before <= seed == inherited <= time.time()


def test_a_given_seed_repeats_a_fresh_run() -> None:
    assert told("[knobs.SEED, knobs.IS_FRESH]", CORDWOOD_SEED="17") == [17, True]


def test_effort_multiplies_counts_up_to_the_full_one() -> None:
    counts = "[knobs.scaled(4, 200), knobs.step(48), len(knobs.drawn(range(48)))]"
    assert told(counts) == [4, 48, 2]
    assert told(counts, CORDWOOD_EFFORT="4") == [16, 12, 8]
    assert told(counts, CORDWOOD_EFFORT="1000") == [200, 1, 48]
    assert told(counts, CORDWOOD_EFFORT="full") == [200, 1, 48]
    assert told(counts, CORDWOOD_EFFORT="0.01") == [1, 4800, 1]


@pytest.mark.more
def test_each_slow_test_has_one_turn() -> None:
    turns = "[name for name in map(str, range(99)) if knobs.has_its_turn(name)]"
    taken = [name for turn in range(8) for name in told(turns, CORDWOOD_TURN=f"{turn}/8")]  # type: ignore[attr-defined]
    assert sorted(taken, key=int) == list(map(str, range(99))) == told(turns)


def test_hypothesis_draws_by_the_source_or_by_the_seed(request: pytest.FixtureRequest) -> None:
    assert settings.default is not None
    assert settings.default.derandomize is not knobs.IS_FRESH
    assert (request.config.getoption("--hypothesis-seed") == str(knobs.SEED)) is knobs.IS_FRESH


@pytest.mark.parametrize("count", [1, 7, 8, 12, 13, 40])
def test_every_run_takes_some_of_a_list_and_all_runs_together_take_all(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = set()
    for seed in range(24 * count):
        monkeypatch.setattr(knobs, "SEED", seed)
        found = knobs.drawn(range(count))
        assert found
        taken.update(found)
    assert taken == set(range(count))
