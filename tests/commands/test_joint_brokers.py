"""Three real brokers go on with replicas that were cleaned jointly, whichever of them leads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cordwood
from cordwood.cleaning.engine.results import Fate
from cordwood.common.types import system_clock
from tests.commands.coordinator_scene import STILL
from tests.kafka_tools import Broker, Line

TOPIC = "orders"
#: Brokers clean, but tombstones outlive the test.
RETENTION_MS = 600_000
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(RETENTION_MS),
}
SETTINGS = {
    **STILL,
    "log_cleaner_enable": "true",
    "log_cleaner_backoff_ms": "100",
    "auto_leader_rebalance_enable": "false",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_num_partitions": "1",
}
DELETED = ("gone-0", "gone-1", "gone-2")
BROKERS = (1, 2, 3)


def sends(producer: str, key: str, value: str | None) -> list[Line]:
    """One record to each partition, each in a batch of its own."""
    records: list[Line] = [
        {"do": "send", "id": producer, "topic": TOPIC, "partition": number, "key": key, "value": value}
        for number in range(3)
    ]
    return [*records, {"do": "flush", "id": producer}]


def history() -> list[Line]:
    """Keys that stay, keys that are deleted, and an aborted transaction that would bring one back."""
    lines: list[Line] = [
        {
            "do": "create_topic", "topic": TOPIC, "config": CONFIG,
            "assignments": {"0": [1, 2, 3], "1": [2, 3, 1], "2": [3, 1, 2]},
        },
        {"do": "producer", "id": "plain"},
        {"do": "producer", "id": "sure", "config": {"transactional.id": "sure"}},
    ]  # fmt: skip
    for turn in range(4):
        for key in (*DELETED, "stays-0", "stays-1"):
            lines += sends("plain", key, f"{key} {turn} {'x' * 80}")
    for key in DELETED:
        lines += sends("plain", key, None)
    lines += [{"do": "begin", "id": "sure"}, *sends("sure", "gone-0", "back"), {"do": "abort", "id": "sure"}]
    lines += [{"do": "begin", "id": "sure"}, *sends("sure", "stays-2", "committed"), {"do": "commit", "id": "sure"}]
    for turn in range(30):
        lines += sends("plain", f"later-{turn % 7}", f"{turn} {'y' * 80}")
    return [*lines, {"do": "sleep", "ms": 3000}]


def read(broker: Broker, directory: Path, to: Path) -> list[Line]:
    """Committed records in the order of offsets, by partition."""
    broker.client(directory, [{"do": "consume", "isolation": "read_committed", "topics": [TOPIC], "to": str(to)}])
    found = [json.loads(line) for line in to.read_text().splitlines()]
    names = ("partition", "offset", "key", "value", "timestamp")
    return [{name: one[name] for name in names} for one in found if "offset" in one]


def last_values(records: list[Line]) -> dict[tuple[int, str], str]:
    """The last value of each key in each partition."""
    found = {(one["partition"], one["key"]): one["value"] for one in records}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.slow
def test_a_deleted_key_stays_deleted_whichever_replica_leads(kafka_broker: Broker, tmp_path: Path) -> None:
    brokers = [tmp_path / f"broker-{number}" for number in BROKERS]
    kafka_broker.cluster(brokers, **SETTINGS)
    kafka_broker.client(brokers[0], history())
    before = read(kafka_broker, brokers[0], tmp_path / "before.jsonl")
    assert {key for _, key in last_values(before)}.isdisjoint(DELETED)
    assert {one["key"] for one in before}.issuperset(DELETED), "their tombstones are there"
    for directory in reversed(brokers):
        kafka_broker("stop", directory)

    now_ms = system_clock() + 2 * RETENTION_MS
    # The first clean gives tombstones that no broker has passed their delete horizon.
    removed = 0
    for clean_ms in (now_ms, now_ms + 2 * RETENTION_MS):
        result = cordwood.clean_in_place(
            *brokers, topics=[TOPIC], now_ms=clean_ms, ignore_ratio=True, first_dirty=0, engine="here"
        )
        assert len(result.with_fate(Fate.CLEANED)) == 9, result.text()
        assert len({one.counts.tombstones_expired for one in result.partitions}) == 1, "alike in all replicas"
        removed += result.counts.tombstones_expired
    assert removed == 9 * len(DELETED)
    compared = cordwood.compare(*brokers, topics=[TOPIC], engine="here")
    assert compared.agrees and not compared.sums["tombstones_on_one_side"], compared.text()

    kafka_broker.cluster(brokers, **SETTINGS)
    reads = []
    for number in BROKERS:
        lead: list[Line] = [{"do": "lead", "topic": TOPIC, "partition": one, "broker": number} for one in range(3)]
        kafka_broker.client(brokers[0], lead)
        reads.append(read(kafka_broker, brokers[0], tmp_path / f"leader-{number}.jsonl"))
    assert reads[0] == reads[1] == reads[2]
    assert last_values(reads[0]) == last_values(before)
    assert {one["key"] for one in reads[0]}.isdisjoint(DELETED), "neither values nor tombstones"
    # The brokers' own cleaners go on, and a new value counts.
    kafka_broker.client(brokers[0], [{"do": "producer", "id": "plain"}, *sends("plain", "gone-0", "new")])
    assert last_values(read(kafka_broker, brokers[0], tmp_path / "after.jsonl"))[0, "gone-0"] == "new"
