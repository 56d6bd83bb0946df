"""Programs with a session of Spark Connect, each in a process of its own: Spark is one or the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cordwood.tasks.spark.launch import find_java
from tests.command import ENVIRONMENT

_SESSION = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.address", "127.0.0.1")
spark = builder.getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session", type(spark)
"""


def run_connected(program: str, *arguments: Path, work: Path) -> None:
    """Run a program that uses the session `spark`, with this working directory; it has to succeed."""
    # Spark uses any free port only in tests; otherwise several sessions at once try to use the same port.
    environment = {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(work), "SPARK_TESTING": "1"}
    environment |= {name: value for name, value in find_java().settings.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", _SESSION + program, *map(str, arguments)],
        env=environment, cwd=work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
