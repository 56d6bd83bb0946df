"""A script that Kafka's classes have done, done by the live log: where they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kafka_tools import Line
from tests.service.live_script import LiveScript, pairs


def differences(script: Mapping[str, Any], kafka: list[Line], *, compressed: bool, seen: Counter[str]) -> Iterator[str]:
    """What a script's steps do otherwise than with Kafka, up to the first.

    A clean that fails ends the comparison: Kafka's leaves the groups before swapped in, and files; ours leaves the log
    as it was.
    """
    compared = pairs(LiveScript(script).lines(), kafka, compressed=compressed)
    for step, theirs, (ours, kafkas) in zip(script["steps"], kafka, compared, strict=False):
        seen[f"{step['op']}: {theirs.get('error', 'done')}"] += 1
        if ours != kafkas:
            shown = "\n  ".join(_apart(ours, kafkas, ""))
            yield f"step {theirs['step']}, {json.dumps(step)}: {theirs.get('message', '')}\n  {shown}"
            return
        if step["op"] == "clean" and "error" in theirs:
            return


def _apart(ours: Any, kafkas: Any, where: str) -> Iterator[str]:
    """Where two values differ."""
    if isinstance(ours, dict) and isinstance(kafkas, dict):
        for key in sorted({**ours, **kafkas}):
            if ours.get(key) != kafkas.get(key):
                yield from _apart(ours.get(key), kafkas.get(key), f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(kafkas, list) and len(ours) == len(kafkas):
        for at, (one, other) in enumerate(zip(ours, kafkas, strict=True)):
            if one != other:
                yield from _apart(one, other, f"{where}[{at}]")
    else:
        yield f"{where}: ours {ours}, Kafka's {kafkas}"
