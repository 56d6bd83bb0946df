"""The programs of `examples/`: each runs, and does as its docstring describes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cordwood
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from tests.tables.decoders.framing import avro
from tests.tables.source.random_logs import NOW_MS, Writer

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: Any) -> Any:
    """Call the `main` of an example."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*arguments)


def write(folder: Path, topic: str, records: list[tuple[bytes, bytes | None]]) -> str:
    writer = Writer(PosixFileSystem(), str(folder), ("users:cleanup.policy=compact",))
    batch = [Record(at, NOW_MS, key, value, ()) for at, (key, value) in enumerate(records)]
    writer.append(TopicPartition(topic, 0), batch)
    writer.log(TopicPartition(topic, 0)).roll()
    writer.append(TopicPartition(topic, 0), [Record(0, NOW_MS, b"last", b"1", ())])
    writer.manager.shutdown()
    return str(folder)


def test_every_example_is_short_tested_here_and_linked_from_the_readme() -> None:
    here, readme = Path(__file__).read_text(), (ROOT / "README.md").read_text()
    for path in EXAMPLES.glob("*.py"):
        assert 20 <= len(path.read_text().splitlines()) <= 60
        assert f'run("{path.stem}"' in here and f"](examples/{path.name})" in readme


def test_nightly_compaction_replaces_an_archive_and_keeps_the_state_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    write(archive, "users", [(b"ann", b"Rome"), (b"ann", b"Oslo"), (b"bob", b"Bonn")])
    for _ in range(2):  # the second night finds the state of the first
        assert run("nightly_compaction", archive, ["users:cleanup.policy=compact"]) == 0
        log = cordwood.open_log(archive / "users-0")
        assert [record.value for record in log.records()] == [b"Oslo", b"Bonn", b"1"]
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "archive.before"}
    assert "All guarantees hold" in capsys.readouterr().out


def test_nightly_compaction_leaves_a_damaged_archive_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "archive"
    write(archive, "users", [(b"ann", b"Rome"), (b"ann", b"Oslo")])
    log = archive / "users-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    assert run("nightly_compaction", archive, ["users:cleanup.policy=compact"]) == 1
    assert log.read_bytes() == data and [path.name for path in tmp_path.iterdir()] == ["archive"]
    assert "not compacted, as the archive is damaged" in capsys.readouterr().out


def test_event_store_keeps_its_balances_and_refuses_a_transfer_without_cover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for ann, bob in ((70, 30), (140, 60)):
        run("event_store", str(tmp_path / "events"))
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [["refused:", "bob", "has", "less", "than", "1000000"], ["ann", str(ann)], ["bob", str(bob)]]


def test_latest_table_is_asked_by_duckdb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = write(tmp_path / "logs", "users", [(b"ann", b"Rome"), (b"ann", b"Oslo"), (b"bob", None)])
    run("latest_table", logs, "users", str(tmp_path / "table"))
    out = capsys.readouterr().out
    assert "table of users: 2 rows" in out
    assert "│ ann     │ Oslo" in out and "Rome" not in out
    assert "All records of last:" in out


def test_stream_with_schemas_appends_to_parquet(spark: SparkSession, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "3.avsc").write_text(json.dumps(schema))
    logs = write(tmp_path / "logs", "orders", [(b"a", avro(3, schema, {"id": 7}))])
    run("stream_with_schemas", logs, "orders", str(tmp_path / "schemas"), str(tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [(row.key, row.id, row.undecodable) for row in rows] == [("a", 7, False), ("last", None, True)]


def test_disk_full_names_the_largest_topic_and_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = write(tmp_path / "logs", "users", [(b"ann", b"x" * 50) for _ in range(30)])
    run("disk_full", logs, str(tmp_path / "report.html"))
    out = capsys.readouterr().out
    assert "MiB  users\n" in out and "users-0: " in out and "→" in out
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
