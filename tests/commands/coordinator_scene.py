"""A real broker with groups of all four kinds and transactions in every state, and the output of Kafka's own tools.

`python -m tests.commands.coordinator_scene FOLDER` leaves its log directory in FOLDER/kafka-groups, stopped.

It made `src/cordwood/data/groups.tar.gz`; `tests/data/coordinators.jsonl` holds the output of the tools.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.node.groups import CommittedOffset, Group, GroupListing, GroupMember, GroupType
from cordwood.storage.node.transactions import Outlook, TransactionListing
from tests.kafka_tools import Broker, Line

#: The name of the directory.
DEMO = "kafka-groups"
#: No transaction ends, expires, or is cleaned or aborted during the test.
STILL: Mapping[str, object] = {
    "log_cleaner_enable": "false",
    "log_initial_task_delay_ms": "86400000",
    "log_retention_check_interval_ms": "86400000",
    "offsets_retention_check_interval_ms": "86400000",
    "offsets_retention_minutes": "2147483",
    "transaction_max_timeout_ms": "2147483647",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "2147483647",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "2147483647",
}
#: Batches of transactions that this scene's coordinator does not list.
_SETTINGS: Mapping[str, object] = {
    **STILL,
    "transaction_partition_verification_enable": "false",
    "group_streams_initial_rebalance_delay_ms": "0",
    "offsets_topic_num_partitions": "2",
    "transaction_state_log_num_partitions": "2",
}
_STREAMS_MEMBER = "invoices-7f3a2c51-member"


class Answers(NamedTuple):
    """Output of a broker's tools.

    Attributes:
        groups: groups as Admin describes them.
        transactions: transactional ids and producers as Admin describes them.
        hanging: partition and producer of each hanging transaction, by `kafka-transactions.sh find-hanging`.
    """

    groups: list[Line]
    transactions: Line
    hanging: list[tuple[str, int]]


# ---- the scene -------------------------------------------------------------------------------------------------------


def play(broker: Broker, directory: Path) -> Answers:
    """Start a broker, make groups and transactions, and query them; the broker still runs afterwards."""
    address = broker.start(directory, **_SETTINGS)
    broker.client(directory, _commands())
    # When a share consumer vanishes, the broker releases its records, and writes that to its log soon after.
    while (answers := broker.client(directory, _QUESTIONS)) != broker.client(directory, _QUESTIONS):
        continue
    return _answers(broker, address, answers)


_QUESTIONS: list[Line] = [{"do": "describe_groups"}, {"do": "describe_transactions"}, {"do": "halt"}]


def _answers(broker: Broker, address: str, answers: list[Line]) -> Answers:
    said = {line["ok"]: line for line in answers if "ok" in line}
    transactions = said["describe_transactions"]
    del transactions["ok"]
    return Answers(said["describe_groups"]["groups"], transactions, hanging(broker, address))


def hanging(broker: Broker, address: str) -> list[tuple[str, int]]:
    """Hanging transactions by Kafka's own tool: partition and producer."""
    words = ("--broker-id", "1", "--max-transaction-timeout", "0")
    tool = "org.apache.kafka.tools.TransactionsCommand"
    printed = broker("run", tool, "--bootstrap-server", address, "find-hanging", *words)
    rows = [re.split(r"\s+", line.strip()) for line in printed.splitlines()[1:] if line.strip()]
    return sorted((f"{row[0]}-{row[1]}", int(row[2])) for row in rows)


def hanging_as_told(listing: TransactionListing) -> list[tuple[str, int]]:
    """Hanging transactions in the tool's form."""
    return sorted(
        (str(log.partition), log.producer_id)
        for one in listing.transactions
        for log in one.logs
        if log.outlook is Outlook.HANGING
    )


def _commands() -> list[Line]:
    def topic(name: str, partitions: int, **config: str) -> Line:
        pairs = {key.replace("_", "."): value for key, value in config.items()}
        return {"do": "create_topic", "topic": name, "partitions": partitions, "config": pairs}

    def sends(producer: str, topic: str, partition: int, count: int) -> Iterator[Line]:
        for i in range(count):
            where = {"topic": topic, "partition": partition}
            yield {"do": "send", "id": producer, **where, "key": f"k{i % 7}", "value": f"v{i}"}

    def member(name: str, group: str, topics: list[str], protocol: str, **config: str) -> Line:
        pairs = {key.replace("_", "."): value for key, value in config.items()}
        return {"do": "member", "id": name, "group": group, "topics": topics, "protocol": protocol, "config": pairs}

    def producer(name: str, **config: str) -> Line:
        pairs = {key.replace("_", "."): value for key, value in config.items()}
        return {"do": "producer", "id": name, "config": pairs}

    orders = (line for partition in range(3) for line in sends("plain", "orders", partition, 20 + partition))
    more = (line for partition in range(3) for line in sends("plain", "orders", partition, 5))
    return [
        topic("orders", 3),
        topic("payments", 2, cleanup_policy="compact", internal_segment_bytes="200"),
        producer("plain"),
        *orders,
        {"do": "flush", "id": "plain"},
        member("billing-1", "billing", ["orders"], "classic"),
        member("billing-2", "billing", ["orders"], "classic", group_instance_id="billing-static"),
        member("audit-1", "audit", ["orders"], "consumer"),
        member("audit-2", "audit", ["orders", "payments"], "consumer", client_rack="rack-b"),
        member("alerts-1", "alerts", ["orders"], "share"),
        {"do": "turns", "ms": 6000},
        *(_streams_heartbeat(epoch, tasks) for epoch, tasks in ((0, []), (1, None), (1, [0, 1, 2]))),
        _streams_commit(2, {0: 12, 2: 0}),
        {"do": "turns", "ms": 4000},
        *more,
        {"do": "flush", "id": "plain"},
        {"do": "turns", "ms": 1500},
        *(line for partition in range(3) for line in sends("plain", "orders", partition, 4)),
        {"do": "flush", "id": "plain"},
        {"do": "commit_offsets", "group": "export", "offsets": {"orders-0": 3, "orders-2": 9}},
        {"do": "commit_offsets", "group": "gone", "offsets": {"orders-0": 3}},
        {"do": "delete_group", "group": "gone"},
        # A committed transaction, an open one, and one that is open for too long.
        producer("done", transactional_id="payments-1"),
        {"do": "begin", "id": "done"},
        *sends("done", "payments", 0, 3),
        {"do": "commit", "id": "done"},
        producer("open", transactional_id="payments-2", transaction_timeout_ms="2000000000"),
        {"do": "begin", "id": "open"},
        *sends("open", "payments", 1, 3),
        {"do": "flush", "id": "open"},
        {"do": "send_offsets", "id": "open", "group": "export", "offsets": {"orders-0": 5}},
        producer("late", transactional_id="payments-3", transaction_timeout_ms="1000"),
        {"do": "begin", "id": "late"},
        *sends("late", "payments", 0, 2),
        {"do": "flush", "id": "late"},
        *(line for _ in range(3) for line in (*sends("plain", "payments", 0, 4), {"do": "flush", "id": "plain"})),
        # Hanging: a producer without a coordinator entry, and a batch appended after the end of its transaction.
        late_batch("payments", 0, 424242, 0, "ghost"),
        late_batch("orders", 1, 1, 1, "payments-1"),
        {"do": "halt"},
    ]


def _streams_heartbeat(epoch: int, tasks: list[int] | None) -> Line:
    """A group member's heartbeat to its coordinator; `None` as tasks means unchanged."""
    subtopology = {
        "subtopologyId": "0",
        "sourceTopics": ["orders"],
        "sourceTopicRegex": [],
        "stateChangelogTopics": [],
        "repartitionSinkTopics": [],
        "repartitionSourceTopics": [],
        "copartitionGroups": [],
    }
    joins = epoch == 0
    body = {
        "groupId": "invoices",
        "memberId": _STREAMS_MEMBER,
        "memberEpoch": epoch,
        "endpointInformationEpoch": 0,
        "instanceId": None,
        "rackId": None,
        "rebalanceTimeoutMs": 60000 if joins else -1,
        "topology": {"epoch": 0, "subtopologies": [subtopology]} if joins else None,
        "activeTasks": None if tasks is None else [{"subtopologyId": "0", "partitions": tasks}] if tasks else [],
        "standbyTasks": None if tasks is None else [],
        "warmupTasks": None if tasks is None else [],
        "processId": "invoices-1" if joins else None,
        "userEndpoint": None,
        "clientTags": [] if joins else None,
        "taskOffsets": None,
        "taskEndOffsets": None,
        "shutdownApplication": False,
    }
    return {"do": "request", "api": "StreamsGroupHeartbeat", "version": 0, "json": body}


def _streams_commit(epoch: int, offsets: Mapping[int, int]) -> Line:
    partitions = [
        {"partitionIndex": number, "committedOffset": offset, "committedLeaderEpoch": -1, "committedMetadata": "at 12"}
        for number, offset in offsets.items()
    ]
    body = {
        "groupId": "invoices",
        "generationIdOrMemberEpoch": epoch,
        "memberId": _STREAMS_MEMBER,
        "groupInstanceId": None,
        "topics": [{"name": "orders", "partitions": partitions}],
    }
    return {"do": "request", "api": "OffsetCommit", "version": 9, "json": body}


def late_batch(topic: str, partition: int, producer_id: int, epoch: int, transactional_id: str) -> Line:
    """A transactional batch appended without its coordinator."""
    batch = encode_batch(
        [Record(0, 1_795_253_411_000, b"k", b"late")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    data = [{"index": partition, "records": base64.b64encode(batch).decode()}]
    body = {
        "transactionalId": transactional_id,
        "acks": -1,
        "timeoutMs": 10000,
        "topicData": [{"name": topic, "partitionData": data}],
    }
    return {"do": "request", "api": "Produce", "version": 7, "json": body}


# ---- Cordwood's answers, in the words of the tools -------------------------------------------------------------------


def groups_as_told(listing: GroupListing) -> list[Line]:
    """Our listing of groups as `describe_groups` has it."""
    return [_group(one) for one in listing.groups]


def _group(one: Group) -> Line:
    is_classic = one.type is GroupType.CLASSIC
    assignor = {"assignor": one.assignor or ""} if is_classic else {}
    return {
        "group": one.group_id,
        "type": one.type,
        "protocol_type": one.protocol_type,
        "members": [_member(each, one.type) for each in one.members],
        **assignor,
        "state": one.state,
        "epoch": None if is_classic else one.epoch,
        "target_epoch": None if is_classic else one.target_epoch,
        "offsets": {
            str(each.partition): _share(each) if one.type is GroupType.SHARE else _offset(each)
            for each in one.offsets
            # The broker lists no partition without a commit; its command-line tool does.
            if each.offset >= 0 or one.type is GroupType.SHARE
        },
    }


def _member(one: GroupMember, kind: GroupType) -> Line:
    line: Line = {
        "member": one.member_id,
        "client": one.client_id,
        "host": one.client_host,
        "instance": one.instance_id,
        "epoch": one.epoch,
    }
    if kind is GroupType.STREAMS:
        return line | {name: list(tasks) for name, tasks in one.tasks.items()}
    line["assigned"] = sorted(map(str, one.assigned))
    if kind is not GroupType.SHARE:
        line["target"] = None if one.target is None else sorted(map(str, one.target))
    return line


def _offset(one: CommittedOffset) -> list[Any]:
    return [one.offset, one.leader_epoch, one.metadata, None if one.end is None else one.end.offset]


def _share(one: CommittedOffset) -> list[Any]:
    return [one.offset, one.leader_epoch, one.lag]


def without_defaults(groups: list[Line]) -> list[Line]:
    """Drop from a `describe_groups` answer the assignor that a broker fills in by default; no record holds it."""
    return [
        {name: value for name, value in group.items() if name != "assignor" or group["type"] == GroupType.CLASSIC}
        for group in groups
    ]


def transactions_as_told(listing: TransactionListing) -> Line:
    """Our listing of transactions as `describe_transactions` has it."""
    ids = [
        {
            "transactional_id": one.transactional_id,
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "state": one.state,
            "timeout_ms": one.timeout_ms,
            "start_timestamp": one.start_timestamp_ms,
            "partitions": sorted(map(str, one.partitions)),
        }
        for one in listing.transactional_ids
    ]
    open_ = [
        [str(log.partition), log.producer_id, log.producer_epoch, log.first_offset, log.last_timestamp_ms]
        for one in listing.transactions
        for log in one.logs
    ]
    return {"transactional_ids": ids, "open": sorted(open_)}


if __name__ == "__main__":
    target = Path(sys.argv[1]) / DEMO
    kafka = Broker()
    try:
        print(json.dumps({"name": target.name, **play(kafka, target)._asdict()}, separators=(",", ":")))
        kafka("stop", target)
    finally:
        kafka.kill_all()
