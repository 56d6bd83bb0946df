"""`cordwood bench --source` counts the appended records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cordwood.cli.main import app

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_a_log_is_read_into_spark_and_its_rate_is_printed(spark: SparkSession, tmp_path: Path) -> None:
    few = ("--size", "1", "--passes", "1", "--dir", str(tmp_path))
    done = CliRunner().invoke(app, ["bench", "--source", *few, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["rows_per_second"] == pytest.approx(found["records"] / found["cordwood"]["median"])
    assert found["memory_rows_per_second"] == pytest.approx(found["records"] / found["memory"]["median"])
    assert (found["kafka"], found["ratio"]) == (None, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--live"], ["--shape", "A"]])
def test_what_does_not_go_with_a_read_into_spark_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", "--source", *words])
    assert done.exit_code == 2 and "--source" in done.output
