"""Random scripts or logs whose cleans are all done by tasks on Spark, in a process of its own: a process has one Spark.

    python -m tests.tasks.spark.beside_kafka ours|stock scripts|logs FIRST COUNT

Files are made in the current directory. It prints counts of comparisons and the differences to Kafka, as JSON. `ours`
is Spark as a command starts it, `stock` a session that a user made, which has none of our settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from cordwood.tasks.spark.launch import find_java
from cordwood.tasks.spark.runner import running_on_spark
from tests.cleaning.against_kafka import random_scripts, run_scripts
from tests.cleaning.modes import on
from tests.cleaning.random_logs import run_logs
from tests.kafka_tools import Oracle


def main() -> None:
    kind, what, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    seeds = range(first, first + count)
    given = None
    if kind == "stock":
        from pyspark.sql import SparkSession

        os.environ |= {name: value for name, value in find_java().settings.items() if value is not None}
        os.environ["PYSPARK_PYTHON"] = sys.executable
        given = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with contextlib.redirect_stdout(sys.stderr), running_on_spark(given) as runner, on(runner):
        if what == "logs":
            found = run_logs(Oracle(), seeds, Path())
        else:
            found = run_scripts(Oracle(), random_scripts(seeds), Path())
    print(json.dumps({"seen": found.seen, "differences": found.differences}))


if __name__ == "__main__":
    main()
