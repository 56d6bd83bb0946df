"""Kafka's own programs can be called from tests."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.kafka_tools import Broker, KafkaToolError, Oracle


def test_oracle_answers_the_same_alone_and_in_a_batch(kafka_oracle: Oracle, tmp_path: Path) -> None:
    kafka_oracle("generate", tmp_path / "logs", "--seed", "7", "--profile", "plain", "--size", "20000")
    words = ("dump", tmp_path / "logs" / "topic-0", "--values")
    alone = kafka_oracle(*words)
    assert any("values" in line or "value" in line for line in alone)
    assert kafka_oracle.batch([words, ("offset-map", "--slots", "10", "a"), words])[::2] == [alone, alone]


def test_oracle_refusing_a_command_is_an_error(kafka_oracle: Oracle) -> None:
    with pytest.raises(KafkaToolError, match="exit status 2"):
        kafka_oracle("no-such-command")
    with pytest.raises(KafkaToolError, match="exit status 2 of: oracle no-such-command"):
        kafka_oracle.batch([("offset-map", "--slots", "10", "a"), ("no-such-command",)])


def test_broker_takes_commands_and_ends_with_its_test(kafka_broker: Broker, tmp_path: Path) -> None:
    data = tmp_path / "data"
    address = kafka_broker.start(data, log_cleaner_enable="false")
    assert address.startswith("127.0.0.1:")
    # A topic exists as soon as the controller reports it, its directory when the partition accepts writes.
    commands: list[dict[str, object]] = [
        {"do": "create_topic", "topic": "t", "partitions": 1, "config": {}},
        {"do": "producer", "id": "p", "config": {}},
        {"do": "send", "id": "p", "topic": "t", "partition": 0, "value": "1"},
        {"do": "flush", "id": "p"},
    ]
    kafka_broker.client(data, commands)
    assert (data / "t-0").is_dir()
    kafka_broker.kill_all()
    with open(data / ".lock", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while a thread of the broker is left
    assert kafka_broker("status", data) == "stopped"
