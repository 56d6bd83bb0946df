"""What a broker did with each fault: tests/data/starts/outcomes.jsonl, a line a fault.

An outcome holds only what differs from the same node without a fault; that one's holds what it serves:

starts    false if the broker ends by itself; `why` is the first exception in its log
offline   disks that it took offline
strays    partition directories that it set aside as strays; `gone` and `made`, other changes of their names
served    by partition what clients get: the first and the next offset, the count of records; or why there is nothing
retained  by partition the offsets behind the first retention run, if it deleted segments
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
    """Reduce an answer of Starts.java to the lasting part of it that differs from the node without a fault."""
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
        made = []  # which new logs it begins on the other disks is a matter of time
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
    """Return whether two outcomes are alike; the reason is for people, and names the first of several threads."""
    return outcome | {"why": ""} == other | {"why": ""}


def is_late(answer: Outcome) -> bool:
    """Return whether the answer shows a busy machine rather than what a broker does."""
    return str(answer.get("ends", "")).startswith("not ready") or (answer["starts"] and "served" not in answer)


def why(answer: Outcome) -> str:
    """The reason of an end: the first exception of a broker's log, without paths of this machine."""
    text = str(answer["ends"])
    if not re.search(r"Exception|Error", text):
        causes = [line for line in answer["log"] if re.match(r"[\w.$]+(Exception|Error)\b", line)]
        text = causes[0] if causes else text
    text = re.sub(r"^(exit|halt) \d+(: )?", "", text)
    text = re.sub(r"/\S*?/(?=[ab](/|\b))", "", text)
    return re.sub(r"\b([a-z_$]\w*\.)+(?=[A-Z])", "", text)[:200]


def read() -> dict[str, Outcome]:
    """Return the recorded outcomes by the name of their fault."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return {line.pop("name"): line for line in map(json.loads, lines)}


def write(outcomes: dict[str, Outcome]) -> None:
    """Record outcomes, a line each."""
    lines = (json.dumps({"name": name, **outcome}, ensure_ascii=False) for name, outcome in outcomes.items())
    FILE.write_text("".join(f"{line}\n" for line in lines))
