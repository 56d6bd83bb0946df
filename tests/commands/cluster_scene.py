"""Three real brokers of one cluster, stopped one by one while data arrives, and the answers of Kafka's own tools.

`python -m tests.commands.cluster_scene FOLDER` leaves their log directories in FOLDER/kafka-cluster, stopped. It made
`tests/data/cluster/`; the configs in its answers are from a later run, as all runs have the same.

    all three run    topics with two and three replicas, transactions, groups, compaction
    3 stops          its replicas end here
    1 and 2 run      more records and offsets
    2 stops
    1 runs           more records; then the questions, and it stops
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.common.types import system_clock
from tests.commands.coordinator_scene import STILL, hanging, late_batch
from tests.kafka_tools import Broker, Line

#: The name of the folder with the three log directories.
CLUSTER = "kafka-cluster"
CLUSTER_ARCHIVE = Path(__file__).parents[1] / "data" / "cluster" / f"{CLUSTER}.tar.gz"
BROKERS = (1, 2, 3)
_SETTINGS: Mapping[str, object] = {
    **STILL,
    "log_cleaner_enable": "true",
    "log_cleaner_backoff_ms": "100",
    "offsets_topic_num_partitions": "3",
    "offsets_topic_replication_factor": "3",
    "offsets_topic_segment_bytes": str(1 << 20),
    "transaction_state_log_num_partitions": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_segment_bytes": str(1 << 20),
    "transaction_partition_verification_enable": "false",
    "group_consumer_session_timeout_ms": "600000",
    "group_consumer_max_session_timeout_ms": "600000",
    "replica_lag_time_max_ms": "2000",
    "replica_fetch_wait_max_ms": "100",
    "auto_leader_rebalance_enable": "false",
}
_COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1",
}


class ClusterAnswers(NamedTuple):
    """Output of a cluster's tools, before its last broker stopped.

    Attributes:
        groups, transactions, hanging: as in `coordinator_scene.Answers`.
        partitions: leader, replicas and in-sync replicas by partition.
        replicas: size in bytes and lag in offsets, by broker and partition, just before the broker stopped.
        ends: start, last stable offset and end of each partition.
        configs: value by scope, topic or broker, and name.
        asked_ms: the time before the last broker stopped.
    """

    groups: list[Line]
    transactions: Line
    hanging: list[tuple[str, int]]
    partitions: Line
    replicas: Line
    ends: Line
    configs: Line
    asked_ms: int


def directories(folder: Path) -> list[Path]:
    """The log directories of the three brokers."""
    return [folder / CLUSTER / f"broker-{number}" for number in BROKERS]


def play(broker: Broker, folder: Path) -> ClusterAnswers:
    """Start the brokers, make records, and stop the brokers one by one; all are stopped afterwards."""
    first, second, third = directories(folder)
    broker.cluster([first, second, third], **_SETTINGS)
    broker.client(first, _begin())
    replicas = {**_quiet(broker, first, "3 ")}
    broker("stop", third)
    broker.client(first, _more("while 3 is away", commit={"orders-0": 30, "orders-1": 8}))
    replicas |= _quiet(broker, first, "2 ")
    broker("stop", second)
    broker.client(first, _more("while only 1 runs", commit={"orders-0": 41}))
    replicas |= _quiet(broker, first, "1 ")
    said = {line["ok"]: line for line in broker.client(first, _QUESTIONS) if "ok" in line}
    transactions = said["describe_transactions"]
    del transactions["ok"]
    (ends,) = [line["start_stable_end"] for line in broker.client(first, [{"do": "offsets"}]) if "ok" in line]
    answers = ClusterAnswers(
        said["describe_groups"]["groups"],
        transactions,
        hanging(broker, broker("address", first)),
        said["describe_topics"]["partitions"],
        replicas,
        ends,
        said["describe_configs"]["configs"],
        system_clock(),
    )
    broker("stop", first)
    return answers


_QUESTIONS: list[Line] = [
    {"do": "describe_groups"}, {"do": "describe_transactions"}, {"do": "describe_topics"}, {"do": "describe_configs"},
    {"do": "halt"},
]  # fmt: skip


def _quiet(broker: Broker, directory: Path, of: str) -> dict[str, Any]:
    """Sizes of a broker's replicas once its cleaner and its fetches rest."""

    def ask() -> dict[str, Any]:
        wait: list[Line] = [{"do": "sleep", "ms": 1500}, {"do": "log_dirs"}]
        (said,) = [line for line in broker.client(directory, wait) if line.get("ok") == "log_dirs"]
        return {name: facts for name, facts in said["replicas"].items() if name.startswith(of)}

    before = ask()
    while (after := ask()) != before:
        before = after
    return after


def _sends(producer: str, topic: str, partition: int, count: int, text: str = "v") -> Iterator[Line]:
    for i in range(count):
        where = {"topic": topic, "partition": partition}
        yield {"do": "send", "id": producer, **where, "key": f"k{i % 7}", "value": f"{text}{i}"}
        if i % 5 == 4:
            yield {"do": "flush", "id": producer}
    yield {"do": "flush", "id": producer}


def _begin() -> list[Line]:
    three: Mapping[str, Sequence[int]] = {"0": [1, 2, 3], "1": [2, 3, 1], "2": [3, 1, 2]}

    def member(name: str, protocol: str) -> Line:
        timeout = {"session.timeout.ms": "600000"} if protocol == "classic" else {}
        return {
            "do": "member", "id": name, "group": f"billing-{protocol}", "topics": ["orders"], "protocol": protocol,
            "config": timeout,
        }  # fmt: skip

    return [
        {"do": "create_topic", "topic": "orders", "assignments": three, "config": _COMPACTED},
        {"do": "create_topic", "topic": "payments", "assignments": {"0": [1, 3], "1": [2, 1]}, "config": {}},
        {"do": "create_topic", "topic": "plain", "assignments": {"0": [1]}, "config": {}},
        {"do": "producer", "id": "plain"},
        *(line for partition in range(3) for line in _sends("plain", "orders", partition, 60 + partition)),
        *_sends("plain", "plain", 0, 10),
        member("one", "classic"),
        member("two", "consumer"),
        {"do": "turns", "ms": 5000},
        {"do": "commit_offsets", "group": "export", "offsets": {"orders-0": 3, "orders-2": 9}},
        {"do": "producer", "id": "done", "config": {"transactional.id": "done"}},
        {"do": "begin", "id": "done"},
        *_sends("done", "payments", 0, 3),
        {"do": "commit", "id": "done"},
        {"do": "begin", "id": "done"},
        *_sends("done", "orders", 1, 4, "aborted"),
        {"do": "abort", "id": "done"},
        {
            "do": "producer", "id": "open",
            "config": {"transactional.id": "open", "transaction.timeout.ms": "2000000000"},
        },
        {"do": "begin", "id": "open"},
        *_sends("open", "payments", 1, 3),
        late_batch("payments", 0, 424242, 0, "ghost"),
        {"do": "halt"},
    ]  # fmt: skip


def _more(text: str, *, commit: Mapping[str, int]) -> list[Line]:
    return [
        {"do": "producer", "id": "plain"},
        *(line for partition in range(3) for line in _sends("plain", "orders", partition, 20, text)),
        *_sends("plain", "payments", 0, 5, text),
        {"do": "commit_offsets", "group": "export", "offsets": commit},
        {"do": "producer", "id": text, "config": {"transactional.id": text}},
        {"do": "begin", "id": text},
        *_sends(text, "orders", 2, 3, text),
        {"do": "commit", "id": text},
        {"do": "halt"},
    ]


if __name__ == "__main__":
    target = Path(sys.argv[1])
    kafka = Broker()
    try:
        print(json.dumps(play(kafka, target)._asdict(), separators=(",", ":")))
    finally:
        kafka.kill_all()
