"""Cleans with `--min-dead` over many rounds, beside a model in plain Python and Kafka's own cleaner."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cordwood.fs.memory import MemoryFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.index import build as building
from cordwood.storage.log.view import LogView
from tests import knobs
from tests.commands.min_dead_worlds import (
    CONFIG,
    LONG_MS,
    NAME,
    PATH,
    RETENTION_MS,
    ROOT,
    World,
    offsets_of,
    table_of,
)
from tests.crashes import Cuts, durable
from tests.fs.trees import tree
from tests.kafka_tools import Oracle, Word

SCRIPTS = knobs.scaled(24, 1000)
KAFKA_SCRIPTS = knobs.scaled(6, 200)
KAFKAS = [config.replace("internal.", "") for config in CONFIG if "log.cleaner" not in config]
SHARES = (0.02, 0.1, 0.3)


@pytest.fixture(autouse=True)
def _small_segments_have_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)


def live_through(world: World, rounds: int) -> Iterator[int]:
    """Some rounds of a script; after each the log is what the model says."""
    for number in range(rounds):
        world.append(world.source.randint(2, 12))
        if world.source.random() < 0.8:
            world.pass_time(world.source.choice((10, 600, 1_500)))
        if number and world.source.random() < 0.3:
            world.spoil()
        world.clean(world.source.choice(SHARES))
        world.check()
        world.check_files()
        yield number


@contextlib.contextmanager
def told(world: World) -> Iterator[None]:
    """Say what happened in a script that fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"seed {world.seed}: {'; '.join(world.said)}")
        raise


@pytest.mark.parametrize("share", range(4))
def test_keys_keep_their_last_values_whatever_happens_between(share: int) -> None:
    for seed in range(knobs.SEED + share, knobs.SEED + SCRIPTS, 4):
        world = World(seed)
        with told(world):
            for _ in live_through(world, 6):
                assert world.taken_over() == world.table()


# ---- what keeps pending records dead ---------------------------------------------------------------------------------


def offsets(world: World) -> set[int]:
    """What is there, control records among it."""
    log = LogView(PATH, fs=world.fs)
    return {one for segment in log.segments for one in offsets_of(segment)}


def horizons(world: World) -> dict[int, bool]:
    """Of each batch by its last offset, whether it has a delete horizon."""
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
    # Once little may be left, the old value goes, and then the tombstone.
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
