"""Random log directories: each log's dirty range, the next choice and the deletable logs are those of Kafka's
classes.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import knobs
from tests.kafka_tools import Line, Oracle
from tests.live.comparing import differences

pytestmark = pytest.mark.kafka

ROOTS = knobs.scaled(60, 500)
NOW_MS = 1_700_000_000_000
SLICE = 50
Step = dict[str, Any]


def configs(chosen: random.Random) -> dict[str, str]:
    pick = chosen.choice
    found = {
        "cleanup.policy": pick(["compact", "compact", "compact", "compact,delete", "delete"]),
        "segment.bytes": pick(["200", "400", "1000", "1073741824"]),
        "min.cleanable.dirty.ratio": pick(["0.0", "0.1", "0.5", "0.9", "1.0"]),
        "min.compaction.lag.ms": pick(["0", "0", "0", "1000", "50000"]),
        "max.compaction.lag.ms": pick(["9223372036854775807", "9223372036854775807", "60000", "200000"]),
        "retention.bytes": pick(["-1", "500"]),
        "retention.ms": pick(["-1", "100000"]),
    }
    if chosen.random() < 0.25:
        found["auto_high_watermark"] = "false"
    return found


def filling(chosen: random.Random, name: str) -> list[Step]:
    """Steps that fill a log, and report its cleaned range."""
    steps: list[Step] = []
    end = 0
    for _ in range(chosen.randrange(12)):
        match chosen.randrange(10):
            case 0:
                steps.append({"op": "roll"})
            case 1:
                steps.append({"op": "advance_clock", "ms": chosen.choice([1, 900, 30_000, 100_000])})
            case 2:
                steps.append({"op": "high_watermark", "offset": chosen.randrange(end + 2)})
            case 3:
                steps.append({"op": "delete_records", "offset": chosen.randrange(end + 1), "expect_error": "maybe"})
            case 4:
                producer = {"id": 7, "epoch": 0, "seq": 0}
                step = {"op": "append", "records": [["t", "1"]], "producer": producer, "transactional": True}
                steps.append({**step, "expect_error": "maybe"})
                end += 1
            case _:
                count = chosen.choice([1, 2, 5])
                ago = chosen.choice([0, 0, 500, 40_000, 300_000])
                records = [[chosen.choice("abcdef"), "v" * chosen.randrange(60), NOW_MS - ago] for _ in range(count)]
                steps.append({"op": "append", "records": records, "expect_error": "maybe"})
                end += count
    if chosen.random() < 0.6:
        offset = chosen.randrange(end + 3)
        steps.append({"op": "manager", "call": "update_checkpoint", "offset": offset})
    if chosen.random() < 0.1:
        steps.append({"op": "manager", "call": "mark_uncleanable"})
    return [{**step, "log": name} for step in steps]


def root(seed: int) -> dict[str, Any]:
    """A script that makes a log directory, and queries the cleanable logs in it, again and again."""
    chosen = random.Random(seed)
    names = [f"{chosen.choice('tuv')}-{number}" for number in range(chosen.randrange(1, 6))]
    steps = [step for name in names for step in filling(chosen, name)]
    look: Step = {"op": "select"}
    grab: Step = {"op": "manager", "call": "grab"}
    clean: Step = {"op": "clean", "auto": True, "delete": True}
    later: Step = {"op": "advance_clock", "ms": chosen.choice([1, 100_000])}
    deletable: Step = {"op": "manager", "call": "deletable"}
    rounds = [look, *([grab, look] if chosen.random() < 0.3 else []), clean, later, look, clean, look, grab, deletable]
    return {"now": NOW_MS, "logs": {name: configs(chosen) for name in names}, "steps": [*steps, *rounds]}


def until_a_tie(lines: list[Line]) -> list[Line]:
    """The lines up to a choice between logs with equal dirty ratios: Kafka's choice depends on a hash map."""
    for at, line in enumerate(lines[1:], 1):
        if "grabbed" in line and lines[at - 1]["op"] == "select":
            ratios = sorted(one["ratio"] for one in lines[at - 1]["logs"] if one.get("ratio") is not None)
            if len(set(ratios)) < len(ratios):
                return lines[:at]
    return lines


def test_kafka_finds_the_same_logs_of_random_directories_dirty_due_and_deletable(
    kafka_oracle: Oracle, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    found = []
    for first in range(knobs.SEED, knobs.SEED + ROOTS, SLICE):
        scripts = {seed: root(seed) for seed in range(first, min(first + SLICE, knobs.SEED + ROOTS))}
        for seed, script in scripts.items():
            (tmp_path / f"{seed}.json").write_text(json.dumps(script))
        answers = kafka_oracle.batch([("run", tmp_path / f"{seed}.json", tmp_path / str(seed)) for seed in scripts])
        for (seed, script), lines in zip(scripts.items(), answers, strict=True):
            shutil.rmtree(tmp_path / str(seed))
            for what in differences(script, until_a_tie(lines), compressed=False, seen=seen):
                found.append(f"seed {seed}, {what}")
            seen["chosen"] += sum(line.get("grabbed") is not None for line in lines)
    print(dict(sorted(seen.items())))
    assert not found, "\n".join(found[:20])
    assert seen["chosen"] > ROOTS // 5 and seen["select: done"] > 2 * ROOTS
