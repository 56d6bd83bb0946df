"""`dump --follow` shows what a Kafka consumer in the same place gets, while a broker truncates and cleans the log."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from cordwood.cli.dumping import Choice, Dump
from cordwood.cli.formats import JsonPrinter
from cordwood.cli.values import ValueFormat
from cordwood.common.types import Isolation
from tests.kafka_tools import Broker, Line
from tests.knobs import SEED, scaled
from tests.tables.source.kafka_source import Producer

#: Offset and value of each record.
Shown = list[tuple[int, str | None]]
WAIT_SECONDS = 90
T0 = 1_700_000_000_000
COMMITTED = Isolation.READ_COMMITTED


class _Closed(BaseException):
    """Ends a thread."""


class SteppedDump(threading.Thread):
    """A `dump --follow` that looks at its log once per call of `look`.

    Attributes:
        shown: the records so far.
        others: other lines, such as damage.
    """

    def __init__(self, path: Path, isolation: Isolation) -> None:
        super().__init__(daemon=True)
        choice = Choice(batches=False, isolation=isolation, follow=True)
        self._dump = Dump(choice, JsonPrinter(ValueFormat.UTF8, ValueFormat.UTF8), self._write)
        self._path, self._is_closing = path, False
        self._error: BaseException | None = None
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self.shown: Shown = []
        self.others: list[Line] = []
        self.start()

    def look(self) -> None:
        self._turn.release()
        assert self._done.acquire(timeout=WAIT_SECONDS)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._is_closing = True
        self._turn.release()
        self.join()

    def pause(self) -> None:
        """Wait for the next `look`."""
        self._done.release()
        self._turn.acquire()
        if self._is_closing:
            raise _Closed

    def run(self) -> None:
        self._turn.acquire()
        try:
            self._dump.run([str(self._path)])
        except _Closed:
            return
        except BaseException as error:
            self._error = error
        self._done.release()

    def _write(self, lines: bytes) -> None:
        for line in map(json.loads, lines.splitlines()):
            if line["type"] == "record":
                self.shown.append((line["offset"], line["value"]))
            else:
                self.others.append(line)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, Isolation], SteppedDump]]:
    """Starts followers, which end with the test."""
    started: list[SteppedDump] = []

    def pause(_seconds: float) -> None:
        thread = threading.current_thread()
        assert isinstance(thread, SteppedDump)
        thread.pause()

    def follow(path: Path, isolation: Isolation) -> SteppedDump:
        started.append(SteppedDump(path, isolation))
        return started[-1]

    # Only there: other threads of this process sleep, too.
    monkeypatch.setattr("cordwood.cli.dumping.time", SimpleNamespace(sleep=pause))
    yield follow
    for one in started:
        one.close()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < end, f"not yet: {what}"
        time.sleep(0.1)


# ---- a log that is cut -----------------------------------------------------------------------------------------------


class Topic:
    """A topic with one partition, and one batch per record."""

    def __init__(self, data: Path, name: str, producer: Producer) -> None:
        self.path, self.name, self._producer = data / f"{name}-0", name, producer

    def do(self, what: str, who: str) -> None:
        self._producer({"do": what, "id": f"{self.name} {who}"})

    def new(self, who: str) -> None:
        """Start a producer: `plain`, or one with transactions."""
        config = {"enable.idempotence": "false"} if who == "plain" else {"transactional.id": f"{self.name} {who}"}
        self._producer({"do": "producer", "id": f"{self.name} {who}", "config": config})

    def send(self, who: str, *values: str) -> None:
        to = {
            "id": f"{self.name} {who}",
            "topic": self.name,
            "partition": 0,
            "key": "k",
            "timestamp": 1_700_000_000_000,
        }
        for value in values:
            self._producer({"do": "send", "value": value, **to}, {"do": "flush", "id": to["id"]})

    def cut(self, batches: int, *, rest: int = 0, files: int = 0) -> None:
        """Cut the log as a crash may: some last files, then batches of the file before, but for some bytes."""
        logs = sorted(self.path.glob("*.log"))
        for log in logs[len(logs) - files :]:
            for file in self.path.glob(f"{log.stem}.*"):
                file.unlink()
        log = logs[-files - 1]
        content, positions = log.read_bytes(), [0]
        while positions[-1] < len(content):
            at = positions[-1]
            positions.append(at + 12 + int.from_bytes(content[at + 8 : at + 12], "big"))
        log.write_bytes(content[: positions[-batches - 1] + rest])


#: What happens to a topic: the last values that consumers then get, uncommitted and committed; the cut; more records.
Script = Callable[[Topic], Iterator[tuple[str, str] | None]]


def torn(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.send("plain", "a", "b", "c", "d")
    yield "d", "d"
    topic.cut(2, rest=40)
    yield None
    topic.send("plain", "e", "f", "g", "end")
    yield None


def the_same_bytes_again(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.send("plain", "a", "b", "c", "end")
    yield "end", "end"
    topic.cut(2)
    yield None
    topic.send("plain", "c", "end")
    yield None


def whole_segments(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.send("plain", *map(str, range(12)))
    yield "11", "11"
    topic.cut(1, rest=20, files=2)
    yield None
    topic.send("plain", "x", "end")
    yield None


def grown_beyond_the_segment(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.send("plain", *map(str, range(7)))
    yield "6", "6"
    topic.cut(1, rest=20)
    yield None
    topic.send("plain", *(str(number) * 40 for number in range(8)), "end")
    yield None


def everything(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.send("plain", "a", "b", "c")
    yield "c", "c"
    topic.cut(3)
    yield None
    topic.send("plain", "end")
    yield None


def the_commit(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.new("x")
    topic.send("plain", "a")
    topic.do("begin", "x")
    topic.send("x", "b", "c")
    topic.do("commit", "x")
    topic.send("plain", "d")
    yield "d", "d"
    topic.cut(2)
    yield None
    topic.send("plain", "e")
    topic.new("x")
    topic.do("begin", "x")
    topic.send("x", "f")
    topic.do("commit", "x")
    topic.send("plain", "end")
    yield None


def the_abort_and_half_of_its_data(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.new("x")
    topic.send("plain", "a")
    topic.do("begin", "x")
    topic.send("x", "b", "c")
    topic.do("abort", "x")
    topic.send("plain", "d")
    yield "d", "d"
    topic.cut(3)
    yield None
    topic.send("plain", "e", "f")
    topic.new("x")
    topic.do("begin", "x")
    topic.send("x", "g")
    topic.do("commit", "x")
    topic.send("plain", "end")
    yield None


def half_of_an_open_transaction(topic: Topic) -> Iterator[tuple[str, str] | None]:
    topic.new("plain")
    topic.new("x")
    topic.send("plain", "a")
    topic.do("begin", "x")
    topic.send("x", "b", "c")
    topic.send("plain", "d")
    yield "d", "a"
    topic.cut(2)
    yield None
    topic.send("plain", "e")
    topic.new("x")  # which aborts the open one
    topic.send("plain", "end")
    yield None


SMALL = {"internal.segment.bytes": "300"}
SCRIPTS: Mapping[Script, Mapping[str, str]] = {
    torn: {}, the_same_bytes_again: {}, whole_segments: SMALL, grown_beyond_the_segment: SMALL, everything: {},
    the_commit: {}, the_abort_and_half_of_its_data: {}, half_of_an_open_transaction: {},
}  # fmt: skip


def test_a_follower_shows_what_a_consumer_gets_when_the_end_of_the_log_is_lost(
    tmp_path: Path, kafka_broker: Broker, followed: Callable[[Path, Isolation], SteppedDump]
) -> None:
    """A follower that looks all the time, and one that looks before the crash and again after all is written."""
    data = tmp_path / "logs"
    port = kafka_broker.start(data).rpartition(":")[2]
    with Producer(data) as producer:
        topics = {script: Topic(data, script.__name__, producer) for script in SCRIPTS}
        got: dict[tuple[Script, Isolation], Shown] = {(script, one): [] for script in SCRIPTS for one in Isolation}
        for script, topic in topics.items():
            config = dict(SCRIPTS[script])
            producer({"do": "create_topic", "topic": topic.name, "partitions": 1, "config": config})
        for script, isolation in got:
            name = f"{script.__name__} {isolation}"
            producer({"do": "consumer", "id": name, "isolation": isolation, "topic": script.__name__, "partition": 0})

        def has_come(script: Script, isolation: Isolation, value: str) -> bool:
            name = f"{script.__name__} {isolation}"
            (answer,) = producer({"do": "poll", "id": name, "ms": 100, "values": True})
            got[script, isolation] += zip(answer["offsets"], answer["values"], strict=True)
            return any(has == value for _, has in got[script, isolation][before.get((script, isolation), 0) :])

        before: dict[tuple[Script, Isolation], int] = {}
        steps = {script: script(topic) for script, topic in topics.items()}
        lasts = {script: next(script_steps) for script, script_steps in steps.items()}
        for script, isolation in got:
            last = lasts[script]
            assert last is not None
            value = last[isolation == COMMITTED]
            wait_until(lambda: has_come(script, isolation, value), f"{script} {isolation} {value}")  # noqa: B023
        before |= {key: len(shown) for key, shown in got.items()}
        seldom, always = ({key: followed(topics[key[0]].path, key[1]) for key in got} for _ in range(2))
        for key, one in [*seldom.items(), *always.items()]:
            one.look()
            assert one.shown == got[key], key

        def look() -> None:
            for one in always.values():
                one.look()

        kafka_broker("kill", data)
        look()
        for script_steps in steps.values():
            next(script_steps)
        look()
        kafka_broker.start(data, "--port", port)
        look()
        for script_steps in steps.values():
            next(script_steps)
        for script, isolation in got:
            wait_until(lambda: has_come(script, isolation, "end"), f"{script} {isolation}, after the cut")  # noqa: B023
        for followers in (seldom, always):
            for key, one in followers.items():
                one.look()
                assert one.shown == got[key], key
                assert one.others == []
        assert sum(len(shown) for shown in got.values()) > sum(before.values()) + len(got)


# ---- a log that is cleaned -------------------------------------------------------------------------------------------

ROUNDS = scaled(14, 100)
COMPACTED = {
    "cleanup.policy": "compact", "internal.segment.bytes": "1500", "segment.ms": "500", "delete.retention.ms": "0",
}  # fmt: skip


@pytest.mark.slow
def test_a_follower_shows_each_record_once_while_a_cleaner_replaces_segments(
    tmp_path: Path, kafka_broker: Broker, followed: Callable[[Path, Isolation], SteppedDump]
) -> None:
    data, source = tmp_path / "logs", random.Random(SEED)
    kafka_broker.start(
        data, log_cleaner_backoff_ms=50, log_cleaner_min_cleanable_ratio=0, log_initial_task_delay_ms=100,
        log_segment_delete_delay_ms=200,
    )  # fmt: skip
    with Producer(data) as producer:
        producer({"do": "create_topic", "topic": "t", "partitions": 1, "config": COMPACTED})
        producer({"do": "producer", "id": "plain"})
        for name in ("x", "long"):
            producer({"do": "producer", "id": name, "config": {"transactional.id": name}})
        sent = 0

        def send(who: str, count: int) -> None:
            nonlocal sent
            for sent in range(sent + 1, sent + count + 1):  # noqa: B020
                value = None if source.random() < 0.1 else f"{sent} " + "v" * source.randrange(80)
                key = f"k{source.randrange(6)}"
                producer({"do": "send", "id": who, "topic": "t", "partition": 0, "key": key, "value": value})
            producer({"do": "flush", "id": who})

        def consume(isolation: Isolation) -> Shown:
            """The records that a consumer gets now, from the log's start."""
            to = tmp_path / f"{isolation}.jsonl"
            producer({"do": "consume", "isolation": isolation, "topics": ["t"], "to": str(to)})
            lines = [json.loads(line) for line in to.read_text().splitlines()]
            return [(line["offset"], line["value"]) for line in lines if "offset" in line]

        send("plain", 3)
        followers = [(one, every, followed(data / "t-0", one)) for one in Isolation for every in (1, 6)]
        for number in range(ROUNDS):
            if number % 6 == 1:
                producer({"do": "begin", "id": "long"})
                send("long", 3)
            send("plain", source.randrange(1, 12))
            producer({"do": "begin", "id": "x"})
            send("x", source.randrange(1, 6))
            producer({"do": source.choice(["commit", "abort"]), "id": "x"})
            if number % 6 == 4:
                producer({"do": source.choice(["commit", "abort"]), "id": "long"})
            for _, every, one in followers:
                if number % every == 0:
                    one.look()
            if number % 3 == 0:
                isolation, _, one = followers[source.choice([0, 2])]
                one.look()
                end = one.shown[-1][0] if one.shown else 0
                # The cleaner only removes records, and the log had these when the follower looked.
                assert {record for record in consume(isolation) if record[0] <= end} <= set(one.shown)
            time.sleep(source.random() * 0.4)
        send("plain", 1)
        wait_until(lambda: consume(COMMITTED)[-1][0] == consume(Isolation.READ_UNCOMMITTED)[-1][0], "the last marker")
        for isolation, _, one in followers:
            one.look()
            assert set(consume(isolation)) <= set(one.shown)
            offsets = [offset for offset, _ in one.shown]
            assert offsets == sorted(set(offsets))
            assert one.others == []
        assert len(consume(Isolation.READ_UNCOMMITTED)) < len(followers[0][2].shown) / 2, "the broker cleaned"
