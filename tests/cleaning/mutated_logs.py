"""Logs on disk that mutants clean, and the parameters by which `verify` judges the output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cordwood.api import clean as clean_directory
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.common.types import NONE, ControlType, TopicPartition
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.formats.leader_epochs import EpochEntry
from cordwood.storage.formats.producer_state import ProducerEntry
from tests.cleaning.proof.planting import NOW, State, data, example, marker, messages
from tests.commands.in_process import InThisProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
OVERRIDES = ("cleanup.policy=compact", "index.interval.bytes=200", "internal.segment.bytes=300")


@dataclass(frozen=True)
class Log:
    """One log.

    Attributes:
        state: the log's contents.
        high_watermark: high watermark; None for the log end.
        checkpoint: the cleaner's checkpoint.
        only_replica: no other replica exists, so tombstones and markers may be dropped.
        days_old: days since the last modification of segments, by base offset.
    """

    state: State
    high_watermark: int | None = None
    checkpoint: int = 0
    only_replica: bool = True
    days_old: dict[int, int] = field(default_factory=dict)


def _old_tombstones() -> State:
    segments = {
        0: messages(0, "a b=1 c=1"),
        10: messages(10, "d e=1"),
        20: [data(20, "b=2 f=1")],
        30: [data(30, "g=1")],
    }
    return State(segments, epochs=[EpochEntry(0, 20)], end=31)


def _open_transaction() -> State:
    segments = {
        0: [data(0, "a=1 b=1 c=1")],
        10: [data(10, "o=1", producer_id=6, producer_epoch=0, base_sequence=0, transactional=True), data(11, "a=2")],
        20: [data(20, "b=2")],
        30: [data(30, "c=2")],
    }
    producers = [ProducerEntry(6, 0, 0, 10, 0, NOW - 5000 + 10, 7, 10)]
    return State(segments, epochs=[EpochEntry(0, 0)], producers=producers, end=31)


def _producers() -> State:
    """The only traces of two producers are in a batch that keeps no record, and in an expired marker."""
    batch = data(4, "c=1 d=1 e=1")
    first, latest, last = batch.records
    records = [first, replace(latest, timestamp=NOW - 1000), last]
    segments = {
        0: [
            data(0, "a=1", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
            marker(1, 9, ControlType.COMMIT),
            marker(2, 5, ControlType.COMMIT, delete_horizon_ms=NOW - 1000),
            data(3, "a=2"),
            batch.rebuilt(records, max_timestamp=None),
            data(7, "c=2"),
        ],
        10: [data(10, "b=1")],
    }
    producers = [
        ProducerEntry(9, 0, 0, 0, 0, NOW - 5000, 7, NONE),
        ProducerEntry(5, 0, NONE, NONE, 0, NOW - 4998, 7, NONE),
    ]
    return State(segments, epochs=[EpochEntry(0, 0)], producers=producers, end=11)


def _clean_below_40() -> State:
    state = example()
    state.drop(3)  # the record that the tombstone behind it superseded
    return state


LOGS = {
    "all": Log(example()),
    "partly": Log(_clean_below_40(), checkpoint=40),
    "marked": Log(example(), high_watermark=45),
    "replicated": Log(example(), only_replica=False),
    "producers": Log(_producers()),
    "open": Log(_open_transaction()),
    "old": Log(_old_tombstones(), checkpoint=20, days_old={0: 10, 10: 1, 20: 0, 30: 0}),
}


def _folder(log: Log) -> str:
    return "only" if log.only_replica else "several"


def write(root: Path) -> None:
    """Write all logs, as a broker that was stopped leaves them."""
    for name in {_folder(log) for log in LOGS.values()}:
        folder, logs = root / name, {key: log for key, log in LOGS.items() if _folder(log) == name}
        marks, cleaned = {}, {}
        for key, log in logs.items():
            path = log.state.write(folder / f"{key}-0")
            for base, days in log.days_old.items():
                mtime = (NOW - days * DAY_MS) * 1_000_000
                os.utime(path / f"{base:020}.log", ns=(mtime, mtime))
            partition = TopicPartition(key, 0)
            marks[partition] = log.state.end if log.high_watermark is None else log.high_watermark
            cleaned[partition] = log.checkpoint
        (folder / filenames.HIGH_WATERMARKS).write_bytes(checkpoints.encode(marks))
        (folder / filenames.CLEANER_OFFSETS).write_bytes(checkpoints.encode(cleaned))
        (folder / filenames.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')


def clean(root: Path, target: Path) -> Sequence[str]:
    """Clean all logs into another folder. Returns which could not be, and why."""
    target.mkdir()
    failed = []
    for name in sorted({_folder(log) for log in LOGS.values()}):
        result = clean_directory(
            str(root / name),
            output=str(target / name),
            spark=cast("SparkSession", InThisProcess()),
            now_ms=NOW,
            overrides=OVERRIDES,
            ignore_ratio=True,
            single_copy=name == "only",
        )
        failed += [f"{one.topic_partition}: {one.why}" for one in result.with_fate(Fate.FAILED)]
    return failed


def pairs(root: Path, target: Path) -> dict[str, Pair]:
    """The pairs that `verify` compares, by the logs' names. It finds the cleanable range itself."""
    found = {}
    for key, log in LOGS.items():
        before, after = (folder / _folder(log) / f"{key}-0" for folder in (root, target))
        if not after.exists():
            continue  # the clean failed, and this is known
        clean_ms = [NOW - days * DAY_MS for base, days in log.days_old.items() if base < log.checkpoint]
        found[key] = Pair(
            TopicPartition(key, 0),
            Side(str(before), 0),
            Side(str(after), min((int(one.stem) for one in after.glob("*.log")), default=0)),
            high_watermark=log.high_watermark,
            now_ms=NOW,
            deletes_for_good=log.only_replica,
            legacy_horizon_ms=clean_ms[-1] - DAY_MS if clean_ms else None,
            new_horizon_ms=NOW + DAY_MS,
        )
    return found


def digest(folder: Path) -> str:
    """Hash of the contents of a partition's files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
