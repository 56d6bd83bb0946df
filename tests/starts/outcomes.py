"""The recorded outcome of each fault: tests/data/starts/outcomes.jsonl, one line per fault.

An outcome contains only differences from the same node without a fault, whose own outcome is complete:

starts    false if the broker ends by itself; `why` is the first exception in its log
offline   disks that the broker took offline
strays    partition directories that the broker renamed to strays
gone      other partition directories that disappeared
made      other partition directories that are new
served    per partition, offsets and record count that a client reads, or the error
retained  per partition, offsets after the first retention run, if it deleted segments
cleaner   "dead" if a cleaner thread ended
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]

FILE = Path(__file__).parents[1] / "data" / "starts" / "outcomes.jsonl"
STRAY = re.compile(r"(?P<partition>.*)\.[0-9a-f]{32}-stray")


def outcome_of(answer: Outcome, control: Outcome | None = None) -> Outcome:
    """Reduce an answer of Starts.java to its reproducible differences from the node without a fault.

    Args:
        control: answer for the node without a fault; None if this is that node.
    """
    outcome: Outcome = {"starts": answer["starts"]}
    if not answer["starts"]:
        return outcome | {"why": why(answer)}
    if offline := [Path(path).name for path in answer.get("offline", ())]:
        outcome["offline"] = offline
    outcome |= _directories(answer)
    usual = control["served"] if control else {}
    served = {name: _read(got, usual.get(name)) for name, got in answer["served"].items() if got != usual.get(name)}
    served |= {name: "unknown topic" for name in usual if name not in answer["served"]}
    if served:
        outcome["served"] = served
    if answer["retained"]:
        outcome["retained"] = answer["retained"]
    if not answer["cleaner"]:
        outcome["cleaner"] = "dead"
    return outcome


def _directories(answer: Outcome) -> Outcome:
    moved = {match["partition"]: name for name in answer["new"] if (match := STRAY.fullmatch(name))}
    gone = [name for name in answer["gone"] if name not in moved]
    made = [name for name in answer["new"] if name not in moved.values()]
    if answer.get("offline"):
        made = []  # the set of new logs on the other disks depends on timing
    return {key: names for key, names in (("strays", sorted(moved)), ("gone", gone), ("made", made)) if names}


def _read(got: Outcome, usual: Outcome | None) -> Outcome | str:
    if "start" not in got:
        return str(got["error"])
    read = {"start": got["start"], "end": got["end"], "records": got["records"]}
    if usual and read == {name: usual[name] for name in read} and got["crc"] != usual["crc"]:
        read["other"] = True
    if "error" in got:
        read["stops_at"] = got["at"]
    return read


def agree(outcome: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are equal except for `why`, which depends on which thread fails first."""
    return outcome | {"why": ""} == other | {"why": ""}


def is_late(answer: Outcome) -> bool:
    """Return whether the answer is a timeout of a busy machine, so it is no outcome of the fault."""
    return str(answer.get("ends", "")).startswith("not ready") or (answer["starts"] and "served" not in answer)


def why(answer: Outcome) -> str:
    """Return why a broker ended: the first exception in its log, without this machine's paths and Java packages."""
    text = str(answer["ends"])
    if not re.search(r"Exception|Error", text):
        causes = [line for line in answer["log"] if re.match(r"[\w.$]+(Exception|Error)\b", line)]
        text = causes[0] if causes else text
    text = re.sub(r"^(exit|halt) \d+(: )?", "", text)
    text = re.sub(r"/\S*?/(?=[ab](/|\b))", "", text)
    return re.sub(r"\b([a-z_$]\w*\.)+(?=[A-Z])", "", text)[:200]


def read() -> dict[str, Outcome]:
    """Return the recorded outcomes by fault name."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {line.pop("name"): line for line in map(json.loads, lines)}


def write(outcomes: dict[str, Outcome]) -> None:
    """Write outcomes to the file, one line per fault."""
    lines = (json.dumps({"name": name, **outcome}, ensure_ascii=False) for name, outcome in outcomes.items())
    FILE.write_text("".join(f"{line}\n" for line in lines))


# ---- known differences -----------------------------------------------------------------------------------------------

# Faults that `check` does not yet forecast correctly. Delete a name here when its forecast is right.

#: Faults that look like the effect of DeleteRecords or of a clean: `check` forecasts their offsets, but cannot see a
#: fault.
INVISIBLE = frozenset(
    f"{state}: {what}"
    for state in ("stopped", "crashed")
    for what in ("log start at the end", "log start in the last segment", "log start of another partition's")
) | {
    # A clean that was interrupted before it wrote its checkpoint leaves the same files.
    "crashed: a compacted log's active segment missing",
    # A deletion by retention that a crash interrupted leaves the same files.
    "crashed: a .deleted first log",
    # All of it is above the recovery point and the high watermark on disk.
    "crashed: active segment missing",
}
#: Kinds of findings that `check` reports as damage although a broker serves everything as before.
FALSE_ALARMS = frozenset({"name-not-canonical"})
#: Faults whose outcome depends on timing: partitions get a leader after seconds or after half a minute. Not recorded.
RACES = frozenset(
    f"stopped: {disk}/meta.properties with{how}"
    for disk in "ab"
    for how in ("out directory.id", " another directory id")
) | {
    # Soon after its start the broker replaces the directory by its future copy, under a name with a random part.
    "stopped: a partition's copy is the future one",
    "stopped: a partition is only there as the future one on the other disk",
    # The broker takes the directory offline when a consumer reads the segment.
    "crashed: b/orders-1/45.index that is a directory",
    # The broker was not ready within a minute.
    "stopped: metadata segment 0 flipped",
}
