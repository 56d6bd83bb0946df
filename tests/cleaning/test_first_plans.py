"""Plans from a few headers decide as plans from all headers do, and as Kafka's cleaner manager."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import knobs
from tests.cleaning.against_kafka import Script, random_scripts, rounds, with_snapshots
from tests.cleaning.first_plans import Choosing, LogsAtATime, copied
from tests.cleaning.random_logs import NOW, config_of, shape_of
from tests.fixtures import NAMES, TIMES, fixture
from tests.kafka_tools import FOLDER, Oracle

SCRIPTS = knobs.scaled(24, 2000)
LOGS = knobs.scaled(20, 300)
#: Scripts or logs whose files are there at once, and the states of a script that are compared.
SLICE, STATES = 50, 5


def states_of(name: str, script: Script, folder: Path, lines: Sequence[dict[str, object]]) -> Iterator[LogsAtATime]:
    """The logs before some of a script's rounds: each fourth as they are, the others varied."""
    source = random.Random(name)
    every = list(rounds(script, lines))
    for number, one in enumerate(source.sample(every, min(STATES, len(every)))):
        configs = {
            log: {key: value for key, value in config.items() if "." in key} for log, config in one.configs.items()
        }
        logs = LogsAtATime(f"{name} step {one.number}", folder / f"before-{one.number}", configs, one.clock_ms)
        if logs.root.exists() and all((logs.root / log).exists() for log in configs):
            yield logs.varied(source) if number % 4 else logs


def compare_scripts(oracle: Oracle, scripts: Sequence[tuple[str, Script]], work: Path) -> Choosing:
    found = Choosing()
    for first in range(0, len(scripts), SLICE):
        some = scripts[first : first + SLICE]
        for name, script in some:
            (work / f"{name}.json").write_text(json.dumps(with_snapshots(script)))
        answers = oracle.batch([("run", work / f"{name}.json", work / name) for name, _ in some], exits=(0, 1))
        for (name, script), lines in zip(some, answers, strict=True):
            found.compare(oracle, list(states_of(name, script, work / name, lines)))
            shutil.rmtree(work / name)
    print(dict(found.seen))
    return found


@pytest.mark.slow
def test_first_plans_of_random_scripts_choose_as_kafka(kafka_oracle: Oracle, tmp_path: Path) -> None:
    scripts = random_scripts(range(knobs.SEED, knobs.SEED + SCRIPTS))
    found = compare_scripts(kafka_oracle, scripts, tmp_path)
    assert found.differences == []
    # Their segments are so small that few are sampled; only some headers are read for transactions.
    assert found.seen["compared with Kafka"] > SCRIPTS


@pytest.mark.slow
def test_first_plans_of_the_scenarios_choose_as_kafka(kafka_oracle: Oracle, tmp_path: Path) -> None:
    paths = sorted((FOLDER / "scenarios").glob("*.json"))
    scripts = [(path.stem, json.loads(path.read_text())) for path in paths]
    found = compare_scripts(kafka_oracle, scripts if knobs.IS_FULL else knobs.drawn(scripts), tmp_path)
    assert found.differences == []


@pytest.mark.slow
def test_first_plans_of_random_logs_choose_as_kafka(kafka_oracle: Oracle, tmp_path: Path) -> None:
    found = Choosing()
    for first in range(knobs.SEED, knobs.SEED + LOGS, SLICE):
        seeds = range(first, min(first + SLICE, knobs.SEED + LOGS))
        roots = {seed: tmp_path / str(seed) for seed in seeds}
        kafka_oracle.batch(
            ["generate", root, "--seed", str(seed), *shape_of(seed), "--config", "index.interval.bytes=200"]
            for seed, root in roots.items()
        )
        for turn in range(3):
            logs = []
            for seed, root in roots.items():
                one = LogsAtATime(f"seed {seed}", tmp_path / f"{seed}-{turn}", {"topic-0": config_of(seed)}, NOW)
                shutil.copytree(root, one.root)
                logs.append(one.varied(random.Random(seed + turn)) if turn else one)
            found.compare(kafka_oracle, logs)
        for root in roots.values():
            shutil.rmtree(root)
    print(dict(found.seen))
    assert found.differences == []
    assert min(found.seen["compared with Kafka"], found.seen["segments sampled"]) > 2 * LOGS


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_first_plans_of_fixtures_choose_as_kafka(kafka_oracle: Oracle, tmp_path: Path, name: str) -> None:
    found = Choosing()
    for side in ("a", "b") if "jbod" in name else ("",):
        root = copied(fixture(name) / side, tmp_path / f"logs{side}")
        shutil.rmtree(root / "__cluster_metadata-0", ignore_errors=True)
        configs = {
            path.name: {"cleanup.policy": "compact", "min.compaction.lag.ms": at % 3 * 1000}
            for at, path in enumerate(sorted(root.glob("*-[0-9]")) + sorted(root.glob("*-[0-9][0-9]")))
            if any(path.glob("*.log"))
        }
        found.compare(kafka_oracle, [LogsAtATime(name, root, configs, TIMES[0])])
    assert found.differences == []
