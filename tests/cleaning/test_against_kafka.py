"""Every clean that Kafka does, done by us from the same files: the same files come out.

CORDWOOD_KAFKA_ROUNDS says how many random logs and random scripts are made; default 60.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cleaning.against_kafka import (
    Comparison,
    Round,
    compare_round,
    compare_rounds,
    fuzz_scripts,
    with_snapshots,
)
from tests.kafka_tools import FOLDER, Oracle, Word

ROUNDS = int(os.environ.get("CORDWOOD_KAFKA_ROUNDS", "60"))
PROFILES = [
    "plain",
    "compressed",
    "transactional",
    "tombstones",
    "headers",
    "gaps",
    "tiny-batches",
    "huge-records",
    "legacy",
    "everything",
]
#: The first seed of both.
FIRST = int(os.environ.get("CORDWOOD_KAFKA_SEED", "0"))
NOW = 1_700_000_100_000
#: Scripts per process of the oracle; their files are removed after each.
SLICE = 10

Script = dict[str, Any]


def run_scripts(oracle: Oracle, scripts: Iterable[tuple[str, Script]], work: Path) -> Comparison:
    result = Comparison()
    left = list(scripts)
    while left:
        now, left = left[:SLICE], left[SLICE:]
        for name, script in now:
            (work / f"{name}.json").write_text(json.dumps(with_snapshots(script)))
        answers = oracle.batch([("run", work / f"{name}.json", work / name) for name, _ in now], exits=(0, 1))
        for (name, script), lines in zip(now, answers, strict=True):
            compare_rounds(name, script, lines, work / name, work / "ours", result)
            shutil.rmtree(work / name, ignore_errors=True)
    print(dict(result.seen))
    return result


def test_every_clean_of_the_scenarios_comes_out_as_kafkas(kafka_oracle: Oracle, tmp_path: Path) -> None:
    scripts = [(path.stem, json.loads(path.read_text())) for path in sorted((FOLDER / "scenarios").glob("*.json"))]
    assert len(scripts) == 80
    result = run_scripts(kafka_oracle, scripts, tmp_path)
    assert result.differences == []
    assert result.seen["cleans"] > 90


@pytest.mark.slow
def test_every_clean_of_random_scripts_comes_out_as_kafkas(kafka_oracle: Oracle, tmp_path: Path) -> None:
    scripts = fuzz_scripts(range(FIRST, FIRST + ROUNDS), steps=80)
    named = [(f"seed-{FIRST + number}", script) for number, script in enumerate(scripts)]
    result = run_scripts(kafka_oracle, named, tmp_path)
    assert result.differences == []
    assert result.seen["cleans"] > ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_random_logs_cleaned_again_and_again_stay_as_kafkas(kafka_oracle: Oracle, tmp_path: Path, profile: str) -> None:
    # The same logs three times: tombstones and markers get their horizons in one round and go in a later one.
    result = Comparison()
    seeds = [seed for seed in range(FIRST, FIRST + ROUNDS) if PROFILES[seed % len(PROFILES)] == profile]
    # A batch has to fit a segment.
    size, segment_bytes = (4_000_000, 1_500_000) if profile in ("huge-records", "everything") else (80_000, 20_000)
    shape = ("--profile", profile, "--size", str(size), "--config", f"segment.bytes={segment_bytes}")
    logs = {seed: tmp_path / str(seed) / "topic-0" for seed in seeds}
    made = kafka_oracle.batch(("generate", log.parent, "--seed", str(seed), *shape) for seed, log in logs.items())
    # Every other log beyond its last stable offset, too, where transactions are open.
    ends = {
        seed: ("--first-uncleanable", str(lines[0]["end"])) if seed // len(PROFILES) % 2 else ()
        for seed, lines in zip(logs, made, strict=True)
    }
    for now in (NOW, NOW + 500, NOW + 2000):
        for seed, log in logs.items():
            shutil.copytree(log.parent, tmp_path / f"before-{seed}")
        asked: list[tuple[Word, ...]] = [
            (
                "clean",
                log.parent,
                "--all",
                "--first-dirty",
                "0",
                "--now",
                str(now),
                *ends[seed],
                *words(config_of(seed)),
            )
            for seed, log in logs.items()
        ]
        for (seed, log), lines in zip(logs.items(), kafka_oracle.batch(asked, exits=(0, 1)), strict=True):
            before = tmp_path / f"before-{seed}" / "topic-0"
            done = [line for line in lines if line["type"] == "pass"]
            result.seen["cleans" if done else "nothing to clean, or failed"] += 1
            for line in done:
                one = Round(now - NOW, {}, line, now, now, "topic-0", config_of(seed))
                found = compare_round(one, before, log, tmp_path / "ours" / "topic-0")
                result.differences += [f"seed {seed} at {now}: {what}" for what in found]
                shutil.rmtree(tmp_path / "ours")
            shutil.rmtree(before.parent)
    print(dict(result.seen))
    assert result.differences == []
    assert len(seeds) < 2 or result.seen["cleans"]


def config_of(seed: int) -> dict[str, int]:
    """Limits that the cleans of one random log go by."""
    return {
        "delete.retention.ms": 1000,
        "segment.bytes": (20_000, 60_000, 1 << 30)[seed % 3],
        "index.interval.bytes": (4096, 300)[seed % 2],
    }


def words(config: dict[str, int]) -> list[str]:
    return [word for name, value in config.items() for word in ("--config", f"{name}={value}")]
