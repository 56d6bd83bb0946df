"""`cordwood.explain`: its predictions for a log, compared with a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import cordwood
from cordwood.common.config import DAY_MS, HOUR_MS, overrides, resolve, resolve_broker
from cordwood.common.errors import ConfigError
from cordwood.common.types import TopicPartition
from cordwood.simulation.measure import TOPIC, ConfigSet, Traffic, run_writer
from cordwood.simulation.sizing.result import Outcome
from cordwood.simulation.sizing.workload import Scale, Workload
from cordwood.simulation.world import World
from tests.command import run
from tests.fixtures import fixture
from tests.simulation.worlds import Topic

LOGS, TOPIC_THERE = fixture("kraft-before"), "codec-none"
ASKED = ["min.cleanable.dirty.ratio=0"]
DAYS, MEASURED_DAYS = 10, 6
BATCH_RECORDS, RECORD_BYTES = 4, 120


@dataclass(frozen=True)
class Case:
    """A log's workload, its configs, and other configs to explain."""

    workload: Workload
    configs: Mapping[str, str]
    other: Mapping[str, str]
    #: Largest relative error of an answer.
    off: float = 0.15


SMALL = {"internal.segment.bytes": "40000"}
COMPACT = SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}
CASES = {
    "uniform": Case(
        Workload(rate="200/h", record_size=RECORD_BYTES, keys=2000, preload=True),
        COMPACT,
        {"min.cleanable.dirty.ratio": "0.1"},
    ),
    "skewed": Case(
        Workload(rate="200/h", record_size=RECORD_BYTES, keys=3000, skew=1.0, preload=True),
        COMPACT,
        {"min.cleanable.dirty.ratio": "0.1"},
        off=0.25,
    ),
    "deleted": Case(
        Workload(rate="200/h", record_size=RECORD_BYTES),
        SMALL | {"cleanup.policy": "delete", "retention.ms": str(3 * DAY_MS)},
        {"retention.ms": str(DAY_MS)},
    ),
    "longer": Case(
        Workload(rate="200/h", record_size=RECORD_BYTES),
        SMALL | {"cleanup.policy": "delete", "retention.ms": str(2 * DAY_MS)},
        {"retention.ms": str(3 * DAY_MS)},
    ),
    "aborted": Case(
        Workload(rate="200/h", record_size=RECORD_BYTES, keys=1000, transactions=20, aborted=0.3),
        COMPACT,
        {"min.cleanable.dirty.ratio": "0.2"},
        off=0.2,
    ),
}


def traffic(case: Case) -> Traffic:
    return Topic(case.workload, case.configs, BATCH_RECORDS).traffic(3)


def so(case: Case, configs: Mapping[str, str]) -> Outcome:
    """Simulate the log's actual state in the last days."""
    layers = overrides([f"{name}={text}" for name, text in configs.items()])
    chosen = ConfigSet("so", layers, resolve(TOPIC, layers), resolve_broker(layers))
    scale = Scale(1.0, BATCH_RECORDS, RECORD_BYTES, MEASURED_DAYS * DAY_MS, HOUR_MS // 2)
    before_ms = (DAYS - MEASURED_DAYS) * DAY_MS
    return run_writer(chosen, traffic(case), scale, 3, lambda _: None, before_ms=before_ms)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_sizes_are_those_that_the_log_had_and_would_have_had(name: str) -> None:
    case = CASES[name]
    layers = overrides([f"{TOPIC}:{key}={text}" for key, text in case.configs.items()])
    with World(layers, step_ms=HOUR_MS // 2, seed=3) as world:
        world.add(TopicPartition(TOPIC, 0), traffic(case))
        world.run(DAYS * DAY_MS)
        fs, end_ms = world.fs, world.now_ms
    own = [f"{key}={text}" for key, text in case.configs.items()]
    found = cordwood.explain(
        "/logs",
        fs=fs,
        days=MEASURED_DAYS,
        now_ms=end_ms,
        overrides=own,
        against=[f"{key}={text}" for key, text in case.other.items()],
    )
    _, same, other = found.outcomes
    assert same.label == "A" and other.label == "B"
    real, would = so(case, case.configs), so(case, {**case.configs, **case.other})
    # The question is worth asking: the answer differs.
    assert abs(would.mean_bytes - real.mean_bytes) > case.off * real.mean_bytes
    for outcome, wanted in ((same, real), (other, would)):
        assert outcome.mean_bytes == pytest.approx(wanted.mean_bytes, rel=case.off)
        days, wanted_days = outcome.duration_ms / DAY_MS, wanted.duration_ms / DAY_MS
        assert outcome.appended_bytes / days == pytest.approx(wanted.appended_bytes / wanted_days, rel=case.off)
        assert outcome.cleans.count / days == pytest.approx(wanted.cleans.count / wanted_days, rel=2 * case.off, abs=1)


def test_what_happens_at_once_is_what_a_plan_says() -> None:
    found = cordwood.explain(str(LOGS), topics=[TOPIC_THERE], overrides=ASKED)
    assert list(found.at_once) == ["now", "A"]
    for label in found.at_once:
        plan = cordwood.plan(
            str(LOGS),
            topics=[TOPIC_THERE],
            overrides=ASKED if label == "A" else [],
            retention=True,
            now_ms=found.now_ms,
        )
        (partition,) = [one for one in plan.partitions if one.name == found.log.name]
        assert found.at_once[label].reason == str(partition.reason)
        assert found.at_once[label].is_cleaned is (partition.decision == "clean")
        assert found.at_once[label].deleted_bytes == partition.bytes_retained_away


def test_the_command_prints_a_table_a_document_and_a_chart(tmp_path: Path) -> None:
    arguments = [str(LOGS), "--topic", TOPIC_THERE, *(one for text in ASKED for one in ("--config", text))]
    text = run("explain", *arguments, "--svg", tmp_path / "chart.svg").output
    document = run("explain", *arguments, "--json").json
    assert [one["label"] for one in document["outcomes"]] == ["now", "A"]
    assert (
        text.startswith(f"{document['log']['topic']}-{document['log']['partition']}:")
        and "at once\n  now: a broker" in text
    )
    assert "<svg" in (tmp_path / "chart.svg").read_text()


@pytest.mark.parametrize("name", ["legacy-v0-before", "legacy-v1-before"])
def test_a_log_that_was_written_at_once_is_explained_too(name: str) -> None:
    """Messages of magic 0 have no timestamps."""
    partition = next(path for path in sorted(fixture(name).iterdir()) if path.is_dir() and path.name[:2] != "__")
    result = run("explain", partition, "--config", "cleanup.policy=compact")
    assert "disk" in result.stdout


def test_what_cannot_be_is_refused_in_a_line() -> None:
    assert "explain takes one topic at a time" in run("explain", LOGS, exits=2).output
    assert "--against needs --config" in run("explain", LOGS, "--against", "retention.ms=1", exits=2).output
    assert "--days 0" in run("explain", LOGS, "--days", "0", exits=2).output
    with pytest.raises(ConfigError):
        cordwood.explain(str(LOGS), topics=[TOPIC_THERE], overrides=["cleanup.policy=shrink"])
