"""Kafka's scenarios. `PARTLY` and `NOT_AT_ALL` list the scenarios that are not replayed to their end, and why."""

from __future__ import annotations

import json

from tests.cleaning.replay import Replay
from tests.kafka_tools import FOLDER, Line

SCENARIOS = {path.stem: path for path in sorted((FOLDER / "scenarios").glob("*.json"))}
STATES = "which states of a log the cleaner of a live engine allows to follow which"
TRUNCATION = "what truncation leaves"
#: Replayed up to the step that is about something else.
PARTLY = {
    "state-machine": (4, STATES),
    "truncate": (8, TRUNCATION),
    "truncate-producers": (7, TRUNCATION),
}
NOT_AT_ALL = {
    "follower-higher-epoch": "what a follower leaves out of a fetch",
    "roll-by-time": "when a broker rolls a segment by its age",
}


def replay(name: str, *, in_place: bool = False) -> Replay:
    path = SCENARIOS[name]
    lines: list[Line] = [json.loads(line) for line in path.with_suffix(".expected.jsonl").read_text().splitlines()]
    return Replay(json.loads(path.read_text()), lines, in_place=in_place)
