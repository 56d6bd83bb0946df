"""Spark's own Kafka source beside ours: the same options, a broker on one side and its directory on the other."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests import kafka_tools

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Nothing moves while both look.
STILL = {
    "log_cleaner_enable": "false",
    "log_initial_task_delay_ms": 86_400_000,
    "log_retention_check_interval_ms": 86_400_000,
    "offsets_retention_minutes": 2_147_483,
    "transaction_max_timeout_ms": 2_147_483_647,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 2_147_483_647,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 2_147_483_647,
}


def with_kafka(spark: SparkSession) -> SparkSession:
    """The session, with the jars of Spark's Kafka source; the test is skipped, or fails, where they cannot be had."""
    fetched = subprocess.run([kafka_tools.FOLDER / "fetch-spark-kafka"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        what = f"needs the jars of Spark's Kafka source: {fetched.stderr.strip()}"
        (pytest.fail if kafka_tools.required() else pytest.skip)(what)
    for jar in Path(fetched.stdout.strip()).glob("*.jar"):
        spark.sql(f"ADD JAR '{jar}'")
    return spark


def from_kafka(spark: SparkSession, address: str, options: Mapping[str, str]) -> DataFrame:
    """What Spark's Kafka source reads."""
    fast = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1", "kafkaConsumer.pollTimeoutMs": "20000"}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.options(**fast, **options).load()


def from_logs(spark: SparkSession, path: Path, options: Mapping[str, str]) -> DataFrame:
    """What ours reads; the options that are for a broker are given, too."""
    reader = spark.read.format("cordwood").option("kafka.bootstrap.servers", "127.0.0.1:1").option("groupIdPrefix", "g")
    return reader.options(**options).load(str(path))


def sorted_rows(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame, in the order of the log."""
    return frame.toArrow().sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
