"""A run of the tests is a function of the commit unless fresh data is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

from tests import drawn

ROOT = Path(__file__).parents[1]


def run_of(**environment: str) -> tuple[int, bool]:
    """The seed of a run with these variables, and whether it is fresh."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CORDWOOD_")}
    code = "from tests import drawn; print(drawn.SEED, drawn.FRESH)"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=True
    ).stdout.split()
    return int(answer[0]), answer[1] == "True"


@pytest.mark.parametrize(
    "environment", [{}, {"CORDWOOD_FRESH": "0"}, {"CORDWOOD_FRESH": "", "CORDWOOD_KAFKA_SEED": ""}]
)
def test_seed_is_fixed_by_default(environment: dict[str, str]) -> None:
    assert run_of(**environment) == (drawn._FIXED_SEED, False)


def test_fresh_seed_is_the_time() -> None:
    before = int(time.time())
    seed, fresh = run_of(CORDWOOD_FRESH="1")
    assert fresh
    assert before <= seed <= time.time()


def test_a_given_seed_repeats_a_fresh_run() -> None:
    assert run_of(CORDWOOD_KAFKA_SEED="17") == (17, True)
    assert run_of(CORDWOOD_KAFKA_SEED="17", CORDWOOD_FRESH="1") == (17, True)


def test_hypothesis_draws_by_the_source_or_by_the_seed(request: pytest.FixtureRequest) -> None:
    assert settings.default is not None
    assert settings.default.derandomize is not drawn.FRESH
    assert (request.config.getoption("--hypothesis-seed") == str(drawn.SEED)) is drawn.FRESH


@pytest.mark.parametrize("count", [1, 7, 8, 12, 13, 40])
def test_every_run_takes_some_of_a_list_and_all_runs_together_take_all(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = set()
    for seed in range(drawn.SHARE * count):
        monkeypatch.setattr(drawn, "SEED", seed)
        found = drawn.drawn(range(count))
        assert found
        taken.update(found)
    assert taken == set(range(count))
