"""Cleans with `--min-dead` over many rounds, beside a model in plain Python and Kafka's own cleaner."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.commands.why.next_step import StepKind
from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.clean_checkpoint import CleanSegment
from cordwood.storage.formats.filenames import FileKind, offset_name, pending_path
from cordwood.storage.index import build as building
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests import knobs
from tests.commands.min_dead_worlds import (
    CONFIG,
    LONG_MS,
    NAME,
    PATH,
    RETENTION_MS,
    ROOT,
    World,
    live_through,
    offsets_of,
    table_of,
    told,
)
from tests.crashes import Cuts, durable
from tests.fs.trees import tree
from tests.kafka_tools import Oracle, Word

pytestmark = pytest.mark.more

SCRIPTS = knobs.scaled(24, 1000)
KAFKA_SCRIPTS = knobs.scaled(6, 200)
KAFKAS = [config.replace("internal.", "") for config in CONFIG if "log.cleaner" not in config]


@pytest.fixture(autouse=True)
def _small_segments_have_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)


@pytest.mark.parametrize("share", range(4))
def test_keys_keep_their_last_values_whatever_happens_between(share: int) -> None:
    for seed in range(knobs.SEED + share, knobs.SEED + SCRIPTS, 4):
        world = World(seed)
        with told(world):
            for _ in live_through(world, 6):
                assert world.taken_over() == world.table()


def test_what_a_commit_behind_an_abort_superseded_goes_though_the_index_is_lost() -> None:
    # Two segments were merged, with a transaction that its producer aborted and a later one that it committed.
    world = World(20_261_853)
    for _ in live_through(world, 5):
        assert world.taken_over() == world.table()
    assert "lose_all" in world.said


# ---- Keeping pending records dead ------------------------------------------------------------------------------------


def offsets(world: World) -> set[int]:
    """All offsets in the log, including control records."""
    log = LogView(PATH, fs=world.fs)
    return {one for segment in log.segments for one in offsets_of(segment)}


def horizons(world: World) -> dict[int, bool]:
    """For each batch, by its last offset, whether it has a delete horizon."""
    return {one.last_offset: one.delete_horizon_ms is not None for one in LogView(PATH, fs=world.fs).batches()}


def test_a_tombstone_stays_as_long_as_what_it_supersedes_does() -> None:
    world = World(1)
    world.write("a=1 b=125 | c=1 z=∅ c=2 y=∅ | d=1")
    world.clean(0.3)
    world.write("a=∅ e=1 e=2 x=∅ | d=2")
    world.clean(0.3)
    world.check()
    assert 0 in offsets(world), "the old value is not worth writing its segment again"
    killer = next(one.offset for one in world.records if (one.key, one.value) == (b"a", None))
    assert horizons(world)[killer]
    world.pass_time(2 * RETENTION_MS)
    world.write("f=1")
    world.clean(0.3)
    world.check()
    left = offsets(world)
    gone = {one.offset for one in world.records if one.value is None and one.key != b"a"}
    assert {0, killer} <= left and not gone & left, "tombstones of other keys go when their time has come"
    assert world.taken_over() == world.table()
    # Once the bound is low, the old value is dropped, and then the tombstone.
    world.write("g=1")
    world.clean(0.001)
    assert 0 not in offsets(world)
    world.write("h=1")
    world.clean(0.001)
    world.check()
    assert killer not in offsets(world)


def test_a_marker_stays_as_long_as_data_in_a_spared_segment() -> None:
    world = World(1)
    world.write("7:a=1 b=120 | x=1 x=2 7:commit | d=1")
    marker = next(one.base_offset for one in LogView(PATH, fs=world.fs).batches() if one.is_control)
    world.clean(0.3)
    world.write("a=2 d=2 | e=1")
    world.clean(0.3)
    world.check()
    assert 0 in offsets(world), "it is spared"
    assert not horizons(world)[marker]
    for _ in range(2):
        world.pass_time(2 * RETENTION_MS)
        world.write("d=3 d=4")
        world.clean(0.3)
        world.check()
    assert {0, marker} <= offsets(world)
    assert not horizons(world)[marker]


def test_a_tombstone_stays_if_what_it_supersedes_was_spared_in_an_earlier_wave() -> None:
    world = World(1)
    world.write("a=1 b=125 | d=1 d=2")
    world.clean(0.3)
    world.write("a=∅ e=1 e=2 | d=3 f=110")
    world.clean(0.3)
    world.pass_time(2 * RETENTION_MS)
    world.write("e=3 f=1")
    result = world.clean(0.3, work_space=40_000)
    assert result.in_place is not None and result.in_place.waves > 1
    world.check()
    assert 0 in offsets(world)
    assert world.taken_over() == world.table()


def spared(world: World) -> tuple[CleanSegment, bytes]:
    """The first segment that has pending records, and its bytes."""
    checkpoint = believed_checkpoint(LogView(PATH, fs=world.fs))
    assert checkpoint is not None
    known = next(one for one in checkpoint.segments if one.garbage_bytes)
    return known, read_file(world.fs, f"{PATH}/{offset_name(known.base_offset, FileKind.LOG)}")


@pytest.fixture
def with_garbage() -> World:
    """`a` and `c` have a superseded record each in the first segment, and `b` its value."""
    world = World(1)
    world.write("a=1 b=1 c=1 k=100 | d=1")
    world.clean(0.3)
    world.write("a=2 c=2 | e=1")
    world.clean(0.3)
    world.check()
    assert spared(world)[0].base_offset == 0
    return world


def test_a_flipped_bit_makes_no_record_superseded(with_garbage: World) -> None:
    world, path = with_garbage, pending_path(PATH, 0)
    data = bytearray(read_file(world.fs, path))
    assert data[-1] == 0b0101, "a and c are superseded, in one byte with b and k"
    data[-1] = 0b0110
    write_file(world.fs, path, bytes(data))
    assert believed_checkpoint(LogView(PATH, fs=world.fs)) is not None, "that only a clean finds out"
    world.write("k=2")
    world.clean(0.3)
    assert {0, 2}.isdisjoint(offsets(world)), "the segment was written"
    world.check()


def test_other_batches_of_the_same_sizes_are_not_what_is_pending(with_garbage: World) -> None:
    world, (known, data) = with_garbage, spared(with_garbage)
    log = LogView(PATH, fs=world.fs)
    sizes = [one.size_bytes for one in log.batches()][:3]
    assert len(set(sizes)) == 1
    size = sizes[0]
    first, second, third = (data[at : at + size] for at in range(0, 3 * size, size))
    changed = encode_batch([Record(0, world.now_ms, b"z", b"1" + bytes(10))], leader_epoch=0)
    assert len(changed) == len(first)
    write_file(world.fs, f"{PATH}/{offset_name(0, FileKind.LOG)}", changed + second + third + data[3 * size :])
    assert believed_checkpoint(LogView(PATH, fs=world.fs)) is not None, "that only a clean finds out"
    world.write("k=2")
    world.clean(0.3)
    assert 2 not in offsets(world), "the segment was written"
    left = {one.key: one.value for one in LogView(PATH, fs=world.fs).records()}
    assert left[b"z"] == b"1" + bytes(10)
    assert known.garbage_bytes


def test_what_superseded_a_record_is_cut_off_and_the_record_counts_again(with_garbage: World) -> None:
    world = with_garbage
    world.truncate(next(one.offset for one in world.records if one.value and one.value.startswith(b"2")))
    assert world.table()[b"a"].startswith(b"1")
    assert believed_checkpoint(LogView(PATH, fs=world.fs)) is None
    world.write("e=3 f=1 | g=1 | h=1")
    world.clean(0.001)
    world.check()
    assert world.taken_over() == world.table()


def test_an_undone_clean_leaves_what_it_found(with_garbage: World) -> None:
    world = with_garbage
    world.write("e=2 b=3")
    before, checkpoint = offsets(world), world.kafkas_checkpoint()
    world.clean(0.001, keep_old="/kept")
    assert offsets(world) < before
    cordwood.undo("/kept", fs=world.fs)
    assert offsets(world) == before
    assert world.kafkas_checkpoint() == checkpoint
    world.check()
    world.clean(0.1)
    world.check()
    assert world.taken_over() == world.table()


def test_a_clean_without_the_option_removes_all_and_forgets(with_garbage: World) -> None:
    world = with_garbage
    world.write("e=2")
    result = world.clean(None)
    assert result.in_place is not None and result.in_place.garbage_bytes is None
    assert not world.killers(world.kafkas_checkpoint()).keys() & offsets(world)
    assert not any(name == "cleaned" or name.endswith(".pending") for name in world.index_files())


def test_nothing_is_left_of_what_is_older_than_max_compaction_lag(with_garbage: World) -> None:
    world = with_garbage
    world.write("e=2")
    world.pass_time(10_000)
    overrides = (*CONFIG, "max.compaction.lag.ms=5000")
    result = world.clean(0.9, overrides=overrides)
    assert result.in_place is not None and result.in_place.garbage_bytes is None
    assert 0 not in offsets(world)
    world.check()


def test_a_result_and_a_plan_say_how_much_was_left(with_garbage: World) -> None:
    world = with_garbage
    world.write("e=2 a=3")
    plan = cordwood.plan(ROOT, fs=world.fs, overrides=CONFIG, now_ms=world.now_ms, ignore_ratio=True, min_dead=0.3)
    (found,) = plan.partitions
    assert found.compaction is not None
    assert found.compaction.range.first_dirty_offset > world.kafkas_checkpoint() == found.compaction.restart
    garbage = spared(world)[0].garbage_bytes
    assert f"earlier cleans left {garbage} bytes of superseded records" in plan.text()
    result = world.clean(0.3)
    said = result.document()["in_place"]
    assert result.in_place is not None and said["garbage_bytes"] == result.in_place.garbage_bytes == garbage
    assert 0 < said["garbage_share"] < 0.3
    assert said["segments_spared"] and said["segments_written"]
    assert "left by --min-dead: " in result.text()


def test_ls_shows_how_far_the_log_was_cleaned(with_garbage: World) -> None:
    (found,) = cordwood.ls(ROOT, fs=with_garbage.fs, overrides=CONFIG).partitions
    checkpoint = believed_checkpoint(LogView(PATH, fs=with_garbage.fs))
    assert checkpoint is not None
    assert found.first_dirty_offset == checkpoint.cleaned_to > with_garbage.kafkas_checkpoint()


def test_get_says_that_a_record_is_superseded_and_was_left(with_garbage: World) -> None:
    world = with_garbage
    result = cordwood.get(ROOT, keys=[b"a"], fs=world.fs, overrides=CONFIG)
    old, new = result.records
    assert (old.record.offset, old.next_step.kind) == (0, StepKind.CLEAN)
    assert old.next_step.what == (
        f"superseded by offset {new.record.offset}, and left by a clean with --min-dead; a clean without it removes it"
    )
    assert new.next_step.what == "the value of its key"


@pytest.mark.parametrize(
    "choice",
    [
        {"min_dead": 0.0},
        {"min_dead": 1.0},
        {"min_dead": -0.1},
        {"min_dead": 0.1, "index": False},
        {"min_dead": 0.1, "first_dirty": 0},
        {"min_dead": 0.1, "strict_kafka": True},
        {"min_dead": 0.1, "offset_map": 1 << 20},
        {"min_dead": 0.1, "index_dir": "/indexes"},
    ],
)
def test_what_does_not_go_together_is_refused(with_garbage: World, choice: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="min_dead"):
        cordwood.clean_in_place(ROOT, fs=with_garbage.fs, **{"index": True, **choice})


def exported(world: World, fs: MemoryFileSystem, target: Path) -> Path:
    """The log directory on disk."""
    for path, data in tree(fs, ROOT).items():
        if data is None:
            (target / path).mkdir(parents=True)
        else:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(data)
    for info in fs.list(PATH):
        if not info.is_directory:
            os.utime(target / str(NAME) / info.name, ns=(info.mtime_ns, info.mtime_ns))
    (target / ".lock").unlink(missing_ok=True)
    return target / str(NAME)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(2))
def test_kafkas_cleaner_takes_over_after_any_round(kafka_oracle: Oracle, tmp_path: Path, share: int) -> None:
    configs = [word for config in KAFKAS for word in ("--config", config)]
    for seed in range(knobs.SEED + 5_000 + share, knobs.SEED + 5_000 + KAFKA_SCRIPTS, 2):
        world, tables, commands = World(seed), [], list[list[Word]]()
        work = tmp_path / str(seed)
        with told(world):
            for number in live_through(world, 5):
                ours = exported(world, world.fs, work / f"{number}-ours")
                theirs = exported(world, world.untouched, work / f"{number}-theirs")
                tables.append((world.table(), ours, theirs))
                for directory in (ours, theirs):
                    # At once, then when every tombstone has expired, from where it is and from the start.
                    for later, more in ((0, []), (LONG_MS, []), (LONG_MS, ["--first-dirty", "0"])):
                        now = ["--now", str(world.now_ms + later)]
                        commands.append(["clean", directory, *now, *configs, *more])
                    commands.append(["check", directory, *configs])
            kafka_oracle.batch(commands)
            for table, *directories in tables:
                for directory in directories:
                    assert table_of(LogView(str(directory), fs=PosixFileSystem())) == table
        shutil.rmtree(work)


# ---- power cuts ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_wherever_the_power_is_cut_nothing_is_lost_or_comes_back(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    world = World(knobs.SEED + 9_000 + seed)
    with told(world):
        for _ in range(3):
            world.append(8)
            world.clean(0.3)
            world.pass_time(RETENTION_MS + 1)
        world.append(6)
        world.check()
        whole = durable(world.fs)
        world.clean(0.1, fs=whole, verify=False)
        every = max(1, len(whole.operations) // knobs.scaled(12, 1_000))
        act = functools.partial(world.clean, 0.1, verify=False)
        cuts = Cuts(durable(world.fs), lambda fs: act(fs=fs), sampled=2, subsets_max=2, every=every)
        for number, after in enumerate(cuts):
            world.check(after)
            if number % 3 == 0:
                assert world.taken_over(after) == world.table()
            again = durable(after)
            world.clean(0.1, fs=again, verify=False)
            world.check(again)
        assert cuts.different > 10, (cuts.different, len(whole.operations))
        cuts.tell(record_property, "cleans with --min-dead")
