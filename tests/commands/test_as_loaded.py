"""`plan`, `why` and `get` announce the segments that `clean` and a broker's first retention run delete.

Each situation is a small log whose files were changed while no broker ran on it. The marked test runs Kafka's own
classes to find the deleted segments; the other holds all our commands to the same table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.commands.why.next_step import StepKind
from cordwood.common.types import TopicPartition
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import checkpoints, time_index
from cordwood.storage.formats.filenames import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    FileKind,
    offset_name,
)
from tests.kafka_tools import Line, Oracle

pytestmark = pytest.mark.more

NOW = 1_780_000_000_000
DAY = 86_400_000
OLD, OLDER = NOW - 2 * DAY, NOW - 30 * DAY
#: The time of each batch, per segment; a batch has five records.
Times = tuple[tuple[int, ...], ...]
AGED: Times = ((OLDER, OLDER), (OLD, OLD), (NOW, NOW))
YOUNG: Times = ((NOW, NOW), (NOW, NOW), (NOW, NOW))
SEGMENT = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
LOG, INDEX, TIMES = (offset_name(0, kind) for kind in SEGMENT)
#: A change to a file, as in a script of the oracle.
Change = dict[str, Any]


def delete(*names: str) -> list[Change]:
    return [{"do": "delete", "path": name} for name in names]


def copy(source: str, target: str) -> list[Change]:
    return [{"do": "copy", "path": source, "to": target}]


def modified(ms: int) -> list[Change]:
    return [{"do": "mtime", "path": LOG, "ms": ms}]


def write(name: str, hex_bytes: str, position: int = -1) -> list[Change]:
    return [{"do": "write", "path": name, "hex": hex_bytes, "position": position}]


@dataclass(frozen=True)
class Situation:
    """A log, and the segments deleted at the first retention run with `retention.ms` of a day.

    Attributes:
        gone: base offsets of deleted segments.
        recovery_point: after a crash; None after a clean shutdown.
        start: its log start offset in the checkpoint.
        config: the topic's configs that differ from `CONFIG`.
    """

    gone: tuple[int, ...]
    changes: tuple[Change, ...] = ()
    times: Times = AGED
    recovery_point: int | None = None
    start: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


def of(gone: tuple[int, ...], *changes: list[Change], times: Times = AGED, **choice: Any) -> Situation:
    return Situation(gone, tuple(change for some in changes for change in some), times, **choice)


ZEROS = "00" * 24
CONFIG = {"cleanup.policy": "delete", "retention.ms": str(DAY)}
SITUATIONS: Mapping[str, Situation] = {
    "untouched": of((0, 10)),
    "no-indexes": of((0, 10), delete(INDEX, TIMES), modified(NOW)),
    "no-indexes-young": of((), delete(INDEX, TIMES), modified(OLDER), times=YOUNG),
    "no-offset-index": of((0, 10), delete(INDEX), write(TIMES, "7f" * 8, 0), modified(NOW)),
    "no-time-index": of((), delete(TIMES), modified(NOW)),
    "no-time-index-old-file": of((0,), delete(TIMES), modified(OLDER), times=YOUNG),
    "empty-time-index": of((), [{"do": "truncate", "path": TIMES, "size": 0}], modified(NOW)),
    "cut-time-index": of((), [{"do": "truncate", "path": TIMES, "size": 11}], modified(NOW)),
    "zero-tail": of((0,), write(TIMES, ZEROS), modified(NOW), times=YOUNG),
    "last-time-in-the-future": of((), write(TIMES, "7f" * 8, 0), modified(OLDER)),
    "last-time-negative": of((0, 10), write(TIMES, "ff" * 8, 0), modified(OLDER)),
    "empty-offset-index": of((0, 10), [{"do": "truncate", "path": INDEX, "size": 0}], modified(NOW)),
    "aborted-below-its-base": of(
        (0, 10),
        write(TIMES, "7f" * 8, 0),
        write(offset_name(0, FileKind.TRANSACTION_INDEX), f"0000{7:016x}{'ff' * 8}{'ff' * 8}{0:016x}", 0),
        modified(NOW),
    ),
    "deleted-leftover": of((10,), [{"do": "rename", "path": LOG, "to": f"{LOG}.deleted"}]),
    "cleaned-leftover": of((0, 10), [{"do": "copy", "path": LOG, "to": f"{LOG}.cleaned"}]),
    "swap-leftover": of((0, 10), [{"do": "rename", "path": one, "to": f"{one}.swap"} for one in (LOG, INDEX, TIMES)]),
    "start-in-the-second": of((0,), times=YOUNG, start=10),
    "empty-active": of((0, 10), times=((OLDER, OLDER), (OLD, OLD), ())),
    "one-segment": of((0,), times=((OLDER, OLD),)),
    "younger-in-front": of((), times=((NOW, OLD), (OLD, OLD), (NOW,))),
    "next-year-in-the-second": of((0,), times=((OLD, OLD), (OLD, NOW + 365 * DAY), (OLD, OLD), (NOW,))),
    "crash": of((0, 10), write(offset_name(20, FileKind.LOG), "00" * 7), recovery_point=20),
    "crash-rebuilds-times": of((), write(TIMES, ZEROS), times=YOUNG, recovery_point=0),
    "crash-behind-zero-tail": of((0,), write(TIMES, ZEROS), times=YOUNG, recovery_point=20),
    "crash-cuts-all-of-the-second": of((0,), write(offset_name(10, FileKind.LOG), "ff", 65), recovery_point=0),
    "crash-cuts": of((0, 10), write(offset_name(10, FileKind.LOG), "ff", 300), recovery_point=0),
    "index-of-the-active-segment": of((), copy(offset_name(20, FileKind.TIME_INDEX), TIMES)),
    "time-index-beyond-the-segment": of((0,), write(TIMES, f"{OLDER:016x}00ffffff", 0), times=YOUNG),
    "bytes-exact": of((0,), times=YOUNG, config={"retention.bytes": "600"}),
    "bytes-zero": of((0, 10, 20), times=YOUNG, config={"retention.bytes": "0"}),
    "bytes-and-years-ahead": of(
        (0,), times=((OLDER, NOW + DAY), (OLDER, NOW + 365 * DAY), (NOW,)), config={"retention.bytes": "500"}
    ),
    "no-milliseconds": of((), times=YOUNG, config={"retention.ms": "0"}),
    "no-policy": of((), config={"cleanup.policy": ""}),
    "no-times-old-file": of((0,), modified(OLDER), times=((-1, -1), (NOW, NOW), (NOW,))),
    "microseconds": of((), modified(OLDER), times=((NOW * 1000, NOW * 1000), (OLDER, OLDER), (NOW,))),
    "empty-files-in-front": of((), *([{"do": "truncate", "path": one, "size": 0}] for one in (LOG, INDEX, TIMES))),
    "no-time-index-in-the-middle": of((0,), delete(offset_name(10, FileKind.TIME_INDEX))),
    "gone-in-the-middle": of((0,), delete(*(offset_name(10, kind) for kind in SEGMENT))),
    "all-old": of((0, 10, 20), times=((OLDER, OLDER), (OLD, OLD), (OLD, OLD))),
    "a-day-to-the-millisecond": of((), times=((NOW - DAY, NOW - DAY), (NOW, NOW), (NOW,))),
    "crash-without-times": of((), delete(TIMES), modified(NOW), recovery_point=20),
}


def segments(one: Situation) -> Iterator[tuple[int, list[list[Record]]]]:
    """The base offset and the batches of each segment; all records of a segment have one key."""
    offset = 0
    for times in one.times:
        base, key = offset, b"k%d" % offset
        batches = []
        for time in times:
            batches.append([Record(offset + at, time, key, b"v" * 20) for at in range(5)])
            offset += 5
        yield base, batches


def make(path: Path, one: Situation) -> None:
    """Write the log as a broker leaves it, then change its files."""
    path.mkdir(parents=True)
    for base, batches in segments(one):
        newest = max((record for batch in batches for record in batch), key=lambda r: r.timestamp, default=None)
        last = None if newest is None else newest.offset // 5 * 5 + 4
        entry = b"" if newest is None or last is None or newest.timestamp < 0 else _entry(newest.timestamp, last, base)
        (path / offset_name(base, FileKind.LOG)).write_bytes(b"".join(map(encode_batch, batches)))
        (path / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(b"")
        (path / offset_name(base, FileKind.TIME_INDEX)).write_bytes(entry)
        os.utime(path / offset_name(base, FileKind.LOG), (NOW / 1000, NOW / 1000))
    for change in one.changes:
        _change(path, **change)


def _entry(timestamp: int, offset: int, base: int) -> bytes:
    index = time_index.decode(timestamp.to_bytes(8, "big") + (offset - base).to_bytes(4, "big"), base)
    return time_index.encode(index)


def _change(folder: Path, *, do: str, path: str, **more: Any) -> None:
    file = folder / path
    match do:
        case "delete":
            file.unlink()
        case "mtime":
            os.utime(file, (more["ms"] / 1000, more["ms"] / 1000))
        case "truncate":
            os.truncate(file, more["size"])
        case "rename":
            file.rename(folder / more["to"])
        case "copy":
            (folder / more["to"]).write_bytes(file.read_bytes())
        case "write":
            data, position = bytearray(file.read_bytes() if file.exists() else b""), more["position"]
            position = len(data) if position < 0 else position
            new = bytes.fromhex(more["hex"])
            data[position : position + len(new)] = new
            file.write_bytes(data)


def make_directories(root: Path) -> list[Path]:
    """Write a log directory for partitions that were shut down cleanly, and one per recovery point for crashed ones."""
    for name, one in SITUATIONS.items():
        folder = root / ("stopped" if one.recovery_point is None else f"crashed-{one.recovery_point}")
        make(folder / f"{name}-0", one)
    for folder in root.iterdir():
        names = [TopicPartition(path.name[:-2], 0) for path in folder.iterdir()]
        starts = {name: SITUATIONS[name.topic].start for name in names if SITUATIONS[name.topic].start}
        (folder / LOG_START_OFFSETS).write_bytes(checkpoints.encode(starts))
        if folder.name != "stopped":
            (folder / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
            point = int(folder.name.partition("-")[2])
            (folder / RECOVERY_POINTS).write_bytes(checkpoints.encode(dict.fromkeys(names, point)))
            (folder / HIGH_WATERMARKS).write_bytes(checkpoints.encode(dict.fromkeys(names, 1000)))
    return sorted(root.iterdir())


def test_what_is_announced_of_retention_is_what_a_clean_does(tmp_path: Path) -> None:
    overrides = [f"{name}={value}" for name, value in CONFIG.items()]
    for directory in make_directories(tmp_path / "logs"):
        topics = [topic for topic in SITUATIONS if (directory / f"{topic}-0").exists()]
        own = [f"{topic}:{name}={value}" for topic in topics for name, value in SITUATIONS[topic].config.items()]
        given: Any = {"overrides": [*overrides, *own], "now_ms": NOW}
        plan = cordwood.plan(str(directory), retention=True, **given)
        target = tmp_path / f"{directory.name}-clean"
        result = cordwood.clean(str(directory), output=str(target), retention=True, engine="here", **given)
        cleaned = {one.name: one for one in result.partitions}
        causes = {one.name: one for one in cordwood.why(str(directory), **given).partitions}
        found = cordwood.get(str(directory), keys=[f"k{base}" for base in (0, 10, 20, 30)], **given)
        for one in plan.partitions:
            topic = one.name[:-2]
            assert one.retained_away == SITUATIONS[topic].gone, (topic, one.notes)
            assert cleaned[one.name].segments_retained_away == len(SITUATIONS[topic].gone), topic
            left = {int(path.name[:20]) for path in (target / one.name).glob("*.log")}
            assert not left & set(SITUATIONS[topic].gone) or topic == "one-segment", topic
            due = sum(
                c.bytes_max for c in causes[one.name].causes if c.kind in ("retention due", "below the log start")
            )
            assert due == one.bytes_retained_away, topic
        for record in found.records:
            topic, step = record.topic_partition.topic, record.next_step
            goes_now = (
                step.kind is StepKind.RETENTION
                and step.from_ms is not None
                and (step.from_ms + 1 < NOW or "next retention run" in step.what)
            )
            if step.kind is StepKind.CUT:
                assert topic.startswith("crash-cuts") and record.record.offset >= 15 - 5 * topic.endswith("second")
            elif not SITUATIONS[topic].start:
                assert goes_now is (record.record.segment in SITUATIONS[topic].gone), (
                    topic,
                    record.record.offset,
                    step,
                )
        if directory.name == "stopped":  # after a crash it refuses to cut whole batches off the only copy
            for found_one in cordwood.clean_in_place(str(directory), retention=True, engine="here", **given).partitions:
                goes = SITUATIONS[found_one.name[:-2]].gone
                assert found_one.segments_retained_away == len(goes), (found_one.name, found_one.why)


def test_retention_after_a_clean_keeps_what_it_merged_with_a_young_segment(tmp_path: Path) -> None:
    """Kafka's cleaner threads clean first, too; then no segment is old enough."""
    times = ((OLDER, OLDER), (NOW, NOW), (NOW,))
    make(tmp_path / "logs" / "merged-0", of((), times=times))
    make(tmp_path / "logs" / "left-0", of((), times=times))
    given: Any = {"overrides": ["merged:cleanup.policy=compact,delete", "left:cleanup.policy=delete"], "now_ms": NOW}
    given["overrides"] += ["retention.ms=1000"]
    plan = cordwood.plan(str(tmp_path / "logs"), retention=True, **given)
    target = str(tmp_path / "clean")
    result = cordwood.clean(str(tmp_path / "logs"), output=target, retention=True, engine="here", **given)
    assert [(one.name, one.retained_away) for one in plan.partitions] == [("left-0", (0,)), ("merged-0", ())]
    assert [one.segments_retained_away for one in result.partitions] == [1, 0]


def test_records_that_the_next_start_cuts_off_are_not_kept(tmp_path: Path) -> None:
    make(tmp_path / "logs" / "cut-0", SITUATIONS["crash-cuts"])
    (tmp_path / "logs" / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\n")
    found = cordwood.get(str(tmp_path / "logs"), keys=["k10", "k20"], overrides=["cleanup.policy=compact"], now_ms=NOW)
    kinds = {one.record.offset: one.next_step.kind for one in found.records}
    assert (kinds[14], kinds[20], kinds[29]) == (StepKind.STAYS, StepKind.CUT, StepKind.CUT)


def script() -> Line:
    """A script for the oracle that makes the same logs, changes them while they are closed, and runs retention."""
    logs = {
        f"{name}-0": {**CONFIG, "message.timestamp.after.max.ms": str(2**62), "segment.ms": str(2**62), **one.config}
        for name, one in SITUATIONS.items()
    }
    steps: list[Line] = []
    for name, one in SITUATIONS.items():
        log = {"log": f"{name}-0"}
        for at, (_, batches) in enumerate(segments(one)):
            if at:
                steps.append({"op": "roll", **log})
            steps += (
                {"op": "append", **log, "records": [[(r.key or b"").decode(), "v" * 20, r.timestamp] for r in batch]}
                for batch in batches
            )
        steps.append({"op": "close", **log})
        for change in one.changes:
            paths: Line = {key: f"live/{name}-0/{change[key]}" for key in ("path", "to") if key in change}
            steps.append({"op": "file", **change, **paths})
        crash = {} if one.recovery_point is None else {"clean": False, "recovery_point": one.recovery_point}
        steps.append({"op": "open", **log, **crash, **({"log_start": one.start} if one.start else {})})
        steps.append({"op": "retention", **log})
        steps.append({"op": "files", **log})
    return {"why": "the log as a load makes it, and retention", "now": NOW, "logs": logs, "steps": steps}


@pytest.mark.kafka
def test_the_table_is_what_kafka_does(kafka_oracle: Oracle, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps(script()))
    lines = kafka_oracle("run", tmp_path / "script.json", tmp_path / "out")
    deleted = [line["deleted"] for line in lines if line.get("op") == "retention"]
    assert dict(zip(SITUATIONS, deleted, strict=True)) == {name: len(one.gone) for name, one in SITUATIONS.items()}
