"""Every clean of Kafka's cleaner, repeated by Cordwood on the same files: the output files are equal.

A failure names its seed, so that it can be repeated.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordwood.cleaning.engine import readahead
from tests import knobs
from tests.cleaning.against_kafka import random_scripts, run_scripts
from tests.cleaning.random_logs import profile_of, run_logs
from tests.kafka_tools import FOLDER, PROFILES, Oracle

SCRIPTS = knobs.scaled(48, 2000)
LOGS = knobs.scaled(16, 300)
#: The first seed of both.
FIRST = knobs.SEED
#: Tests that share the scripts, so that several processes can have some.
SHARES = 4


def cut_windows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every other time let a segment have many windows, which are worked on side by side, as those of real logs are."""
    if seed % 2:
        monkeypatch.setattr(readahead, "WINDOW_BYTES", 3_000)
        monkeypatch.setattr(readahead, "PACKED_BYTES", 2_000)


@pytest.mark.parametrize("share", knobs.in_turns(range(SHARES), 0))
def test_every_clean_of_the_scenarios_comes_out_as_kafkas(kafka_oracle: Oracle, tmp_path: Path, share: int) -> None:
    scripts = [(path.stem, json.loads(path.read_text())) for path in sorted((FOLDER / "scenarios").glob("*.json"))]
    assert len(scripts) == 82
    result = run_scripts(kafka_oracle, scripts[share::SHARES], tmp_path)
    assert result.differences == []
    assert result.seen["cleans"] > 15


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_every_round_of_random_scripts_comes_out_as_kafkas(
    kafka_oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    cut_windows(monkeypatch, FIRST + share)
    seeds = range(FIRST + share, FIRST + SCRIPTS, SHARES)
    result = run_scripts(kafka_oracle, random_scripts(seeds), tmp_path)
    assert result.differences == []
    assert result.seen["cleans"] > len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_random_logs_cleaned_again_and_again_stay_as_kafkas(
    kafka_oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    cut_windows(monkeypatch, FIRST + PROFILES.index(profile))
    seeds = [seed for seed in range(FIRST, FIRST + LOGS) if profile_of(seed) == profile]
    result = run_logs(kafka_oracle, seeds, tmp_path)
    assert result.differences == []
    assert len(seeds) < 2 or result.seen["cleans"]
