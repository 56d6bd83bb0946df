"""Keys and values that the data source decodes: in batches and streams, with schemas, and undecodable values."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

import cordwood
from cordwood.common.types import TopicPartition, override
from cordwood.fs.base import TargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from cordwood.tables.source.datasource import LogDataSource
from cordwood.tables.source.readers import LogStreamReader
from tests.tables.decoders.framing import avro
from tests.tables.source.random_logs import NOW_MS, Writer

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Names that are words of SQL, too.
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "select", "type": "long"},
        {"name": "end", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "items", "type": {"type": "array", "items": "int"}},
    ],
}


class InThisProcess(LogDataSource):
    """The source without a session of Spark."""

    _accumulator = None
    _pushes_filters = False

    @staticmethod
    @override
    def _store_of(paths: Iterable[str | None]) -> TargetStore:
        return PosixFileSystem()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with Avro, JSON and, at offset 1 of `broken`, text that is not JSON; schemas are beside it."""
    folder = tmp_path_factory.mktemp("decoded")
    (folder / "schemas").mkdir()
    (folder / "schemas" / "7.avsc").write_text(json.dumps(ORDER))
    writer = Writer(PosixFileSystem(), str(folder / "logs"), ())
    orders = [
        avro(7, ORDER, {"select": at, "end": 1000 * at, "tags": {"a": "b"}, "items": [at, at]}) for at in range(3)
    ]
    topics: dict[str, list[bytes | None]] = {
        "orders": [*orders, None],
        "events": [b'{"a": 1}', b"[2]"],
        "broken": [b'{"a": 1}', b"{"],
    }
    for topic, values in topics.items():
        records = [Record(at, NOW_MS, b"k%d" % at, value, ()) for at, value in enumerate(values)]
        writer.append(TopicPartition(topic, 0), records)
    writer.manager.shutdown()
    return folder


def load(spark: SparkSession, logs: Path, topic: str, **options: str) -> DataFrame:
    cordwood.register(spark)
    return spark.read.format("cordwood").options(subscribe=topic, **options).load(str(logs / "logs"))


def test_avro_is_read_as_columns_of_its_schema(spark: SparkSession, logs: Path) -> None:
    frame = load(spark, logs, "orders", keyFormat="utf8", valueFormat=f"avro:{logs}/schemas")
    types = dict(frame.dtypes)
    assert types["key"] == "string"
    assert types["value"] == "struct<select:bigint,end:timestamp,tags:map<string,string>,items:array<int>>"
    rows = frame.selectExpr("key", "value.select", "unix_seconds(value.end)", "value.tags", "value.items").collect()
    assert [tuple(row) for row in rows] == [
        *((f"k{at}", at, at, {"a": "b"}, [at, at]) for at in range(3)),
        ("k3", None, None, None, None),
    ]


def test_conditions_on_decoded_keys_are_left_to_spark(spark: SparkSession, logs: Path) -> None:
    frame = load(spark, logs, "events", keyFormat="utf8", pushFilters="true")
    assert [row.offset for row in frame.where("key = 'k1' and offset < 5").collect()] == [1]


def test_a_stream_decodes_too(logs: Path) -> None:
    source = InThisProcess({"path": str(logs / "logs"), "subscribe": "events", "valueFormat": "json"})
    assert "`value` string" in source.schema()
    reader = source.streamReader(StructType([StructField("offset", LongType()), StructField("value", StringType())]))
    assert isinstance(reader, LogStreamReader)
    start = reader.latestOffset({"events": {"0": 0}}, reader.getDefaultReadLimit())
    tasks = reader.partitions({"events": {"0": 0}}, start)
    sent = pickle.loads(pickle.dumps(reader))
    rows = [row for task in tasks for batch in sent.read(task) for row in batch.to_pylist()]
    assert rows == [{"offset": 0, "value": '{"a": 1}'}, {"offset": 1, "value": "[2]"}]


def test_what_cannot_be_decoded_fails_with_its_place_or_is_null(spark: SparkSession, logs: Path) -> None:
    with pytest.raises(
        PySparkException, match=r"the value cannot be decoded \(choose another.*broken-0.* \(offset 1\)"
    ):
        load(spark, logs, "broken", valueFormat="json").collect()
    frame = load(spark, logs, "broken", valueFormat="json", undecodable="null")
    assert [(row.value, row.undecodable) for row in frame.collect()] == [('{"a": 1}', False), (None, True)]
    # Columns without the value do not decode it.
    assert load(spark, logs, "broken", valueFormat="json", columns="offset").count() == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "avro"}, "valueFormat: 'avro' is no decoder; there are utf8, .*avro:DIR"),
        ({"keyFormat": "avro:/no/such/folder"}, "keyFormat: /no/such/folder is no folder"),
    ],
)
def test_formats_that_do_not_exist_are_refused(spark: SparkSession, logs: Path, options: Any, words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        load(spark, logs, "events", **options)
