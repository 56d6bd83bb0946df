"""Random logs of every profile, cleaned by Kafka and by us, again and again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cleaning.against_kafka import (
    ROOMY_SLOTS,
    Comparison,
    Round,
    compare_clean,
    compare_failure,
    differences,
)
from tests.cleaning.modes import by_turns
from tests.kafka_tools import PROFILES, Line, Oracle, Word

NOW = 1_700_000_100_000
LARGE = ("huge-records", "everything")
INDEX = "segment.index.bytes"


def profile_of(seed: int) -> str:
    """The profile of a random log."""
    return PROFILES[seed % len(PROFILES)]


def run_logs(oracle: Oracle, seeds: Sequence[int], work: Path) -> Comparison:
    """Compare three cleans of each log, and print the counts.

    Tombstones and markers get their horizons in one clean and are dropped in a later one.
    """
    logs = {seed: work / str(seed) / "topic-0" for seed in seeds}
    made = oracle.batch(("generate", log.parent, "--seed", str(seed), *shape_of(seed)) for seed, log in logs.items())
    # Every other log beyond its last stable offset, too, where transactions are open.
    steps: dict[int, Line] = {seed: {"op": "clean", "first_dirty": 0, "slots": slots_of(seed)} for seed in seeds}
    for (seed, step), lines in zip(steps.items(), made, strict=True):
        if seed // len(PROFILES) % 2:
            step["first_uncleanable"] = lines[0]["end"]
    result = Comparison()
    for now in (NOW, NOW + 500, NOW + 2000):
        for seed, log in logs.items():
            shutil.copytree(log.parent, work / f"before-{seed}")
        asked: list[Sequence[Word]] = [
            ("clean", log.parent, "--now", str(now), *words(seed, steps[seed])) for seed, log in logs.items()
        ]
        for (seed, log), lines in zip(logs.items(), oracle.batch(asked, exits=(0, 1)), strict=True):
            before = work / f"before-{seed}"
            found = _compare(seed, steps[seed], lines, now, before, log, work / "ours", result.seen)
            result.differences += [f"seed {seed}, {profile_of(seed)}, at {now}: {what}" for what in found]
            shutil.rmtree(before)
    print(dict(result.seen))
    return result


def _compare(
    seed: int, step: Line, lines: Sequence[Line], now: int, before: Path, after: Path, ours: Path, seen: Counter[str]
) -> list[str]:
    """Do one clean from the files before it, and compare with those after it."""
    done = next((line for line in lines if line["type"] == "pass"), None)
    failed = {} if lines else {"error": "unknown", "message": "unknown"}
    one = Round(0, step, done or failed, now, now, "topic-0", {"topic-0": config_of(seed)})
    found: list[str] = []
    if done is not None:
        seen["cleans"] += 1
        seen["cleans up to where the map is full"] += done["end_offset"] != done["first_uncleanable"]
        with by_turns(seed // 6):
            found += compare_clean(one, before / "topic-0", ours / "topic-0")
        found += differences(after, ours / "topic-0")
    else:
        seen["Kafka fails" if failed else "nothing to clean"] += 1
        if failed:
            found += compare_failure(one, before, ours)
    shutil.rmtree(ours, ignore_errors=True)
    return found


def shape_of(seed: int) -> Iterator[str]:
    """Parameters of one random log; a batch has to fit a segment."""
    size, segment_bytes = (4_000_000, 1_500_000) if profile_of(seed) in LARGE else (80_000, 20_000)
    yield from ("--profile", profile_of(seed), "--size", str(size))
    yield from ("--config", f"segment.bytes={segment_bytes}", "--config", f"{INDEX}={config_of(seed)[INDEX]}")


def config_of(seed: int) -> dict[str, int]:
    """Limits for the cleans of one random log."""
    return {
        "delete.retention.ms": 1000,
        "segment.bytes": (20_000, 60_000, 1 << 30)[seed % 3],
        "index.interval.bytes": (4096, 300)[seed % 2],
        # The generator's large logs need more.
        INDEX: 1200 if seed // 3 % 2 and profile_of(seed) not in LARGE else 10_485_760,
    }


def slots_of(seed: int) -> int:
    """How large the map is that the cleans of one random log have."""
    return (40, 200, ROOMY_SLOTS)[seed // 2 % 3]


def words(seed: int, step: Line) -> Iterator[str]:
    """Configs and limits in the oracle's form."""
    for name, value in config_of(seed).items():
        yield from ("--config", f"{name}={value}")
    for name in ("first_dirty", "first_uncleanable", "slots"):
        if name in step:
            yield from (f"--{name.replace('_', '-')}", str(step[name]))
