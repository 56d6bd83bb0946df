"""Unsupported table outputs are refused before Spark starts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyarrow import dataset

import cordwood
from cordwood.commands.table_output import check_format
from cordwood.common.errors import RequestError
from tests.command import run
from tests.logs import append

pytestmark = pytest.mark.more


def test_a_format_that_spark_does_not_know_is_refused_before_it_starts(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    with pytest.raises(
        RequestError, match=r"^format='xlsx': Spark cannot write this. Give avro or csv or .*, or a class$"
    ):
        cordwood.write_table(
            str(tmp_path / "users-0"), output=str(tmp_path / "table"), format="xlsx", master="spark://nowhere:1"
        )
    assert not (tmp_path / "table").exists()


def test_a_struct_is_refused_for_csv_and_taken_for_other_formats() -> None:
    schema = pa.schema({"key": pa.string(), "value": pa.struct({"city": pa.string()})})
    with pytest.raises(RequestError, match="--format csv: the value has fields, which CSV cannot hold"):
        check_format("CSV", schema, is_own_session=False)
    for name in ("json", "parquet", "org.example.Format"):
        check_format(name, schema, is_own_session=True)


@pytest.mark.parametrize(
    ("format_name", "value", "sentence"),
    [
        ("xlsx", "utf8", "--format xlsx: Spark cannot write this. Give avro or csv or "),
        (
            "csv",
            "bytes",
            "--format csv: the value is bytes, which CSV cannot hold. Decode it as --value hex, or give json or "
            "parquet",
        ),
        (
            "csv",
            "avro:{schemas}",
            "--format csv: the value has fields, which CSV cannot hold. Give json or parquet",
        ),
    ],
)
def test_the_command_refuses_such_a_table_in_one_line_before_spark_starts(
    format_name: str, value: str, sentence: str, tmp_path: Path
) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    (tmp_path / "schemas").mkdir()
    schema = {"type": "record", "name": "User", "fields": [{"name": "city", "type": "string"}]}
    (tmp_path / "schemas" / "1.avsc").write_text(json.dumps(schema))
    how = ["--format", format_name, "--value", value.format(schemas=tmp_path / "schemas")]
    # Spark would need minutes to find that this master does not exist.
    where = ["--output", str(tmp_path / "table"), "--master", "spark://nowhere:1"]
    done = run("table", tmp_path / "users-0", *how, *where, exits=2)
    assert done.stdout == ""
    assert sentence in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize("format_name", ["json", "parquet"])
def test_a_limit_is_one_of_files_in_every_format(format_name: str, tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"cleo", b"Kyiv"))
    how = ["--format", format_name, "--limit", "2", "--engine", "here", "--json"]
    done = run("table", tmp_path / "users-0", "--output", tmp_path / "table", *how)
    assert done.json["rows"] == 2
    written = [str(path) for path in (tmp_path / "table").iterdir() if path.name[0] not in "._"]
    assert dataset.dataset(written, format=format_name).count_rows() == 2


def test_a_limit_is_one_of_json_lines_too(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"), (b"ben", b"Oslo"), (b"cleo", b"Kyiv"))
    lines = run("table", tmp_path / "users-0", "--limit", "2").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["anna", "ben"]


@pytest.mark.parametrize("below", ["table", "users-0/table"])
def test_no_table_is_written_into_what_is_read(below: str, tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    with pytest.raises(RequestError, match="which is only read"):
        cordwood.write_table(str(tmp_path), output=str(tmp_path / below), engine="here")
    assert [path.name for path in tmp_path.iterdir()] == ["users-0"] and not (tmp_path / below).exists()


def test_no_table_is_written_into_another_brokers_directory(tmp_path: Path) -> None:
    append(tmp_path / "here" / "users-0", (b"anna", b"Rome"))
    append(tmp_path / "there" / "users-0", (b"anna", b"Rome"))
    (tmp_path / "there" / "recovery-point-offset-checkpoint").write_bytes(b"0\n0\n")
    with pytest.raises(RequestError, match="where a broker would stumble over it"):
        cordwood.write_table(str(tmp_path / "here"), output=str(tmp_path / "there" / "table"), engine="here")


@pytest.mark.parametrize("engine", ["here", "spark"])
def test_blanks_around_keys_and_values_stay_in_csv(engine: Literal["here", "spark"], tmp_path: Path) -> None:
    pairs = ((b"a", b"x"), (b" a", b"  y "), (b"a ", b"\tz"))
    append(tmp_path / "users-0", *pairs)
    cordwood.write_table(str(tmp_path / "users-0"), output=str(tmp_path / "table"), format="csv", engine=engine)
    lines = [line for path in (tmp_path / "table").glob("part-*") for line in csv.reader(path.open(newline=""))]
    assert {tuple(text.encode() for text in line[:2]) for line in lines if line[0] != "key"} == set(pairs)


def test_what_spark_cannot_write_is_told_in_a_line(tmp_path: Path) -> None:
    append(tmp_path / "users-0", (b"anna", b"Rome"))
    for format_name, options, reason in (
        ("avro", [], "Failed to find data source: avro"),
        ("csv", ["header=maybe"], "header flag can be true or false"),
    ):
        with pytest.raises(RequestError, match=f"^Spark cannot write {format_name} to .*{reason}.*$"):
            cordwood.write_table(
                str(tmp_path / "users-0"),
                output=str(tmp_path / format_name),
                format=format_name,
                writer=options,
                engine="spark",
            )
