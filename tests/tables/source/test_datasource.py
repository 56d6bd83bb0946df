"""The data source in a session of Spark: schema, columns, filters, counts, damage, several directories, SQL."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

import cordwood
from cordwood.common.types import Isolation, TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from cordwood.tables.source.datasource import ReadCounter
from cordwood.tables.source.schema import COLUMNS
from cordwood.tables.source.slices import ReadCounts
from tests.fixtures import TIERED, copy_of, fixture, reads
from tests.live.tiered_nodes import node, numbers
from tests.spark_folder import folder_of
from tests.tables.source.random_logs import NOW_MS, Writer
from tests.tasks.spark.connect import run_connected

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


@pytest.fixture
def counter(spark: SparkSession) -> ReadCounter:
    return cordwood.register(spark)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two topics, of three small segments each."""
    folder = tmp_path_factory.mktemp("source") / "logs"
    config = ("internal.segment.bytes=4000", "index.interval.bytes=300", "log.cleaner.enable=false")
    writer = Writer(PosixFileSystem(), str(folder), config)
    for topic in ("orders", "users"):
        for number in range(30):
            writer.append(
                TopicPartition(topic, 0),
                [Record(at, NOW_MS + 1000 * number, b"k%d" % at, b"v" * 60, (("h", b"x"),)) for at in range(4)],
            )
    writer.manager.shutdown()
    return folder


def reader(spark: SparkSession, **options: str) -> DataFrameReader:
    return spark.read.format("cordwood").options(**options)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_a_directory_is_read_as_a_consumer_reads_it_with_each_isolation(
    spark: SparkSession, counter: ReadCounter
) -> None:
    path = fixture("kraft-after-2")
    for level in Isolation:
        options = {"kafka.isolation.level": level.value, "includeHeaders": "true"}
        rows = reader(spark, **options).load(str(path)).toArrow().to_pylist()
        found = {(row["topic"], row["partition"], row["offset"]): row for row in rows}
        wanted = [
            line for line in reads("kraft-after-2", level.value) if "offset" in line and line["topic"][:2] != "__"
        ]
        assert len(found) == len(rows) == len(wanted) > 0
        for line in wanted:
            row = found[line["topic"], line["partition"], line["offset"]]
            assert row["timestamp"].timestamp() * 1000 == pytest.approx(line["timestamp"], abs=0.5)
            assert len(row["headers"] or ()) == len(line.get("headers") or ())
            if isinstance(line.get("key"), str):
                assert row["key"] == line["key"].encode()


@pytest.mark.more
@pytest.mark.parametrize("name", ["local-tiered", "aiven-s3"])
def test_a_tiered_topic_is_read_with_its_tier(spark: SparkSession, counter: ReadCounter, name: str) -> None:
    places = [f"{fixture(name)}/{place}" for place in TIERED[name]]
    options = {"kafka.isolation.level": "read_committed", **dict(zip(("tier", "tierKey"), places, strict=False))}
    frame = reader(spark, **options).load(f"{fixture(name)}/kafka-logs")
    found = frame.filter("topic not like '\\_\\_%'").select("topic", "partition", "offset").collect()
    assert {tuple(row) for row in found} == {
        (line["topic"], line["partition"], line["offset"]) for line in reads(name, "read_committed") if "offset" in line
    }
    assert len(found) > 2000


def test_a_live_log_is_read_with_its_tier(spark: SparkSession, counter: ReadCounter, tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.fill(100)
        one.step()
        assert one.log.log_segments[0].base_offset > 80
    frame = reader(spark, tier=str(tmp_path / "tier")).load(str(tmp_path / "logs"))
    assert [row.value for row in frame.sort("offset").collect()] == numbers(100)


def test_every_column_has_the_type_that_spark_takes(spark: SparkSession, counter: ReadCounter, logs: Path) -> None:
    frame = reader(spark, columns=",".join(COLUMNS)).load(str(logs))
    assert frame.columns == list(COLUMNS)
    table = frame.toArrow()
    assert table.schema.equals(to_arrow_schema(frame.schema, timezone="UTC"))
    row = table.slice(5, 1).to_pylist()[0]
    assert (row["keySize"], row["valueSize"], row["codec"], row["transaction"]) == (2, 60, "none", None)
    assert (row["batchOffset"], row["offset"], row["leaderEpoch"], row["producerId"]) == (4, 5, 0, None)
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    assert row["file"] == str(logs / "orders-0" / "00000000000000000000.log")
    assert row["position"] == row["batchSize"]


def test_columns_are_chosen_by_an_option_or_by_a_schema(spark: SparkSession, counter: ReadCounter, logs: Path) -> None:
    chosen = reader(spark, columns="offset,value", subscribe="users").load(str(logs))
    assert chosen.columns == ["offset", "value"]
    assert chosen.count() == 120
    given = reader(spark, subscribe="users").schema("offset BIGINT, value BINARY").load(str(logs))
    assert given.toArrow().equals(chosen.toArrow())
    with pytest.raises(PySparkException, match="The schema has offset int; that column is offset bigint"):
        reader(spark).schema("offset INT").load(str(logs)).collect()


def test_filters_are_pushed_down_shown_in_the_plan_and_counted(
    spark: SparkSession, counter: ReadCounter, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = reader(spark, pushFilters="true").load(str(logs))
    query = frame.where("topic = 'orders' and partition = 0 and offset >= 100 and key in (X'6b31', X'6b32')")
    query.explain("formatted")
    plan = capsys.readouterr().out
    for one in ("EqualTo(topic,orders)", "EqualTo(partition,0)", "GreaterThanOrEqual(offset,100)", "In(key, "):
        assert one in re.search(r"PushedFilters: (.*)", plan)[1]  # type: ignore[index]
    assert "Filter" not in plan.replace("PushedFilters", "")
    assert offsets(query) == [at for at in range(100, 120) if at % 4 in (1, 2)]
    counts = counter.take()
    assert (counts.records, counts.records_skipped) == (10, 10)
    assert counts.segments_skipped >= 2 and counts.bytes_skipped > 0
    assert counter.take() == ReadCounts()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("timestamp >= timestamp_millis(1700000028000)", range(112, 120)),
        ("timestamp < timestamp_millis(1700000001000) or offset = 7", [0, 1, 2, 3, 7]),
        ("offset in (3, 5) and key <=> X'6b31'", [5]),
        ("not (offset < 118)", [118, 119]),
        ("not (key = X'6b31') and offset < 4", [0, 2, 3]),
        ("offset % 50 = 49", [49, 99]),
        ("value is null", []),
        ("topic like 'ord%' and topic like '%ers' and topic > 'a' and offset between 6 and 7", [6, 7]),
        ("cast(key as string) = 'k3' and offset < 8", [3, 7]),
    ],
)
def test_conditions_mean_what_they_mean_to_spark(
    spark: SparkSession, counter: ReadCounter, logs: Path, condition: str, wanted: Any
) -> None:
    for pushed in ("true", "false"):
        frame = reader(spark, subscribe="orders", pushFilters=pushed).load(str(logs))
        assert offsets(frame.where(condition)) == list(wanted)


def test_queries_of_one_dataframe_do_not_get_into_each_others_way(
    spark: SparkSession, counter: ReadCounter, logs: Path
) -> None:
    frame = reader(spark).load(str(logs))
    few, others = frame.where("offset < 3"), frame.where("topic = 'users' and offset >= 118")
    others.explain()
    assert few.count() == 6
    assert frame.count() == 240
    assert (few.union(others).count(), others.count()) == (8, 2)
    assert frame.join(few, ["topic", "partition", "offset"]).count() == 6


def test_a_session_may_push_filters_down_unless_a_reader_does_not(
    spark: SparkSession, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cordwood.register(spark, push_filters=True)
    for options, pushed in (({}, True), ({"pushFilters": "false"}, False)):
        reader(spark, **options).load(str(logs)).where("partition = 0").explain("formatted")
        assert (re.search(r"PushedFilters: .*EqualTo\(partition,0\)", capsys.readouterr().out) is not None) == pushed


def test_several_directories_and_a_view_in_sql(spark: SparkSession, counter: ReadCounter, logs: Path) -> None:
    both = reader(spark).load([str(logs / "orders-0"), str(logs / "users-0")])
    assert both.count() == 240
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING cordwood OPTIONS (path '{logs}', subscribe 'orders')")
    assert spark.sql("SELECT max(offset) AS last FROM orders WHERE key = X'6b30'").collect()[0].last == 116


def test_a_table_in_the_catalog_is_read_with_the_options_it_was_made_with(
    spark: SparkSession, counter: ReadCounter, logs: Path
) -> None:
    for name, where in (("first", f"OPTIONS (path '{logs}', subscribe 'orders')"),
                        ("second", f"OPTIONS (subscribe 'orders') LOCATION '{logs}'")):  # fmt: skip
        spark.sql(f"CREATE TABLE {name} USING cordwood {where}")
        try:
            assert spark.sql(f"SELECT count(*) FROM {name}").first() == (120,)
        finally:
            spark.sql(f"DROP TABLE {name}")


def test_a_table_in_the_catalog_reads_the_directory_whose_name_looks_encoded(
    spark: SparkSession, counter: ReadCounter, logs: Path, tmp_path: Path
) -> None:
    path = copy_of(logs, tmp_path / "of 10%20#1")
    for where in (f"OPTIONS (path '{path}', subscribe 'orders')", f"OPTIONS (subscribe 'orders') LOCATION '{path}'"):
        spark.sql(f"CREATE TABLE encoded USING cordwood {where}")
        try:
            assert spark.sql("SELECT count(*) FROM encoded").first() == (120,)
        finally:
            spark.sql("DROP TABLE encoded")


def test_damage_ends_a_query_with_its_place_or_is_counted(
    spark: SparkSession, counter: ReadCounter, logs: Path, tmp_path: Path
) -> None:
    broken = copy_of(logs, tmp_path / "logs")
    path = sorted((broken / "users-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        PySparkException, match=rf"CorruptBatchError: CRC-32C mismatch.* in {path} at position 0 "
    ) as raised:
        reader(spark).load(str(broken)).count()
    # Spark puts a traceback before the sentence: one line of our code, not the way to where damage was found.
    assert str(raised.value).count('  File "') == 1
    counter.take()
    assert reader(spark, failOnDamage="false").load(str(broken)).count() == 236
    assert counter.take().damaged == 1


def test_a_relative_path_is_taken_from_where_java_was_started(
    spark: SparkSession, counter: ReadCounter, logs: Path
) -> None:
    # The processes of Spark keep that folder, even if the driver changes its current folder.
    assert reader(spark).load(os.path.relpath(logs, folder_of(spark))).count() == 240


def test_what_is_wrong_is_said_when_a_directory_is_loaded(
    spark: SparkSession, counter: ReadCounter, logs: Path
) -> None:
    with pytest.raises(
        PySparkException, match=r"RequestError: There is no option startingofset\. Is startingOffsets meant"
    ):
        reader(spark, startingOfset="latest").load(str(logs))
    with pytest.raises(PySparkException, match="NotFoundError: There is no topic payments in") as raised:
        reader(spark, subscribe="payments").load(str(logs)).count()
    assert str(raised.value).count("/cordwood/") <= 1
    with pytest.raises(PySparkException, match=r"NotFoundError: .*nowhere"):
        reader(spark).load(str(logs / "nowhere")).count()


def test_a_stream_that_goes_on_notices_that_a_topic_was_made_anew(
    spark: SparkSession, counter: ReadCounter, tmp_path: Path
) -> None:
    for number in range(2):
        folder = tmp_path / "logs"
        shutil.rmtree(folder, ignore_errors=True)
        writer = Writer(PosixFileSystem(), str(folder), ("log.cleaner.enable=false",))
        for at in range(4 + number):
            writer.append(TopicPartition("orders", 0), [Record(0, NOW_MS + 1000 * number + at, b"k", b"v")])
        writer.manager.shutdown()
        stream = spark.readStream.format("cordwood").option("startingOffsets", "earliest").load(str(folder))
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .format("noop")
            .trigger(availableNow=True)
            .start()
        )
        if number == 0:
            query.awaitTermination()
        else:
            with pytest.raises(PySparkException, match="orders-0 was deleted and recreated"):
                query.awaitTermination()


_CONNECT = """
import sys
import cordwood

counter = cordwood.register(spark)
reader = spark.read.format("cordwood").option("subscribe", "orders")
frame = reader.option("pushFilters", "true").load(sys.argv[1])
spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
assert frame.where("offset >= 100").count() == 20
(line,) = [row.msg for row in spark.tvf.python_worker_logs().collect() if "records: 20" in row.msg]
assert "segments skipped" in line, line
try:
    counter.take()
except cordwood.RequestError as error:
    assert "python_worker_logs" in str(error)
stream = spark.readStream.format("cordwood").option("startingOffsets", "earliest").load(sys.argv[1])
query = stream.writeStream.format("memory").queryName("found").trigger(availableNow=True).start()
query.awaitTermination()
assert spark.table("found").count() == 240
spark.stop()
"""


@pytest.mark.slow
def test_a_session_of_spark_connect_reads_and_follows(logs: Path, tmp_path: Path) -> None:
    run_connected(_CONNECT, logs, work=tmp_path)


def test_the_memory_of_a_process_is_refused_as_a_place_for_a_table(spark: SparkSession, counter: ReadCounter) -> None:
    with pytest.raises(PySparkException, match="memory:// is the memory of one process"):
        reader(spark).load("memory://store/logs").count()
