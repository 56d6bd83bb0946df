"""A real producer's hanging transaction: `why` names it, `abort-transaction` ends it, and the broker continues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cordwood
from tests.command import run
from tests.commands.coordinator_scene import hanging, late_batch
from tests.kafka_tools import Broker, Line

#: The broker does not verify transactions with the coordinator, as before 3.6; the cleaner runs without delay.
SETTINGS = {
    "transaction_partition_verification_enable": "false",
    "log_cleaner_backoff_ms": "200",
    "log_cleaner_enable": "true",
    "transaction_state_log_num_partitions": "2",
}
COMPACTED = {
    "cleanup.policy": "compact", "internal.segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
}  # fmt: skip


def sends(producer: str, count: int, value: str) -> list[Line]:
    """Records of five keys, in small batches."""
    lines: list[Line] = []
    for at in range(count):
        lines.append({"do": "send", "id": producer, "topic": "t", "partition": 0, "key": f"k{at % 5}", "value": value})
        if at % 10 == 9:
            lines.append({"do": "flush", "id": producer})
    return [*lines, {"do": "flush", "id": producer}]


def consumed(broker: Broker, directory: Path, isolation: str) -> tuple[list[str], int]:
    """The values that a consumer reads, and its offset afterwards."""
    answers = broker.client(directory, [{"do": "consume", "isolation": isolation, "topics": ["t"]}])
    ends = [line["end_offset"] for line in answers if "end_offset" in line]
    return [line["value"] for line in answers if "offset" in line], ends[0]


def cleaned(broker: Broker, directory: Path, wanted: int) -> None:
    """Wait until the broker's cleaner has passed an offset."""
    for _ in range(60):
        text = (directory / "cleaner-offset-checkpoint").read_text() if directory.exists() else ""
        found = re.search(r"^t 0 (\d+)$", text, re.MULTILINE)
        if found and int(found[1]) >= wanted:
            return
        broker.client(directory, [{"do": "sleep", "ms": 1000}])
    raise AssertionError(f"the cleaner did not reach {wanted}: {text}")


@pytest.mark.slow
def test_a_hanging_transaction_of_a_real_producer_is_named_ended_and_cleaned(
    kafka_broker: Broker, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    address = kafka_broker.start(directory, **SETTINGS)
    # The transaction is committed, and a late batch of it follows.
    begun: list[Line] = [
        {"do": "create_topic", "topic": "t", "partitions": 1, "config": COMPACTED},
        {"do": "producer", "id": "plain"},
        {"do": "producer", "id": "payer", "config": {"transactional.id": "payer"}},
        *sends("plain", 50, "before"),
        {"do": "begin", "id": "payer"},
        *sends("payer", 5, "paid"),
        {"do": "commit", "id": "payer"},
        {"do": "describe_transactions"},
    ]
    (told,) = [line for line in kafka_broker.client(directory, begun) if line.get("ok") == "describe_transactions"]
    (payer,) = told["transactional_ids"]
    late = late_batch("t", 0, payer["producer_id"], payer["producer_epoch"], "payer")
    kafka_broker.client(directory, [late, {"do": "producer", "id": "plain"}, *sends("plain", 200, "after")])
    assert hanging(kafka_broker, address) == [("t-0", payer["producer_id"])]
    values, stable = consumed(kafka_broker, directory, "read_committed")
    assert "after" not in values
    kafka_broker("stop", directory)

    why = next(one for one in cordwood.why(str(directory)).partitions if one.name == "t-0")
    assert why.cause.kind is cordwood.CauseKind.HANGING_TRANSACTION
    assert f"of payer (producer {payer['producer_id']}) hangs" in why.cause.what
    found = re.search(r"cordwood (abort-transaction) DIR… (.*)", why.cause.next_step)
    assert found, "it is told how to end it"
    words = [found[1], str(directory), *found[2].split(), "--yes"]
    run(*words)
    assert list(cordwood.check(str(directory))) == []

    address = kafka_broker.start(directory, **SETTINGS)
    assert hanging(kafka_broker, address) == []
    (told,) = kafka_broker.client(directory, [{"do": "describe_transactions"}])
    assert told["open"] == []
    values, end = consumed(kafka_broker, directory, "read_committed")
    assert end > stable + 200 and "after" in values and "late" not in values
    # The same producer continues, and the broker accepts its coordinator's markers.
    again: list[Line] = [
        {"do": "producer", "id": "payer", "config": {"transactional.id": "payer"}},
        {"do": "begin", "id": "payer"},
        *sends("payer", 5, "again"),
        {"do": "commit", "id": "payer"},
        {"do": "producer", "id": "plain"},
        *sends("plain", 100, "last"),
    ]
    kafka_broker.client(directory, again)
    values, now = consumed(kafka_broker, directory, "read_committed")
    assert now > end + 100 and "last" in values
    cleaned(kafka_broker, directory, stable + 200)
    log = kafka_broker("logs", directory)
    complaints = [line for line in log.splitlines() if re.search(r"\b(WARN|ERROR)\b.*\bt-0\b", line)]
    assert complaints == []
    kafka_broker("stop", directory)
    assert list(cordwood.check(str(directory))) == []
