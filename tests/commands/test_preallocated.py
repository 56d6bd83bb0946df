"""Logs with `preallocate`: sizes without the zeros behind the last batch, as a broker counts them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.fs.posix import PosixFileSystem
from tests.kafka_tools import Broker, Line
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

SEGMENT_BYTES = 2 << 20
DAY = 86_400_000


def test_the_zeros_of_a_preallocated_segment_are_no_bytes_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "t-0"
    make_log(log, [batch(0), batch(1)], [batch(2)], [batch(3)])
    size = sum(path.stat().st_size for path in log.glob("*.log"))
    with max(log.glob("*.log")).open("ab") as file:
        file.truncate(SEGMENT_BYTES)
    given: dict[str, Any] = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "engine": "here"}
    (listed,) = cordwood.ls(log).partitions
    exact = cordwood.plan_exact(log, **given).result
    copied = cordwood.clean(log, output=tmp_path / "copy", **given)
    (in_copy,) = cordwood.ls(tmp_path / "copy").partitions
    in_place = cordwood.clean_in_place(log, **given)
    assert listed.size_bytes == size
    for result in (exact, copied, in_place):
        (partition,) = result.partitions
        assert (partition.bytes_before, partition.bytes_after) == (size, in_copy.size_bytes)


# ---- beside a broker -------------------------------------------------------------------------------------------------


def topic(name: str, **config: object) -> Line:
    pairs = {key.replace("_", "."): str(value) for key, value in config.items()}
    config_ = {"cleanup.policy": "delete", "preallocate": "true", "internal.segment.bytes": str(SEGMENT_BYTES), **pairs}
    return {"do": "create_topic", "topic": name, "partitions": 1, "config": config_}


TOPICS: Mapping[str, Mapping[str, object]] = {
    "bytes": {"retention_ms": -1, "retention_bytes": 3_000_000},
    "times": {"retention_ms": DAY},
}


def fill(broker: Broker, directory: Path) -> None:
    """Write four segments to each topic, the active one a quarter full; half of the records of `times` are old."""
    now_ms = int(time.time() * 1000)
    commands: list[Line] = [topic(name, **config) for name, config in TOPICS.items()]
    commands.append({"do": "producer", "id": "p", "config": {"batch.size": "40000"}})
    for name in TOPICS:
        for number in range(650):
            old = 3 * DAY if name == "times" and number < 300 else 0
            where = {"topic": name, "partition": 0, "timestamp": now_ms - old}
            commands.append({"do": "send", "id": "p", **where, "key": f"k{number}", "value_random": [number, 10_000]})
    broker.client(directory, [*commands, {"do": "flush", "id": "p"}])


def sizes_told(broker: Broker, directory: Path) -> dict[str, int]:
    """The size of each partition as the broker tells it."""
    words = ("--bootstrap-server", broker("address", directory), "--describe", "--topic-list", ",".join(TOPICS))
    printed = broker("run", "org.apache.kafka.tools.LogDirsCommand", *words)
    found = re.search(r"^\{.*\}$", printed, re.MULTILINE)
    assert found is not None, printed
    (answer,) = json.loads(found[0])["brokers"]
    (disk,) = answer["logDirs"]
    return {one["partition"]: one["size"] for one in disk["partitions"]}


def listed(directory: Path) -> dict[str, int]:
    return {one.name: one.size_bytes for one in cordwood.ls(directory, topics=list(TOPICS)).partitions}


def log_sizes(directory: Path) -> dict[str, dict[int, int]]:
    """The size of each `.log` file, by the partition and the base offset."""
    return {
        f"{name}-0": {int(path.stem): path.stat().st_size for path in sorted((directory / f"{name}-0").glob("*.log"))}
        for name in TOPICS
    }


def test_sizes_and_retention_of_preallocated_logs_are_a_brokers(kafka_broker: Broker, tmp_path: Path) -> None:
    directory, killed = tmp_path / "data", tmp_path / "killed"
    never = {"log_initial_task_delay_ms": 10**9, "log_cleaner_enable": "false"}
    kafka_broker.start(directory, **never, replica_high_watermark_checkpoint_interval_ms=200)
    fill(kafka_broker, directory)
    told = sizes_told(kafka_broker, directory)
    assert listed(directory) == told
    kafka_broker("kill", directory)
    shutil.copytree(directory, killed, copy_function=PosixFileSystem().copy, ignore=shutil.ignore_patterns(".lock"))
    assert listed(killed) == told
    assert {max(sizes.items())[1] for sizes in log_sizes(killed).values()} == {SEGMENT_BYTES}

    plan = cordwood.plan(killed, topics=list(TOPICS), retention=True)
    result = cordwood.clean(killed, output=tmp_path / "copy", topics=list(TOPICS), retention=True, engine="here")
    cleaned = [one for one in result.partitions if one.name in told]
    kept = {one.name: one.bytes_before - one.bytes_retained_away for one in cleaned}
    assert {one.name: one.bytes_before for one in cleaned} == told
    assert kept == {one.name: one.bytes_after for one in cleaned} == listed(tmp_path / "copy")

    kafka_broker.start(
        directory, log_initial_task_delay_ms=0, log_retention_check_interval_ms=500, file_delete_delay_ms=0,
        log_segment_delete_delay_ms=0, log_cleaner_enable="false",
    )  # fmt: skip
    gone = {one.name: set(one.retained_away) for one in plan.partitions}
    assert all(gone.values())
    before, deadline = log_sizes(killed), time.monotonic() + 30
    left = {name: set(sizes) - gone[name] for name, sizes in before.items()}
    while {name: set(sizes) for name, sizes in log_sizes(directory).items()} != left and time.monotonic() < deadline:
        time.sleep(0.2)
    kafka_broker("stop", directory)
    # A clean stop trims the active segment: its files are as large as their batches.
    stopped = log_sizes(directory)
    assert {name: set(sizes) for name, sizes in stopped.items()} == left
    assert stopped == log_sizes(tmp_path / "copy")
    assert {name: sum(sizes.values()) for name, sizes in stopped.items()} == kept == listed(directory)
