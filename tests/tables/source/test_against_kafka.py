"""Batches equal those of Spark's own Kafka source: it reads fixtures from a real broker, ours their directories."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import cordwood
from cordwood.common.types import TopicPartition
from cordwood.storage.check import Severity
from cordwood.tables.source.offsets import to_document
from tests.fixtures import copy_of, fixture, partitions, reads
from tests.kafka_tools import Broker
from tests.knobs import drawn
from tests.tables.source.kafka_source import sorted_rows, with_kafka

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: No log changes while both sources read.
STILL = {
    "log_cleaner_enable": "false",
    "log_initial_task_delay_ms": 86_400_000,
    "log_retention_check_interval_ms": 86_400_000,
    "offsets_retention_minutes": 2_147_483,
    "transaction_max_timeout_ms": 2_147_483_647,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 2_147_483_647,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 2_147_483_647,
}


def from_kafka(spark: SparkSession, address: str, options: Mapping[str, str]) -> DataFrame:
    """Read with Spark's Kafka source."""
    fast = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1", "kafkaConsumer.pollTimeoutMs": "20000"}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.options(**fast, **options).load()


def from_logs(spark: SparkSession, path: Path, options: Mapping[str, str]) -> DataFrame:
    """Read with our source; it also gets the options for a broker."""
    reader = spark.read.format("cordwood").option("kafka.bootstrap.servers", "127.0.0.1:1").option("groupIdPrefix", "g")
    return reader.options(**options).load(str(path))


#: Directories that brokers of 4.3.1 left, in various states.
FIXTURES = [
    *(f"kraft-{name}" for name in ("before", "after", "before-2", "after-2")),
    *(f"kraft-classic-{name}" for name in ("before", "after", "before-2", "after-2", "before-3", "after-3")),
    *(f"kraft-crashed-{name}" for name in ("cleaned", "swap", "swapped", "swapping", "torn", "writes")),
    *(f"kraft-crashed-{name}-recovered" for name in ("cleaned", "swap", "swapped", "swapping", "torn", "writes")),
    *("kraft-jbod-before", "kraft-jbod-after", "other-clients-before", "other-clients-after"),
]


@dataclass(frozen=True)
class Facts:
    """A consumer's view of a directory: per partition, its first offset, its end, and times of its records."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    times: Mapping[TopicPartition, list[int]]

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.starts})

    def of(self, value: Callable[[TopicPartition], int], topics: list[str]) -> str:
        """JSON with a number for each partition of topics."""
        found: dict[str, dict[str, int]] = {}
        for partition in self.starts:
            if partition.topic in topics:
                found.setdefault(partition.topic, {})[str(partition.partition)] = value(partition)
        return json.dumps(found)

    def middle(self, partition: TopicPartition) -> int:
        return (self.starts[partition] + self.ends[partition]) // 2


def facts_of(lines: list[dict[str, Any]]) -> Facts:
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    times: dict[TopicPartition, list[int]] = {}
    for line in lines:
        name = TopicPartition(line["topic"], line["partition"])
        if name.topic.startswith("__"):
            continue
        if "log_start_offset" in line:
            starts[name], ends[name] = line["log_start_offset"], line["end_offset"]
        else:
            times.setdefault(name, []).append(line["timestamp"])
    return Facts(starts, ends, times)


def _median(facts: Facts, topics: list[str]) -> str:
    times = sorted(time for name, some in facts.times.items() if name.topic in topics for time in some)
    return str(times[len(times) // 2]) if times else "0"


#: Options by name, for a directory and some of its topics. {} is everything.
OPTION_SETS: dict[str, Callable[[Facts, list[str]], dict[str, str]]] = {
    "everything": lambda facts, topics: {"subscribePattern": ".*"},
    "topics, with headers": lambda facts, topics: {"subscribe": ", ".join(topics), "includeHeaders": "true"},
    "a pattern that is found within names": lambda facts, topics: {"subscribePattern": topics[0][1:]},
    "one partition each": lambda facts, topics: {"assign": json.dumps({topic: [0] for topic in topics})},
    "from offsets in the middle": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingOffsets": facts.of(facts.middle, topics),
    },
    "to offsets in the middle": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "endingOffsets": facts.of(facts.middle, topics),
    },
    "words for offsets": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingOffsets": facts.of(lambda _: -2, topics),
        "endingOffsets": facts.of(lambda _: -1, topics),
    },
    "offsets that are not there": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingOffsets": facts.of(lambda name: max(0, facts.starts[name] - 5), topics),
        "endingOffsets": facts.of(lambda name: facts.ends[name] + 5, topics),
    },
    "offsets that are not there, and need not be": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingOffsets": facts.of(lambda name: max(0, facts.starts[name] - 5), topics),
        "failOnDataLoss": "false",
    },
    "from a time": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingTimestamp": _median(facts, topics),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "from a time that nobody reached": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingTimestamp": "9999999999999",
    },
    "to a time": lambda facts, topics: {"subscribe": ",".join(topics), "endingTimestamp": _median(facts, topics)},
    "between times of each partition": lambda facts, topics: {
        "subscribe": ",".join(topics),
        "startingOffsetsByTimestamp": facts.of(lambda name: sorted(facts.times.get(name, [0]))[0], topics),
        "endingOffsetsByTimestamp": facts.of(lambda name: sorted(facts.times.get(name, [0]))[-1], topics),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "many Spark partitions": lambda facts, topics: {"subscribe": ",".join(topics), "minPartitions": "7"},
    "few records in each": lambda facts, topics: {"subscribe": ",".join(topics), "maxRecordsPerPartition": "50"},
    "a topic that is not there": lambda facts, topics: {"subscribe": f"{topics[0]},no-such-topic"},
}
LEVELS = ("read_uncommitted", "read_committed")
#: Reads on, behind damage and beside wrong indexes.
WHATEVER = {"failOnDamage": "false", "useIndexes": "false"}
Ends = Mapping[TopicPartition, int]


@pytest.fixture
def both(spark: SparkSession) -> SparkSession:
    """A session with both sources."""
    cordwood.register(spark)
    return with_kafka(spark)


def served(broker: Broker, name: str, tmp_path: Path) -> str:
    """Start a broker on a copy of a fixture; return its address."""
    copy = copy_of(fixture(name), tmp_path / "served")
    if name.startswith("kraft-jbod"):
        return broker.start(copy / "a", "--also", copy / "b", **STILL)
    return broker.start(copy, **STILL)


def compare(
    spark: SparkSession, address: str, path: Path, options: Mapping[str, str], why: str, damaged_ends: Ends | None
) -> int:
    """Read both ways, and return the number of rows; both must refuse the same reads.

    `damaged_ends` are given for a directory with damage: the ends of its logs after a broker's recovery.
    """
    theirs, ours = (
        _rows_or_error(read)
        for read in (lambda: from_kafka(spark, address, options), lambda: from_logs(spark, path, options))
    )
    if damaged_ends is not None:
        if isinstance(theirs, Exception):
            return 0  # such as offsets above an end, which are here
        if isinstance(ours, Exception):
            assert "CorruptBatchError" in str(ours) or "set useIndexes to false" in str(ours), f"{why}: {ours}"
            ours = _rows_or_error(lambda: from_logs(spark, path, {**options, **WHATEVER}))
        if isinstance(ours, pa.Table):
            ours = below(ours, damaged_ends)
    by_time = any("imestamp" in name for name in options) and has_emptied_segments(path)
    if by_time and isinstance(ours, pa.Table) and (isinstance(theirs, Exception) or not ours.equals(theirs)):
        # A broker looks for a time no further than an emptied segment, whose file is as new as its cleaning.
        theirs = between_times(spark, address, path, options)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        assert isinstance(theirs, Exception) and isinstance(ours, Exception), f"{why}: {theirs} / {ours}"
        assert "cordwood.common.errors.RequestError" in str(ours) or "cordwood.common.errors.NotFoundError" in str(
            ours
        ), why
        return 0
    assert ours.schema.equals(theirs.schema), why
    assert ours.equals(theirs), f"{why}: {ours.num_rows} rows, {theirs.num_rows} of Kafka's source"
    return int(ours.num_rows)


def below(rows: pa.Table, ends: Ends) -> pa.Table:
    """The rows below the ends of their partitions."""
    places = zip(*(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    return rows.filter(pa.array([offset < ends[TopicPartition(*name)] for *name, offset in places]))


def has_emptied_segments(path: Path) -> bool:
    return any(not one.stat().st_size for logs in partitions(path) for one in sorted(logs.glob("*.log"))[:-1])


def between_times(spark: SparkSession, address: str, path: Path, options: Mapping[str, str]) -> pa.Table:
    """Read with Kafka's source between the times of options, which are searched in all existing records."""
    level = options["kafka.isolation.level"]
    rows = sorted_rows(from_kafka(spark, address, {"subscribe": options["subscribe"], "kafka.isolation.level": level}))
    keep = []
    firsts: dict[tuple[str, int, str], int | None] = {}

    def first(topic: str, number: int, option: str) -> int | None:
        text = options.get(f"{option}Timestamp") or json.loads(options.get(f"{option}OffsetsByTimestamp", "{}"))
        if not text:
            return None
        time = int(text) if isinstance(text, str) else text[topic][str(number)]
        (place,) = (one for one in partitions(path) if one.name == f"{topic}-{number}")
        log = cordwood.open_log(str(place))
        found = log.records(since_ms=time, start_offset=log.log_start_offset, isolation=None)
        # With the strategy `latest`, no record is read from a partition without such a record.
        return next((record.offset for record in found), log.next_offset)

    for topic, number, offset in zip(
        *(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True
    ):
        for option in ("starting", "ending"):
            if (topic, number, option) not in firsts:
                firsts[topic, number, option] = first(topic, number, option)
        start, end = firsts[topic, number, "starting"], firsts[topic, number, "ending"]
        keep.append((start is None or offset >= start) and (end is None or offset < end))
    return rows.filter(pa.array(keep))


def _rows_or_error(read: Callable[[], DataFrame]) -> pa.Table | Exception:
    try:
        return sorted_rows(read())
    except Exception as error:
        return error


@pytest.mark.parametrize("name", drawn(FIXTURES))
def test_each_option_reads_what_kafkas_source_reads(
    both: SparkSession, kafka_broker: Broker, tmp_path: Path, name: str
) -> None:
    path = fixture(name)
    address = served(kafka_broker, name, tmp_path)
    # Crashed directories were not read before their recovery.
    twin = name if "crashed" not in name or name.endswith("recovered") else f"{name}-recovered"
    facts = facts_of(reads(twin, "read_uncommitted"))
    usual = [
        topic
        for topic in ("orders", "payments", "odd-bytes", "trimmed", "append-time", "empty")
        if topic in facts.topics
    ]
    topics: list[str] = list(usual) or facts.topics[:5]
    damaged_ends = facts.ends if any(one.severity is Severity.DAMAGE for one in cordwood.check(str(path))) else None
    rows = 0
    everything, *others = OPTION_SETS.items()
    # Both sources refuse the whole read for some sets.
    for what, options in (everything, *drawn(others)):
        for level in LEVELS:
            asked = options(facts, topics) | {"kafka.isolation.level": level}
            rows += compare(both, address, path, asked, f"{name}, {what}, {level}: {asked}", damaged_ends)
    assert rows


def test_kafkas_source_takes_offsets_from_a_checkpoint_with_marks(spark: SparkSession) -> None:
    with_kafka(spark)
    partition = TopicPartition("orders", 1)
    text = json.dumps(to_document({partition: 7}, {partition: "kh0ERQ6WToCnIzrMNpUr_A"}))
    assert spark.sparkContext._jvm is not None
    found = spark.sparkContext._jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(text)
    assert found.toString() == "Map(orders-1 -> 7)"
