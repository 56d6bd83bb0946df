"""`cordwood dump` of the end of a log, and of what is appended meanwhile; records with some bytes; decoders."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cordwood.cli.main import app
from cordwood.record.batch import encode_batch
from cordwood.record.control import Marker, encode_marker
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from tests.cli.running import ENVIRONMENT
from tests.fixtures import fixture, partitions

T0 = 1_700_000_000_000
TRANSACTION = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


def dump(*words: object, exits: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["dump", *map(str, words), "--json"])
    assert done.exit_code == exits, done.output
    return [line for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "record"]


def refused(*words: object) -> str:
    done = CliRunner().invoke(app, ["dump", *map(str, words)])
    assert done.exit_code == 2, done.output
    return done.output


# ---- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", [None, "read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", ["kraft-before", "legacy-mixed-before", "kraft-after"])
def test_the_tail_is_the_end_of_the_whole_dump(name: str, isolation: str | None) -> None:
    words = ["--records"] if isolation is None else ["--isolation", isolation]
    for log in partitions(fixture(name))[::4]:
        if "__cluster" in log.name or log.name.endswith(("-delete", "-stray", "-future")):
            continue
        whole = dump(log, *words)
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
    assert "--tail and --follow need a partition's directory" in refused(next(log.glob("*.log")), "--tail", 3)


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

    # Not across a key and its value, not in headers; within "aaaab" it overlaps with what looks alike before it.
    assert offsets("aab") == [1, 3, 4]
    assert offsets("hex:00ff") == [2]
    assert offsets("aaa") == [1]


# ---- what is appended ------------------------------------------------------------------------------------------------


class Following:
    """A `dump --follow` in a process of its own, and its lines as they come."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "cordwood", "dump", *map(str, words), "--follow", "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
        )

    def lines(self, count: int) -> list[dict[str, Any]]:
        """The next lines."""
        watch = threading.Timer(60, self.process.kill)
        watch.start()
        assert self.process.stdout is not None
        found = [json.loads(self.process.stdout.readline() or "null") for _ in range(count)]
        watch.cancel()
        return found

    def end(self) -> str:
        """What it said besides, once it has ended."""
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


def test_a_log_that_is_deleted_is_followed_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    (path / offset_name(0, FileKind.LOG)).write_bytes(some(0))
    monkeypatch.setattr("cordwood.cli.dumping.time.sleep", lambda _: path.rename(tmp_path / "gone"))
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
    done = CliRunner().invoke(app, ["dump", str(path), "--records", "--key-as", "long", "--value-as", "double"])
    assert "key=5 " in done.output and "value=1.5" in done.output and f"key=hex:{b'short'.hex()}" in done.output
    pattern = CliRunner().invoke(app, ["dump", str(path), "--key-as", "long", "--format", r"%k\n", "--limit", "1"])
    assert pattern.stdout == "5\n"
    assert "is no decoder; there are" in refused(path, "--key-as", "longer")
    assert "not both" in refused(path, "--key-as", "long", "--key-format", "hex")
