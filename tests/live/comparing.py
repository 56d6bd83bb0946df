"""A script that Kafka's classes have done, done by the live log: where they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kafka_tools import Line
from tests.live.live_script import LiveScript, pairs


def differences(script: Mapping[str, Any], kafka: list[Line], *, compressed: bool, seen: Counter[str]) -> Iterator[str]:
    """Return the differences to Kafka in a script's steps, up to the first.

    A failed clean ends the comparison: Kafka's leaves files, and earlier groups swapped in; ours leaves the log
    unchanged.
    """
    compared = pairs(LiveScript(script).lines(), kafka, compressed=compressed)
    for step, theirs, (ours, kafkas) in zip(script["steps"], kafka, compared, strict=False):
        seen[f"{step['op']}: {theirs.get('error', 'done')}"] += 1
        if script.get("damaged"):
            if _are_same_refusal(step, ours, theirs):
                continue
            ours, kafkas = _of_damaged(ours, kafkas)
        if ours != kafkas:
            shown = "\n  ".join(_apart(ours, kafkas, ""))
            yield f"step {theirs['step']}, {json.dumps(step)}: {theirs.get('message', '')}\n  {shown}"
            return
        if step["op"] == "clean" and "error" in theirs:
            return


#: Java's exceptions where Kafka reads without a check.
_ACCIDENTS = ("IndexOutOfBounds", "BufferUnderflow", "NullPointer", "NegativeArraySize", "OutOfMemory", "Snappy")

#: An overlong number raises another error in some places; the codec decides the number of bytes read of a failing
# stream.
_ACCIDENTAL = ("Varint is too long", "Varlong is too long", "Failed to decompress record stream")


def _are_same_refusal(step: Mapping[str, Any], ours: Line, kafkas: Line) -> bool:
    """Whether Kafka's error of a refused append depends on internals of Java, so that ours may differ.

    It does for old formats, which only tests send to a leader, and where the message of an error about offsets lists
    unreadable records. In Kafka a dump fails at the first unreadable wrapper.
    """
    if "error" not in kafkas or ("error" not in ours and step["op"] != "dump"):
        return False
    return bool(
        step["op"] == "dump"
        or step.get("old")
        or ours["error"] in ("UnexpectedAppendOffsetException", "OffsetsOutOfOrderException")
        or kafkas["error"].startswith(_ACCIDENTS)
        or (kafkas.get("message") or "").startswith(_ACCIDENTAL)
    )


def _of_damaged(ours: Line, kafkas: Line) -> tuple[Line, Line]:
    """The comparable fields of two lines about a log with unreadable batches, or with any producer ids."""
    if "files" in ours and "files" in kafkas:
        ours, kafkas = (line | {"files": _files(line["files"])} for line in (ours, kafkas))
    if "segments" in ours and "segments" in kafkas:
        for one, other in zip(ours["segments"], kafkas["segments"], strict=False):
            for at, both in enumerate(zip(one["batches"], other["batches"], strict=False)):
                if any("unreadable" in batch for batch in both):
                    one["batches"][at], other["batches"][at] = ({"last": batch["last"]} for batch in both)
    return ours, kafkas


def _files(files: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The entries of Kafka's snapshots are in another order; an index without entries may not be made yet."""
    return {
        name: told[:1] if name.endswith(".snapshot") else told
        for name, told in files.items()
        if told[0] or not name.endswith("index")
    }


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
