"""A stream follows a directory while a broker appends and deletes; it reads the same as Kafka's source, each record
once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cordwood
from cordwood.tasks.spark.launch import find_java
from tests import kafka_tools
from tests.command import ENVIRONMENT
from tests.kafka_tools import Broker
from tests.knobs import SEED, scaled
from tests.tables.source.kafka_source import RETENTION_BYTES, TOPIC, Producer, sorted_rows, with_kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@contextmanager
def producing(broker: kafka_tools.Broker, directory: Path) -> Iterator[Producer]:
    """A broker with a topic of two partitions, whose old segments retention deletes all the time; and a producer to
    it.
    """
    broker.start(directory, log_retention_check_interval_ms=200, log_initial_task_delay_ms=100)
    settings = {"internal.segment.bytes": "12000", "retention.bytes": str(RETENTION_BYTES), "file.delete.delay.ms": "0"}
    with Producer(directory) as producer:
        producer(
            {"do": "create_topic", "topic": TOPIC, "partitions": 2, "config": settings},
            {"do": "producer", "id": "p", "config": {"transactional.id": "x"}},
        )
        yield producer


#: Transactions that are written while two streams follow.
TRANSACTIONS = scaled(24, 200)
#: Number of kills of a query.
KILLS = scaled(1, 50)
_SECONDS_MAX = 180


def wait_until(is_reached: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS_MAX
    while not is_reached():
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.02)


def values_of(number: int, source: random.Random, size_bytes: int = 200) -> dict[int, list[str]]:
    """Values of one transaction, of one partition or both; no two are equal."""
    partitions = source.choice([(0,), (1,), (0, 1)])
    return {
        one: [f"{number}-{one}-{at}-" + "v" * size_bytes for at in range(source.randrange(1, 12))] for one in partitions
    }


def has_read(spark: SparkSession, query: StreamingQuery, table: str, count: int) -> bool:
    """Whether a query wrote at least `count` rows to a table, or ended."""
    return not query.isActive or spark.table(table).count() >= count


def log_start_offset(directory: Path) -> int:
    return cordwood.open_log(str(directory / f"{TOPIC}-0")).log_start_offset


def test_a_stream_reads_what_kafkas_reads_while_a_producer_and_retention_run(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    cordwood.register(spark)
    with_kafka(spark)
    directory, source = tmp_path / "logs", random.Random(SEED)
    with producing(kafka_broker, directory) as producer:
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
        options["kafka.bootstrap.servers"] = kafka_broker("address", directory)
        readers = {
            "kafka": spark.readStream.format("kafka").options(**options).load(),
            "cordwood": spark.readStream.format("cordwood").options(**options).load(str(directory)),
        }
        queries = {
            name: frame.writeStream.format("memory").queryName(f"by_{name}").start() for name, frame in readers.items()
        }
        committed = unread = 0
        try:
            for number in range(TRANSACTIONS):
                values, commits = values_of(number, source, 1000), source.random() < 0.7
                producer.transaction(values, committed=commits)
                committed += sum(map(len, values.values())) if commits else 0
                unread += sum(len(value) for some in values.values() for value in some)
                # Retention must not overtake a reader here, however slow the machine is.
                if unread > RETENTION_BYTES // 2 or number == TRANSACTIONS - 1:
                    unread = 0
                    for name, query in queries.items():
                        wait_until(partial(has_read, spark, query, f"by_{name}", committed), f"what {name} should read")
                        assert query.isActive, query.exception()
            wait_until(lambda: log_start_offset(directory) > 0, "retention")
        finally:
            for query in queries.values():
                query.stop()
        theirs, ours = (sorted_rows(spark.table(f"by_{name}")) for name in readers)
        assert ours.num_rows == committed
        assert ours.equals(theirs)


_FOLLOW = """
import sys
from pyspark.sql import SparkSession
import cordwood

logs, folder, how = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
cordwood.register(spark)
options = {"subscribe": "moving", "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
stream = spark.readStream.format("cordwood").options(**options).load(logs)
rows = stream.selectExpr("partition", "offset", "cast(value AS string) AS value")
writer = rows.writeStream.format("parquet").option("path", folder + "/rows")
writer = writer.option("checkpointLocation", folder + "/checkpoint")
query = (writer.trigger(availableNow=True) if how == "now" else writer).start()
query.awaitTermination()
"""


class Follower:
    """A program with a query, in a process group of its own."""

    def __init__(self, logs: Path, folder: Path, how: str) -> None:
        environment = {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(folder)}
        environment |= {name: value for name, value in find_java().settings.items() if value is not None}
        environment["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"]
        self.said = (folder / "said").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FOLLOW, str(logs), str(folder), how],
            env=environment, cwd=folder, stdout=self.said, stderr=self.said, start_new_session=True,
        )  # fmt: skip

    def is_past(self, planned: Path, number: int) -> bool:
        """Whether it planned a batch behind one with that number, or ended."""
        return self.process.poll() is not None or last_number(planned) > number

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.said.close()


def last_number(folder: Path) -> int:
    """The newest file of a checkpoint's log."""
    return max((int(one.name) for one in folder.glob("*") if one.name.isdigit()), default=-1)


@pytest.mark.slow
def test_a_query_that_is_killed_again_and_again_reads_each_record_once(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    directory, folder, source = tmp_path / "logs", tmp_path / "query", random.Random(SEED)
    folder.mkdir()
    planned, done = folder / "checkpoint" / "offsets", folder / "checkpoint" / "commits"
    committed: list[str] = []
    with producing(kafka_broker, directory) as producer:

        def write(number: int) -> None:
            for part in range(3):
                values, commits = values_of(3 * number + part, source), source.random() < 0.7
                producer.transaction(values, committed=commits)
                committed.extend(value for some in values.values() for value in some if commits)

        write(0)
        for number in range(1, KILLS + 1):
            before = last_number(planned)
            query = Follower(directory, folder, "on")
            try:
                wait_until(partial(query.is_past, planned, max(before, last_number(done))), "a batch")
                assert query.process.poll() is None, (folder / "said").read_text()[-4000:]
                if source.random() < 0.5:
                    write(number)
                time.sleep(source.random() * 0.6)
            finally:
                query.kill()
            write(KILLS + number)
            # Appends between two kills are far smaller than the retained data, and every second query makes progress.
            assert log_start_offset(directory) <= read_up_to(planned)
        query = Follower(directory, folder, "now")
        try:
            assert query.process.wait(_SECONDS_MAX) == 0, (folder / "said").read_text()[-4000:]
        finally:
            query.kill()
    found = Counter(row.value for row in spark.read.parquet(str(folder / "rows")).collect())
    assert found == Counter(committed)


def read_up_to(planned: Path) -> int:
    """The offset of partition 0 up to which a batch was planned."""
    text = (planned / str(last_number(planned))).read_text().splitlines()[-1]
    return int(json.loads(text)[TOPIC]["0"])
