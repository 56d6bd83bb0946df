"""A session of Spark Connect cleans and proves as any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tasks.spark.connect import run_connected
from tests.tasks.spark.logs import random_log

pytestmark = pytest.mark.slow

_PROGRAM = """
import sys
from cordwood import clean, clean_in_place, verify

logs, target = sys.argv[1:]
choices = {"high_watermark": "end", "now_ms": 1_900_000_000_000, "single_copy": True, "ignore_ratio": True}
choices |= {"overrides": ["cleanup.policy=compact"], "spark": spark}
# With so little memory, many tasks clean the partition.
clean(logs, output=target, memory=10_000, **choices)
verdict = verify(logs, target, spark=spark)
assert verdict.holds, verdict.text()
clean_in_place(logs, **choices)
spark.stop()
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_session_of_spark_connect_cleans_and_proves(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    random_log(logs / "t-0", 1)
    before = contents(logs / "t-0")
    run_connected(_PROGRAM, logs, tmp_path / "copy", work=tmp_path)
    copy, in_place = contents(tmp_path / "copy" / "t-0"), contents(logs / "t-0")
    assert {name: data for name, data in in_place.items() if name in copy} == copy
    assert in_place != before
    assert not [name for name in os.listdir(tmp_path) if name.startswith("cordwood")]
