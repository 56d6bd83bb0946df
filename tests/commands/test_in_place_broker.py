"""A real broker and its connected clients continue on a directory that was cleaned in place.

Producers keep their id, epoch and next sequence number, consumers their offsets, and one transaction is open all the
time. The broker stops, or crashes; the directory is cleaned; the broker starts again at the same address.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import Batch
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.view import LogView
from tests.kafka_tools import FOLDER, Broker, Line
from tests.knobs import in_turns

ORDERS = TopicPartition("orders", 0)
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 4000,
    "delete.retention.ms": 0,
    "min.cleanable.dirty.ratio": 0.01,
}
KEYS = 12
WAIT_SECONDS = 120


class Client:
    """Kafka's clients in one process that lives as long as the test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        #: By key the last committed value.
        self.table: dict[str, str] = {}

    def __call__(self, do: str, **options: Any) -> Line:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"do": do, **options}) + "\n")
        stdin.flush()
        if do == "send":
            return {}
        answer: Line = json.loads(stdout.readline())
        assert "error" not in answer, answer
        return answer

    def send(self, producer: str, key: int, value: str) -> None:
        """Send a record, that is not committed yet."""
        self("send", id=producer, topic=ORDERS.topic, key=f"key-{key}", value=value)

    def write(self, producer: str, name: str, records: int, *, end: str | None = None) -> Line:
        """Send records, in a transaction of their own that ends so."""
        if end is not None:
            self("begin", id=producer)
        for number in range(records):
            self.send(producer, number % KEYS, f"{name} {number}")
        if end != "abort":
            self.table.update({f"key-{number % KEYS}": f"{name} {number}" for number in range(records)})
        return self(end or "flush", id=producer)


@contextlib.contextmanager
def client(directory: Path) -> Iterator[Client]:
    with subprocess.Popen(
        [FOLDER / "broker", "client", directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Client(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


def clean(directory: Path, spark: SparkSession, *, crashed: bool) -> CleanResult:
    result = clean_in_place(
        str(directory),
        spark=spark,
        ignore_ratio=True,
        single_copy=True,
        # A checkpoint after a crash is far below the end of the only replica.
        high_watermark="end" if crashed else None,
    )
    assert not result.with_fate(Fate.FAILED), result.text()
    (cleaned,) = (one for one in result.with_fate(Fate.CLEANED) if one.path.endswith(f"/{ORDERS}"))
    assert cleaned.counts.records_superseded > KEYS
    return result


def first_dirty(directory: Path) -> int:
    path = directory / filenames.CLEANER_OFFSETS
    return checkpoints.decode(path.read_bytes()).get(ORDERS, 0) if path.exists() else 0


def batches(directory: Path) -> list[Batch]:
    """All batches of data."""
    return [one for one in LogView(str(directory / str(ORDERS)), fs=PosixFileSystem()).batches() if not one.is_control]


def consume(kafka_client: Client, to: Path) -> Line:
    return kafka_client("consume", isolation="read_committed", topics=[ORDERS.topic], to=str(to), probes=8)


def table(read: Path) -> dict[str, str]:
    lines = [json.loads(line) for line in read.read_text().splitlines()]
    return {line["key"]: line["value"] for line in lines if "offset" in line}


def run(program: str, *words: str | Path) -> None:
    done = subprocess.run([FOLDER / program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", in_turns(["stop", "kill"], "kill"))
def test_broker_and_clients_go_on_after_a_clean_in_place(
    way: str, spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    port = kafka_broker.start(data, log_cleaner_enable="false").rpartition(":")[2]
    with client(data) as clients:
        clients("create_topic", topic=ORDERS.topic, config=CONFIG)
        small = {"batch.size": 500}
        clients("producer", id="sure", config=small)
        for name in ("done", "open"):
            more = {"transactional.id": name, "transaction.timeout.ms": 600_000}
            clients("producer", id=name, config=small | more)
        clients("consumer", id="reader", topic=ORDERS.topic, isolation="read_committed")
        for number in range(3):
            clients.write("sure", f"sure {number}", 40)
            clients.write("done", f"done {number}", 30, end="commit")
            clients.write("done", f"aborted {number}", 20, end="abort")
        clients.write("open", "before", 5, end="commit")
        middle = clients("poll", id="reader", records=30)
        assert len(middle["offsets"]) >= 30
        # From here on only the producers `last …` write for long: the clean keeps only headers of the other
        # producers' last batches.
        for number in range(3):
            clients("producer", id=f"last {number}", config=small)
            clients.write(f"last {number}", f"last {number}", 40)
        clients("begin", id="open")
        clients.send("open", 0, "in the middle 0")
        clients("flush", id="open")
        clients.write("last 0", "behind", 30)
        consume(clients, tmp_path / "before.jsonl")

        kafka_broker(way, data)
        before = {one.producer_id: one for one in batches(data)}
        clean(data, spark, crashed=way == "kill")
        cleaned_to = first_dirty(data)
        assert cleaned_to > 100
        left = [one for one in batches(data) if one.base_offset < cleaned_to]
        bases = {one.base_offset for one in before.values()}
        assert [one for one in left if one.base_offset in bases and one.record_count == 0], (
            "no producer lost its records"
        )
        if way == "stop":
            run("broker-check", data, "--to", tmp_path / "checked", "--no-indexes")

        kafka_broker.start(data, "--port", port, log_cleaner_enable="false")
        consume(clients, tmp_path / "after.jsonl")
        run("broker-compare", tmp_path / "before.jsonl", tmp_path / "after.jsonl")

        # All clients continue.
        clients.send("open", 1, "in the middle 1")
        clients("commit", id="open")
        clients.write("sure", "sure again", 40)
        clients.write("done", "done again", 30, end="commit")
        clients.write("done", "aborted again", 10, end="abort")
        clients.write("open", "open again", 3, end="commit")
        rest = clients("poll", id="reader")
        assert rest["offsets"][0] > middle["offsets"][-1]
        assert rest["offsets"] == sorted(rest["offsets"])
        kafka_broker("stop", data)
        followed = 0
        for producer_id, last in before.items():
            later = [
                one for one in batches(data) if one.producer_id == producer_id and one.base_offset > last.base_offset
            ]
            for one in later[:1]:
                # An epoch begins with each transaction, except with the open one.
                begins = one.is_transactional and (one.producer_epoch, one.base_sequence) == (
                    last.producer_epoch + 1,
                    0,
                )
                assert begins or (one.producer_epoch, one.base_sequence) == (
                    last.producer_epoch,
                    last.last_sequence + 1,
                )
                followed += not begins
        assert followed == 2, "the one without transactions, and the one whose transaction was open"

        # The broker's own cleaner continues from there.
        kafka_broker.start(data, "--port", port, log_cleaner_backoff_ms="100")
        clients.write("sure", "sure for the cleaner", 200)
        deadline = time.monotonic() + WAIT_SECONDS
        while first_dirty(data) <= max(cleaned_to, rest["position"]):
            assert time.monotonic() < deadline, "the broker does not clean"
            time.sleep(0.2)
        kafka_broker("stop", data)
        kafka_broker.start(data, "--port", port, log_cleaner_enable="false")
        clients.write("done", "the end", 5, end="commit")
        # A commit does not wait until its markers are written, and readers do.
        deadline = time.monotonic() + WAIT_SECONDS
        consume(clients, tmp_path / "end.jsonl")
        while table(tmp_path / "end.jsonl") != clients.table and time.monotonic() < deadline:
            consume(clients, tmp_path / "end.jsonl")
        assert table(tmp_path / "end.jsonl") == clients.table
        clients("poll", id="reader")
    kafka_broker("stop", data)
