"""The reading verbs on directories that a real broker is writing to: they never fail, report no damage, and change no
file.

The broker creates and deletes files under a reader: small segments that roll several times a second, a cleaner without
a pause, retention, deleted records, topics that are created and deleted, transactions that end either way.
"""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cordwood.cli.main import VERBS
from cordwood.fs.base import LockHolder
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.node.directory import LogDirectory
from tests.command import run
from tests.kafka_tools import Broker

ROUNDS = 30
COMMANDS = {"ls": ("--json", "--segments"), "dump": ("--json",), "check": ("--json",)}
CONFIGS = {
    "orders": {"cleanup.policy": "compact", "internal.segment.bytes": "8000", "delete.retention.ms": "1"},
    "payments": {"cleanup.policy": "compact", "internal.segment.bytes": "8000", "min.cleanable.dirty.ratio": "0"},
    "events": {"cleanup.policy": "delete", "internal.segment.bytes": "8000", "retention.bytes": "30000"},
}


def work() -> Iterator[dict[str, Any]]:
    """Commands of a client that keeps a broker busy for half a minute."""
    for topic, config in CONFIGS.items():
        yield {"do": "create_topic", "topic": topic, "partitions": 2, "config": config}
    small = {"batch.size": 2000}  # a batch must fit into a segment
    yield {"do": "producer", "id": "plain", "config": {"compression.type": "lz4", "enable.idempotence": False} | small}
    yield {"do": "producer", "id": "sure", "config": {"compression.type": "zstd"} | small}
    yield {"do": "producer", "id": "both", "config": {"transactional.id": "x"} | small}
    for number in range(ROUNDS):
        size = {"records": 400, "keys": 50, "size": 60, "tombstones": 0.05, "seed": number, "partition": number % 2}
        yield {"do": "fill", "id": "plain", "topic": "orders"} | size
        yield {"do": "fill", "id": "sure", "topic": "events"} | size
        yield {"do": "begin", "id": "both"}
        yield {"do": "fill", "id": "both", "topic": "payments"} | size
        yield {"do": "flush", "id": "both"}
        yield {"do": "sleep", "ms": 300}
        yield {"do": "abort" if number % 3 == 0 else "commit", "id": "both"}
        brief = f"brief-{number}"
        yield {"do": "create_topic", "topic": brief, "partitions": 1, "config": CONFIGS["orders"]}
        yield {"do": "fill", "id": "plain", "topic": brief} | size | {"partition": 0}
        if number >= 2:
            yield {"do": "delete_topic", "topic": f"brief-{number - 2}"}
        yield {"do": "sleep", "ms": 400}


def printed(verb: str, directory: Path) -> str:
    """Run one verb on the broker's directory; it must succeed without output on stderr."""
    done = run(verb, directory, *COMMANDS[verb])
    assert done.stderr == "", verb
    return done.stdout


def state_of(directory: Path) -> dict[str, tuple[int, int]]:
    found = sorted(directory.rglob("*"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in [directory, *found]}


def holder_of(directory: Path) -> LockHolder | None:
    return LogDirectory.open(PosixFileSystem(), str(directory)).holder


def present(verb: str) -> bool:
    return importlib.util.find_spec(VERBS[verb][0]) is not None


def test_reading_verbs_work_on_a_running_broker_and_change_nothing(kafka_broker: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kafka_broker.start(
        data,
        log_cleaner_backoff_ms=100,
        log_cleaner_min_cleanable_ratio=0,
        log_initial_task_delay_ms=200,
        log_retention_check_interval_ms=500,
        log_segment_delete_delay_ms=2000,
        log_flush_offset_checkpoint_interval_ms=1000,
    )
    pid = int(kafka_broker("status", data).split()[1])
    verbs = [verb for verb in COMMANDS if present(verb)]
    next_offsets: list[int] = []
    states: set[str] = set()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(kafka_broker.client, data, list(work()))
        while not client.done() or len(next_offsets) < 3:
            for verb in verbs:
                output = printed(verb, data)
                holder = holder_of(data)
                assert holder is not None and holder.pid == pid, f"the broker lost its lock to {verb}: {holder}"
                if verb != "ls":
                    continue
                listing = json.loads(output)
                assert [one["state"] for one in listing["directories"]] == ["live"]
                assert not [one for one in listing["partitions"] if one["damage"]]
                next_offsets.append(sum(one["log_end_offset"] for one in listing["partitions"]))
                states |= {state for one in listing["partitions"] for state in one["state"]}
        assert all(answer.get("ok") for answer in client.result())
    # During our reads the broker appended and rolled.
    assert next_offsets[-1] > next_offsets[0] and len(next_offsets) > 5
    assert "Log cleaner thread" in kafka_broker("logs", data, "--cleaner")
    assert "to be deleted" in states
    with pytest.raises(AssertionError, match=r"already|running|lock"):
        kafka_broker("start", data)

    kafka_broker("stop", data)
    before = state_of(data)
    for verb in verbs:
        printed(verb, data)
    assert state_of(data) == before
    stopped = json.loads(printed("ls", data)) if "ls" in verbs else {}
    policies = {one["topic"]: one["policy"] for one in stopped["partitions"] if one["topic"] in CONFIGS}
    assert policies == {topic: [config["cleanup.policy"]] for topic, config in CONFIGS.items()}
    assert stopped["directories"][0]["summary"] == "clean shutdown"


def test_a_killed_brokers_directory_is_crashed_not_live(kafka_broker: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kafka_broker.start(data)
    kafka_broker.client(data, list(work())[:8])
    kafka_broker("kill", data)
    # The kernel gives a killed process's locks back a little after its memory.
    deadline = time.monotonic() + 30
    while holder_of(data) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    before = state_of(data)
    listing = json.loads(printed("ls", data))
    assert listing["directories"][0]["summary"] == "no clean shutdown"
    assert {one["state"][0] for one in listing["partitions"]} == {"crashed"}
    assert state_of(data) == before
