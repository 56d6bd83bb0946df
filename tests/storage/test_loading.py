"""Loading in place: its result, and that the result is the same wherever the load was interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.errors import CorruptBatchError, DataError
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.changes.copy import copy_partition
from cordwood.storage.formats import producer_state
from cordwood.storage.formats.filenames import WORK_FOLDER, FileKind, offset_name
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.log.recovery import SEGMENT_KINDS
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import Node
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.storage.recovery.into_copy import RecoverySettings, complete_indexes, recover_into_copy
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import lose_all
from tests.crashes import EVERY, PROPERTY, Cuts, durable
from tests.fixtures import CRASHED, copy_of, fixture
from tests.fs.trees import Tree, tree
from tests.kafka_tools import Oracle
from tests.storage.swaps import (
    EMPTY_SNAPSHOT,
    NOW_MS,
    OUTPUTS,
    PATH,
    Scene,
    Script,
    built,
    loaded_by_kafka,
    only_logs,
    seen_files,
    segment_files,
)

RecordProperty = Callable[[str, object], None]
posix = PosixFileSystem()
TWO_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
#: Within a day of the fixtures' records.
FIXTURES_NOW_MS = 1_763_700_000_000


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def kept(partition: str, names: Sequence[str]) -> None:
    """Pretend to keep the files, so that whole batches behind damage may be dropped."""


def load(fs: LocalFileSystem, *, crashed: bool = False, path: str = PATH) -> None:
    recover_in_place(fs, LogView(path, fs=fs), crashed=crashed, recovery_point=0, now_ms=NOW_MS, keep=kept)


# ---- beside a copy ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CRASHED)
def test_after_a_crash_a_partition_becomes_in_place_what_a_copy_of_it_becomes(name: str, tmp_path: Path) -> None:
    node = Node.open(posix, [str(fixture(name))])
    for place in node.places:
        if not broker_would_load(place.name):
            continue
        assert place.name is not None and place.topic is not None
        target, inside = tmp_path / "copy" / place.name.name, tmp_path / "in place" / place.name.name
        target.mkdir(parents=True)
        copy_of(Path(place.path), inside)
        point = place.directory.recovery_points.get(place.name.topic_partition, 0)
        settings = RecoverySettings(node.config_of(place.topic).integer("index.interval.bytes"))
        restored = recover_into_copy(
            posix, place.log(), str(target), recovery_point=point, now_ms=FIXTURES_NOW_MS, settings=settings
        )
        loaded = recover_in_place(
            posix,
            LogView(str(inside), log_start_offset=place.log().log_start_offset, fs=posix),
            crashed=True,
            recovery_point=point,
            now_ms=FIXTURES_NOW_MS,
            settings=settings,
            keep=kept,
        )
        assert contents(inside) == contents(target)
        assert loaded.next_offset == restored.next_offset and len(loaded.notes) == len(restored.notes)
        for path in inside.iterdir():
            if path.suffix == FileKind.LOG:
                assert path.stat().st_mtime_ns == (target / path.name).stat().st_mtime_ns


def test_a_log_that_ends_below_its_start_begins_anew_there_as_in_a_copy(tmp_path: Path) -> None:
    # case 168
    inside = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    log, target = LogView(str(inside), log_start_offset=1_000_000, fs=posix), tmp_path / "copy"
    target.mkdir()
    recover_into_copy(posix, log, str(target), recovery_point=0, now_ms=FIXTURES_NOW_MS)
    before = contents(inside)
    for crashed in (False, True):
        with pytest.raises(DataError, match="would delete all of it"):
            recover_in_place(posix, log, crashed=crashed, recovery_point=0, now_ms=FIXTURES_NOW_MS)
        assert contents(inside) == before

    def kept(path: str, names: Sequence[str]) -> None:
        assert path == str(inside) and set(names) <= before.keys()

    loaded = recover_in_place(posix, log, crashed=True, recovery_point=0, now_ms=FIXTURES_NOW_MS, keep=kept)
    assert loaded.next_offset == 1_000_000 and "ends below its log start offset" in loaded.notes[-1]
    assert contents(inside) == contents(target)


def test_cut_in_front_of_the_recovery_point_is_a_cut_too(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for base in (0, 100):
        batches = [encode_batch([Record(at, 1000, b"k", b"v")]) for at in range(base, base + 5)]
        if base == 0:
            batches[1] = b"\x01" * len(batches[1])
        (tmp_path / "t-0" / offset_name(base, FileKind.LOG)).write_bytes(b"".join(batches))
        (tmp_path / "t-0" / offset_name(base, FileKind.OFFSET_INDEX)).write_bytes(b"")
    (tmp_path / "t-0" / offset_name(0, FileKind.OFFSET_INDEX)).unlink()
    before, log = contents(tmp_path / "t-0"), LogView(str(tmp_path / "t-0"), fs=posix)
    with pytest.raises(CorruptBatchError, match="no whole batch, but whole batches behind it"):
        recover_in_place(posix, log, crashed=True, recovery_point=1000, now_ms=NOW_MS)
    assert contents(tmp_path / "t-0") == before
    (tmp_path / "new").mkdir()
    came = recover_into_copy(posix, log, str(tmp_path / "new"), recovery_point=1000, now_ms=NOW_MS)
    whole = len(encode_batch([Record(0, 1000, b"k", b"v")]))
    assert came.left_out_bytes == 3 * whole
    # The later segment stays, as in Kafka.
    assert [one.base_offset for one in LogView(str(tmp_path / "new"), fs=posix).segments] == [0, 100]


def test_partition_that_a_crash_left_without_a_segment_gets_an_empty_one(tmp_path: Path) -> None:
    log = LogView(str(a_folder(tmp_path / "t-0")), fs=posix, log_start_offset=7)
    came = recover_into_copy(posix, log, str(a_folder(tmp_path / "new")), recovery_point=0, now_ms=NOW_MS)
    assert (came.next_offset, came.notes, came.left_out_bytes) == (7, (), 0)
    assert recover_in_place(posix, log, crashed=True, recovery_point=0, now_ms=NOW_MS) == came
    empty = dict.fromkeys([offset_name(7, kind) for kind in (FileKind.LOG, *TWO_INDEXES)], b"")
    assert contents(tmp_path / "new") == contents(tmp_path / "t-0") == empty


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def torn_start(folder: Path) -> LogView:
    """A log whose last segment begins with damage, and that seems to end below its start; whole batches follow."""
    (folder / "t-0").mkdir()
    batches = [encode_batch([Record(at, 1000, b"k", b"v")]) for at in range(10, 15)]
    (folder / "t-0" / offset_name(10, FileKind.LOG)).write_bytes(b"\x01" * len(batches[0]) + b"".join(batches[1:]))
    return LogView(str(folder / "t-0"), log_start_offset=12, fs=posix)


def test_crashed_log_with_whole_batches_behind_damage_is_not_emptied_in_place(tmp_path: Path) -> None:
    log = torn_start(tmp_path)
    before = contents(tmp_path / "t-0")
    with pytest.raises(CorruptBatchError, match="no whole batch, but whole batches behind it"):
        recover_in_place(posix, log, crashed=True, recovery_point=0, now_ms=NOW_MS)
    assert contents(tmp_path / "t-0") == before
    recover_in_place(posix, log, crashed=True, recovery_point=0, now_ms=NOW_MS, keep=kept)
    assert set(contents(tmp_path / "t-0")) == {offset_name(12, kind) for kind in (FileKind.LOG, *TWO_INDEXES)}


def test_log_whose_batches_reach_its_start_behind_damage_is_not_emptied(tmp_path: Path) -> None:
    log = torn_start(tmp_path)
    assert not log.ends_below_start
    recover_in_place(posix, log, crashed=False, recovery_point=0, now_ms=NOW_MS)
    assert LogView(str(tmp_path / "t-0"), fs=posix).size_bytes == log.size_bytes


@pytest.mark.parametrize("crashed", [False, True])
def test_emptied_log_is_finished_wherever_the_load_was_cut_off(crashed: bool, tmp_path: Path) -> None:
    """No segment is left when the old ones are deleted and the new one is not in place yet."""
    inside = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    ended = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "whole" / "orders-0")
    whole = LogView(str(ended), log_start_offset=10**6, fs=posix)
    recover_in_place(posix, whole, crashed=crashed, recovery_point=0, now_ms=NOW_MS, keep=kept)
    for path in inside.iterdir():
        if path.suffix in SEGMENT_KINDS:
            path.unlink()
    recover_in_place(
        posix, LogView(str(inside), log_start_offset=10**6, fs=posix), crashed=crashed, recovery_point=0, now_ms=NOW_MS
    )
    assert contents(inside) == contents(ended)
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in inside.glob("*.log"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kraft-before", "kraft-crashed-swap"])
def test_without_a_crash_a_partition_becomes_in_place_what_a_copy_of_it_becomes(name: str, tmp_path: Path) -> None:
    for place in Node.open(posix, [str(fixture(name))]).places:
        if not broker_would_load(place.name):
            continue
        assert place.name is not None
        target, inside = tmp_path / "copy" / place.name.name, tmp_path / "in place" / place.name.name
        target.mkdir(parents=True)
        copy_of(Path(place.path), inside)
        copy_partition(posix, place.log(), str(target))
        complete_indexes(posix, LogView(str(target), fs=posix), str(target), now_ms=FIXTURES_NOW_MS)
        recover_in_place(posix, LogView(str(inside), fs=posix), crashed=False, recovery_point=0, now_ms=FIXTURES_NOW_MS)
        assert contents(inside) == contents(target)


def test_a_partition_in_good_order_stays_as_it_is(tmp_path: Path) -> None:
    path = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    before = {one.name: (one.stat().st_ino, one.stat().st_mtime_ns) for one in path.iterdir()}
    recover_in_place(posix, LogView(str(path), fs=posix), crashed=False, recovery_point=0, now_ms=FIXTURES_NOW_MS)
    assert {one.name: (one.stat().st_ino, one.stat().st_mtime_ns) for one in path.iterdir()} == before


def test_missing_indexes_are_made_again_where_the_segment_is_whole(tmp_path: Path) -> None:
    # case 169
    original = fixture("kraft-before") / "payments-0"
    source = copy_of(original, tmp_path / "payments-0")
    logs = sorted(source.glob("*.log"))
    for log in logs[:3]:
        log.with_suffix(".index").unlink()
    logs[1].write_bytes(logs[1].read_bytes()[:-1])
    interval = Node.open(posix, [str(original)]).config_of("payments").integer("index.interval.bytes")
    for _ in range(2):
        recover_in_place(
            posix,
            LogView(str(source), fs=posix),
            crashed=False,
            recovery_point=0,
            now_ms=FIXTURES_NOW_MS,
            settings=RecoverySettings(interval),
        )
        if not logs[1].with_suffix(".index").exists():
            logs[1].write_bytes((original / logs[1].name).read_bytes())
    # It was cleaned before, and like Kafka we lose transactions of which only a marker is left.
    txnindex = FileKind.TRANSACTION_INDEX
    found, expected = (
        {name: data for name, data in contents(one).items() if not name.endswith(txnindex)}
        for one in (source, original)
    )
    assert found == {name: data for name, data in expected.items() if name != offset_name(358, ".snapshot")}


def test_offsets_of_another_segment_leave_a_partition_as_it_was(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    last = LogView(str(source), fs=posix).segments[-1].base_offset
    for suffix in (".log", ".index", ".timeindex"):
        (source / offset_name(last, suffix)).rename(source / offset_name(last + 10**6, suffix))
    before = contents(source)
    with pytest.raises(DataError, match="does not belong"):
        recover_in_place(posix, LogView(str(source), fs=posix), crashed=True, recovery_point=0, now_ms=FIXTURES_NOW_MS)
    assert contents(source) == before


def test_snapshots_of_segments_that_are_gone_go_but_never_the_newest() -> None:
    # cases 170, 171
    fs = Script()("a=1 | b=1 | c=1 c=2").fs
    for offset in (1, 2, 3):
        write_file(fs, f"{PATH}/{offset_name(offset, '.snapshot')}", EMPTY_SNAPSHOT)
    fs.rename(f"{PATH}/{offset_name(1, '.snapshot')}", f"{PATH}/{offset_name(0, '.snapshot')}")
    for kind in (".log", ".index", ".timeindex"):
        fs.unlink(f"{PATH}/{offset_name(2, kind)}")
    load(fs)
    assert [info.name for info in fs.list(PATH) if info.name.endswith(".snapshot")] == [
        offset_name(offset, ".snapshot") for offset in (0, 3)
    ]


def test_the_newest_snapshot_goes_if_a_segment_begins_behind_it() -> None:
    # Kafka: ProducerStateManager.removeStraySnapshots. Only one at the end of the log is not a stray.
    fs = Script()("a=1 | b=1 | c=1 c=2").fs
    write_file(fs, f"{PATH}/{offset_name(1, '.snapshot')}", EMPTY_SNAPSHOT)
    for kind in (".log", ".index", ".timeindex"):
        fs.unlink(f"{PATH}/{offset_name(1, kind)}")
    load(fs)
    assert not [info.name for info in fs.list(PATH) if info.name.endswith(".snapshot")]


def test_what_goes_or_changes_is_kept_before() -> None:
    fs = durable(torn())
    before = tree(fs, PATH)
    kept: set[str] = set()

    def keep(path: str, names: Sequence[str]) -> None:
        assert path == PATH
        for name in names:
            assert tree(fs, PATH)[name] == before[name]
        kept.update(names)

    recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS, keep=keep)
    after = tree(fs, PATH)
    assert kept >= {name for name, data in before.items() if data is not None and after.get(name) != data}


# ---- power cuts ------------------------------------------------------------------------------------------------------


@cache
def torn() -> MemoryFileSystem:
    """Files after a crash: indexes of zeros, one missing; a segment torn in its middle, others behind it."""
    script = Script()("7:a=1 7:abort b=1 | 7:c=1 c=2 | 7:abort d=1 d=2 | e=1 | f=1 8:f=2")
    fs, bases = script.fs, [segment.base_offset for segment in script.log().segments]
    script.stop(clean=False)
    write_file(fs, f"{PATH}/{offset_name(bases[1], '.snapshot')}", producer_state.encode(()))
    write_file(fs, f"{PATH}/{offset_name(bases[3], '.snapshot')}", b"torn")
    write_file(fs, f"{PATH}/{offset_name(bases[2], '.timeindex')}", bytes(120))
    fs.unlink(f"{PATH}/{offset_name(bases[1], '.index')}")
    fs.unlink(f"{PATH}/{offset_name(bases[0], '.txnindex')}")
    write_file(fs, f"{PATH}/{offset_name(bases[1], '.txnindex')}", b"stale")
    with fs.open_for_update(f"{PATH}/{offset_name(bases[2], '.log')}") as file:
        file.truncate(file.size() - 3)
    return durable(fs)


@cache
def overflowed() -> MemoryFileSystem:
    """A segment whose offsets don't fit its base."""
    fs = Script()("a=1 b=1").fs
    with fs.open_for_update(f"{PATH}/{offset_name(0, '.log')}") as file:
        for offset in (3 << 31, (3 << 31) + 1):
            file.write(file.size(), encode_batch([Record(offset, NOW_MS, b"k", b"v")], leader_epoch=0))
    return durable(fs)


def final(fs: MemoryFileSystem) -> Tree:
    after = durable(fs)
    load(after, crashed=True)
    assert tree(after.crash(lose_all), PATH).items() >= segment_files(after).items(), "what was loaded is durable"
    return tree(after, PATH)


def check_loads(fs: MemoryFileSystem, record_property: RecordProperty, **choice: Any) -> None:
    expected = final(fs)
    cuts = Cuts(fs, lambda fs: load(fs, crashed=True), **choice)
    for after in cuts:
        load(after, crashed=True)
        assert tree(after, PATH) == expected
    cuts.tell(record_property, "loads")


def test_a_recovery_that_was_cut_off_comes_to_the_same_the_next_time(record_property: RecordProperty) -> None:
    check_loads(torn(), record_property, subsets_max=0, sampled=0)


@pytest.mark.more
@pytest.mark.parametrize("crashed", [False, True])
def test_emptying_that_was_cut_off_comes_to_the_same_the_next_time(
    crashed: bool, record_property: RecordProperty
) -> None:
    script = Script()("7:a=1 7:abort b=1 | 7:c=1 c=2 | e=1")
    script.stop(clean=not crashed)

    def empty(fs: LocalFileSystem) -> None:
        log = LogView(PATH, fs=fs, log_start_offset=1000)
        recover_in_place(fs, log, crashed=crashed, recovery_point=0, now_ms=NOW_MS, keep=kept)

    expected = durable(script.fs)
    empty(expected)
    assert {info.name for info in expected.list(PATH)} >= {offset_name(1000, FileKind.LOG)}
    cuts = Cuts(durable(script.fs), empty, subsets_max=4, sampled=15)
    for after in cuts:
        empty(after)
        # After a crash, a load that finds the empty segment already there also writes the snapshot of its end.
        found = {name: data for name, data in tree(after, PATH).items() if not crashed or data != EMPTY_SNAPSHOT}
        assert found == tree(expected, PATH)
    cuts.tell(record_property, "logs that end below their start")


@pytest.mark.slow
@pytest.mark.parametrize("make", [torn, overflowed])
def test_every_recovery_that_was_cut_off_comes_to_the_same_the_next_time(
    make: Callable[[], MemoryFileSystem], record_property: RecordProperty
) -> None:
    check_loads(make(), record_property, subsets_max=7, sampled=60, every=EVERY)


@pytest.mark.slow
def test_kafka_goes_on_with_a_recovery_that_was_cut_off(
    kafka_oracle: Oracle, tmp_path: Path, record_property: RecordProperty
) -> None:
    start = torn()
    cuts = Cuts(start, lambda fs: load(fs, crashed=True), subsets_max=3, sampled=20)
    states = list(cuts)
    states = random.Random(1).sample(states, min(len(states), 100))
    logs = {name: data for name, data in final(start).items() if data is not None and name.endswith(FileKind.LOG)}
    for files in loaded_by_kafka(states, tmp_path, kafka_oracle, clean=False):
        assert only_logs(files) == logs
    record_property(PROPERTY, ["loads, gone on with by Kafka", cuts.states, len(states)])


#: Suffixes of leftover files, by the run that left them.
LEFT = {
    "a clean": [".cleaned"],
    "a clean before its commit": [".cleaned", ".swap"],
    "a deletion": [".deleted"],
    "all": [".cleaned", ".swap", ".deleted"],
}


def with_leftovers(scene: Scene, suffixes: Sequence[str]) -> Scene:
    """Files of the first, a middle and the last old segment under the names that others left them with."""
    fs = durable(scene.fs)
    bases = sorted(scene.replacements[0].replaced)
    for number, suffix in enumerate(suffixes):
        base = bases[min(number, len(bases) - 1)]
        for kind in (FileKind.LOG, FileKind.OFFSET_INDEX):
            data = read_file(fs, f"{PATH}/{offset_name(base, kind)}")
            write_file(fs, f"{PATH}/{offset_name(base, kind)}{suffix}", data[: len(data) // 2])
    return replace(scene, fs=durable(fs))


def check_leftovers(name: str, left: str, record_property: RecordProperty, **choice: Any) -> None:
    scene = built(name)
    planted = with_leftovers(scene, LEFT[left])

    def act(fs: MemoryFileSystem) -> None:
        load(fs)
        # The work folder went with the leftovers; the clean makes its outputs afterwards.
        outputs(scene, fs)
        scene.swap(fs)

    cuts = Cuts(planted.fs, act, **choice)
    for fs in cuts:
        seen = seen_files(LogView(PATH, fs=fs))
        assert seen in scene.allowed
        load(fs)
        assert segment_files(fs) == seen
        assert not LogView(PATH, fs=fs).recovery.actions
    cuts.tell(record_property, "leftovers, then swaps")


def outputs(scene: Scene, fs: MemoryFileSystem) -> None:
    """Write the outputs of tasks."""
    for path in (f"{PATH}/{WORK_FOLDER}", OUTPUTS):
        fs.make_directory(path)
    for info in scene.fs.list(OUTPUTS):
        write_file(fs, f"{OUTPUTS}/{info.name}", read_file(scene.fs, f"{OUTPUTS}/{info.name}"))


def test_what_others_left_is_gone_before_a_swap(record_property: RecordProperty) -> None:
    check_leftovers("one output", "all", record_property, subsets_max=0, sampled=1)


@pytest.mark.slow
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("name", ["one output", "several outputs", "no record left"])
def test_whatever_others_left_is_gone_before_a_swap(name: str, left: str, record_property: RecordProperty) -> None:
    check_leftovers(name, left, record_property, subsets_max=6, sampled=60, every=EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twice", "several outputs", "no record left", "nothing is left of the last"])
def test_a_load_that_completes_a_swap_can_be_cut_off_as_well(name: str, record_property: RecordProperty) -> None:
    scene = built(name)
    states = list(Cuts(scene.fs, scene.swap, subsets_max=5, sampled=20))
    for start in random.Random(1).sample(states, 1 + 40 // EVERY):
        seen = seen_files(LogView(PATH, fs=start))
        cuts = Cuts(durable(start), load, subsets_max=4, sampled=10)
        for fs in cuts:
            assert seen_files(LogView(PATH, fs=fs)) == seen
            load(fs)
            assert segment_files(fs) == seen
        cuts.tell(record_property, "loads of swaps that were cut off")


def test_an_overflowed_segment_becomes_several() -> None:
    # case 154
    fs = durable(overflowed())
    loaded = recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS)
    assert [segment.base_offset for segment in LogView(PATH, fs=fs).segments] == [0, 3 << 31]
    assert loaded.next_offset == (3 << 31) + 2
    assert "becomes 2 segments" in loaded.notes[0]


def empty_partition() -> MemoryFileSystem:
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    for path in (PATH.rpartition("/")[0], PATH):
        fs.make_directory(path)
    return fs


@pytest.mark.parametrize("behind", ["in the same segment", "in a later one"])
def test_a_log_is_not_cut_before_whole_batches_that_nobody_keeps(behind: str) -> None:
    fs = empty_partition()
    batches = [encode_batch([Record(offset, NOW_MS, b"k", b"v")], leader_epoch=0) for offset in range(4)]
    torn_one = batches[2][:-1] + bytes([batches[2][-1] ^ 1])
    first = batches[0] + batches[1] + torn_one
    files = {0: first + batches[3]} if behind == "in the same segment" else {0: first, 3: batches[3]}
    for base, data in files.items():
        write_file(fs, f"{PATH}/{offset_name(base, FileKind.LOG)}", data)
    before = tree(fs, PATH)
    with pytest.raises(CorruptBatchError, match="--keep-old") as found:
        recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS)
    assert found.value.position == len(batches[0]) * 2
    assert tree(fs, PATH) == before
    load(fs, crashed=True)
    assert LogView(PATH, fs=fs).next_offset == 2


def test_a_torn_tail_is_cut_though_nobody_keeps_it() -> None:
    fs = empty_partition()
    batch = encode_batch([Record(0, NOW_MS, b"k", b"v")], leader_epoch=0)
    write_file(fs, f"{PATH}/{offset_name(0, FileKind.LOG)}", batch + batch[:40])
    loaded = recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS)
    assert (loaded.next_offset, LogView(PATH, fs=fs).size_bytes) == (1, len(batch))
