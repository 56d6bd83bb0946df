"""A live log for people: pairs in, records out, transactions as `with` blocks."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from cordwood.errors import InvalidProducerEpochError, OffsetOutOfRangeError
from cordwood.service.log import FetchIsolation, Log
from tests.service.live_logs import NOW_MS, World


@pytest.fixture
def log() -> Log:
    return World().load()


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def test_pairs_are_one_batch_and_come_back_as_records(log: Log) -> None:
    assert log.append([("a", "1"), ("b", b"2")]) == 0
    assert log.append([("a", None), (None, "3")], timestamp_ms=5) == 2
    found = list(log.records())
    assert [(one.offset, one.key, one.value) for one in found] == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (2, b"a", None),
        (3, None, b"3"),
    ]
    assert [one.timestamp for one in found] == [NOW_MS, NOW_MS, 5, 5]
    assert [one.offset for one in log.records(3)] == [3]
    assert log.append({}) == 4 and log.log_end_offset == 4


def test_a_transaction_counts_when_its_block_ends(log: Log) -> None:
    with log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        transaction.append({"b": "2"})
        assert values(log) == []
    assert values(log) == [b"1", b"2"]
    with log.transaction(7) as transaction:
        transaction.append({"c": "3"})
    assert values(log) == [b"1", b"2", b"3"]


def test_a_block_that_ends_with_an_error_leaves_nothing_to_read(log: Log) -> None:
    log.append({"x": "0"})
    with contextlib.suppress(KeyError), log.transaction(7) as transaction:
        transaction.append({"a": "1"})
        log.append({"y": "2"})
        raise KeyError
    assert values(log) == [b"0", b"2"]
    assert log.read(0, 1 << 20, FetchIsolation.LOG_END).offset == 0
    with log.transaction(7) as transaction:
        transaction.append({"a": "3"})
    assert values(log) == [b"0", b"2", b"3"]


def test_a_transaction_without_records_writes_nothing(log: Log) -> None:
    with log.transaction(7):
        pass
    assert log.log_end_offset == 0


def test_transactions_of_two_producers_do_not_wait_for_each_other(log: Log) -> None:
    with log.transaction(1) as one:
        one.append({"a": "1"})
        with contextlib.suppress(KeyError), log.transaction(2) as two:
            two.append({"b": "2"})
            raise KeyError
        assert values(log) == [], "the first one is open"
        one.append({"c": "3"})
    assert values(log) == [b"1", b"3"]


def test_a_producer_that_was_replaced_is_refused(log: Log) -> None:
    with log.transaction(7, epoch=1) as transaction:
        transaction.append({"a": "1"})
    with pytest.raises(InvalidProducerEpochError), log.transaction(7, epoch=0) as transaction:
        transaction.append({"a": "2"})


def test_many_records_are_read_in_pieces(log: Log) -> None:
    for number in range(40):
        log.append({"a": "v" * 100_000 + str(number)})
    assert [record.offset for record in log.records()] == list(range(40))


def test_a_reader_that_follows_gets_what_comes(log: Log) -> None:
    log.append({"a": "0"})
    threading.Timer(0.2, lambda: log.append({"a": "1"})).start()
    found = list(itertools.islice(log.records(follow=True), 2))
    assert [record.value for record in found] == [b"0", b"1"]


def test_a_start_outside_the_log_is_refused(log: Log) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        list(log.records(5))
