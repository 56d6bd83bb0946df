"""Kafka's scenarios, done by the live log, as far as they are about a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kafka_tools import FOLDER
from tests.live.live_script import LiveScript, pairs

pytestmark = pytest.mark.more

SCENARIOS = {path.stem: path for path in sorted((FOLDER / "scenarios").glob("*.json"))}


def _compare(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    path = SCENARIOS[name]
    script = json.loads(path.read_text())
    # A compressor's bytes depend on its library.
    compressed = any("codec" in step or "compression.type" in step.get("config", ()) for step in script["steps"])
    compressed |= any("compression.type" in config for config in script["logs"].values())
    kafka = [json.loads(line) for line in path.with_suffix(".expected.jsonl").read_text().splitlines()]
    yield from pairs(LiveScript(script).lines(), kafka, compressed=compressed)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_live_log_answers_each_step_as_kafka_does(name: str) -> None:
    for mine, theirs in _compare(name):
        assert mine == theirs
