"""The data source reads one replica of each partition of several brokers, and heals it from other replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cordwood.common.errors import CorruptBatchError, NotFoundError, RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tables.source.batch import plan_batch
from cordwood.tables.source.following import Follower
from cordwood.tables.source.options import parse
from cordwood.tables.source.schema import column_names
from cordwood.tables.source.slices import ReadCounts
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, directories
from tests.fixtures import copy_of, unpacked
from tests.tables.source.random_logs import Row, read_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def brokers() -> list[Path]:
    """The directories of three brokers; not to be changed."""
    return directories(unpacked(CLUSTER_ARCHIVE))


def rows_of(*paths: Path, **options: str) -> tuple[list[Row], ReadCounts]:
    given = {"path": json.dumps([*map(str, paths)]), "columns": "partition,offset,key,value,file", **options}
    return read_rows(PosixFileSystem(), {"subscribe": "orders", **given})


def damaged(brokers: list[Path], folder: Path, *positions: int) -> list[Path]:
    """Copies of brokers 1 and 2; bytes of the active segment of orders-1 are damaged in the first."""
    paths = [copy_of(path, folder / path.name) for path in brokers[:2]]
    log = paths[0] / "orders-1" / "00000000000000000071.log"
    data = bytearray(log.read_bytes())
    for position in positions:
        data[position] ^= 1
    log.write_bytes(data)
    return paths


def without_file(rows: list[Row]) -> list[Row]:
    return [{name: cell for name, cell in row.items() if name != "file"} for row in rows]


def test_the_newest_replica_is_read_or_the_one_that_is_named(brokers: list[Path]) -> None:
    assert rows_of(*brokers)[0] == rows_of(brokers[0])[0]
    for number, path in enumerate(brokers, 1):
        assert rows_of(*brokers, replica=str(number))[0] == rows_of(path)[0] != []
    named = json.dumps([f"{name}={path}" for name, path in zip("123", brokers, strict=True)])
    options = parse({"brokers": named, "subscribe": "orders"})
    plan = plan_batch(options, PosixFileSystem(), column_names(options), ())
    assert str(plan.replicas[0]).startswith("orders-0 is read from broker 1: its end, 100, is ")


def test_a_broker_without_the_partition_or_an_unknown_one_is_refused(brokers: list[Path]) -> None:
    with pytest.raises(RequestError, match="the directories are those of brokers 1, 2, 3"):
        rows_of(*brokers, replica="4")
    with pytest.raises(NotFoundError, match=r"broker 3 has no partition payments-1"):
        rows_of(*brokers, replica="3", subscribe="payments")
    with pytest.raises(RequestError, match="brokers a: give NAME=DIR"):
        parse({"brokers": "a"})


@pytest.mark.parametrize("most", ["200", "1000000"])
def test_damage_is_healed_and_counted(brokers: list[Path], tmp_path: Path, most: str) -> None:
    sound, _ = rows_of(*brokers[:2])
    paths = damaged(brokers, tmp_path, 100, 300, 301)
    with pytest.raises(CorruptBatchError, match="The replica of broker 2 has these bytes undamaged: heal=true reads"):
        rows_of(*paths, maxBytesPerPartition=most)
    rows, counts = rows_of(*paths, maxBytesPerPartition=most, heal="true")
    assert without_file(rows) == without_file(sound)
    assert (counts.batches_healed, counts.damaged, counts.records) == (2, 0, len(sound))
    rows, counts = rows_of(*paths, maxBytesPerPartition=most, failOnDamage="false")
    assert (len(rows), counts.damaged, counts.batches_healed) == (len(sound) - 10, 2, 0)


def test_rows_that_were_read_before_the_damage_are_not_read_again(brokers: list[Path], tmp_path: Path) -> None:
    sound, _ = rows_of(*brokers[:2])
    paths = damaged(brokers, tmp_path, 300, 700)  # broker 2 lacks the second of these batches
    rows, counts = rows_of(*paths, heal="true", failOnDamage="false")
    expected = [row for row in sound if row["partition"] != 1 or not 86 <= row["offset"] <= 90]
    assert without_file(rows) == without_file(expected)
    assert (counts.batches_healed, counts.damaged) == (1, 1)


def test_a_stream_follows_the_replicas_of_the_named_broker(brokers: list[Path]) -> None:
    def follower(**options: str) -> Follower:
        parsed = parse({"path": json.dumps([*map(str, brokers)]), "subscribe": "orders", **options})
        return Follower(parsed, PosixFileSystem(), column_names(parsed))

    assert sorted(follower(replica="3").ends().values()) == [60, 62, 66]
    with pytest.raises(RequestError, match="those of brokers 1, 2, 3: set replica to the name of one"):
        follower().ends()
    with pytest.raises(RequestError, match="heal is for batches"):
        parse({"path": "logs", "heal": "true"}).stream_start()


@pytest.mark.more
def test_spark_reads_the_replicas_and_heals_them(brokers: list[Path], tmp_path: Path, spark: SparkSession) -> None:
    import cordwood

    counter = cordwood.register(spark)
    paths = damaged(brokers, tmp_path, 300)
    reader = spark.read.format("cordwood").option("subscribe", "orders").option("columns", "partition,offset,value")
    sound = sorted(reader.load([*map(str, brokers[:2])]).collect())
    counter.take()
    assert sorted(reader.option("heal", "true").load([*map(str, paths)]).collect()) == sound
    assert counter.take().batches_healed == 1
    third = reader.option("heal", "false").option("replica", "3").load([*map(str, brokers)])
    assert third.count() == len(rows_of(brokers[2])[0])
