"""The measurement of a comparison of replicas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import run

pytestmark = pytest.mark.more


def test_each_part_of_the_measurement_takes_time(tmp_path: Path) -> None:
    found = json.loads(run("bench", "--replicas", "--size", "2", "--passes", "1", "--dir", tmp_path, "--json").stdout)
    assert found["log_mb"] > 2 * found["cleaned_mb"]
    assert all(found[name] > 0 for name in ("reading", "equal", "proof", "cleaned"))
    assert not list(tmp_path.iterdir())
    assert "compare them" in run("bench", "--replicas", "--size", "2", "--passes", "1", "--dir", tmp_path).stdout


def test_it_is_one_measurement_of_several() -> None:
    for words in (["--live"], ["--against-kafka"], ["--shape", "IH"]):
        assert "--replicas" in run("bench", "--replicas", *words, exits=2).stderr
