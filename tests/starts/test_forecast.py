"""Test that `cordwood check` forecasts the recorded behavior of a real broker for each planted fault.

`check` must report something wherever a broker does not serve the node as usual. Wherever a broker does, `check` must
not report damage, unless the damage misleads a later reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.cli.main import EXIT_DAMAGE, EXIT_OK
from tests import knobs
from tests.command import run
from tests.starts import outcomes
from tests.starts.faults import FAULTS
from tests.starts.outcomes import FALSE_ALARMS, INVISIBLE, Outcome

# ---- forecast and record ---------------------------------------------------------------------------------------------


Forecast = dict[str, Any]
#: Findings about invalid bytes that a crash leaves at a log's end; a broker truncates them and loses no complete batch.
TORN = ("torn-tail", "zero-tail")
Offsets = dict[str, tuple[int, int]]


def forecast(node: Path) -> Forecast:
    """Run `cordwood check --json` on the disks. Return its `start`, with its findings of `damage` and `torn` tails."""
    done = run("check", "--json", node / "a", node / "b", exits=None)
    if done.exit_code not in (EXIT_OK, EXIT_DAMAGE):
        # `check` refuses this node, so there is no forecast.
        return {"starts": True, "line": done.stderr, "events": [], "served": {}, "damage": [], "torn": []}
    lines = done.lines
    start: Forecast = lines[-1]["start"]
    torn = [line for line in lines if line.get("kind") in TORN]
    return start | {"damage": [line for line in lines if line.get("severity") == "damage"], "torn": torn}


def disagreements(outcome: Outcome, usual: Outcome, told: Forecast, node: Path) -> Iterator[str]:
    """Yield the differences between a forecast and an outcome; `usual` is the outcome without a fault.

    The last one may be "false good": the broker did not serve the node as usual, and `check` reported nothing.
    """
    if told["starts"] != outcome["starts"]:
        yield f"starts: {outcome['starts']}, foretold {told['starts']}"
    elif told["starts"]:
        yield from _differing("offline", outcome, {Path(p).name for p in _paths(told, "directory offline")})
        yield from _differing("strays", outcome, {_in_node(p, node) for p in _paths(told, "stray")})
        yield from _differing("cleaner", outcome, {"dead"} if _paths(told, "cleaner ends") else set())
        yield from _differing(
            "retained", outcome, {_partition(e) for e in told["events"] if e["what"] == "segment deleted"}
        )
        real, ours = _served(usual["served"] | outcome.get("served", {})), _foretold(told)
        for name in sorted(real.keys() | ours.keys()):
            if real.get(name) != ours.get(name):
                yield f"{name}: {_text(real.get(name))}, foretold {_text(ours.get(name))}"
    seen = {key: value for key, value in outcome.items() if key not in ("gone", "made")}
    if seen not in ({"starts": True}, usual) and not (told["events"] or told["damage"] or told["torn"]):
        yield "false good"


def alarms(outcome: Outcome, told: Forecast) -> list[str]:
    """Return foretold events and damage findings if a broker served everything as before; otherwise nothing."""
    if outcome != {"starts": True}:
        return []
    events = [f"{event['what']}: {event['why']}" for event in told["events"]]
    return events + [f"{finding['kind']}: {finding['what']}" for finding in told["damage"]]


def _paths(told: Forecast, what: str) -> list[str]:
    return [event["path"] for event in told["events"] if event["what"] == what]


def _in_node(path: str, node: Path) -> str:
    """Return disk and partition of a path, such as `a/orders-0`. A `-future` directory counts as its partition."""
    return re.sub(r"\.[0-9a-f]{32}-future$", "", "/".join(Path(path).relative_to(node).parts[:2]))


def _partition(event: dict[str, Any]) -> str:
    return f"{event['topic']}-{event['partition']}"


def _differing(what: str, outcome: Outcome, told: set[str]) -> Iterator[str]:
    real = {outcome[what]} if isinstance(outcome.get(what), str) else set(outcome.get(what, ()))
    if real != told:
        yield f"{what}: {sorted(real)}, foretold {sorted(told)}"


def _served(served: dict[str, Any]) -> Offsets:
    return {name: (read["start"], read["end"]) for name, read in served.items() if not isinstance(read, str)}


def _foretold(told: Forecast) -> Offsets:
    served = told["served"]
    return {name: (at["log_start_offset"], at["log_end_offset"]) for name, at in served.items()}


def _text(offsets: tuple[int, int] | None) -> str:
    return f"{offsets[0]} to {offsets[1]}" if offsets else "not served"


pytestmark = pytest.mark.more

#: A test run checks one of this many faults.
EVERY = 16
RECORDED = outcomes.read()
CHOSEN = list(RECORDED)[knobs.SEED % EVERY :: knobs.step(EVERY)]
#: Damage that neither a start nor a consumer from the first offset notices, by kind; the value is who is affected.
MEETS_LATER = {
    "batch-crc": "a node that reads the metadata log without its newest snapshot",
    "batch-leader-epoch": "a follower, which truncates by leader epochs",
    "checkpoint-beyond-end": "whoever misses the records that were there once",
    "index-missing": "a consumer that looks up a time, and retention",
    "index-padded": "a consumer that seeks an offset or a time, and retention",
    "index-size": "a consumer of committed records: the next entry is misplaced",
    "index-without-log": "whoever misses the records of the .log that is gone",
    "leader-epochs-beyond-end": "a follower, which truncates by leader epochs",
    "leader-epochs-mismatch": "a follower, which truncates by leader epochs",
    "leader-epochs-missing": "a follower, which truncates by leader epochs",
    "leader-epochs-order": "a follower, which truncates by leader epochs",
    "max-timestamp": "a consumer that looks up a time, and retention",
    "not-a-batch": "a consumer of the next records, which are written behind it",
    "offset-index-order": "a consumer that seeks an offset",
    "offset-index-position": "a consumer that seeks an offset",
    "offset-below-base": "a consumer that seeks an offset between the two names",
    "segment-overlap": "a consumer that seeks an offset in the overlap",
    "snapshot-beyond-end": "whoever misses the records that were there once",
    "snapshot-entry": "a producer that goes on, whose next batch is misjudged",
    "time-index-end": "retention, which takes the last entry for the newest record",
    "time-index-order": "a consumer that looks up a time",
    "transaction-index-missing": "a consumer of committed records, who gets aborted ones",
    "transaction-index-order": "a consumer of committed records, who gets aborted ones",
    "unreadable": "a consumer that looks up a time, and retention: a time index that a start does not open",
    "zero-tail": "a consumer of the next records, which are written behind it",
}


def test_forecasts_agree_with_a_broker(tmp_path: Path) -> None:
    wrong, false_alarms = {}, {}
    for number, name in enumerate(CHOSEN):
        fault = FAULTS[name]
        node = fault.plant(tmp_path / str(number))
        told = forecast(node)
        usual = RECORDED[f"{fault.state}: nothing"]
        found = list(disagreements(RECORDED[name], usual, told, node))
        if found and not (name in INVISIBLE and found == ["false good"]):
            wrong[name] = found
        kinds = {alarm.partition(":")[0] for alarm in alarms(RECORDED[name], told)}
        if unexpected := kinds - MEETS_LATER.keys() - FALSE_ALARMS:
            false_alarms[name] = unexpected
    assert wrong == {}
    assert false_alarms == {}
