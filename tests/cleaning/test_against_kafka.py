"""Every clean that Kafka does, done by us from the same files: the same files come out.

What fails names its seed, so that the same can be made again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cordwood.engine import readahead
from tests import knobs
from tests.cleaning.against_kafka import (
    ROOMY_SLOTS,
    Comparison,
    Round,
    compare_clean,
    compare_failure,
    differences,
    random_scripts,
    run_scripts,
)
from tests.cleaning.modes import by_turns
from tests.kafka_tools import FOLDER, PROFILES, Line, Oracle, Word

SCRIPTS = knobs.scaled(48, 2000)
LOGS = knobs.scaled(16, 300)
#: The first seed of both.
FIRST = knobs.SEED
#: Tests that share the scripts, so that several processes can have some.
SHARES = 4
NOW = 1_700_000_100_000
LARGE = ("huge-records", "everything")
INDEX = "segment.index.bytes"


def cut_windows(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Every other time let a segment have many windows, which are worked on side by side, as those of real logs are."""
    if seed % 2:
        monkeypatch.setattr(readahead, "WINDOW_BYTES", 3_000)
        monkeypatch.setattr(readahead, "PACKED_BYTES", 2_000)


def test_every_clean_of_the_scenarios_comes_out_as_kafkas(kafka_oracle: Oracle, tmp_path: Path) -> None:
    scripts = [(path.stem, json.loads(path.read_text())) for path in sorted((FOLDER / "scenarios").glob("*.json"))]
    assert len(scripts) == 82
    result = run_scripts(kafka_oracle, scripts, tmp_path)
    assert result.differences == []
    assert result.seen["cleans"] > 90


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
    # The same logs three times: tombstones and markers get their horizons in one round and go in a later one.
    result = Comparison()
    seeds = [seed for seed in range(FIRST, FIRST + LOGS) if PROFILES[seed % len(PROFILES)] == profile]
    # A batch has to fit a segment.
    size, segment_bytes = (4_000_000, 1_500_000) if profile in LARGE else (80_000, 20_000)
    shape = ("--profile", profile, "--size", str(size), "--config", f"segment.bytes={segment_bytes}")
    logs = {seed: tmp_path / str(seed) / "topic-0" for seed in seeds}
    made = kafka_oracle.batch(
        ("generate", log.parent, "--seed", str(seed), *shape, "--config", f"{INDEX}={config_of(seed)[INDEX]}")
        for seed, log in logs.items()
    )
    # Every other log beyond its last stable offset, too, where transactions are open.
    steps: dict[int, Line] = {seed: {"op": "clean", "first_dirty": 0, "slots": slots_of(seed)} for seed in seeds}
    for (seed, step), lines in zip(steps.items(), made, strict=True):
        if seed // len(PROFILES) % 2:
            step["first_uncleanable"] = lines[0]["end"]
    for now in (NOW, NOW + 500, NOW + 2000):
        for seed, log in logs.items():
            shutil.copytree(log.parent, tmp_path / f"before-{seed}")
        asked: list[Sequence[Word]] = [
            ("clean", log.parent, "--now", str(now), *words(seed, steps[seed])) for seed, log in logs.items()
        ]
        for (seed, log), lines in zip(logs.items(), kafka_oracle.batch(asked, exits=(0, 1)), strict=True):
            before, ours = tmp_path / f"before-{seed}", tmp_path / "ours"
            done = next((line for line in lines if line["type"] == "pass"), None)
            failed = {} if lines else {"error": "unknown", "message": "unknown"}
            one = Round(0, steps[seed], done or failed, now, now, "topic-0", {"topic-0": config_of(seed)})
            if done is not None:
                result.seen["cleans"] += 1
                result.seen["cleans up to where the map is full"] += done["end_offset"] != done["first_uncleanable"]
                with by_turns(seed // 6):
                    found = [*compare_clean(one, before / "topic-0", ours / "topic-0")]
                found += differences(log, ours / "topic-0")
            else:
                result.seen["Kafka fails" if failed else "nothing to clean"] += 1
                found = list(compare_failure(one, before, ours)) if failed else []
            result.differences += [f"seed {seed}, {profile}, at {now}: {what}" for what in found]
            shutil.rmtree(ours, ignore_errors=True)
            shutil.rmtree(before)
    print(dict(result.seen))
    assert result.differences == []
    assert len(seeds) < 2 or result.seen["cleans"]


def config_of(seed: int) -> dict[str, int]:
    """Limits that the cleans of one random log go by."""
    return {
        "delete.retention.ms": 1000,
        "segment.bytes": (20_000, 60_000, 1 << 30)[seed % 3],
        "index.interval.bytes": (4096, 300)[seed % 2],
        # The generator's large logs need more.
        INDEX: 1200 if seed // 3 % 2 and PROFILES[seed % len(PROFILES)] not in LARGE else 10_485_760,
    }


def slots_of(seed: int) -> int:
    """How large the map is that the cleans of one random log have."""
    return (40, 200, ROOMY_SLOTS)[seed // 2 % 3]


def words(seed: int, step: Line) -> Iterator[str]:
    """Configs and limits as the oracle takes them."""
    for name, value in config_of(seed).items():
        yield from ("--config", f"{name}={value}")
    for name in ("first_dirty", "first_uncleanable", "slots"):
        if name in step:
            yield from (f"--{name.replace('_', '-')}", str(step[name]))
