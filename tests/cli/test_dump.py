"""`cordwood dump`: its output for logs and every other kind of file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cordwood.cli import large, values
from cordwood.cli.demo import write_log
from cordwood.cli.dumping import Choice, Dump
from cordwood.cli.formats import JsonPrinter
from cordwood.cli.values import JSON_BYTES_MAX, ValueFormat
from cordwood.commands.options import parse_time
from cordwood.common.types import Codec, TopicPartition, system_clock
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.record.batch import Marker, encode_batch, encode_marker, encode_message_set, seal
from cordwood.record.record import Record
from cordwood.storage.formats import (
    checkpoints,
    leader_epochs,
    producer_state,
    properties,
    quorum_state,
    transaction_index,
)
from cordwood.storage.formats.properties import encode_partition_metadata
from tests.command import run, start
from tests.fixtures import PACKED, TIERED, Isolation, copy_of, fixture, reads, tier_options
from tests.knobs import in_turns

Line = dict[str, Any]

#: Fixtures of every test run; slow tests use the other ones.
QUICK = (
    "kraft-before",
    "kraft-classic-after-3",
    "kraft-crashed-swap-recovered",
    "kraft-jbod-before",
    "legacy-mixed-before",
    "legacy-v0-before",
    "other-clients-after",
)
READ = in_turns(
    sorted({one.name.split(".read_")[0] for one in PACKED.glob("*/*.read_committed.jsonl.gz")} - TIERED.keys()), *QUICK
)
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")


def lines(*words: str | Path, exits: int = 0) -> list[Line]:
    return run("dump", "--json", *words, exits=exits).lines


def of_type(kind: str, found: Sequence[Line]) -> list[Line]:
    return [line for line in found if line["type"] == kind]


def test_what_cannot_be_read_is_told_on_stderr_and_the_rest_is_shown(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-jbod-before"), tmp_path / "logs") / "a"
    whole = lines(directory)
    segment = min((directory / "disk-1-0").glob("*.log"))
    segment.unlink()
    os.mkfifo(segment)
    result = run("dump", "--json", directory, exits=2)
    what = "cannot be read: Not a regular file but a FIFO, socket or device"
    assert result.stderr == f"cordwood: {segment} {what}\n"
    shown = result.lines
    here = {line["file"] for line in whole if line.get("file", "").startswith(str(segment))}
    assert here and {line["file"] for line in shown if "file" in line} == (
        {line["file"] for line in whole if "file" in line} - here
    )


def test_partitions_are_chosen_as_for_ls(tmp_path: Path) -> None:
    directory = fixture("kraft-classic-before")

    def chosen(*words: str) -> set[tuple[str, int]]:
        return {(one["topic"], one["partition"]) for one in lines(directory, "--records", *words)}

    assert chosen("--topic", "ord*", "--partition", "1") == {("orders", 1)}
    assert chosen("--partition", "orders-0", "--partition", "pay*-1") == {("orders", 0), ("payments", 1)}
    assert "No partition in" in run("dump", directory, "--topic", "nope", exits=2).stderr
    (tmp_path / "t-0").mkdir()
    assert "holds no log segment" in run("dump", tmp_path / "t-0", exits=2).stderr


# ---- as a consumer ---------------------------------------------------------------------------------------------------


def as_consumer_says(line: Line) -> Line:
    """A record line of ours in the words of the consumer that read the fixtures."""
    said = {name: line[name] for name in ("topic", "partition", "offset", "timestamp", "timestamp_type")}
    said["leader_epoch"] = None if line["leader_epoch"] == -1 else line["leader_epoch"]
    said |= in_consumers_words("key", line["key"]) | in_consumers_words("value", line["value"])
    if line["headers"]:
        pairs = ((name, in_consumers_words("value", value)) for name, value in line["headers"])
        said["headers"] = [[name, words.get("value", words) if "value" in words else words] for name, words in pairs]
    return said


def in_consumers_words(name: str, value: Any) -> Line:
    if value is None:
        return {name: None}
    data = value.encode() if isinstance(value, str) else bytes.fromhex(value["hex"])
    if len(data) > 256:
        return {f"{name}_size": len(data), f"{name}_sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, str) and not CONTROLS.search(value):
        return {name: value}
    return {f"{name}_base64": base64.b64encode(data).decode()}


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", READ)
def test_records_are_those_that_a_consumer_read(name: str, isolation: Isolation) -> None:
    check_records(name, isolation, fixture(name))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(
    ("name", "logs"),
    [
        ("aiven-s3", "kafka-logs"),
        pytest.param("local-tiered", "kafka-logs", marks=pytest.mark.more),
        pytest.param("local-tiered-pair", "kafka-logs", marks=pytest.mark.more),
        pytest.param("local-tiered-pair", "kafka-logs-1", marks=pytest.mark.more),
    ],
)
def test_records_of_a_log_with_its_tier_are_those_that_a_consumer_read(
    name: str, logs: str, isolation: Isolation
) -> None:
    check_records(name, isolation, fixture(name) / logs, *tier_options(name))


def check_records(name: str, isolation: Isolation, *arguments: str | Path) -> None:
    expected: dict[tuple[str, int], list[Line]] = {}
    for line in reads(name, isolation):
        records = expected.setdefault((line["topic"], line["partition"]), [])
        if "offset" in line:
            records.append(line)
        else:
            assert len(records) == line["records"]
    # The consumers of old brokers did not support leader epochs.
    knows_epochs = any(record["leader_epoch"] is not None for records in expected.values() for record in records)
    found: dict[tuple[str, int], list[Line]] = {partition: [] for partition in expected}
    for line in lines("--isolation", isolation, "--no-decode", *arguments):
        if (line["topic"], line["partition"]) in expected:
            said = as_consumer_says(line)
            found[line["topic"], line["partition"]].append(said if knows_epochs else said | {"leader_epoch": None})
    for partition, records in expected.items():
        assert found[partition] == records, partition


# ---- filters ---------------------------------------------------------------------------------------------------------


class Lines:
    """The full dump of one partition, for filtering it in plain Python."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.batches: list[tuple[Line, list[Line]]] = []
        for line in lines(path):
            if line["type"] == "batch":
                self.batches.append((line, []))
            else:
                self.batches[-1][1].append(line)
        self.records = [record for _, records in self.batches for record in records]

    def chosen(self, wanted: Any, *, keep_batch: Any = None) -> list[Line]:
        found = []
        for batch, records in self.batches:
            some = [record for record in records if wanted(record)]
            if some if keep_batch is None else keep_batch(batch):
                found += [batch, *some]
        return found


FILTERED = [
    "kraft-before/orders-0",
    "kraft-after/orders-1",
    "kraft-before/unordered-time-0",
    "kraft-before/payments-0",
    "kraft-before/append-time-0",
    "kraft-after/codec-zstd-0",
    "kraft-before/trimmed-0",
    "legacy-v1-before/v1-java-gzip-0",
    "legacy-mixed-before/mixed-gzip-0",
    "legacy-v0-before/v0-snappy-0",
]


@pytest.mark.more
@pytest.mark.parametrize("where", FILTERED)
def test_filters_show_what_filtering_the_full_dump_shows(where: str) -> None:
    name, partition = where.split("/")
    full = Lines(fixture(name) / partition)
    random.seed(where)
    for _ in range(6):
        start, end = sorted(random.choice(full.records)["offset"] + random.randint(-1, 1) for _ in range(2))
        start = max(start, 0)
        expected = full.chosen(
            lambda r, start=start, end=end: start <= r["offset"] < end,
            keep_batch=lambda b, start=start, end=end: start <= b["last_offset"] and b["base_offset"] < end,
        )
        if start < end:
            assert lines(full.path, "--offset", f"{start}:{end}") == expected
        since, until = sorted(random.choice(full.records)["timestamp"] for _ in range(2))
        if since >= 0:
            expected = full.chosen(lambda r, since=since, until=until: since <= r["timestamp"] < until)
            assert lines(full.path, "--since", str(since), "--until", values.time_text(until)) == expected
            expected = full.chosen(lambda r, since=since: since <= r["timestamp"])
            assert lines(full.path, "--since", str(since)) == expected
        key = random.choice(full.records)["key"]
        word = "" if key is None else key if isinstance(key, str) else f"hex:{key['hex']}"
        expected = full.chosen(lambda r, key=key, word=word: r["key"] == (word if key is None else key))
        assert lines(full.path, "--key", word) == expected
    for kind in ("batch", "record"):
        assert lines(full.path, "--batches" if kind == "batch" else "--records") == of_type(kind, full.chosen(bool))
    start = full.records[len(full.records) // 2]["offset"]
    assert of_type("record", lines(full.path, "--from-offset", str(start))) == full.records[len(full.records) // 2 :]
    assert lines(full.path, "--from-offset", str(start), "--to-offset", str(start)) == []


def test_a_segment_is_filtered_like_its_log() -> None:
    partition = fixture("kraft-before") / "orders-0"
    full = Lines(partition)
    segment = sorted(partition.glob("*.log"))[3]
    first = int(segment.stem)
    expected = full.chosen(
        lambda r: first + 10 <= r["offset"] < first + 20,
        keep_batch=lambda b: b["last_offset"] >= first + 10 and b["base_offset"] < first + 20,
    )
    assert expected
    assert lines(segment, "--offset", f"{first + 10}:{first + 20}") == expected


class _CountingFile(PosixFile):
    count = 0

    def read_into(self, position: int, target: memoryview) -> int:
        found = super().read_into(position, target)
        _CountingFile.count += found
        return found


class _CountingFileSystem(PosixFileSystem):
    def open(self, path: str) -> PosixFile:
        return _CountingFile(path, os.open(path, os.O_RDONLY))


@pytest.mark.parametrize("filters", ["start_offset", "since_ms"])
def test_filters_use_the_indexes(filters: str) -> None:
    path = fixture("kraft-before") / "segment-mb-0"
    last = of_type("record", lines(path))[-1]
    number = last["offset"] if filters == "start_offset" else last["timestamp"]
    written: list[bytes] = []
    _CountingFile.count = 0
    choice = Choice(**{filters: number})
    Dump(choice, JsonPrinter(ValueFormat.UTF8, ValueFormat.UTF8), written.append, fs=_CountingFileSystem()).run(
        [str(path)]
    )
    found = [json.loads(line) for line in b"".join(written).splitlines()]
    assert of_type("record", found)[-1] == last
    assert 0 < _CountingFile.count < sum(log.stat().st_size for log in path.glob("*.log")) / 2


def test_topics_and_partitions_of_a_directory_are_chosen() -> None:
    path = fixture("kraft-before")
    found = lines(path, "--records", "--topic", "orders", "--topic", "sessions", "--partition", "1")
    assert {(line["topic"], line["partition"]) for line in found} == {("orders", 1), ("sessions", 1)}


def test_the_limit_counts_records_or_else_batches() -> None:
    path = fixture("kraft-before") / "orders-0"
    assert [line["type"] for line in lines(path, "--limit", "2")] == ["batch", "record", "record"]
    assert lines(path, "--limit", "15") == lines(path)[:17]
    assert lines(path, "--batches", "--limit", "3") == lines(path, "--batches")[:3]
    assert len(lines(path / "leader-epoch-checkpoint", "--limit", "1")) == 1
    assert run("dump", path, "--limit", "0").stdout == ""


def test_directories_of_one_broker_are_dumped_together() -> None:
    path = fixture("kraft-jbod-before")
    together = lines(path)
    assert together == lines(path / "a", path / "b")
    assert {Path(line["file"]).parent.parent.name for line in of_type("batch", together)} == {"a", "b"}


def test_a_partition_is_known_from_inside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path = fixture("kraft-before") / "orders-0"
    expected = [(line["topic"], line["offset"]) for line in lines(path, "--records")]
    monkeypatch.chdir(path)
    for words in (["."], sorted(log.name for log in path.glob("*.log"))):
        assert [(line["topic"], line["offset"]) for line in lines("--records", *words)] == expected


# ---- a small log -----------------------------------------------------------------------------------------------------

TIME = 1_700_000_000_000
RECORDS = [
    Record(0, TIME, b"plain", b"one"),
    Record(1, TIME + 1, None, "zwölf".encode(), (("a", b"1"), ("a", None), ("b", b""))),
    Record(2, TIME + 2, b"\x00\x00\x00\x07", None),
    Record(3, TIME + 3, b'a "b"\\\n', b"\xff\x00"),
    Record(4, TIME + 4, b"", b'{"n": 1.10,\n "s": "\xc2\x9b"}'),
]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A partition of two batches and a marker."""
    path = tmp_path / "things-3"
    path.mkdir()
    data = encode_batch(RECORDS, leader_epoch=5)
    data += encode_batch(
        [Record(5, TIME, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True
    )
    data += encode_marker(Marker(6, TIME + 9, 9, 0, committed=False, coordinator_epoch=11))
    (path / "00000000000000000000.log").write_bytes(data)
    return path


def test_a_log_for_people(small: Path) -> None:
    text = run("dump", small).stdout.replace(str(small), "things-3")
    assert re.sub(" +", " ", text) == (
        "# things-3/00000000000000000000.log\n"
        "batch base_offset=0 last_offset=4 position=0 size=156 count=5 magic=2 codec=none leader_epoch=5"
        " timestamp_type=CreateTime base_timestamp=2023-11-14T22:13:20.000Z max_timestamp=2023-11-14T22:13:20.004Z"
        " attributes=0 crc=4db0f69e valid\n"
        'record offset=0 time=2023-11-14T22:13:20.000Z key="plain" value="one"\n'
        'record offset=1 time=2023-11-14T22:13:20.001Z key=null value="zwölf" headers=["a"="1", "a"=null, "b"=""]\n'
        'record offset=2 time=2023-11-14T22:13:20.002Z key="\\x00\\x00\\x00\\x07" value=null\n'
        'record offset=3 time=2023-11-14T22:13:20.003Z key="a \\"b\\"\\\\\\n" value="\\xff\\x00"\n'
        'record offset=4 time=2023-11-14T22:13:20.004Z key="" value="{\\"n\\": 1.10,\\n \\"s\\": \\"\\xc2\\x9b\\"}"\n'
        "batch base_offset=5 last_offset=5 position=156 size=70 count=1 magic=2 codec=none leader_epoch=-1"
        " timestamp_type=CreateTime base_timestamp=2023-11-14T22:13:20.000Z max_timestamp=2023-11-14T22:13:20.000Z"
        " attributes=16 producer_id=9 producer_epoch=0 base_sequence=0 last_sequence=0 transactional"
        " crc=7f565c21 valid\n"
        'record offset=5 time=2023-11-14T22:13:20.000Z key="k" value="v"\n'
        "batch base_offset=6 last_offset=6 position=226 size=78 count=1 magic=2 codec=none leader_epoch=-1"
        " timestamp_type=CreateTime base_timestamp=2023-11-14T22:13:20.009Z max_timestamp=2023-11-14T22:13:20.009Z"
        " attributes=48 producer_id=9 producer_epoch=0 base_sequence=-1 last_sequence=-1 transactional control"
        " crc=b40ae589 valid\n"
        "record offset=6 time=2023-11-14T22:13:20.009Z control=ABORT coordinator_epoch=11\n"
    )


def test_a_log_as_json(small: Path) -> None:
    found = lines(small)
    assert found[0] == {
        "type": "batch",
        "topic": "things",
        "partition": 3,
        "file": str(small / "00000000000000000000.log"),
        "position": 0,
        "size": 156,
        "magic": 2,
        "base_offset": 0,
        "last_offset": 4,
        "count": 5,
        "leader_epoch": 5,
        "crc": "4db0f69e",
        "valid": True,
        "codec": "none",
        "timestamp_type": "CreateTime",
        "transactional": False,
        "control": False,
        "delete_horizon_ms": None,
        "attributes": 0,
        "base_timestamp": TIME,
        "max_timestamp": TIME + 4,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "last_sequence": -1,
    }
    place = {"type": "record", "topic": "things", "partition": 3}
    assert found[2] == place | {
        "offset": 1,
        "timestamp": TIME + 1,
        "timestamp_type": "CreateTime",
        "leader_epoch": 5,
        "key": None,
        "value": "zwölf",
        "headers": [["a", "1"], ["a", None], ["b", ""]],
    }
    assert found[4]["value"] == {"hex": "ff00"}
    marker = {"control": "ABORT", "coordinator_epoch": 11, "key": "\0\0\0\0", "value": "\0\0\0\0\0\x0b"}
    assert found[-1] == place | marker | {
        "offset": 6,
        "timestamp": TIME + 9,
        "timestamp_type": "CreateTime",
        "leader_epoch": -1,
        "headers": [],
    }


def test_keys_and_values_take_formats(small: Path) -> None:
    def shown(value_format: str) -> list[Any]:
        found = lines(small, "--records", "--limit", "5", "--key-format", value_format, "--value-format", value_format)
        return [line[name] for name in ("key", "value") for line in found]

    data = [one for name in ("key", "value") for one in (getattr(record, name) for record in RECORDS)]
    assert shown("hex") == [None if one is None else one.hex() for one in data]
    assert shown("base64") == [None if one is None else base64.b64encode(one).decode() for one in data]
    assert shown("int")[:4] == [{"hex": b"plain".hex()}, None, 7, {"hex": b'a "b"\\\n'.hex()}]
    assert shown("json")[-1] == {"n": 1.1, "s": "\x9b"}
    assert shown("json")[0] == {"hex": b"plain".hex()}
    raw = run("dump", "--json", small, "--value-format", "json", "--offset", "4:5", "--records").stdout
    assert '"value":{"n": 1.10,  "s": "\\u009b"}' in raw
    text = run("dump", small, "--records", "--key-format", "int", "--value-format", "json").stdout
    assert "key=hex:706c61696e " in text
    assert "key=7 " in text
    assert "value=hex:ff00\n" in text


LETTERS = [
    (r"%t %p %o %T\n", [f"things 3 {r.offset} {r.timestamp}\n".encode() for r in RECORDS]),
    ("%k|", [(r.key or b"") + b"|" for r in RECORDS]),
    ("%s|", [(r.value or b"") + b"|" for r in RECORDS]),
    ("%K/%S ", [b"%d/%d " % tuple(-1 if x is None else len(x) for x in (r.key, r.value)) for r in RECORDS]),
    ("%R", [struct.pack(">i", -1 if r.value is None else len(r.value)) for r in RECORDS]),
    (r"%h;", [b";", b"a=1,a=NULL,b=;", b";", b";", b";"]),
    (r"%%\t\r\x41\x0a\0\\%o\q" + "\\", [b"%%\t\rA\n\0\\%dq\\" % r.offset for r in RECORDS]),
]


@pytest.mark.parametrize(("pattern", "expected"), LETTERS)
def test_patterns_know_the_letters_of_kcat(pattern: str, expected: list[bytes], small: Path) -> None:
    assert run("dump", small, "--limit", "5", "--format", pattern).stdout_bytes == b"".join(expected)


def test_patterns_take_value_formats(small: Path) -> None:
    assert run("dump", small, "--limit", "3", "--format", "%k,%s;", "--key-format", "hex").stdout == (
        "706c61696e,one;null,zwölf;00000007,;"
    )


def test_patterns_decode_control_records(tmp_path: Path) -> None:
    write_log(tmp_path)
    words = (tmp_path / "before", "--offset", "9:10", "--format", "%o %k %s")
    assert run("dump", *words).stdout == "9 ABORT coordinator_epoch=0"
    assert run("dump", *words, "--no-decode").stdout_bytes == b"9 " + bytes(4) + b" " + bytes(6)


@given(st.binary())
def test_text_for_people_loses_nothing(data: bytes) -> None:
    shown = values.quoted(data)
    assert shown.isprintable()
    back = re.sub(
        rb'\\(x[0-9a-f]{2}|[ntr"\\])',
        lambda m: (
            bytes([int(m[1][1:], 16)]) if m[1][:1] == b"x" else {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(m[1], m[1])
        ),
        shown[1:-1].encode(),
    )
    assert back == data


@given(st.binary() | st.text().map(str.encode))
def test_json_loses_nothing_and_prints_nothing_odd(data: bytes) -> None:
    shown = values.in_json(ValueFormat.UTF8)(memoryview(data))
    assert shown.isprintable()
    value = json.loads(shown)
    assert (value.encode() if isinstance(value, str) else bytes.fromhex(value["hex"])) == data


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_json_values_stay_what_they_are_in_one_line(value: Any) -> None:
    for indent in (None, 1):
        data = json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "replace")
        shown = values.in_json(ValueFormat.JSON)(memoryview(data))
        assert shown.isprintable()
        assert json.loads(shown) == json.loads(data)


@pytest.mark.parametrize("data", [b"", b"NaN", b"{", b"\xff", b"[" * 100_000, b'"\n"', b"1 2"])
def test_what_is_no_json_is_shown_as_hex(data: bytes) -> None:
    assert values.in_json(ValueFormat.JSON)(memoryview(data)) == f'{{"hex":"{data.hex()}"}}'


def test_numbers_of_any_length_are_json() -> None:
    number = b"9" * 10_000
    assert values.in_json(ValueFormat.JSON)(memoryview(number)) == number.decode()


# ---- large keys and values -------------------------------------------------------------------------------------------

BYTES = st.binary() | st.text().map(str.encode) | st.text().map(lambda text: text.encode() + b"\xe2\x82")


@pytest.fixture
def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key, value and header is large."""
    monkeypatch.setattr(large, "LARGE_BYTES", 0)
    monkeypatch.setattr(large, "PIECE_BYTES", 3)


@pytest.mark.usefixtures("_tiny_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BYTES, st.sampled_from([ValueFormat.UTF8, ValueFormat.HEX, ValueFormat.BASE64]))
def test_pieces_join_to_what_is_shown_at_once(data: bytes, value_format: ValueFormat) -> None:
    view = memoryview(data)
    people, in_json = values.PIECES_FOR_PEOPLE[value_format], values.PIECES_IN_JSON[value_format]
    assert b"".join(people(view)).decode() == values.for_people(value_format)(view)
    assert b"".join(in_json(view)).decode() == values.in_json(value_format)(view)


@pytest.mark.parametrize(
    "arguments", [["--full"], ["--json"], ["--format", "%k %s %h;"], ["--full", "--value-format", "hex"]]
)
def test_lines_made_in_pieces_are_those_made_at_once(
    small: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> bytes:
        # A short key is followed by spaces, and for a test it is large.
        return re.sub(b" +", b" ", run("dump", small, *arguments).stdout_bytes)

    whole = shown()
    for limit in (0, 3):
        monkeypatch.setattr(large, "LARGE_BYTES", limit)
        assert shown() == whole


def test_long_keys_values_and_headers_are_cut_with_their_size(tmp_path: Path) -> None:
    long = "ä" * 2_000_000
    headers = (("n" * 5000, long.encode()), ("short", b"x"))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(encode_batch([Record(0, TIME, b"k" * 3001, long.encode(), headers)]))
    shown = run("dump", path, "--records").stdout.splitlines()[1]
    start = f'"{"ä" * 1500}"… (4,000,000 bytes)'
    assert f'key="{"k" * 3000}"… (3,001 bytes) value={start} headers=[' in shown
    assert f'headers=["{"n" * 3000}"… (5,000 bytes)={start}, "short"="x"]' in shown
    assert f'value="{long}" headers' in run("dump", path, "--records", "--full").stdout
    assert run("dump", path, "--records", "--json").json["value"] == long
    in_hex = run("dump", path, "--records", "--value-format", "hex", "--key-format", "json").stdout
    assert f"value={'c3a4' * 1500}… (4,000,000 bytes)" in in_hex


def test_json_of_some_megabytes_is_json_and_of_more_is_hex(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    arguments = (path, "--records", "--value-format", "json")
    for size_bytes in (2_000_000, JSON_BYTES_MAX + 1):
        value = json.dumps("x" * (size_bytes - 2))
        path.write_bytes(encode_batch([Record(0, TIME, b"k", value.encode())]))
        shown = run("dump", *arguments, "--full").stdout
        in_json = run("dump", *arguments, "--json").json["value"]
        if size_bytes <= JSON_BYTES_MAX:
            assert shown.endswith(f"value={value}\n") and in_json == json.loads(value)
        else:
            in_hex = value.encode().hex()
            assert shown.endswith(f"value=hex:{in_hex}\n") and in_json == {"hex": in_hex}


def test_a_cut_never_splits_a_character() -> None:
    for character in ("k", "ä", "€", "😀"):
        for shift in range(4):
            text = "." * shift + character * 3000
            shown = bytes(large.start(memoryview(text.encode()))).decode()
            assert text.startswith(shown) and 3000 - len(shown.encode()) < 4
    assert len(large.start(memoryview(b"\x80" * 4000))) == 3000


def test_many_headers_are_cut_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(encode_batch([Record(0, TIME, b"k", b"v", (("h", b"x"),) * 1001)]))
    assert run("dump", path, "--records").stdout.endswith('"h"="x", … (1,001 headers)]\n')
    assert run("dump", path, "--records", "--full").stdout.count('"h"="x"') == 1001
    assert run("dump", path, "--records", "--json").json["headers"] == [["h", "x"]] * 1001


def test_times_are_understood() -> None:
    assert parse_time("1700000000000") == TIME
    assert parse_time("2023-11-14T22:13:20Z") == TIME
    assert parse_time("2023-11-14T22:13:20.005") == TIME + 5
    assert parse_time("2023-11-14T23:13:20+01:00") == TIME
    assert parse_time("2023-11-14") == TIME - 80_000_000
    for age, ms in (("0s", 0), ("5m", 300_000), ("36h", 129_600_000), ("7d", 604_800_000), ("10ms", 10)):
        assert abs(system_clock() - ms - parse_time(age)) < 60_000
    assert values.time_text(TIME + 5) == "2023-11-14T22:13:20.005Z"
    assert [values.time_text(ms) for ms in (-1, -2, 2**62)] == ["none", "1969-12-31T23:59:59.998Z", str(2**62)]


WRONG = [
    ["--offset", "x"],
    ["--offset", ":"],
    ["--offset", "1:2", "--to-offset", "3"],
    ["--since", "yesterday"],
    ["--key", "hex:0"],
    ["--key", "base64:?"],
    ["--format", "%q"],
    ["--format", "%"],
    ["--format", "%o", "--json"],
    ["--isolation", "serializable"],
]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_requests_are_refused(words: list[str], small: Path) -> None:
    assert run("dump", small, *words, exits=2).stdout == ""


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_batch_with_a_wrong_crc_is_shown_with_its_records(small: Path) -> None:
    log = small / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    at = data.index(b"one")
    data[at] ^= 0x20
    before = lines(small)
    log.write_bytes(data)
    found = lines(small, exits=1)
    assert (found[0]["valid"], found[0]["crc"]) == (False, before[0]["crc"])
    assert found[1].items() >= {"type": "damage", "file": str(log), "position": 0, "size": None, "offset": 0}.items()
    assert "CRC-32C mismatch" in found[1]["what"]
    assert found[2]["value"] == "One"
    assert found[3:] == before[2:]
    text = run("dump", small, exits=1).stdout
    assert re.search(
        r"^batch .* crc=4db0f69e INVALID \(computed [0-9a-f]{8}\)\nDAMAGE position=0 .*CRC-32C", text, re.M
    )
    # A consumer reads no record of it.
    consumed = lines(small, "--isolation", "read_uncommitted", exits=1)
    assert [line["type"] for line in consumed] == ["damage", "record"]


def test_damage_between_batches_is_shown_in_its_place(small: Path) -> None:
    log = small / "00000000000000000000.log"
    before = lines(small)
    data = log.read_bytes()
    log.write_bytes(data[:156] + b"garbage" * 10 + data[156:])
    found = lines(small, exits=1)
    assert found[:6] == before[:6]
    assert found[6].items() >= {"type": "damage", "file": str(log), "position": 156, "size": 70}.items()
    moved = [line | {"position": line["position"] + 70} if line["type"] == "batch" else line for line in before[6:]]
    assert found[7:] == moved
    assert re.search(r"^DAMAGE position=156 +size=70 ", run("dump", small, exits=1).stdout, re.M)
    result = run("dump", small, "--format", "%o ", exits=1)
    assert result.stdout == "0 1 2 3 4 5 6 "
    assert f"in {log} at position 156" in result.stderr


def test_a_batch_that_cannot_be_decompressed_is_damage_where_it_lies(tmp_path: Path) -> None:
    good = [encode_batch([Record(n, TIME, b"k", b"v" * 50)], codec=Codec.GZIP) for n in range(3)]
    bad = bytearray(good[1])
    bad[61] ^= 0xFF
    log = tmp_path / "t-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(good[0] + bad + good[2])
    found = lines(log, exits=1)
    assert [line["type"] for line in found] == ["batch", "record", "batch", "damage", "damage", "batch", "record"]
    assert [line["position"] for line in found if "position" in line] == [
        0,
        *[len(good[0])] * 3,
        len(good[0] + good[1]),
    ]


def test_damage_at_the_end_of_a_large_batch_is_printed_after_its_records(tmp_path: Path) -> None:
    large = bytearray(encode_batch([Record(n, TIME, b"k", bytes(1 << 20)) for n in range(6)], codec=Codec.GZIP))
    large[57:61] = (7).to_bytes(4, "big")
    log = tmp_path / "t-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(seal(bytes(large)) + encode_batch([Record(7, TIME, b"k", b"v")]))
    found = lines(log, exits=1)
    assert [line["type"] for line in found] == ["batch", *["record"] * 6, "damage", "batch", "record"]
    assert (found[0]["valid"], found[7]["position"], found[7]["offset"]) == (True, 0, 0)


def test_an_unreadable_control_record_is_damage(tmp_path: Path) -> None:
    log = tmp_path / "t-0" / "00000000000000000000.log"
    log.parent.mkdir()
    log.write_bytes(encode_batch([Record(0, TIME, b"\0", b"")], transactional=True, control=True))
    found = lines(log, exits=1)
    assert [line["type"] for line in found] == ["batch", "record", "damage"]
    assert (found[1]["control"], found[2]["offset"]) == (None, 0)


@pytest.mark.parametrize(("tail", "what"), [(None, "the file ends after"), (b"\0" * 99, "99 zero bytes")])
def test_a_torn_tail_is_no_damage_at_the_end_of_a_log_only(tail: bytes | None, what: str, small: Path) -> None:
    log = small / "00000000000000000000.log"
    before, data = lines(small), log.read_bytes()
    log.write_bytes(data[:-1] if tail is None else data + tail)
    found = lines(small)
    assert found[:8] == before[:8]
    assert found[-1]["type"] == "rest"
    assert what in found[-1]["what"]
    assert found[-1]["position"] + found[-1]["size"] == log.stat().st_size
    (small / "00000000000000000007.log").write_bytes(encode_batch([Record(7, TIME, b"k", b"v")]))
    assert [line["type"] for line in lines(small, exits=1)[-3:]] == ["damage", "batch", "record"]
    assert [line["type"] for line in lines(log, exits=1)][-1] == "damage"


# ---- other files -----------------------------------------------------------------------------------------------------

ID = uuid.UUID(int=77)
FILES: dict[str, tuple[bytes, list[Line]]] = {
    "00000000000000000010.index": (
        struct.pack(">iiii", 3, 100, 9, 200) + bytes(16) + b"\1",
        [
            {"type": "offset_index", "entry": 0, "offset": 13, "position": 100},
            {"type": "offset_index", "entry": 1, "offset": 19, "position": 200},
            {"type": "rest", "position": 16, "size": 16, "what": "zeros: room for 2 more entries"},
            {"type": "rest", "position": 32, "size": 1, "what": "too few bytes for an entry of 8"},
        ],
    ),
    "00000000000000000010.timeindex.deleted": (
        struct.pack(">qi", TIME, 3),
        [{"type": "time_index", "entry": 0, "timestamp": TIME, "offset": 13}],
    ),
    "00000000000000000010.txnindex": (
        transaction_index.encode(transaction_index.index_of([transaction_index.AbortedTransaction(7, 11, 15, 12)])),
        [
            {
                "type": "aborted_transaction",
                "entry": 0,
                "version": 0,
                "producer_id": 7,
                "first_offset": 11,
                "last_offset": 15,
                "last_stable_offset": 12,
            }
        ],
    ),
    "00000000000000000010.snapshot": (
        producer_state.encode([producer_state.ProducerEntry(1, 2, 3, 4, 5, 6, 7, 8)]),
        [
            {
                "type": "producer",
                "producer_id": 1,
                "producer_epoch": 2,
                "last_sequence": 3,
                "last_offset": 4,
                "offset_delta": 5,
                "timestamp": 6,
                "coordinator_epoch": 7,
                "current_transaction_first_offset": 8,
            }
        ],
    ),
    "leader-epoch-checkpoint": (
        leader_epochs.encode([leader_epochs.EpochEntry(0, 0), leader_epochs.EpochEntry(4, 99)]),
        [
            {"type": "leader_epoch", "epoch": 0, "start_offset": 0},
            {"type": "leader_epoch", "epoch": 4, "start_offset": 99},
        ],
    ),
    "cleaner-offset-checkpoint": (
        checkpoints.encode({TopicPartition("a", 0): 5}),
        [{"type": "checkpoint", "topic": "a", "partition": 0, "offset": 5}],
    ),
    "partition.metadata": (
        encode_partition_metadata(properties.PartitionMetadata(ID)),
        [{"type": "partition_metadata", "version": 0, "topic_id": "AAAAAAAAAAAAAAAAAAAATQ"}],
    ),
    "meta.properties": (
        b"#\n#now\nversion=1\nnode.id=3\ncluster.id=c\n",
        [
            {"type": "property", "key": "version", "value": "1"},
            {"type": "property", "key": "node.id", "value": "3"},
            {"type": "property", "key": "cluster.id", "value": "c"},
        ],
    ),
    ".kafka_cleanshutdown": (
        properties.encode_clean_shutdown(128),
        [{"type": "clean_shutdown", "broker_epoch": 128}],
    ),
    "quorum-state": (
        quorum_state.encode(quorum_state.QuorumState(1, 2, 3, voted_directory_id=ID)),
        [
            {
                "type": "quorum_state",
                "data_version": 1,
                "leader_id": 2,
                "leader_epoch": 3,
                "voted_id": -1,
                "voted_directory_id": "AAAAAAAAAAAAAAAAAAAATQ",
            }
        ],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_small_file_is_dumped(name: str, tmp_path: Path) -> None:
    data, expected = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert lines(path) == [line | {"file": str(path)} for line in expected]
    text = run("dump", path).stdout.splitlines()
    assert text[0] == f"# {path}"
    assert [line.split()[0] for line in text[1:]] == [line["type"] for line in expected]


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.endswith(("snapshot", "checkpoint", "meta.properties"))]
)
def test_damage_of_a_small_file_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name][0].replace(b"\0\0", b"\0\1").replace(b"0\n", b"7\n", 1).replace(b"=1", b"=9"))
    found = lines(path, exits=1)
    assert found[-1]["type"] == "damage"
    assert "DAMAGE" in run("dump", path, exits=1).stdout


@pytest.mark.parametrize("suffix", ["", ".swap", ".cleaned", ".deleted"])
def test_a_segment_is_dumped_whatever_is_being_done_to_it(suffix: str, small: Path) -> None:
    log = small / "00000000000000000000.log"
    expected = [(line["type"], line["topic"], line.get("offset")) for line in lines(log)]
    renamed = log.rename(small / f"{log.name}{suffix}")
    assert [(line["type"], line["topic"], line.get("offset")) for line in lines(renamed)] == expected
    assert lines(renamed, "--offset", "5:6")[-1]["offset"] == 5


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("__cluster_metadata-0/00000000000000000042-0000000003.checkpoint", "__cluster_metadata"),
        ("bootstrap.checkpoint", None),
    ],
)
def test_kraft_snapshots_are_dumped_as_logs(name: str, topic: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        encode_batch([Record(0, TIME, b"\0\0\0\3", bytes(11))], control=True)
        + encode_batch([Record(1, TIME, None, b"x")])
    )
    found = of_type("record", lines(path))
    assert [(line["topic"], line["offset"], line.get("control")) for line in found] == [
        (topic, 0, "SNAPSHOT_HEADER"),
        (topic, 1, None),
    ]


def test_a_wrapper_says_where_it_starts_even_if_only_batches_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "old-0" / "00000000000000000000.log"
    log.parent.mkdir()
    records = [Record(n, TIME, b"k", b"v") for n in range(3, 6)]
    log.write_bytes(encode_message_set(1, records, codec=Codec.GZIP))
    (batch,) = lines(log, "--batches")
    assert (batch["base_offset"], batch["last_offset"], batch["count"]) == (3, 5, None)
    assert lines(log, "--batches", "--offset", "1:3") == []


@pytest.mark.parametrize("name", ["notes.txt", ".lock", "orders.log"])
def test_a_file_that_is_not_kafkas_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert "cordwood: " in run("dump", tmp_path / name, exits=2).stderr


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in run("dump", tmp_path / "nothing-0", exits=2).stderr


def test_isolation_needs_a_log(small: Path) -> None:
    log = small / "00000000000000000000.log"
    assert len(lines(log, "--isolation", "read_committed")) == 5
    gone = log.rename(f"{log}.deleted")
    assert "leave out --isolation" in run("dump", gone, "--isolation", "read_committed", exits=2).stderr


# ---- as a process ----------------------------------------------------------------------------------------------------


def test_a_pipe_closed_early_is_no_error() -> None:
    with start("dump", "--json", fixture("kraft-before")) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, "")


def test_only_what_is_needed_is_imported() -> None:
    program = "import sys, cordwood.cli.dump; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "pyspark", "pandas", "rich", "hypothesis"} & {module.partition(".")[0] for module in modules}


def test_batches_alone_tell_a_wrong_crc_by_the_exit_code_too(tmp_path: Path) -> None:
    path = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0") / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    for choice in (["--batches"], ["--records"], []):
        run("dump", path, *choice, exits=1)
