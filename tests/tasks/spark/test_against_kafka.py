"""Cleans on Spark have the same output as Kafka's: on a session of a command, and on a session that a user made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import knobs
from tests.kafka_tools import Oracle

ROOT = Path(__file__).parents[3]
#: Number of cases of each kind; a session that a user made is three times as slow.
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
    command = [sys.executable, "-m", "tests.tasks.spark.beside_kafka", kind, what, str(knobs.SEED), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found["seen"])
    assert found["differences"] == []
    assert found["seen"]["cleans"] > count
