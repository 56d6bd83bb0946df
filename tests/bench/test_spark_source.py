"""`cordwood bench --source` counts the appended records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.command import run

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_a_log_is_read_into_spark_and_its_rate_is_printed(spark: SparkSession, tmp_path: Path) -> None:
    few = ("--size", "1", "--passes", "1", "--dir", str(tmp_path))
    done = run("bench", "--source", *few, "--json")
    found = json.loads(done.stdout)
    assert found["rows_per_second"] == pytest.approx(found["records"] / found["cordwood"]["median"])
    assert found["memory_rows_per_second"] == pytest.approx(found["records"] / found["memory"]["median"])
    assert (found["kafka"], found["ratio"]) == (None, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--live"], ["--shape", "A"]])
def test_what_does_not_go_with_a_read_into_spark_is_refused(words: list[str]) -> None:
    done = run("bench", "--source", *words, exits=2)
    assert "--source" in done.output
