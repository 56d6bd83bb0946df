"""`verify` proves every clean of Kafka's own cleaner; a rule that Kafka breaks would fail correct cleans of ours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cordwood.cleaning.engine.facts import clean_settings
from cordwood.cleaning.proof.pairs import Count, Pair, Side
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.view import LogView
from tests import knobs
from tests.cleaning.against_kafka import (
    Round,
    Step,
    plan_of,
    random_scripts,
    rounds,
    why_not,
    with_snapshots,
)
from tests.cleaning.proof.proving import verify_pairs
from tests.cleaning.random_logs import NOW, config_of, profile_of, shape_of, words
from tests.kafka_tools import Oracle

SCRIPTS, LOGS = knobs.scaled(24, 300), knobs.scaled(20, 300)
#: Scripts or logs whose files are there at once.
SLICE = 100


@pytest.mark.slow
def test_what_kafka_cleans_in_random_scripts_is_proved(
    spark: SparkSession, kafka_oracle: Oracle, tmp_path: Path
) -> None:
    cleans = producers = 0
    for first in range(knobs.SEED, knobs.SEED + SCRIPTS, SLICE):
        seeds = range(first, min(first + SLICE, knobs.SEED + SCRIPTS))
        folders = {seed: tmp_path / str(seed) for seed in seeds}
        scripts = {seed: script for seed, (_, script) in zip(seeds, random_scripts(seeds), strict=True)}
        for seed, script in scripts.items():
            folders[seed].with_suffix(".json").write_text(json.dumps(with_snapshots(script)))
        asked = [("run", folder.with_suffix(".json"), folder) for folder in folders.values()]
        answers = kafka_oracle.batch(asked, exits=(0, 1))
        pairs = {
            f"seed {seed}, step {number}": pair
            for (seed, folder), lines in zip(folders.items(), answers, strict=True)
            for number, pair in cleaned_pairs(list(rounds(scripts[seed], lines)), folder)
        }
        verdicts = dict(zip(pairs, verify_pairs(list(pairs.values())), strict=True))
        assert {name: verdict.violations for name, verdict in verdicts.items() if not verdict.holds} == {}
        cleans += len(pairs)
        producers += sum(verdict.counts.get(Count.PRODUCERS, 0) for verdict in verdicts.values())
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{cleans} cleans proved, {producers} times the state of a producer")
    assert cleans > SCRIPTS and producers > SCRIPTS


@pytest.mark.slow
def test_what_kafka_cleans_of_random_logs_is_proved(kafka_oracle: Oracle, tmp_path: Path) -> None:
    cleans = 0
    for first in range(knobs.SEED, knobs.SEED + LOGS, SLICE):
        seeds = range(first, min(first + SLICE, knobs.SEED + LOGS))
        logs = {seed: tmp_path / str(seed) / "topic-0" for seed in seeds}
        kafka_oracle.batch(["generate", log.parent, "--seed", str(seed), *shape_of(seed)] for seed, log in logs.items())
        for now in (NOW, NOW + 500, NOW + 2000):
            befores = {seed: tmp_path / f"before-{seed}" for seed in seeds}
            for seed, log in logs.items():
                shutil.copytree(log.parent, befores[seed])
            answers = kafka_oracle.batch(
                (
                    ["clean", log.parent, "--now", str(now), *words(seed, {"first_dirty": 0})]
                    for seed, log in logs.items()
                ),
                exits=(0, 1),
            )
            pairs = {
                f"seed {seed}, {profile_of(seed)}, at {now}": pair_of(
                    Round(0, {"op": "clean"}, line, now, now, "topic-0", {"topic-0": config_of(seed)}),
                    line,
                    befores[seed] / "topic-0",
                    logs[seed],
                )
                for seed, lines in zip(seeds, answers, strict=True)
                for line in lines
                if line["type"] == "pass"
            }
            verdicts = dict(zip(pairs, verify_pairs(list(pairs.values())), strict=True))
            assert {name: verdict.violations for name, verdict in verdicts.items() if not verdict.holds} == {}
            cleans += len(pairs)
            for before in befores.values():
                shutil.rmtree(before)
        for log in logs.values():
            shutil.rmtree(log.parent)
    print(f"{cleans} cleans of {LOGS} logs proved")
    assert cleans > LOGS


def cleaned_pairs(found: list[Round], folder: Path) -> Iterator[tuple[int, Pair]]:
    """The files before and after each clean, by the number of its step."""
    for one in found:
        before, after = (folder / f"{when}-{one.number}" for when in ("before", "after"))
        if one.step["op"] == "clean" and one.cleaned and not why_not(one, before):
            yield one.number, pair_of(one, one.line, before / one.partition, after / one.partition)


def pair_of(one: Round, line: Step, before: Path, after: Path) -> Pair:
    """The pair to prove for one clean."""
    retention_ms = clean_settings(plan_of(one, before)).delete_retention_ms
    was = LogView(str(before), fs=PosixFileSystem())
    clean = [segment.mtime_ms for segment in was.segments if segment.base_offset < line["first_dirty"]]
    return Pair(
        None,
        Side(str(before), was.log_start_offset),
        Side(str(after), LogView(str(after), fs=PosixFileSystem()).log_start_offset),
        first_uncleanable=line["first_uncleanable"],
        # A script may clean at a time that differs from its broker's clock, by which the broker expires producers.
        now_ms=max(one.now_ms, one.clock_ms),
        legacy_horizon_ms=clean[-1] - retention_ms if clean else None,
        new_horizon_ms=one.now_ms + retention_ms,
        retention=one.deleted.get(one.partition, 0) > 0,
    )
