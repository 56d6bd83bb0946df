"""Kafka's internal topics as Spark DataFrames: the same as in Arrow, with real columns."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import cordwood
from cordwood.common.errors import NotFoundError, RequestError
from tests.fixtures import fixture

pytestmark = pytest.mark.more


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, datetime.datetime):
        return value.timestamp()
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_dataframe_has_the_rows_and_columns_of_the_arrow_table(spark: SparkSession) -> None:
    path = str(fixture("kraft-after-2"))
    for record in ("OffsetCommit", "TransactionLog", "PartitionRecord", "ConsumerGroupMemberMetadata"):
        table = cordwood.internal_table(path, record=record)
        rows = cordwood.internal_dataframe(spark, path, record=record).collect()
        assert table.num_rows > 0
        wanted = sorted(map(plain, table.to_pylist()), key=lambda row: (row["partition"], row["offset"]))
        assert sorted(map(plain, rows), key=lambda row: (row["partition"], row["offset"])) == wanted


def test_columns_are_selected_and_filtered_by_name(spark: SparkSession) -> None:
    frame = cordwood.internal_dataframe(spark, str(fixture("kraft-after-2")), record="OffsetCommit")
    found = frame.where("key.group = 'modern-1' and value is not null").select(
        "key.topic", "key.partition", "value.offset"
    )
    assert sorted(tuple(row) for row in found.collect()) == [("orders", 0, 175), ("orders", 1, 165), ("orders", 2, 172)]


def test_types_and_places_that_are_not_there_are_refused_in_words() -> None:
    path = str(fixture("kraft-after-2"))
    with pytest.raises(RequestError, match="No internal topic of Kafka's has records of type Offset; there are Legacy"):
        cordwood.internal_table(path, record="Offset")
    with pytest.raises(
        NotFoundError, match=r"No partition of __share_group_state in .*, which has the records of type"
    ):
        cordwood.internal_table(path, record="ShareSnapshot")


def test_what_aborted_transactions_wrote_is_left_out_of_committed_data() -> None:
    path = str(fixture("kraft-classic-before"))
    every = cordwood.internal_table(path, record="OffsetCommit", isolation=None)
    committed = cordwood.internal_table(path, record="OffsetCommit", isolation="read_committed")
    assert every.num_rows > committed.num_rows > 0
