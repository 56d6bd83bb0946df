"""How fast values of 100 B reach Spark from a log's directory; beside Spark's Kafka source reading them from a broker.

One topic of two partitions, on two cores, in a session as a user makes it. What is timed is a query that sums up the
bytes of all values, from its start to its result; its answer is compared with what was written. A broker serves the
very files that ours reads. What Spark itself takes, whatever source it reads from, is measured with one that hands over
ready-made batches from memory. The sides take turns; the first turn of each, in which workers start and kernels are
loaded, is not counted.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cordwood.bench.beside_kafka import Seconds, find_kafka
from cordwood.bench.generate import Shape, write_log
from cordwood.commands.register import register
from cordwood.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.collecting import collect
from cordwood.spark.gateway import Gateway, without_words_of_py4j

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: To be reached on two cores: rows in a second, and times the rate of Spark's Kafka source.
ROWS_PER_SECOND, TIMES_KAFKA = 4_000_000, 3
_TOPIC, _PARTITIONS, _CORES, _VALUE_BYTES = "bench", 2, 2, 100
#: Nothing of the broker's own work while it is read.
_STILL = ("log.cleaner.enable=false", "log.retention.ms=-1", "log.retention.check.interval.ms=86400000")
#: A session's own settings, but for what is not measured: web pages, a host name to resolve, lines on the terminal.
_SETTINGS = {
    "spark.master": f"local[{_CORES}]",
    "spark.app.name": "cordwood bench",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What was measured.

    Attributes:
        cordwood: seconds of the query.
        memory: the same with rows from memory.
        kafka: the same with Spark's Kafka source; None: not asked for.
    """

    records: int
    cordwood: Seconds
    memory: Seconds
    kafka: Seconds | None

    @property
    def rows_per_second(self) -> float:
        """Of our source."""
        return self.records / self.cordwood.median

    @property
    def memory_rows_per_second(self) -> float:
        """Of rows from memory: what Spark takes from a Python data source at best."""
        return self.records / self.memory.median

    @property
    def kafka_rows_per_second(self) -> float | None:
        """Of Spark's Kafka source."""
        return None if self.kafka is None else self.records / self.kafka.median

    @property
    def ratio(self) -> float | None:
        """How many times faster ours is."""
        return None if self.kafka is None else self.kafka.median / self.cordwood.median


def measure(folder: Path, size_bytes: int, runs: int, *, against_kafka: bool) -> SourceFigures:
    """Write a topic, read it by our source, and by Kafka's if asked for, in turns.

    Args:
        runs: of each side that count.
        against_kafka: have a broker serve the topic to Spark's Kafka source.
    """
    from cordwood.bench.memory_source import NAME, MemorySource

    logs = folder / "logs"
    records = 0
    for number in range(_PARTITIONS):
        partition = logs / f"{_TOPIC}-{number}"
        partition.mkdir(parents=True)
        shape = Shape(value_bytes=_VALUE_BYTES)
        records += write_log(PosixFileSystem(), str(partition), size_bytes=size_bytes // _PARTITIONS, shape=shape)
    with contextlib.ExitStack() as stack:
        address = ""
        if against_kafka:
            served = folder / "served"
            address = stack.enter_context(_broker(find_kafka(), served, sorted(logs.iterdir())))
            logs = served
        spark = stack.enter_context(_session())
        register(spark)
        spark.dataSource.register(MemorySource)
        rows = {"rows": f"{records}", "valueBytes": f"{_VALUE_BYTES}", "tasks": f"{_CORES}"}
        sides = {"cordwood": (str(logs), {"subscribe": _TOPIC, "columns": "value"}), NAME: ("", rows)}
        if against_kafka:
            add_kafka_source(spark)
            sides["kafka"] = ("", {"subscribe": _TOPIC, "kafka.bootstrap.servers": address})
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(runs + 1):
            for side, (path, options) in sides.items():
                seconds[side].append(_timed(spark, side, path, options, records * _VALUE_BYTES))
    return SourceFigures(
        records,
        Seconds.of(seconds["cordwood"]),
        Seconds.of(seconds[NAME]),
        Seconds.of(seconds["kafka"]) if against_kafka else None,
    )


def add_kafka_source(spark: SparkSession) -> None:
    """Give a session the format `kafka`, whose jars Maven gets the first time."""
    fetched = subprocess.run([find_kafka() / "fetch-spark-kafka"], capture_output=True, text=True, check=False)
    if fetched.returncode:
        raise RequestError(f"The jars of Spark's Kafka source are not here: {fetched.stderr.strip()}")
    for jar in Path(fetched.stdout.strip()).glob("*.jar"):
        spark.sql(f"ADD JAR '{jar}'")


def _timed(spark: SparkSession, side: str, path: str, options: Mapping[str, str], expected_bytes: int) -> float:
    began = time.perf_counter()
    reader = spark.read.format(side).options(**options)
    frame = reader.load(path) if path else reader.load()
    (row,) = collect(frame.selectExpr("sum(octet_length(value)) AS bytes"))
    seconds = time.perf_counter() - began
    if row.bytes != expected_bytes:
        raise RequestError(f"The source {side} read {row.bytes} bytes of values, and {expected_bytes} were written")
    return seconds


@contextlib.contextmanager
def _session() -> Iterator[SparkSession]:
    """A session on two cores with Spark's own settings; the one of this process, if it has one."""
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    with without_words_of_py4j():
        gateway = Gateway(_SETTINGS)
        try:
            yield gateway.session
        except BaseException:
            gateway.kill()
            raise
        gateway.stop()


@contextlib.contextmanager
def _broker(tools: Path, directory: Path, partitions: list[Path]) -> Iterator[str]:
    """A broker that serves copies of partitions; its address."""
    settings = [word for one in _STILL for word in ("--set", one)]
    try:
        _run(tools, "adopt", str(directory), *map(str, partitions), *settings)
        yield _run(tools, "address", str(directory)).strip()
    finally:
        if _run(tools, "status", str(directory)).startswith("running"):
            _run(tools, "kill", str(directory))


def _run(tools: Path, *words: str) -> str:
    done = subprocess.run([tools / "broker", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RequestError(f"A broker failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
