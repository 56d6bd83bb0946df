"""Spark's own Kafka source beside ours: the same options, a broker on one side and its directory on the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from cordwood.bench.spark_source import add_kafka_source
from cordwood.common.errors import RequestError
from tests import kafka_tools

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: The topic that `producing` writes to, and the retained size of each partition.
TOPIC, RETENTION_BYTES = "moving", 60_000


def with_kafka(spark: SparkSession) -> SparkSession:
    """The session, with the jars of Spark's Kafka source; the test is skipped, or fails, where they cannot be had."""
    try:
        add_kafka_source(spark)
    except RequestError as error:
        (pytest.fail if kafka_tools.required() else pytest.skip)(str(error))
    return spark


def sorted_rows(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame, in the order of the log."""
    return frame.toArrow().sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


class Producer:
    """Kafka's Java client, which keeps running: it gets commands one by one while a test checks their effects."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [kafka_tools.FOLDER / "broker", "client", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, *commands: kafka_tools.Line) -> list[kafka_tools.Line]:
        """Run commands to their end; return the answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        for command in commands:
            self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answers = []
        for command in commands:
            if command["do"] != "send":  # these do not answer
                answers.append(answer := json.loads(self._process.stdout.readline()))
                assert answer.get("ok") == command["do"], answer
        return answers

    def transaction(self, values: Mapping[int, Sequence[str]], *, committed: bool) -> None:
        """Write values to partitions of the topic `moving` in one transaction."""
        sends = [
            {"do": "send", "id": "p", "topic": TOPIC, "partition": partition, "key": "k", "value": value}
            for partition, some in values.items()
            for value in some
        ]
        self({"do": "begin", "id": "p"}, *sends, {"do": "commit" if committed else "abort", "id": "p"})
