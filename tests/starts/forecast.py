"""Compare the forecast of a broker's start by `cordwood check` with the recorded start of a real broker.

python -m tests.starts.forecast [PART OF A NAME, …]    prints the differences, and a table by families
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cordwood.cli.partitions import check
from cordwood.common.errors import CordwoodError
from tests.starts import outcomes
from tests.starts.faults import FAULTS
from tests.starts.outcomes import Outcome

Forecast = dict[str, Any]
#: Findings about invalid bytes that a crash leaves at a log's end; a broker truncates them and loses no complete batch.
TORN = ("torn-tail", "zero-tail")
Offsets = dict[str, tuple[int, int]]


def forecast(node: Path) -> Forecast:
    """Run `cordwood check --json` on the disks. Return its `start`, with its findings of `damage` and `torn` tails."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            check([str(node / disk) for disk in ("a", "b")], as_json=True)
        except CordwoodError as error:
            # `check` refuses this node, so there is no forecast.
            return {"starts": True, "line": str(error), "events": [], "served": {}, "damage": [], "torn": []}
    lines = [json.loads(line) for line in printed.getvalue().splitlines()]
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


def main(parts: list[str]) -> None:
    """Print each fault whose forecast differs or raises alarms, with the start line of `check`; then family counts."""
    recorded, counts = outcomes.read(), {what: Counter[str]() for what in ("faults", "differ", "alarms")}
    with tempfile.TemporaryDirectory() as folder:
        for name in (name for name in recorded if any(part in name for part in parts)):
            fault, node = FAULTS[name], Path(folder) / "node"
            fault.plant(node)
            told = forecast(node)
            differ = list(disagreements(recorded[name], recorded[f"{fault.state}: nothing"], told, node))
            alarmed = alarms(recorded[name], told)
            for what, count in (("faults", True), ("differ", differ), ("alarms", alarmed)):
                counts[what][fault.family] += bool(count)
            if differ or alarmed:
                print(f"{name}\n   {told['line']}", *differ, *(f"alarm: {alarm}" for alarm in alarmed), sep="\n   ")
            node.chmod(0o755)
            shutil.rmtree(node)
    for family in counts["faults"]:
        print(f"{family:24}", *(f"{counts[what][family]:4} {what}" for what in counts))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]).split(", "))
