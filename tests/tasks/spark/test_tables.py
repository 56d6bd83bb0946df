"""Tables of latest values on Spark: the same rows as in one process, files, and changes since earlier tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.engine.exchange import BlobFolder
from cordwood.commands import table as table_command
from cordwood.commands.options import TableFileOptions, TableOptions
from cordwood.commands.table import prepare
from cordwood.common.errors import CorruptBatchError, CorruptFileError, NotFoundError, RequestError, UndecodableError
from cordwood.fs.posix import PosixFileSystem
from cordwood.tables.newest import cut, scan_by_tasks
from cordwood.tables.on_spark import table_dataframe
from cordwood.tasks.engines import EngineOptions
from cordwood.tasks.spark.runner import SessionRunner
from cordwood.tasks.tasks import run_each
from tests.logs import append
from tests.tables.replayed_tables import RandomLog, Row, random_log

pytestmark = pytest.mark.more


def rows_of(collected: list[Any]) -> set[tuple[Any, ...]]:
    """Rows as a replay has them."""
    found = [
        (bytes(row["key"]), None if row["value"] is None else bytes(row["value"]), row["partition"], row["offset"])
        for row in collected
    ]
    assert len(set(found)) == len(found)
    return set(found)


def replayed(logs: list[RandomLog]) -> set[Row]:
    return {row for log in logs for row in log.replay(log.last_stable_offset).values()}


def test_many_tasks_make_the_table_of_all_partitions(spark: SparkSession, tmp_path: Path) -> None:
    logs = [random_log(Random(seed), tmp_path / f"log-{seed}" / f"users-{seed}") for seed in range(4)]
    options = TableOptions(deletes=True, key="bytes", value="bytes")
    made = prepare([str(log.path) for log in logs], options, run_bytes=600)
    runs = cut(made.point.slices, b"0123456789abcdef", chunk_records=16, ranges=4)
    assert sum(map(len, runs)) > 2 * len(logs)
    folder = BlobFolder(PosixFileSystem().location(), str(tmp_path / "blobs"))
    (tmp_path / "blobs").mkdir()
    tasks = scan_by_tasks(partial(run_each, SessionRunner(spark)), runs, folder, 2)
    found = table_dataframe(spark, tasks, made.rows_format)
    assert rows_of(found.collect()) == replayed(logs)
    # It can be used again, and in part.
    assert len(found.where("deleted").limit(2).collect()) == 2


def test_a_dataframe_stays_as_of_its_offsets_whatever_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"), (b"ben", None), (b"anna", b"Kyiv"))
    path = str(tmp_path / "users-0")
    before = cordwood.table_offsets(path)
    assert before == {0: 3}
    found = cordwood.latest_table(spark, path, deletes=True)
    append(tmp_path / "users-0", (b"cleo", b"Lima"), (b"anna", None))
    assert {(row["key"], row["value"]) for row in found.collect()} == {("anna", "Kyiv"), ("ben", None)}
    changes = cordwood.latest_table(spark, path, since=before)
    assert {(row["key"], row["deleted"]) for row in changes.collect()} == {("cleo", False), ("anna", True)}
    assert cordwood.latest_table(spark, path, as_of=before, since=before).count() == 0


def test_changes_of_written_tables_make_the_table_as_it_is_now(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "users-0"
    table: dict[str, str | None] = {}
    since: str | None = None
    random, wanted = Random(1), dict[str, str]()
    for step in range(4):
        for _ in range(20):
            key, value = f"key-{random.randrange(12)}", None if random.random() < 0.3 else f"{step}"
            append(path, (key.encode(), None if value is None else value.encode()))
            wanted.pop(key, None)
            wanted |= {} if value is None else {key: value}
        output = str(tmp_path / f"table-{step}")
        result = cordwood.write_table(str(path), output=output, since=since, spark=spark)
        rows = spark.read.parquet(output).collect()
        assert (result.rows, result.is_changes, result.partitions[0].end_offset) == (
            len(rows),
            step > 0,
            20 * step + 20,
        )
        assert result.deletes == sum(row["deleted"] for row in rows if step)
        table |= {row["key"]: row["value"] for row in rows}
        since = output
    assert {key: value for key, value in table.items() if value is not None} == wanted
    assert f"changes of users: {len(rows)} rows" in result.text()
    assert result.document()["partitions"] == [{"partition": 0, "start_offset": 60, "end_offset": 80}]


def test_other_formats_and_their_options_are_those_of_sparks_writers(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "users-0"
    append(path, (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"anna", b"Kyiv"))
    output = tmp_path / "csv"
    cordwood.write_table(str(path), output=str(output), format="csv", writer=["header=true"], spark=spark)
    (part,) = output.glob("part-*.csv")
    assert [line.split(",")[:4] for line in sorted(part.read_text().split())] == [
        ["anna", "Kyiv", "0", "2"],
        ["ben", "Oslo", "0", "1"],
        ["key", "value", "partition", "offset"],
    ]
    with pytest.raises(RequestError, match="this exists; a table is written to a new folder"):
        cordwood.write_table(str(path), output=str(output), spark=spark)
    with pytest.raises(RequestError, match=r"writer=\['header'\]: give KEY=VALUE"):
        cordwood.write_table(str(path), output=str(tmp_path / "new"), writer=["header"], spark=spark)


@pytest.mark.parametrize(("name", "writer"), [("csv", ["header=true", "sep=;"]), ("json", []), ("parquet", [])])
def test_files_that_are_written_without_spark_say_what_sparks_files_do(
    spark: SparkSession, tmp_path: Path, name: str, writer: list[str]
) -> None:
    path = tmp_path / "users-0"
    append(path, (b"anna", b"Rome"), (b"ben", b"Os;lo, N"), (b"anna", None), (b"cleo", b"\xc3\xa4"), (b"dan", b""))
    options: dict[str, Any] = {"format": name, "writer": writer, "deletes": True}
    for value in ("utf8", "bytes") if name != "csv" else ("utf8",):
        mine, theirs = tmp_path / f"mine-{value}", tmp_path / f"theirs-{value}"
        here = cordwood.write_table(str(path), output=str(mine), engine="here", value=value, **options)
        there = cordwood.write_table(str(path), output=str(theirs), spark=spark, value=value, **options)
        for result in (here, there):
            assert (result.rows, result.deletes, result.undecodable) == (4, 1, 0)
        reader = spark.read.options(header="true", sep=";") if name == "csv" else spark.read
        tables = [reader.format(name).load(str(folder)).orderBy("offset") for folder in (mine, theirs)]
        assert tables[0].schema == tables[1].schema
        assert tables[0].collect() == tables[1].collect()
        assert [one.name for one in mine.iterdir() if one.name[0] in "._"] == ["_cordwood.json"]


def test_a_limit_is_one_of_files_too_and_such_a_table_is_no_base_of_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, output = tmp_path / "users-0", str(tmp_path / "table")
    append(path, (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"cleo", b"Kyiv"))
    options = TableOptions(), TableFileOptions(), EngineOptions()
    assert table_command.write_table([str(path)], output, *options, spark=spark, limit=2).rows == 2
    assert spark.read.parquet(output).count() == 2
    with pytest.raises(RequestError, match="has only 2 rows of its table"):
        cordwood.table_offsets(str(path), since=output)


def test_a_format_that_the_users_session_does_not_know_is_refused_in_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    with pytest.raises(RequestError, match=r"format='xlsx': \[DATA_SOURCE_NOT_FOUND\].*xlsx"):
        cordwood.write_table(str(tmp_path / "users-0"), output=str(tmp_path / "t"), format="xlsx", spark=spark)


def test_what_cannot_be_decoded_fails_with_its_place_or_is_null(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "users-0"
    append(path, (b"anna", b"\0\0\0\7"), (b"ben", b"\0\7"), (b"cleo", None))
    with pytest.raises(
        UndecodableError,
        match=rf"the value cannot be decoded \(.*\): 2 bytes where 4 are wanted in {path} \(offset 1\)$",
    ):
        cordwood.write_table(str(path), output=str(tmp_path / "table"), value="int", spark=spark)
    assert not (tmp_path / "table").exists()
    result = cordwood.write_table(
        str(path), output=str(tmp_path / "table"), value="int", undecodable="null", deletes=True, spark=spark
    )
    assert (result.rows, result.deletes, result.undecodable) == (3, 1, 1)
    found = spark.read.parquet(str(tmp_path / "table")).orderBy("offset").collect()
    assert [(row["value"], row["deleted"], row["undecodable"]) for row in found] == [
        (7, False, False),
        (None, False, True),
        (None, True, False),
    ]


def test_earlier_tables_that_do_not_fit_are_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "users-0"
    append(path, (b"anna", b"Rome"))
    append(path, (b"ben", b"Oslo"))
    earlier = tmp_path / "earlier"
    cordwood.write_table(str(path), output=str(earlier), as_of=1, spark=spark)
    facts = json.loads((earlier / "_cordwood.json").read_text())
    checkpoint = path.parent / "cleaner-offset-checkpoint"

    def refused(kind: type[Exception], words: str, **changed: object) -> None:
        (earlier / "_cordwood.json").write_text(json.dumps({**facts, **changed}))
        with pytest.raises(kind, match=words):
            cordwood.table_offsets(str(path), since=str(earlier))

    refused(RequestError, "is a table of the topic orders, not of users", topic="orders")
    refused(CorruptFileError, "version 9 is none that is known", version=9)
    refused(CorruptFileError, "these are no facts of a table", partitions=[{}])
    with pytest.raises(NotFoundError, match=r"holds no _cordwood\.json, so it is no table"):
        cordwood.table_offsets(str(path), since=str(path))
    # The checkpoint is an offset in the middle, so the age of the tombstones behind it is unknown.
    checkpoint.write_text("0\n1\nusers 0 2\n")
    refused(RequestError, "was cleaned up to offset 2 since .*So tombstones may be missing; make the whole table again")
    checkpoint.unlink()
    (path / "partition.metadata").write_text("version: 0\ntopic_id: kT95mSyPSJqM_1pZyP5kbw\n")
    partition = {"partition": 0, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "start_offset": 0, "end_offset": 1}
    refused(RequestError, "of a topic users that was deleted", partitions=[partition])
    (path.parent / "log-start-offset-checkpoint").write_text("0\n1\nusers 0 2\n")
    refused(RequestError, "ends at offset 1, and the log starts at 2 by now")


@pytest.mark.slow
def test_given_a_large_log_many_tasks_make_its_table_and_files_are_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_command, "HERE_BYTES_MAX", 0)
    log = random_log(Random(5), tmp_path / "users-3")
    (tmp_path / "work").mkdir()
    options: dict[str, Any] = {"deletes": True, "key": "bytes", "value": "bytes", "work": str(tmp_path / "work")}
    found = cordwood.latest_table(spark, str(log.path), **options)
    assert rows_of(found.collect()) == replayed([log])
    assert list((tmp_path / "work").rglob("*.scan")), "the DataFrame may be used again"
    (tmp_path / "written").mkdir()
    options["work"] = str(tmp_path / "written")
    written = cordwood.write_table(str(log.path), output=str(tmp_path / "table"), spark=spark, **options)
    assert written.rows == len(log.replay(log.last_stable_offset))
    assert list((tmp_path / "written").iterdir()) == []


def test_a_blob_of_a_table_that_is_lost_is_made_again(tmp_path: Path) -> None:
    log = random_log(Random(5), tmp_path / "users-3")
    options = TableOptions(deletes=True, key="bytes", value="bytes", high_watermark="end")
    made = prepare([str(log.path)], options, run_bytes=600)
    logs = cut(made.point.slices, b"0123456789abcdef", chunk_records=16, ranges=4)
    (tmp_path / "blobs").mkdir()
    lost: list[str] = []

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        found = list(map(do, items))
        for path in sorted((tmp_path / "blobs").iterdir())[: not lost]:
            path.unlink()
            lost.append(path.suffix)
        return found

    tasks = scan_by_tasks(each, logs, BlobFolder(PosixFileSystem().location(), str(tmp_path / "blobs")), 2)
    assert lost == [".scan"]
    rows = [row for batch in made.rows_format.batches(tasks) for row in batch.to_pylist()]
    assert rows_of(rows) == replayed([log])


def test_the_error_of_a_task_is_raised_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    log = random_log(Random(3), tmp_path / "users-3")
    made = prepare([str(log.path)], TableOptions(high_watermark="end"))
    (segment, *_) = sorted(log.path.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    (tmp_path / "blobs").mkdir()
    folder = BlobFolder(PosixFileSystem().location(), str(tmp_path / "blobs"))
    with pytest.raises(CorruptBatchError, match="CRC-32C mismatch") as raised:
        scan_by_tasks(partial(run_each, SessionRunner(spark)), made.logs, folder, 2)
    assert (raised.value.path, raised.value.position) == (str(segment), 0)
