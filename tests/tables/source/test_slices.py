"""Ranges of offsets are divided as Kafka's source divides them, then by bytes; together they are the whole."""

from __future__ import annotations

import itertools
import random

import pytest

from cordwood.common.types import TopicPartition
from cordwood.storage.log.transactions import Transactions
from cordwood.tables.source.options import parse
from cordwood.tables.source.slices import OffsetRange, Slice, TransactionsMet, divide, pack
from tests.knobs import SEED
from tests.tables.source.random_logs import random_directory, read_rows

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def sizes(ranges: list[OffsetRange]) -> list[int]:
    return [one.size for one in ranges]


# Numbers of Spark's own KafkaOffsetRangeCalculatorSuite.
@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        (None, [(A, 1, 1), (B, 0, 3)], [3]),
        (3, [(A, 1, 5)], [1, 1, 2]),
        (3, [(A, 1, 2)], [1]),
        (3, [(A, 1, 5), (B, 1, 5)], [2, 2, 2, 2]),
        (4, [(A, 0, 1), (B, 0, 100)], [1, 33, 33, 34]),
        (2, [(A, 0, 1), (B, 0, 100)], [1, 100]),
        (4, [(A, 5, 5), (B, 9, 8)], []),
    ],
)
def test_ranges_are_divided_into_about_as_many_as_are_wanted(wanted, given, expected) -> None:
    options = parse({"path": "x"} | ({} if wanted is None else {"minPartitions": str(wanted)}))
    found = divide([OffsetRange(*one) for one in given], options)
    assert sizes(found) == expected
    assert all(one.end == two.start for one, two in itertools.pairwise(found) if one.partition == two.partition)


def test_no_range_has_more_offsets_than_it_may() -> None:
    options = parse({"path": "x", "maxRecordsPerPartition": "30"})
    assert sizes(divide([OffsetRange(A, 0, 100), OffsetRange(B, 7, 9)], options)) == [25, 25, 25, 25, 2]
    both = parse({"path": "x", "maxRecordsPerPartition": "60", "minPartitions": "5"})
    assert sizes(divide([OffsetRange(A, 0, 100), OffsetRange(B, 7, 9)], both)) == [25, 25, 25, 25, 2]


def test_small_slices_share_a_task_unless_their_number_was_asked_for() -> None:
    slices = [Slice("p", A, at, at + 1, 100) for at in range(100)]
    packs = pack(slices, parse({"path": "x"}))
    assert [one for some in packs for one in some] == slices
    assert len(packs) == 1
    assert len(pack(slices, parse({"path": "x", "minPartitions": "3"}))) == 100
    large = [Slice("p", A, at, at + 1, 50 << 20) for at in range(4)]
    assert len(pack(large, parse({"path": "x"}))) == 4


def test_many_small_logs_take_few_tasks_as_a_query_with_a_limit_ends_a_worker_each() -> None:
    slices = [Slice(f"p-{at}", TopicPartition("p", at), 0, 1, 7 << 20) for at in range(17)]
    packs = pack(slices, parse({"path": "x"}))
    assert [one for some in packs for one in some] == slices
    assert len(packs) == 5


def test_a_slice_knows_the_transactions_that_it_may_meet_and_no_other() -> None:
    source = random.Random(SEED)
    aborted: dict[int, list[tuple[int, int]]] = {}
    for producer in range(5):
        at = 0
        for _ in range(20):
            first = at + source.randrange(30)
            at = first + 1 + source.randrange(60)
            aborted.setdefault(producer, []).append((first, at))
    met = TransactionsMet(Transactions(aborted=aborted, open={7: 300}))
    for _ in range(200):
        start = source.randrange(1000)
        one = met.added_to(Slice("p", A, start, start + source.randrange(1, 100), 1))
        wanted = {
            producer: [each for each in some if each[0] < one.end_offset and each[1] >= start]
            for producer, some in aborted.items()
        }
        assert one.aborted == {producer: some for producer, some in wanted.items() if some}
        assert one.open == ({7: 300} if one.end_offset > 300 else {})


@pytest.mark.parametrize("seed", range(3))
def test_however_a_log_is_divided_all_of_it_is_read_once(seed: int) -> None:
    fs = random_directory(SEED + seed).fs
    whole, _ = read_rows(fs, {"includeHeaders": "true"})
    assert whole
    for division in (
        {"maxBytesPerPartition": "1"},
        {"maxBytesPerPartition": "900"},
        {"maxRecordsPerPartition": "1"},
        {"maxRecordsPerPartition": "7"},
        {"minPartitions": "40"},
        {"minPartitions": "5", "maxRecordsPerPartition": "11", "maxBytesPerPartition": "300"},
        {"useIndexes": "false", "minPartitions": "9"},
    ):
        found, _ = read_rows(fs, {"includeHeaders": "true", **division})
        assert found == whole, division
