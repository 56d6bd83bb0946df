"""A broker, `cordwood run` and a program with a manager take turns on one directory, while producers write to it."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.producer_state import AppendOrigin
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from tests import knobs
from tests.command import start
from tests.kafka_tools import Broker, Line

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TURNS = 2
KEYS = [f"key-{number}" for number in range(20)]
#: Cleans as soon as something is dirty; a new segment every second.
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
#: Ids of our own producers; a broker assigns lower ones.
OUR_PRODUCERS = 1 << 40
CONFIGS = ("retention.ms=-1", "log.cleaner.enable=false")
#: Levels at which a broker logs problems of a log.
COMPLAINTS = (" WARN ", " ERROR ")


@dataclass
class World:
    """Acknowledged records, and the directory that must hold them.

    Attributes:
        kept: the values of a topic from which nothing is deleted, in order.
        newest: the last value of each key of a compacted topic.
        is_soaked: whether brokers and runs are killed, too, now and then.
    """

    data: Path
    chosen: random.Random
    kept: list[str] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)
    is_soaked: bool = False
    number: int = 0
    cleaned: int = 0

    def values(self, count: int) -> list[str]:
        """New values; no two are the same."""
        self.number += count
        return [f"value-{number}-{'x' * 200}" for number in range(self.number - count, self.number)]


def send(producer: str, topic: str, values: list[str], key: str | None = None) -> list[Line]:
    return [
        {"do": "send", "id": producer, "topic": topic, "partition": 0, "value": value, **({"key": key} if key else {})}
        for value in values
    ]


def broker_turn(world: World, broker: Broker) -> None:
    """Producers with and without transactions write; consumers read all that was ever acknowledged."""
    broker.start(world.data, log_cleaner_enable="false", log_flush_interval_messages="1")
    plain, committed, aborted = (world.values(world.chosen.randrange(1, 30)) for _ in range(3))
    commands: list[Line] = []
    if not world.number - sum(map(len, (plain, committed, aborted))):
        commands += [
            {"do": "create_topic", "topic": "kept", "partitions": 1, "config": {"retention.ms": "-1"}},
            {"do": "create_topic", "topic": "compacted", "partitions": 1, "config": COMPACTED},
        ]
    commands.append({"do": "producer", "id": "p", "config": {"enable.idempotence": "true"}})
    commands.append({"do": "producer", "id": "x", "config": {"transactional.id": "x"}})
    commands += [*send("p", "kept", plain), {"do": "flush", "id": "p"}]
    for key in world.chosen.sample(KEYS, 8):
        (value,) = world.values(1)
        world.newest[key] = value
        commands += send("p", "compacted", [value], key)
    commands += [{"do": "flush", "id": "p"}, {"do": "begin", "id": "x"}, *send("x", "kept", committed)]
    commands += [{"do": "commit", "id": "x"}, {"do": "begin", "id": "x"}, *send("x", "kept", aborted)]
    commands += [{"do": "flush", "id": "x"}, {"do": "abort", "id": "x"}]
    commands.append({"do": "consume", "topics": ["kept", "compacted"], "isolation": "read_committed"})
    world.kept += plain + committed
    lines = [line for line in broker.client(world.data, commands) if "offset" in line]
    kept = [line["value"] for line in lines if line["topic"] == "kept"]
    assert kept == world.kept, f"{len(kept)} values are there, {len(world.kept)} were acknowledged"
    newest = {line["key"]: line["value"] for line in lines if line["topic"] == "compacted"}
    assert newest == world.newest
    said = [line for line in broker("logs", world.data).splitlines() if "kept-0" in line or "compacted-0" in line]
    complaints = [line for line in said if any(word in line for word in COMPLAINTS)]
    assert complaints == []
    (world.data.parent / f"{world.data.name}.broker" / "broker.log").write_text("")
    kills = world.is_soaked and world.chosen.random() < 0.25
    broker("kill" if kills else "stop", world.data)


def run_turn(world: World) -> None:
    """`cordwood run` compacts the topics with that policy in the metadata, and is ended by a signal or killed."""
    words = ("run", world.data, "--json", "--port", "0", "--config", "log.cleaner.backoff.ms=50")
    with start(*words, stderr=None) as process:
        assert process.stdout is not None
        lines = []
        for text in process.stdout:
            lines.append(json.loads(text))
            if "/metrics" in lines[-1]["message"]:
                break
        time.sleep(1 + 2 * world.chosen.random())
        kills = world.is_soaked and world.chosen.random() < 0.25
        process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
        lines += [json.loads(text) for text in process.stdout if text.endswith("\n")]
    assert process.returncode == (-signal.SIGKILL if kills else 0), lines
    assert [line for line in lines if line["level"] in ("warning", "error", "critical")] == []
    world.cleaned += sum(line["event"] == "clean" for line in lines)


def manager_turn(world: World) -> None:
    """A program appends by itself: an idempotent producer, a committed transaction, an aborted one."""
    manager = LogManager(PosixFileSystem(), [str(world.data)], overrides(CONFIGS))
    manager.startup()
    log = manager.logs[TopicPartition("kept", 0)]
    log.update_high_watermark(log.log_end_offset)
    producer = OUR_PRODUCERS + world.number
    plain = world.values(3)
    append(log, plain, producer, 0)
    append(log, plain, producer, 0)  # a retry, which is not written again
    committed, aborted = world.values(2), world.values(2)
    for values, ends_well in ((committed, True), (aborted, False)):
        producer += 1
        append(log, values, producer, 0, transactional=True)
        marker = Marker(0, log.now_ms(), producer, 0, ends_well)
        log.append_as_leader(encode_marker(marker), epoch_of(log), AppendOrigin.COORDINATOR)
        log.update_high_watermark(log.log_end_offset)
    world.kept += plain + committed
    manager.shutdown()


def epoch_of(log: Log) -> int:
    return log.leader_epochs.latest_epoch or 0


def append(log: Log, values: list[str], producer: int, sequence: int, *, transactional: bool = False) -> None:
    records = [Record(at, log.now_ms(), None, value.encode()) for at, value in enumerate(values)]
    data = encode_batch(
        records,
        base_offset=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )
    guard = 0
    if transactional:
        guard = log.maybe_start_transaction_verification(producer, sequence, 0, supports_epoch_bump=False)
    log.append_as_leader(data, epoch_of(log), guard=guard)
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("seconds", [0, pytest.param(1200, marks=pytest.mark.soak)])
def test_a_broker_and_we_take_turns_and_nothing_acknowledged_is_lost(
    kafka_broker: Broker, tmp_path: Path, seconds: float
) -> None:
    world = World(tmp_path / "data", random.Random(knobs.SEED), is_soaked=seconds > 0)
    end, turns = time.monotonic() + seconds, 0
    while turns < TURNS or time.monotonic() < end:
        broker_turn(world, kafka_broker)
        run_turn(world)
        if turns % 2 == 0:
            manager_turn(world)
        turns += 1
    broker_turn(world, kafka_broker)
    print(f"turns of a broker, a run and a program: {turns}, {world.number} values, {world.cleaned} cleans")
    assert world.cleaned
