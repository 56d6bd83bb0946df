"""The fate of a transaction, by its open logs and its coordinator's records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cordwood.common.types import TopicPartition
from cordwood.storage.formats.messages.coordinator_records import TransactionStatus
from cordwood.storage.formats.messages.topics import INTERNAL_TOPICS, decode_record
from cordwood.storage.node.transactions import (
    OpenInLog,
    OpenTransaction,
    Outlook,
    TransactionalId,
    open_transactions,
    transactional_id,
)
from tests.storage.messages import internal_record

P0, P1 = TopicPartition("p", 0), TopicPartition("p", 1)
NOW = 1_000_000


def in_log(producer: int = 7, partition: TopicPartition = P0, started: int | None = NOW - 5000) -> OpenInLog:
    return OpenInLog(partition, producer, 0, 10, 12, started, started, 10, 20, is_first=True)


def known(
    status: TransactionStatus | int = TransactionStatus.ONGOING, *partitions: TopicPartition, started: int = NOW - 4000
) -> TransactionalId:
    return TransactionalId("id", 2, 7, 3, status, 60_000, started, NOW - 4000, partitions)


def told(
    logs: list[OpenInLog], ids: list[TransactionalId], *, is_whole: bool = True, is_read: bool = True
) -> list[OpenTransaction]:
    return list(open_transactions(logs, ids, is_whole=is_whole, is_read=is_read, now_ms=NOW))


@pytest.mark.parametrize(
    ("ids", "is_whole", "outlook"),
    [
        ([known(TransactionStatus.ONGOING, P0)], True, Outlook.OPEN),
        ([known(TransactionStatus.PREPARE_EPOCH_FENCE, P0)], True, Outlook.OPEN),
        ([known(TransactionStatus.PREPARE_COMMIT, P0)], True, Outlook.ENDING),
        ([known(TransactionStatus.PREPARE_ABORT, P0)], True, Outlook.ENDING),
        ([known(TransactionStatus.ONGOING, P0, started=NOW - 60_001)], True, Outlook.LONG),
        ([known(TransactionStatus.ONGOING, P0, started=NOW - 60_000)], True, Outlook.OPEN),
        ([known(TransactionStatus.ONGOING, P1)], True, Outlook.HANGING),
        ([known(TransactionStatus.COMPLETE_COMMIT)], True, Outlook.HANGING),
        ([known(TransactionStatus.COMPLETE_ABORT)], False, Outlook.HANGING),
        ([known(TransactionStatus.EMPTY)], True, Outlook.HANGING),
        ([known(9)], True, Outlook.UNKNOWN),
        ([replace(known(TransactionStatus.EMPTY), problem="a later version")], True, Outlook.UNKNOWN),
        ([], True, Outlook.HANGING),
        ([], False, Outlook.UNKNOWN),
    ],
)
def test_what_becomes_of_a_transaction_that_is_open_in_a_log(
    ids: list[TransactionalId], is_whole: bool, outlook: Outlook
) -> None:
    (one,) = told([in_log()], ids, is_whole=is_whole)
    assert (one.outlook, [log.outlook for log in one.logs]) == (outlook, [outlook])
    assert one.known == (ids[0] if ids else None)


@pytest.mark.parametrize("ids", [[], [known(TransactionStatus.COMPLETE_COMMIT)]])
def test_nothing_hangs_for_sure_where_what_coordinators_know_could_not_all_be_read(ids: list[TransactionalId]) -> None:
    (one,) = told([in_log()], ids, is_read=False)
    assert one.outlook is Outlook.UNKNOWN
    (one,) = told([in_log()], [known(TransactionStatus.ONGOING, P0)], is_read=False)
    assert one.outlook is Outlook.OPEN


def test_the_outlook_of_a_transaction_is_the_worst_of_its_logs() -> None:
    (one,) = told([in_log(partition=P1), in_log()], [known(TransactionStatus.ONGOING, P0)])
    assert one.outlook is Outlook.HANGING
    assert [(log.partition, log.outlook) for log in one.logs] == [(P0, Outlook.OPEN), (P1, Outlook.HANGING)]


def test_a_transaction_only_its_coordinator_knows_is_listed_and_a_closed_one_is_not() -> None:
    (one,) = told([], [known(TransactionStatus.ONGOING, P0)])
    assert (one.outlook, one.logs, one.producer_epoch) == (Outlook.OPEN, (), 3)
    assert told([], [known(TransactionStatus.COMPLETE_COMMIT)]) == []


def test_age_counts_from_what_the_coordinator_says_else_from_the_first_batch() -> None:
    (one,) = told([in_log()], [known(TransactionStatus.ONGOING, P0)])
    assert (one.start_timestamp_ms, one.age_ms) == (NOW - 4000, 4000)
    # The record of a finished transaction decides nothing about a hanging one.
    (one,) = told([in_log()], [known(TransactionStatus.COMPLETE_COMMIT)])
    assert (one.start_timestamp_ms, one.age_ms) == (NOW - 5000, 5000)
    (one,) = told([in_log(started=None)], [])
    assert (one.start_timestamp_ms, one.age_ms) == (None, None)
    (one,) = told([in_log(started=NOW + 1)], [])
    assert (one.start_timestamp_ms, one.age_ms) == (NOW + 1, None), "its producer's clock is ahead"


def test_the_worst_come_first_and_of_these_the_oldest() -> None:
    logs = [in_log(8), in_log(9, started=NOW - 9000), in_log(7), in_log(5, started=None)]
    found = told(logs, [known(TransactionStatus.ONGOING, P0)])
    assert [(one.producer_id, one.outlook) for one in found] == [
        (9, Outlook.HANGING), (8, Outlook.HANGING), (5, Outlook.HANGING), (7, Outlook.OPEN),
    ]  # fmt: skip


def test_a_transactional_id_is_what_its_record_says() -> None:
    def read(value: dict[str, Any] | None, version: int | None = None) -> TransactionalId | None:
        pair = internal_record("TransactionLog", value, {"transactional_id": "x"}, version)
        return transactional_id(4, decode_record(INTERNAL_TOPICS["__transaction_state"], *pair))

    value = {
        "producer_id": 5,
        "producer_epoch": 6,
        "transaction_status": 1,
        "transaction_timeout_ms": 70,
        "transaction_partitions": ({"topic": "p", "partition_ids": (1, 0)},),
        "transaction_start_timestamp_ms": 8,
        "transaction_last_update_timestamp_ms": 9,
    }
    for version in (0, 1):
        one = read(value, version)
        assert one is not None
        assert one == TransactionalId("x", 4, 5, 6, TransactionStatus.ONGOING, 70, 8, 9, (P0, P1))
        assert (one.is_open, one.state) == (True, "Ongoing")
    empty = read(
        {**value, "transaction_status": 0, "transaction_partitions": None, "transaction_start_timestamp_ms": -1}
    )
    assert empty is not None
    assert (empty.state, empty.is_open, empty.partitions, empty.start_timestamp_ms) == ("Empty", False, (), None)
    strange = read({**value, "transaction_status": 77})
    assert strange is not None and (strange.state, strange.is_open) == ("unknown(77)", False)
    assert read(None) is None
