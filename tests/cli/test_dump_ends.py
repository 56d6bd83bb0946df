"""`cordwood dump` of the end of a log and of later appends; records with given bytes; decoders."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cordwood import LogManager, PosixFileSystem, TopicPartition
from cordwood.live.log import Log
from cordwood.record.batch import Marker, encode_batch, encode_marker
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from tests.command import run, start
from tests.fixtures import fixture, partitions
from tests.kafka_tools import Broker
from tests.tables.source.kafka_source import Producer

pytestmark = pytest.mark.more

T0 = 1_700_000_000_000
TRANSACTION = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def dump(*words: object, exits: int = 0) -> list[dict[str, Any]]:
    return [line for line in run("dump", *words, "--json", exits=exits).lines if line["type"] == "record"]


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [None, "read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", ["kraft-before", "legacy-mixed-before", "kraft-after"])
def test_the_tail_is_the_end_of_the_whole_dump(name: str, isolation: str | None) -> None:
    words = ["--records"] if isolation is None else ["--isolation", isolation]
    for log in partitions(fixture(name))[::4]:
        if "__cluster" in log.name or log.name.endswith(("-delete", "-stray", "-future")):
            continue
        whole = dump(log, *words)
        assert dump(log, *words, "--tail", 0) == []
        for count in (1, 7, len(whole) + 1):
            assert dump(log, *words, "--tail", count) == whole[-count:], log
        middle = [line["offset"] for line in whole][len(whole) // 2 :][:1]
        for offset in middle:
            below = [line for line in whole if line["offset"] < offset]
            assert dump(log, *words, "--tail", 3, "--to-offset", offset) == below[-3:]


def test_filters_look_at_the_tail() -> None:
    log = fixture("kraft-before") / "orders-0"
    tail = dump(log, "--records", "--tail", 20)
    key = tail[-5]["key"]
    assert dump(log, "--records", "--tail", 20, "--key", key) == [line for line in tail if line["key"] == key]
    assert (
        "--tail and --follow need a partition's directory"
        in run("dump", next(log.glob("*.log")), "--tail", 3, exits=2).output
    )


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sought", ["elm", "p0-key-1", "maple elm", "zzz"])
def test_records_with_some_text_are_those_of_the_whole_dump(sought: str) -> None:
    log = fixture("kraft-before") / "orders-0"
    whole = dump(log, "--records")
    expected = [line for line in whole if sought in (line["key"] or "") or sought in (line["value"] or "")]
    assert dump(log, "--records", "--grep", sought) == expected
    assert bool(expected) is (sought != "zzz")


def test_bytes_are_found_within_keys_and_values_only(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    pairs = [(b"xaa", b"abb"), (b"k", b"aaaab"), (b"k", b"\x00\xff"), (b"aab", None), (None, b"aab")]
    records = [Record(at, T0, key, value, ((b"aab".decode(), b"aab"),)) for at, (key, value) in enumerate(pairs)]
    (path / offset_name(0, FileKind.LOG)).write_bytes(encode_batch(records))

    def offsets(sought: str) -> list[int]:
        return [line["offset"] for line in dump(path, "--records", "--grep", sought)]

    # Not across a key and its value, not in headers; within "aaaab" a match overlaps with a partial match before it.
    assert offsets("aab") == [1, 3, 4]
    assert offsets("hex:00ff") == [2]
    assert offsets("aaa") == [1]


# ---- Following appends -----------------------------------------------------------------------------------------------


class Following:
    """A `dump --follow` in a process of its own, and its lines as they are printed."""

    def __init__(self, *words: object) -> None:
        self.process = start("dump", *words, "--follow", "--json")

    def lines(self, count: int) -> list[dict[str, Any]]:
        """The next lines."""
        watch = threading.Timer(60, self.process.kill)
        watch.start()
        assert self.process.stdout is not None
        found = [json.loads(self.process.stdout.readline() or "null") for _ in range(count)]
        watch.cancel()
        return found

    def end(self) -> str:
        """The remaining output once it has ended."""
        _, errors = self.process.communicate(timeout=60)
        return errors


@pytest.fixture
def following() -> Iterator[Sequence[Following]]:
    started: list[Following] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.communicate()


def some(offset: int, count: int = 1, **fields: Any) -> bytes:
    return encode_batch([Record(offset + at, T0, b"k", b"%d" % (offset + at)) for at in range(count)], **fields)


def test_what_is_appended_is_shown_once_it_is_whole(tmp_path: Path, following: list[Following]) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    first, second = (path / offset_name(base, FileKind.LOG) for base in (0, 6))
    first.write_bytes(some(0, 3))
    shown = Following(path, "--records", "--limit", 10, "--tail", 2)
    following.append(shown)
    assert [line["offset"] for line in shown.lines(2)] == [1, 2]
    more, half = some(3, 2), some(5)
    with first.open("ab") as file:
        file.write(more + half[:40])
        file.flush()
        assert [line["value"] for line in shown.lines(2)] == ["3", "4"]
        file.write(half[40:])
    assert [line["offset"] for line in shown.lines(1)] == [5]
    second.write_bytes(some(6, 20))
    assert [line["offset"] for line in shown.lines(5)] == [6, 7, 8, 9, 10]
    assert shown.end() == ""
    assert shown.process.returncode == 0


def test_committed_records_are_shown_when_their_transaction_ends(tmp_path: Path, following: list[Following]) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    log = path / offset_name(0, FileKind.LOG)
    log.write_bytes(some(0))
    shown = Following(path, "--isolation", "read_committed")
    following.append(shown)
    assert [line["offset"] for line in shown.lines(1)] == [0]
    with log.open("ab") as file:
        file.write(some(1, **TRANSACTION) + some(2))
        file.flush()
        file.write(encode_marker(Marker(3, T0, 7, 0, committed=True)) + some(4, **TRANSACTION))
        file.flush()
        assert [line["offset"] for line in shown.lines(2)] == [1, 2]
        file.write(encode_marker(Marker(5, T0, 7, 0, committed=False)) + some(6))
    assert [line["offset"] for line in shown.lines(1)] == [6]


def follow(
    monkeypatch: pytest.MonkeyPatch, path: Path, steps: Iterator[object], *words: object, exits: int = 0
) -> list[int]:
    """The offsets that `dump --follow` shows while the test takes steps, one between two reads; then the log is
    deleted.
    """

    def take_next(_seconds: float) -> None:
        if next(steps, steps) is steps:
            path.rename(path.parent / "gone")

    # Only there: other threads of this process sleep, too.
    monkeypatch.setattr("cordwood.cli.dumping.time", SimpleNamespace(sleep=take_next))
    return [line["offset"] for line in dump(path, "--follow", "--isolation", "read_committed", *words, exits=exits)]


def transactions_of_three(log: Log) -> Iterator[None]:
    """Appends of three producers whose transactions are ended in another order than they began, over two segments."""
    with log.transaction(2) as second, contextlib.suppress(KeyError), log.transaction(3) as third:
        third.append({"c": "1"})
        yield
        second.append({"b": "2"})
        log.roll()
        log.append({"plain": "3"})
        yield
        raise KeyError  # aborts the third
    yield
    with log.transaction(3) as third:
        third.append([("c", "1"), ("c", "2")])
        yield
    yield


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_open_at_the_start_is_shown_once_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    shown: list[list[int]] = []
    at_once: list[list[int]] = []
    expected: list[list[int]] = []
    for words in ([], ["--tail", 3], ["--records"]):
        with LogManager(PosixFileSystem(), [tmp_path / f"of {len(shown)}"]) as manager:
            log = manager.get_or_create_log(TopicPartition("t", 0), is_new=True)
            path = Path(log.directory)
            log.append([("k", "0"), ("k", "1"), ("k", "2"), ("k", "3")])

            def steps(log: Log = log, path: Path = path) -> Iterator[None]:
                with contextlib.suppress(KeyError), log.transaction(1) as first:
                    first.append([("a", "1"), ("a", "2")])
                    log.append({"k": "4"})
                    yield from transactions_of_three(log)
                    if not is_committed:
                        raise KeyError
                yield
                expected.append([line["offset"] for line in dump(path, "--isolation", "read_committed")])

            script = steps()
            next(script)  # the transaction is open before the first look
            at_once.append([line["offset"] for line in dump(path, "--isolation", "read_committed", *words)])
            shown.append(follow(monkeypatch, path, script, *words))
            path.with_name("gone").rename(path)
    whole = expected[0]
    assert at_once == [[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    assert shown == [whole, whole[1:], whole]
    assert len(whole) == (11 if is_committed else 9)


def test_records_that_replace_truncated_ones_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    log = path / offset_name(0, FileKind.LOG)
    log.write_bytes(some(0, 2) + some(2) + some(3, **TRANSACTION))

    def steps() -> Iterator[None]:
        log.write_bytes(some(0, 2))
        yield
        log.write_bytes(some(0, 2) + some(2) + some(3) + some(4))
        yield

    assert follow(monkeypatch, path, steps()) == [0, 1, 2, 2, 3, 4]


OPEN, FIRST, ELSE = {**TRANSACTION, "leader_epoch": 1}, {"leader_epoch": 1}, {"leader_epoch": 2}
SEGMENTS = {0: some(0, 2) + some(2, **OPEN), 4: some(4)}
#: Files of a followed log at first, their content at the next poll, and the offsets of the shown records.
REPLACED: dict[str, tuple[dict[int, bytes], dict[int, bytes], list[int]]] = {
    "an open transaction was truncated": (
        {0: some(0, 2) + some(2, **OPEN) + some(3)}, {0: some(0, 2) + some(2, 3, **ELSE) + some(5)}, [0, 1, 2, 3, 4, 5]
    ),
    "other records have the same offsets": (
        {0: some(0, 2) + some(2) + some(3)}, {0: some(0, 2) + some(2, **ELSE) + some(3, **ELSE)}, [0, 1, 2, 3, 2, 3]
    ),
    "truncated below the last segment": (
        {0: some(0, 2) + some(2), 3: some(3)}, {0: some(0, 2) + some(2, 4, **ELSE)}, [0, 1, 2, 3, 2, 3, 4, 5]
    ),
    "truncated, and grown beyond the end of the segment": (
        {0: some(0, 2) + some(2, 2, **FIRST)}, {0: some(0, 2) + some(2, 2, **ELSE), 4: some(4, **ELSE)},
        [0, 1, 2, 3, 2, 3, 4],
    ),
    "truncated, and grown, behind a segment of the same leader": (
        {0: some(0, 2), 2: some(2, **FIRST) + some(3, **FIRST)},
        {0: some(0, 2), 2: some(2, **FIRST) + some(3, 2, **ELSE), 5: some(5, **ELSE)},
        [0, 1, 2, 3, 3, 4, 5],
    ),
    "made anew": ({0: some(0, 2) + some(2, **OPEN)}, {0: some(0) + some(1, 2, **ELSE)}, [0, 1, 1, 2]),
    "cleaned: no aborted record and no marker is left": (
        {0: some(0) + some(1, **OPEN)}, {0: some(0), 4: some(4)}, [0, 4]
    ),
    "the segment with an open transaction was deleted": (SEGMENTS, {4: some(4) + some(5)}, [0, 1]),
    "the marker is in the next segment": (
        SEGMENTS, {**SEGMENTS, 5: encode_marker(Marker(5, T0, 7, 0, committed=True)) + some(6)}, [0, 1, 2, 4, 6]
    ),
    "the log begins at a higher offset": ({0: some(0) + some(1, **OPEN)}, {10: some(10)}, [0, 10]),
    "damage is in the middle": (
        {0: some(0) + b"\0" * 11 + b"\x09" + some(1)[12:] + some(2)},
        {0: some(0) + b"\0" * 11 + b"\x09" + some(1)[12:] + some(2) + some(3)}, [0, 2, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_what_replaces_a_part_of_a_log_between_two_polls_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    first, second, expected = REPLACED[name]
    path = tmp_path / "t-0"
    path.mkdir()

    def steps() -> Iterator[None]:
        for files in (first, second):
            for old in path.glob("*.log"):
                old.unlink()
            for base, content in files.items():
                (path / offset_name(base, FileKind.LOG)).write_bytes(content)
            yield

    script = steps()
    next(script)
    assert follow(monkeypatch, path, script, exits=int(name.startswith("damage"))) == expected


def test_what_a_broker_commits_is_shown_whatever_was_open_when_following_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_broker: Broker
) -> None:
    data = tmp_path / "logs"
    kafka_broker.start(data)
    topic = {"topic": "t", "partition": 0, "key": "k"}
    with Producer(data) as producer:
        producer({"do": "create_topic", "topic": "t", "partitions": 1, "config": {"internal.segment.bytes": "2000"}})
        for name in "abc":
            config = {"transactional.id": name, "linger.ms": "0"}
            producer({"do": "producer", "id": name, "config": config})

        def send(name: str, *ends: str, begins: bool = True) -> None:
            sends = [{"do": "send", "id": name, "value": "v" * 300, **topic} for _ in range(3)]
            begin = [{"do": "begin", "id": name}] if begins else []
            producer(*begin, *sends, {"do": "flush", "id": name}, *({"do": end, "id": name} for end in ends))

        read: list[int] = []

        def steps() -> Iterator[None]:
            send("a")
            send("b")
            send("c", "commit")
            yield
            send("b", "commit", begins=False)
            yield
            send("b", "abort")
            send("c")
            yield
            send("a", "commit", begins=False)
            yield
            producer({"do": "commit", "id": "c"})
            consumed = tmp_path / "consumed.jsonl"
            kafka_broker.client(
                data, [{"do": "consume", "isolation": "read_committed", "topics": ["t"], "to": str(consumed)}]
            )
            lines = map(json.loads, consumed.read_text().splitlines())
            read.extend(line["offset"] for line in lines if "offset" in line)
            yield
            kafka_broker("kill", data)

        script = steps()
        next(script)
        shown = follow(monkeypatch, data / "t-0", script)
    assert shown == read
    assert len(read) == 18


def test_what_a_broker_deletes_in_a_transaction_or_creates_again_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_broker: Broker
) -> None:
    data = tmp_path / "logs"
    kafka_broker.start(data, log_flush_start_offset_checkpoint_interval_ms=100, log_initial_task_delay_ms=100)
    topic, starts = {"topic": "t", "partition": 0, "key": "k"}, data / "log-start-offset-checkpoint"
    create = {"do": "create_topic", "topic": "t", "partitions": 1}
    with Producer(data) as producer:

        def send(name: str, count: int) -> None:
            producer(*({"do": "send", "id": name, "value": "v", **topic} for _ in range(count)))
            producer({"do": "flush", "id": name})

        def steps() -> Iterator[None]:
            producer(create, {"do": "producer", "id": "x", "config": {"transactional.id": "x"}})
            producer({"do": "producer", "id": "p"}, {"do": "begin", "id": "x"})
            send("x", 3)
            send("p", 2)
            yield
            producer({"do": "delete_records", "topic": "t", "partition": 0, "before": 2})
            wait_until(lambda: "t 0 2" in starts.read_text())
            yield
            producer({"do": "commit", "id": "x"})
            wait_until(lambda: bool(dump(data / "t-0", "--isolation", "read_committed")))  # its marker follows
            yield
            producer({"do": "delete_topic", "topic": "t"})
            wait_until(lambda: not (data / "t-0").exists())
            producer(create, {"do": "producer", "id": "q"})
            send("q", 2)
            yield
            kafka_broker("kill", data)

        script = steps()
        next(script)
        assert follow(monkeypatch, data / "t-0", script) == [2, 3, 4, 0, 1]


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_log_that_is_deleted_is_followed_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    (path / offset_name(0, FileKind.LOG)).write_bytes(some(0))
    monkeypatch.setattr("cordwood.cli.dumping.time", SimpleNamespace(sleep=lambda _: path.rename(tmp_path / "gone")))
    assert [line["offset"] for line in dump(path, "--records", "--follow")] == [0]


# ---- decoders --------------------------------------------------------------------------------------------------------


def test_keys_and_values_take_decoders(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    pairs = [(struct.pack(">q", 5), struct.pack(">d", 1.5)), (b"short", None), (None, b'\x01{"a": [1]}')]
    records = [Record(at, T0, key, value) for at, (key, value) in enumerate(pairs)]
    (path / offset_name(0, FileKind.LOG)).write_bytes(encode_batch(records))

    shown = dump(path, "--records", "--key-as", "long", "--value-as", "double")
    assert [(line["key"], line["value"]) for line in shown] == [
        (5, 1.5), ({"hex": b"short".hex()}, None), (None, {"hex": pairs[2][1].hex() if pairs[2][1] else ""})
    ]  # fmt: skip
    done = run("dump", path, "--records", "--key-as", "long", "--value-as", "double")
    assert "key=5 " in done.output and "value=1.5" in done.output and f"key=hex:{b'short'.hex()}" in done.output
    pattern = run("dump", path, "--key-as", "long", "--format", r"%k\n", "--limit", "1")
    assert pattern.stdout == "5\n"
    assert "is no decoder; there are" in run("dump", path, "--key-as", "longer", exits=2).output
    assert "not both" in run("dump", path, "--key-as", "long", "--key-format", "hex", exits=2).output
