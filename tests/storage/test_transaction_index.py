"""The transaction index. Kafka: TransactionIndexTest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import CorruptFileError
from cordwood.storage.formats import transaction_index
from cordwood.storage.formats.transaction_index import AbortedTransaction, index_of

GOLDEN = bytes.fromhex("0000 0000000000000007 0000000000000065 000000000000006e 000000000000006c")

# Kafka: TransactionIndexTest.testCollectAbortedTransactions.
FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


def test_golden_bytes_are_read_and_written() -> None:
    one = AbortedTransaction(producer_id=7, first_offset=101, last_offset=110, last_stable_offset=108)
    assert list(transaction_index.decode(GOLDEN).transactions()) == [one]
    assert transaction_index.encode(index_of([one])) == GOLDEN


COLLECTED = [
    (0, 100, [0, 1, 2, 3], False),
    (0, 32, [0, 1, 2], True),
    (0, 35, [0, 1, 2, 3], True),
    (10, 35, [0, 1, 2, 3], True),
    (11, 35, [1, 2, 3], True),
    (20, 41, [2, 3], False),
]


@pytest.mark.parametrize(("fetch_offset", "upper_bound", "producers", "complete"), COLLECTED)
def test_a_read_meets_the_aborted_transactions_that_reach_into_it(
    fetch_offset: int, upper_bound: int, producers: list[int], complete: bool
) -> None:
    # case 172
    found, done = index_of(FOUR).aborted(fetch_offset, upper_bound)
    assert ([one.producer_id for one in found], done) == (producers, complete)


def test_the_search_ends_with_an_entry_that_does_not_match() -> None:
    ends = index_of([AbortedTransaction(0, 0, 10, 50), AbortedTransaction(1, 5, 30, 60)])
    assert ends.aborted(20, 50) == ([], True)


def test_no_entries_mean_the_search_goes_on() -> None:
    assert index_of([]).aborted(0, 10) == ([], False)


SMALL = st.integers(0, 30)


@given(st.lists(st.builds(AbortedTransaction, SMALL, SMALL, SMALL, SMALL), max_size=6), SMALL, SMALL)
def test_the_search_meets_its_slow_twin(ones: list[AbortedTransaction], fetch_offset: int, upper_bound: int) -> None:
    found, complete = [], False
    for one in ones:
        if one.last_offset >= fetch_offset and one.first_offset < upper_bound:
            found.append(one)
        if one.last_stable_offset >= upper_bound:
            complete = True
            break
    assert index_of(ones).aborted(fetch_offset, upper_bound) == (found, complete)


def test_only_the_first_byte_of_the_version_counts() -> None:
    for version in (b"\x00\x05", b"\xff\xff", b"\x80\x00"):
        read = transaction_index.decode(version + GOLDEN[2:])
        assert transaction_index.encode(read) == version + GOLDEN[2:]
        assert [fault.position for fault in transaction_index.faults(read, 0)] == [0]


def test_an_unknown_version_is_corrupt_at_its_entry() -> None:
    with pytest.raises(CorruptFileError) as caught:
        transaction_index.decode(GOLDEN + b"\x01" + GOLDEN[1:], "x.txnindex")
    message = "aborted transaction 1: version 256, only 0 is known in x.txnindex at position 34"
    assert str(caught.value) == message


def test_a_part_of_an_entry_is_passed_over_and_reported() -> None:
    read = transaction_index.decode(GOLDEN + b"\x01\x02")
    assert (read.entries, read.rest) == (1, b"\x01\x02")
    (fault,) = transaction_index.faults(read, 0)
    assert (fault.what, fault.position) == ("2 bytes after the last whole entry of 34 bytes", 34)


FAULTS = [
    ([(7, 90, 99, 99)], "last offset 99 is below the segment's base offset 100"),
    ([(7, 110, 110, 111)], "first offset 110 is not below last offset 110"),
    ([(7, 101, 110, 111), (8, 102, 110, 111)], "last offset 110 follows last offset 110"),
]


@pytest.mark.parametrize(("rows", "what"), FAULTS)
def test_each_inconsistency_is_reported_with_its_place(rows: list[tuple[int, int, int, int]], what: str) -> None:
    # case 174
    # Kafka: TransactionIndexTest.testSanityCheck, testLastOffsetMustIncrease.
    (fault,) = transaction_index.faults(index_of([AbortedTransaction(*row) for row in rows]), 100)
    assert fault.what == f"aborted transaction {len(rows) - 1}: {what}"
    assert fault.position == 34 * (len(rows) - 1)


@given(st.binary(max_size=110))
def test_any_bytes_come_back_as_they_were_or_are_corrupt(data: bytes) -> None:
    try:
        read = transaction_index.decode(memoryview(data))
    except CorruptFileError:
        return
    assert transaction_index.encode(read) == data
    list(transaction_index.faults(read, 5))
