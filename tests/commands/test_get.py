"""`get`: the fate of keys, compared with the plan, the clean and plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cordwood
from cordwood.commands.why.next_step import StepKind, prospects_of
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.node.node import Node
from tests.command import run
from tests.fixtures import STOPPED, copy_of, fixture, partitions
from tests.storage.index_twins import all_keys, plain_history

pytestmark = pytest.mark.more

NOW_MS = 1_795_300_000_000
COMPACT = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0")


def partition_with(path: Path, *segments: list[Record]) -> Path:
    """A partition of a log directory that is no broker's, with a batch in each segment, and an empty active one."""
    partition = path / "a-0"
    partition.mkdir(parents=True)
    for records in segments:
        data = encode_batch(records)
        (partition / f"{records[0].offset:020d}.log").write_bytes(data)
        (partition / f"{records[0].offset:020d}.index").write_bytes(b"")
    (partition / f"{segments[-1][-1].offset + 1:020d}.log").write_bytes(b"")
    return partition


def records(first: int, *pairs: tuple[str, str | None]) -> list[Record]:
    return [
        Record(first + at, 1000 + first + at, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(pairs)
    ]


@pytest.mark.parametrize("name", STOPPED)
def test_what_can_be_cleaned_is_what_the_plan_says(name: str) -> None:
    path, compared = str(fixture(name)), 0
    plan = cordwood.plan(path, now_ms=NOW_MS)
    node = Node.open(PosixFileSystem(), [path])
    for found in plan.partitions:
        place = next(one for one in node.places if one.path == found.path)
        if found.compaction is not None:
            assert prospects_of(node, place, place.log(), NOW_MS).cleaned == found.compaction.range
            compared += 1
    assert compared or not any(one.compaction for one in plan.partitions)


def test_what_the_next_clean_takes_is_what_it_takes(tmp_path: Path) -> None:
    name = "kraft-before"
    source = fixture(name)
    chosen = ("--ignore-ratio", "--now", NOW_MS, "--engine", "here", "--single-copy")
    run("clean", source, "--output", tmp_path / "clean", *chosen)
    compared = set()
    for log in partitions(source):
        known = all_keys(cordwood.open_log(str(log)))
        if not known or "metadata" in log.name or log.name.endswith(("-stray", "-delete", "-future")):
            continue
        result = cordwood.get(str(log), keys=known, now_ms=NOW_MS, metadata=str(source))
        after = {one.offset for one in cordwood.open_log(str(tmp_path / "clean" / log.name)).records(isolation=None)}
        for one in result.records:
            compared.add(one.next_step.kind)
            if one.next_step.kind is StepKind.CLEAN:
                assert one.record.offset not in after, (log.name, one)
            elif one.next_step.kind is not StepKind.HORIZON:
                assert one.record.offset in after, (log.name, one)
    assert {StepKind.CLEAN, StepKind.WAITS, StepKind.STAYS} <= compared


def test_records_say_which_clean_takes_them(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a", "1"), ("b", "1")), records(2, ("a", "2"), ("c", None)))
    found = run("get", log, "--key", "a", "--key", "c", "--json", *COMPACT).json
    steps = [(one["key"], one["offset"], one["superseded_by"], one["next"]["kind"]) for one in found["records"]]
    assert steps == [("a", 0, 2, "clean"), ("a", 2, None, "stays"), ("c", 3, None, "horizon")]
    text = run("get", log, "--key", "a", "--key", "c", *COMPACT).stdout
    assert "superseded by offset 2; the next clean removes it" in text
    assert "lets it expire after delete.retention.ms=86400000" in text
    kept = run("get", log, "--key", "a").stdout
    assert "kept: cleanup.policy is unknown" in kept


def test_of_many_records_the_newest_are_shown_and_the_others_are_counted(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, *[("a", f"{at}") for at in range(5)]), records(5, ("a", "5"), ("a", "6")))
    text = run("get", log, "--key", "a", "--limit", "1", *COMPACT).stdout
    assert "and 6 older, offsets 0 to 5: superseded; the next clean removes it" in text
    found = run("get", log, "--key", "a", "--limit", "2", "--json", *COMPACT).json
    assert [one["offset"] for one in found["records"]] == [5, 6]


def test_what_the_cleaner_has_passed_waits_for_a_clean_from_an_earlier_offset(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a", "1"), ("b", "1")), records(2, ("a", "2"), ("b", "2")))
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\na 0 3\n")
    found = run("get", log, "--key", "a", "--key", "b", "--json", *COMPACT).json
    steps = {(one["key"], one["value"]): one["next"]["kind"] for one in found["records"]}
    assert steps == {("a", "1"): "kept", ("a", "2"): "stays", ("b", "1"): "clean", ("b", "2"): "stays"}


def test_an_unknown_key_is_named_with_exit_code_2_and_the_others_are_shown(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a", "1"), ("b", "1")))
    found = run("get", log, "--key", "a", "--key", "nobody", exits=2)
    assert "there is no record of key nobody" in found.stdout and "a-0, key a" in found.stdout
    run("get", log, "--key", "a")
    run("get", tmp_path / "none", "--key", "a", exits=2)
    assert "Which key?" in run("get", log, exits=2).stderr


def test_keys_come_from_a_file_a_line_each(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a b", "1"), ("b\u2028c", "2"), ("", "3"), ("d", "4")))
    (tmp_path / "keys").write_bytes("a b\r\n\nb\u2028c\nhex:\nhex:64".encode())
    found = run("get", log, "--keys", tmp_path / "keys", "--json").json
    assert [one["value"] for one in found["records"]] == ["1", "2", "3", "4"]
    run("get", log, "--keys", tmp_path / "no such file", exits=2)


def test_keys_come_from_a_pipe_or_the_standard_input(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a", "1"), ("b", "2")))
    said = run("get", log, "--keys", "-", "--json", stdin="b\n")
    assert [one["value"] for one in json.loads(said.stdout)["records"]] == ["2"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(pipe.write_text, "a\n")
        found = run("get", log, "--keys", pipe, "--json").json
        writing.result()
    assert [one["value"] for one in found["records"]] == ["1"]


def test_damage_is_told_with_exit_code_1_and_what_is_behind_it_is_found(tmp_path: Path) -> None:
    log = partition_with(tmp_path, records(0, ("a", "1")), records(1, ("a", "2")))
    first = log / f"{0:020d}.log"
    first.write_bytes(first.read_bytes()[:-1] + b"\x77")
    found = run("get", log, "--key", "a", exits=1)
    assert "DAMAGE" in found.stdout and "1 record in 1 log" in found.stdout


def test_nothing_is_written_and_hostile_keys_and_values_do_no_harm_on_a_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07"
    log = partition_with(tmp_path, records(0, (evil, evil)))
    before = sorted(tmp_path.rglob("*"))
    log.chmod(0o500)
    for form in ((), ("--json",)):
        found = run("get", log, "--key", evil, *form)
        assert "\x1b" not in found.stdout and "\x07" not in found.stdout
    log.chmod(0o700)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_key_is_looked_for_where_kafka_puts_it_then_everywhere(tmp_path: Path) -> None:
    copy = copy_of(fixture("kraft-before"), tmp_path / "logs")
    orders = [log for log in partitions(copy) if log.name.startswith("orders-")]
    known = {log.name: all_keys(cordwood.open_log(str(log))) for log in orders}
    name, keys = next((name, keys) for name, keys in known.items() if keys)
    for key in keys[:5]:
        some = cordwood.get(str(copy), keys=[key], topics=["orders"])
        everywhere = cordwood.get(str(copy), keys=[key], topics=["orders"], partitions=["*"])
        assert some.records == everywhere.records and len(everywhere.searched) == len(orders)
    expected = plain_history(cordwood.open_log(str(copy / name)), keys)
    found = cordwood.get(str(copy / name), keys=keys)
    assert sorted((one.record for one in found.records), key=lambda one: one.offset) == expected
    assert found.unknown == ()


def test_finding_a_key_needs_neither_spark_nor_arrow() -> None:
    code = (
        "import sys; from cordwood.commands.get import get; from cordwood.commands.options import GetOptions;"
        "get([sys.argv[1]], ['x'], GetOptions());"
        "print(*(one for one in ('pyspark', 'pyarrow', 'rich') if one in sys.modules))"
    )
    command = [sys.executable, "-c", code, str(fixture("kraft-before"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []
