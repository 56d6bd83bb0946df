"""What a table cannot be written as is refused before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import cordwood
from cordwood.cli.main import app
from cordwood.commands.table_output import check_format
from cordwood.errors import RequestError
from tests.engine.logs import append


def test_a_format_that_spark_does_not_know_is_refused_before_it_starts(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    with pytest.raises(
        RequestError, match=r"^--format xlsx: Spark cannot write this. Give avro or csv or .*, or a class$"
    ):
        cordwood.write_table(
            str(tmp_path / "users-0"), output=str(tmp_path / "table"), format="xlsx", master="spark://nowhere:1"
        )
    assert not (tmp_path / "table").exists()


def test_a_struct_is_refused_for_csv_and_taken_for_other_formats() -> None:
    schema = pa.schema({"key": pa.string(), "value": pa.struct({"city": pa.string()})})
    with pytest.raises(RequestError, match="--format csv: the value has fields, for which CSV has no place"):
        check_format("CSV", schema, is_own_session=False)
    for name in ("json", "parquet", "org.example.Format"):
        check_format(name, schema, is_own_session=True)


def test_a_limit_is_one_of_json_lines_too(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"cleo", b"Kyiv"))
    lines = CliRunner().invoke(app, ["table", str(tmp_path / "users-0"), "--limit", "2"]).stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["anna", "ben"]
