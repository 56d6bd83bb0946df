"""Measures how fast values of 100 B reach Spark from a log's directory, optionally beside Spark's Kafka source.

The topic has two partitions, and the session, with default settings, two cores. The timed query sums the bytes of all
values, from its start to its result; the result is compared with the written bytes. For Spark's Kafka source a broker
serves the same files. A source of prepared batches in memory measures the time that Spark itself takes with any Python
source. The sides take turns; the first turn of each, which starts workers and loads kernels, is not counted.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cordwood.bench.beside_kafka import Seconds, find_kafka
from cordwood.bench.generate import Shape, write_log
from cordwood.commands.spark import register
from cordwood.common.errors import RequestError
from cordwood.common.types import override
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.spark.gateway import Gateway, without_words_of_py4j
from cordwood.tasks.spark.runner import collect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Targets on two cores: rows per second, and the ratio to Spark's Kafka source.
ROWS_PER_SECOND, TIMES_KAFKA = 4_000_000, 3
_TOPIC, _PARTITIONS, _CORES, _VALUE_BYTES = "bench", 2, 2, 100
#: Settings that keep the broker from working while it is read.
_STILL = ("log.cleaner.enable=false", "log.retention.ms=-1", "log.retention.check.interval.ms=86400000")
#: Default session settings, except for unmeasured work: web pages, resolving the host name, progress lines.
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
    """The results.

    Attributes:
        cordwood: seconds of the query.
        memory: seconds with rows from memory.
        kafka: seconds with Spark's Kafka source, or None if it was not measured.
    """

    records: int
    cordwood: Seconds
    memory: Seconds
    kafka: Seconds | None

    @property
    def rows_per_second(self) -> float:
        """Rate of Cordwood's source."""
        return self.records / self.cordwood.median

    @property
    def memory_rows_per_second(self) -> float:
        """Rate of rows from memory: the most that Spark reads from a Python data source."""
        return self.records / self.memory.median

    @property
    def kafka_rows_per_second(self) -> float | None:
        """Rate of Spark's Kafka source."""
        return None if self.kafka is None else self.records / self.kafka.median

    @property
    def ratio(self) -> float | None:
        """How many times faster Cordwood's source is."""
        return None if self.kafka is None else self.kafka.median / self.cordwood.median


def measure(folder: Path, size_bytes: int, runs: int, *, against_kafka: bool) -> SourceFigures:
    """Write a topic; read it with Cordwood's source, and optionally with Kafka's, in turns.

    Args:
        runs: number of counted runs per side.
        against_kafka: whether a broker serves the topic to Spark's Kafka source.
    """
    from cordwood.bench.spark_source import NAME, MemorySource

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
    """Add the format `kafka` to a session; the first time, Maven downloads its jars."""
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
    """Return this process's session if it has one, else a new one on two cores with default settings."""
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
    """Run a broker that serves copies of partitions; yield its address."""
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


# ---- the same read by a reader in memory -----------------------------------------------------------------------------

# A data source of prepared batches, to measure how fast Spark reads from any Python data source.

NAME = "memory-of-cordwood"
#: About the rows of a log's window.
_BATCH_ROWS = 32_768


class MemorySource(DataSource):
    """Rows with one column, `value`; options: number of `rows`, `valueBytes` and `tasks`."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> str:
        return "value BINARY"

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(*(int(self.options[name]) for name in ("rows", "valueBytes", "tasks")))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int, tasks: int) -> None:
        self._value_bytes = value_bytes
        self._rows = [rows // tasks + (at < rows % tasks) for at in range(tasks)]

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(rows) for rows in self._rows]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        whole = _batch(_BATCH_ROWS, self._value_bytes)
        for start in range(0, partition.value, _BATCH_ROWS):
            yield whole.slice(0, min(_BATCH_ROWS, partition.value - start))


def _batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    offsets = np.arange(rows + 1, dtype=np.int32) * value_bytes
    data = np.zeros(rows * value_bytes, np.uint8)
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], names=["value"])
