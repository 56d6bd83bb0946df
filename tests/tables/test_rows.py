"""Files of a table that are written without Spark."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import cordwood
from cordwood.cleaning.engine import division
from cordwood.commands import table as table_command
from cordwood.commands.options import TableOptions
from cordwood.common.errors import RequestError, UndecodableError
from cordwood.tables.rows import FileFormat
from cordwood.tasks.engines import Where
from tests.logs import append


def write(path: Path, output: Path, **options: Any) -> list[Path]:
    cordwood.write_table(str(path), output=str(output), engine="here", **options)
    return sorted(one for one in output.iterdir() if one.name != "_cordwood.json")


def rows_of(files: list[Path]) -> dict[str, str]:
    return {row["key"]: row["value"] for file in files for row in parquet.read_table(file).to_pylist()}


@pytest.mark.slow
def test_a_table_that_many_tasks_write_in_a_pool_is_the_one_that_this_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users-0"
    wanted = {}
    for step in range(300):
        append(path, (f"key-{step % 70}".encode(), f"value-{step}".encode()))
        wanted[f"key-{step % 70}"] = f"value-{step}"
    alone = write(path, tmp_path / "small")
    monkeypatch.setattr(table_command, "HERE_BYTES_MAX", 1)
    monkeypatch.setattr(division, "RUN_BYTES_MIN", 2000)
    files = write(path, tmp_path / "large")
    assert len(files) > len(alone)
    assert rows_of(files) == rows_of(alone) == wanted
    with table_command.shown_table([str(path)], TableOptions(), where=Where(engine="here")) as shown:
        assert {row["key"]: row["value"] for row in shown.rows} == wanted


def test_a_table_without_rows_is_a_file_that_shows_the_columns(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", None))
    (file,) = write(tmp_path / "users-0", tmp_path / "table")
    assert parquet.read_table(file).to_pylist() == []
    assert parquet.read_schema(file).names == ["key", "value", "partition", "offset", "timestamp"]


def test_compressed_lines_of_json(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    (file,) = write(tmp_path / "users-0", tmp_path / "table", format="json", writer=["compression=gzip"])
    assert file.name.endswith(".json.gz")
    assert json.loads(gzip.decompress(file.read_bytes()))["value"] == "Rome"


def test_nothing_is_left_of_a_table_that_fails(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"\0\7"))
    with pytest.raises(UndecodableError, match=r"2 bytes where 4 are wanted .*\(offset 0\)"):
        write(tmp_path / "users-0", tmp_path / "table", value="int")
    assert os.listdir(tmp_path) == ["users-0"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("orc", {}, "--format orc: without Spark there are parquet, csv, json"),
        ("csv", {"quote": "'"}, "--writer-option quote=': without Spark, csv has compression, header, sep"),
        ("csv", {"header": "yes"}, "--writer-option header=yes: give true or false"),
        ("csv", {"sep": "ab"}, "--writer-option sep=ab: without Spark this is one character"),
        ("parquet", {"compression": "brotli"}, "--writer-option compression=brotli: without Spark, there are snappy"),
    ],
)
def test_what_only_spark_writes_is_refused_in_a_line(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        FileFormat(name, options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_values_of_all_kinds_are_json(tmp_path: Path) -> None:
    value = {"map": [("a", 1)], "bytes": b"\0\xff", "none": None, "list": [{"x": None, "y": 1}]}
    types = {
        "map": pa.map_(pa.string(), pa.int32()),
        "bytes": pa.binary(),
        "none": pa.string(),
        "list": pa.list_(pa.struct({"x": pa.int32(), "y": pa.int32()})),
    }
    batch = pa.RecordBatch.from_pylist([value], pa.schema(types))
    FileFormat("json", {}).write(str(tmp_path / "file"), batch.schema, [batch])
    assert json.loads((tmp_path / "file").read_text()) == {"map": {"a": 1}, "bytes": "AP8=", "list": [{"y": 1}]}
