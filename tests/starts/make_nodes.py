"""Regenerate tests/data/starts/nodes.tar.gz with a real broker: one node with two disks, in three states.

    python -m tests.starts.make_nodes      takes about two minutes

stopped   after a controlled stop; its metadata log starts at offset 0 and has snapshots
crashed   the same node after another start, killed while it ran, with batches after the recovery points
trimmed   the same node one more start later: its metadata log starts at a snapshot
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.kafka_tools import Broker
from tests.starts.nodes import ARCHIVE

Command = dict[str, Any]

#: 2026-05-28; no test has a retention that deletes records of this age.
WRITTEN_MS = 1_780_000_000_000
SMALL = {
    "internal.segment.bytes": "2500",
    "segment.index.bytes": "1200",
    "index.interval.bytes": "300",
    "retention.ms": "-1",
    "segment.ms": str(2**62),
    "file.delete.delay.ms": "0",
}
#: 31 years: only records with timestamps near 1970 are older.
OLD = {"cleanup.policy": "delete", "retention.ms": "1000000000000"}
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": str(2**62)}
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "orders": (2, OLD),
    "carts": (2, COMPACT),
    "payments": (1, {"cleanup.policy": "delete"}),
    "trimmed": (1, {"cleanup.policy": "delete"}),
    "idle": (1, {"cleanup.policy": "delete"}),
}
WRITTEN = [(topic, partition) for topic in ("orders", "carts", "trimmed") for partition in range(TOPICS[topic][0])]
SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": 600,
    "internal.metadata.log.segment.bytes": 1500,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.cleaner.backoff.ms": 200,
    "log.initial.task.delay.ms": 86_400_000,
}


def creations() -> list[Command]:
    commands: list[Command] = []
    for topic, (partitions, config) in TOPICS.items():
        commands += [
            {"do": "create_topic", "topic": topic, "partitions": partitions, "config": SMALL | config},
            {"do": "sleep", "ms": 700},
        ]
    return commands


def writes(first: int, last: int) -> list[Command]:
    """Return commands that send records `first` to `last` - 1 to each partition of `WRITTEN`, and some transactions."""
    commands: list[Command] = [{"do": "producer", "id": "p", "config": {"enable.idempotence": "true"}}]
    for number in range(first, last):
        for topic, partition in WRITTEN:
            at = {"topic": topic, "partition": partition, "timestamp": WRITTEN_MS + number * 60_000}
            value = f"{number} " + "word " * (1 + number % 7)
            commands.append({"do": "send", "id": "p", "key": f"k{number % 17}", "value": value, **at})
        if number % 3 == 2:
            commands.append({"do": "flush", "id": "p"})
    commands += [{"do": "close", "id": "p"}]
    commands += [{"do": "producer", "id": "t", "config": {"transactional.id": "till"}}]
    for number in range(first, last, 10):
        commands.append({"do": "begin", "id": "t"})
        for i in range(4):
            at = {"topic": "payments", "partition": 0, "timestamp": WRITTEN_MS + number * 60_000}
            commands.append({"do": "send", "id": "t", "key": f"k{i}", "value": f"{number} " + "coin " * i, **at})
        commands.append({"do": "abort" if number % 20 else "commit", "id": "t"})
    commands += [
        {"do": "close", "id": "t"},
        {"do": "commit_offsets", "group": "readers", "offsets": {"orders-0": last // 2, "carts-0": last // 3}},
    ]
    return commands


def make_states(folder: Path, broker: Broker) -> None:
    """Run a node three times, and copy its directories after each run, as `stopped`, `crashed` and `trimmed`."""
    node, other = folder / "node" / "a", folder / "node" / "b"

    def start(**further: object) -> None:
        settings = [word for key, value in {**SETTINGS, **further}.items() for word in ("--set", f"{key}={value}")]
        broker.start(node, "--also", other, *settings)

    def keep(name: str) -> None:
        for disk in (node, other):
            shutil.copytree(disk, folder / name / disk.name, ignore=shutil.ignore_patterns("*.deleted"))

    start()
    trim = {"do": "delete_records", "topic": "trimmed", "partition": 0, "before": 40}
    broker.client(node, [*creations(), *writes(0, 120), trim, {"do": "sleep", "ms": 4000}])
    broker("stop", node)
    keep("stopped")
    start(**{"log.initial.task.delay.ms": 86_400_000})
    broker.client(node, writes(120, 150))
    broker("kill", node)
    keep("crashed")
    start(**{"metadata.max.retention.bytes": 3000})
    deadline = time.monotonic() + 150
    first_log = node / "__cluster_metadata-0" / f"{0:020d}.log"
    while first_log.exists() and time.monotonic() < deadline:
        time.sleep(1)
    broker("stop", node)
    assert not first_log.exists(), "the metadata log was not trimmed"
    keep("trimmed")


def main() -> None:
    broker = Broker()
    with tempfile.TemporaryDirectory(prefix="nodes-") as made:
        folder = Path(made)
        try:
            make_states(folder, broker)
        finally:
            broker.kill_all()
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE, "w:gz") as tar:
            for state in ("stopped", "trimmed", "crashed"):
                tar.add(folder / state, state)


if __name__ == "__main__":
    main()
