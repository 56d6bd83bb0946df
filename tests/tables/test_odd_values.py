"""Values that no calendar and no JSON has: every writer accepts all of them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pytest
from pyarrow import parquet

import cordwood
from cordwood.common.json_text import json_text
from tests.command import run
from tests.logs import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.more

#: None, in microseconds, the last in the calendar's range, the year 10000, the largest.
TIMES = [-1, 5, 1_700_000_000_000_000, 253_402_214_399_999, 253_402_300_800_000, 2**63 - 1]
NO_DATE = {0, 2, 4, 5}
REALS = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308]
JAVAS = ["NaN", "Infinity", "-Infinity", -0.0, 5e-324, 1.7976931348623157e308]
JSONS = [b"1e400", b"[-1e400, 1E-999]", b'"\\ud800"', b'{"a":\n1}', b"12345678901234567890123", b"null"]


def strict(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    for topic, values in (("reals", [struct.pack(">d", one) for one in REALS]), ("jsons", JSONS)):
        # A segment per record, so that each time is the largest of one.
        for at, (value, time) in enumerate(zip(values, TIMES, strict=True)):
            append(root / f"{topic}-0", (b"k%d" % at, value), times=[time])
    return root


def test_lines_of_json_have_such_times_as_null_and_such_numbers_by_javas_names(logs: Path) -> None:
    rows = [
        strict(line)
        for line in run("table", logs, "--topic", "reals", "--value", "double", "--engine", "here").stdout.splitlines()
    ]
    assert [row["value"] for row in rows] == JAVAS
    assert [row["offset"] for row in rows if row["timestamp"] is None] == sorted(NO_DATE)


def test_json_of_records_stays_letter_for_letter_but_for_line_breaks(logs: Path) -> None:
    lines = run("table", logs, "--topic", "jsons", "--value", "json", "--engine", "here").stdout.splitlines()
    assert [line.partition('"value": ')[2].partition(', "partition"')[0] for line in lines] == [
        one.decode().replace("\n", " ") for one in JSONS
    ]
    for line in lines:
        strict(line)


@pytest.mark.parametrize("engine", ["here", "spark"])
@pytest.mark.parametrize("name", ["csv", "json", "parquet"])
def test_files_have_them_too(logs: Path, tmp_path: Path, name: str, engine: Literal["here", "spark"]) -> None:
    output = tmp_path / "table"
    cordwood.write_table(
        str(logs / "reals-0"), output=str(output), value="double", format=name, writer=[], engine=engine
    )
    files = sorted(output.glob("part-*"))
    if name == "parquet":
        rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
        assert {row["offset"] for row in rows if row["timestamp"] is None} == NO_DATE
        return
    lines = [line for file in files for line in file.read_text().splitlines()]
    if name == "json":
        rows = sorted(map(strict, lines), key=lambda row: int(row["offset"]))
        assert [row["value"] for row in rows] == JAVAS
        assert {row["offset"] for row in rows if "timestamp" not in row} == NO_DATE
    else:
        assert [line.split(",")[1].strip('"') for line in sorted(lines)][:3] == JAVAS[:3]


@pytest.mark.parametrize("name", ["json", "parquet"])
def test_spark_writes_json_values_as_the_pool_does(logs: Path, tmp_path: Path, name: str) -> None:
    written = []
    for engine in ("here", "spark"):
        output = tmp_path / engine
        cordwood.write_table(
            str(logs / "jsons-0"), output=str(output), value="json", format=name, writer=[], engine=engine
        )
        rows: list[dict[str, Any]] = []
        for file in output.glob("part-*"):
            if name == "parquet":
                # Spark's times may be of an older type (INT96), and without a zone: its session decides.
                table = parquet.read_table(file, coerce_int96_timestamp_unit="us")
                rows += [row | {"timestamp": str(row["timestamp"])[:23]} for row in table.to_pylist()]
            else:
                rows += map(strict, file.read_text().splitlines())
        written.append(sorted(rows, key=lambda row: int(row["offset"])))
    assert written[0] == written[1]


def test_the_spark_source_gives_such_times_as_null_and_no_time_as_kafkas_does(spark: SparkSession, logs: Path) -> None:
    cordwood.register(spark)
    frame = spark.read.format("cordwood").option("valueFormat", "double").load(str(logs / "reals-0"))
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    assert {row.offset for row in rows if row.timestamp is None} == NO_DATE - {0}
    assert [str(row.value) for row in rows] == list(map(str, REALS))
    lines = frame.select("offset", "value").toJSON().collect()
    text = sorted(json.dumps(strict(str(line))) for line in lines)
    assert text == [json.dumps({"offset": at, "value": value}) for at, value in enumerate(JAVAS)]


#: Commands that show times or values; each has to end well with text and with JSON.
COMMANDS = {
    "table": ("--topic", "reals", "--value", "double", "--engine", "here"),
    "dump": ("--topic", "reals", "--value-as", "double"),
    "dump ": ("--topic", "jsons", "--value-format", "json"),
    "ls": (),
    "ls ": ("--segments",),
    "why": ("--config", "cleanup.policy=compact,delete", "--config", "retention.ms=1"),
    "plan": ("--config", "cleanup.policy=compact,delete", "--retention"),
    "get": ("--topic", "reals", "--key", "k0", "--key", "k5", "--value-as", "double"),
    "erase-check": ("--topic", "reals", "--key", "none"),
    "check": (),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_shows_them(logs: Path, verb: str) -> None:
    arguments = (verb.strip(), logs, *COMMANDS[verb])
    if verb.strip() != "table":  # in a pipe it prints JSON anyway
        assert run(*arguments).stdout
    text = run(*arguments, "--json").stdout if verb != "table" else run(*arguments).stdout
    for document in [text] if text.startswith("{\n") else text.splitlines():
        strict(document)


def test_a_lone_surrogate_is_escaped_and_other_text_is_not() -> None:
    assert json_text(["ä", b"\0\xff", math.nan]) == '["ä", {"hex": "00ff"}, "NaN"]'
    assert json_text({"a": "ä\ud800"}) == '{"a": "\\u00e4\\ud800"}'
