"""Cleans that run on Spark come out as Kafka's: by Spark as a command starts it, and by a session that a user made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import knobs
from tests.kafka_tools import Oracle

ROOT = Path(__file__).parents[2]
#: How many of each; a session that a user made takes three times as long.
COUNTS = {
    ("ours", "scripts"): knobs.scaled(6, 2000),
    ("ours", "logs"): knobs.scaled(6, 300),
    ("stock", "scripts"): knobs.scaled(2, 300),
    ("stock", "logs"): knobs.scaled(2, 60),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "what"), COUNTS)
def test_every_clean_of_random_scripts_and_logs_comes_out_as_kafkas_on_spark(
    kafka_oracle: Oracle, tmp_path: Path, kind: str, what: str
) -> None:
    count = COUNTS[kind, what]
    command = [sys.executable, "-m", "tests.spark.beside_kafka", kind, what, str(knobs.SEED), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found["seen"])
    assert found["differences"] == []
    assert found["seen"]["cleans"] > count
