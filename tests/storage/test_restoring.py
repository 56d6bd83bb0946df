"""Recovery into a copy, compared with a real broker's recovery of the same crashed directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.engine.facts import load_producers
from cordwood.common.errors import DataError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats import filenames, producer_state
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import Node
from cordwood.storage.recovery.into_copy import RecoverySettings, complete_indexes, recover_into_copy
from tests.fixtures import CRASHED, copy_of, fixture
from tests.kafka_tools import Oracle

pytestmark = pytest.mark.more

fs = PosixFileSystem()
#: Within a day of the fixtures' records.
NOW_MS = 1_763_700_000_000


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", CRASHED)
def test_a_crashed_directory_becomes_what_the_next_broker_made_of_it(name: str, tmp_path: Path) -> None:
    node = Node.open(fs, [str(fixture(name))])
    for place in node.places:
        if not broker_would_load(place.name):
            continue
        assert place.name is not None and place.topic is not None
        target = tmp_path / place.name.name
        target.mkdir()
        point = place.directory.recovery_points.get(place.name.topic_partition, 0)
        interval = node.config_of(place.topic).integer("index.interval.bytes")
        recover_into_copy(
            fs, place.log(), str(target), recovery_point=point, now_ms=NOW_MS, settings=RecoverySettings(interval)
        )
        found, expected = contents(target), contents(fixture(f"{name}-recovered") / place.name.name)
        # It led the partition in a new epoch; the history before that is the same.
        ours, theirs = (files.pop(FileKind.LEADER_EPOCHS).split(b"\n")[2:-1] for files in (found, expected))
        assert theirs[: len(ours)] == ours
        assert len(theirs) <= len(ours) + 1
        # It deletes old files only after a minute. It keeps fewer older snapshots if its recovery began far back.
        expected = {file: data for file, data in expected.items() if not file.endswith(".deleted")}
        assert {file: found.get(file) for file in expected} == expected, place.path
        assert all(file.endswith(FileKind.PRODUCER_SNAPSHOT) for file in found.keys() - expected.keys()), place.path


def test_what_is_cut_off_is_said(tmp_path: Path) -> None:
    log = LogView(str(fixture("kraft-crashed-torn") / "moving-0"), fs=fs)
    came = recover_into_copy(fs, log, str(tmp_path), recovery_point=416, now_ms=NOW_MS)
    assert came.next_offset == 2439
    cut, left_out = came.notes
    assert "00000000000000002374.log is cut at position 2918, as by a broker" in cut and "all 576 bytes" in cut
    assert left_out == "2 segments behind the cut are left out, 5364 bytes"


def test_a_log_that_ends_below_its_start_begins_anew_there(tmp_path: Path) -> None:
    # case 168
    log = LogView(str(fixture("kraft-before") / "orders-0"), log_start_offset=1_000_000, fs=fs)
    restored = recover_into_copy(fs, log, str(tmp_path), recovery_point=0, now_ms=0)
    assert restored.next_offset == 1_000_000
    assert "ends below its log start offset 1000000" in restored.notes[-1]
    empty = dict.fromkeys([f"{1_000_000:020}{kind}" for kind in (".log", ".index", ".timeindex")], b"")
    kept = (fixture("kraft-before") / "orders-0" / "partition.metadata").read_bytes()
    assert contents(tmp_path) == {**empty, "leader-epoch-checkpoint": b"0\n0\n", "partition.metadata": kept}


def test_nothing_below_the_recovery_point_is_read(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    first = LogView(str(source), fs=fs).segments[0]
    data = bytearray(Path(first.path).read_bytes())
    data[100] ^= 1
    Path(first.path).write_bytes(data)
    for point, notes in ((10**9, 0), (0, 2)):
        target = tmp_path / str(point)
        target.mkdir()
        came = recover_into_copy(fs, LogView(str(source), fs=fs), str(target), recovery_point=point, now_ms=NOW_MS)
        assert len(came.notes) == notes
    assert contents(tmp_path / "1000000000")[Path(first.path).name] == data


def test_offsets_of_another_segment_are_not_taken(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    last = LogView(str(source), fs=fs).segments[-1]
    target = tmp_path / "new"
    target.mkdir()
    for suffix in (".log", ".index", ".timeindex"):
        old = source / filenames.offset_name(last.base_offset, suffix)
        old.rename(source / filenames.offset_name(last.base_offset + 10**6, suffix))
    with pytest.raises(DataError, match="does not belong"):
        recover_into_copy(fs, LogView(str(source), fs=fs), str(target), recovery_point=0, now_ms=NOW_MS)


def test_missing_indexes_are_made_again_where_the_segment_is_whole(tmp_path: Path) -> None:
    # case 169
    original = fixture("kraft-before") / "payments-0"
    source = copy_of(original, tmp_path / "payments-0")
    logs = sorted(source.glob("*.log"))
    for log in logs[:3]:
        log.with_suffix(".index").unlink()
    logs[1].write_bytes(logs[1].read_bytes()[:-1])
    interval = Node.open(fs, [str(original)]).config_of("payments").integer("index.interval.bytes")
    complete_indexes(fs, LogView(str(source), fs=fs), str(source), now_ms=NOW_MS, settings=RecoverySettings(interval))
    assert not logs[1].with_suffix(".index").exists()
    logs[1].write_bytes((original / logs[1].name).read_bytes())
    complete_indexes(fs, LogView(str(source), fs=fs), str(source), now_ms=NOW_MS, settings=RecoverySettings(interval))
    assert contents(source) == contents(original)


def test_the_snapshot_of_the_end_holds_open_transactions(tmp_path: Path) -> None:
    log = LogView(str(fixture("kraft-crashed-writes") / "trans-0"), fs=fs)
    came = recover_into_copy(fs, log, str(tmp_path), recovery_point=174, now_ms=NOW_MS)
    data = (tmp_path / filenames.offset_name(came.next_offset, FileKind.PRODUCER_SNAPSHOT)).read_bytes()
    assert any(entry.current_transaction_first_offset >= 0 for entry in producer_state.decode(data))


# ---- producers -------------------------------------------------------------------------------------------------------

DAY_MS = 86_400_000
CLOCK_MS = 1_700_000_000_000
#: Producer 7 wrote before the newest snapshots, producer 9 behind the snapshots that a crash leaves.
WRITES: list[dict[str, Any]] = [
    {"op": "append", "records": [["a", "1"]], "producer": {"id": 7, "epoch": 0, "seq": 0}},
    {"op": "roll"},
    {"op": "append", "records": [["a", "2"]]},
    {"op": "roll"},
    {"op": "append", "records": [["z", "1"]]},
    {"op": "append", "records": [["q", "1"]], "producer": {"id": 9, "epoch": 0, "seq": 0}},
]


def producers_of_kafka(oracle: Oracle, steps: list[dict[str, Any]], work: Path, days: int, *, clean: bool) -> set[int]:
    """The producers in Kafka after it opened the log in `work/left/t-0`, this number of days later."""
    (opened,) = (
        line for line in run_script(oracle, [*steps, *opening(days, clean=clean)], work) if "producers" in line
    )
    return {one["id"] for one in opened["producers"]}


def opening(days: int, *, clean: bool) -> list[dict[str, Any]]:
    return [{"op": "advance_clock", "ms": days * DAY_MS}, {"op": "open", "clean": clean}, {"op": "producers"}]


def run_script(oracle: Oracle, steps: list[dict[str, Any]], work: Path) -> list[dict[str, Any]]:
    script = work.with_suffix(".json")
    script.write_text(json.dumps({"now": CLOCK_MS, "logs": {"t-0": {"cleanup.policy": "compact"}}, "steps": steps}))
    return oracle("run", script, work)


@pytest.mark.parametrize(("days", "remembered"), [(0, {7, 9}), (2, set[int]())])
def test_after_a_crash_the_same_producers_are_known_as_to_kafka(
    days: int, remembered: set[int], kafka_oracle: Oracle, tmp_path: Path
) -> None:
    """Also those replayed: while it recovers Kafka puts them into snapshots, and reads these by the clock."""
    steps = [*WRITES, {"op": "close", "clean": False}]
    run_script(kafka_oracle, steps, tmp_path / "left")
    kafkas = producers_of_kafka(kafka_oracle, steps, tmp_path / "opened", days, clean=False)
    now_ms = CLOCK_MS + days * DAY_MS
    target = tmp_path / "t-0"
    target.mkdir()
    recover_into_copy(
        fs, LogView(str(tmp_path / "left" / "live" / "t-0"), fs=fs), str(target), recovery_point=0, now_ms=now_ms
    )
    assert set(load_producers(LogView(str(target), fs=fs), now_ms=now_ms).by_id) == kafkas == remembered
    last = filenames.offset_name(4, FileKind.PRODUCER_SNAPSHOT)
    ours, theirs = (
        producer_state.decode((path / last).read_bytes()) for path in (target, tmp_path / "opened/live/t-0")
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("days", "lost", "remembered"),
    [
        (0, (), {7, 9}),
        (2, (), set[int]()),
        # Behind the newest snapshot it looks at the clock only once in ten minutes.
        (2, (4,), {9}),
    ],
)
def test_after_a_stop_in_good_order_the_same_producers_are_known_as_to_kafka(
    days: int, lost: tuple[int, ...], remembered: set[int], kafka_oracle: Oracle, tmp_path: Path
) -> None:
    steps = [*WRITES, {"op": "close"}]
    names = [filenames.offset_name(offset, FileKind.PRODUCER_SNAPSHOT) for offset in lost]
    steps += [{"op": "file", "do": "delete", "path": f"live/t-0/{name}"} for name in names]
    run_script(kafka_oracle, steps, tmp_path / "left")
    kafkas = producers_of_kafka(kafka_oracle, steps, tmp_path / "opened", days, clean=True)
    now_ms = CLOCK_MS + days * DAY_MS
    ours = load_producers(LogView(str(tmp_path / "left" / "live" / "t-0"), fs=fs), now_ms=now_ms)
    assert set(ours.by_id) == kafkas == remembered


def test_without_any_snapshot_we_look_where_kafka_forgets(kafka_oracle: Oracle, tmp_path: Path) -> None:
    """After a clean shutdown Kafka then assumes that there are no producers; we keep them, which only retains more."""
    steps = [*WRITES, {"op": "close"}]
    names = [filenames.offset_name(offset, FileKind.PRODUCER_SNAPSHOT) for offset in (1, 2, 4)]
    steps += [{"op": "file", "do": "delete", "path": f"live/t-0/{name}"} for name in names]
    run_script(kafka_oracle, steps, tmp_path / "left")
    assert producers_of_kafka(kafka_oracle, steps, tmp_path / "opened", 0, clean=True) == set()
    assert set(load_producers(LogView(str(tmp_path / "left" / "live" / "t-0"), fs=fs), now_ms=CLOCK_MS).by_id) == {7, 9}
