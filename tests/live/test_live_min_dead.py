"""Cleans of live logs with `min_dead`, beside a model in plain Python, with damage, crashes and losses in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cordwood.common.errors import RequestError
from cordwood.fs.base import LocalFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.status import statuses
from cordwood.storage.index import build as building
from cordwood.storage.log.clean_state import believed_checkpoint
from cordwood.storage.log.view import LogView
from tests import knobs
from tests.commands.min_dead_worlds import (
    CONFIG,
    NAME,
    PATH,
    RETENTION_MS,
    ROOT,
    SHARES,
    Appended,
    World,
    live_through,
    offsets_of,
    told,
)
from tests.crashes import Cuts, durable
from tests.live.nodes import Node

pytestmark = pytest.mark.more

SCRIPTS = knobs.scaled(24, 1000)
LIVE = (*(one for one in CONFIG if "log.cleaner" not in one), "log.cleaner.threads=1", "min.cleanable.dirty.ratio=0")


@pytest.fixture(autouse=True)
def _small_segments_have_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "SEGMENT_SHARE", 0)


class LiveWorld(World):
    """A world whose cleans with a bound are those of a manager, which is loaded for each."""

    def clean(self, min_dead: float | None, *, fs: LocalFileSystem | None = None, **choice: Any) -> Any:
        """Clean the live log as long as it is due; without a bound as Kafka does, in place."""
        if min_dead is None:
            return super().clean(None, fs=fs, **choice)
        manager = self.manager(min_dead, fs or self.fs)
        clean_up(manager)
        manager.shutdown()
        if fs is None:
            self.said.append(f"clean live {min_dead}")
            self.kept.append(self.index_files())
        return None

    def manager(self, min_dead: float | None, fs: LocalFileSystem) -> LogManager:
        """A started manager."""
        manager = Node(*LIVE, fs=fs, dirs=(ROOT,), now_ms=self.now_ms).manager
        manager.startup(index=True, min_dead=min_dead)
        return manager


def clean_up(manager: LogManager) -> None:
    assert manager.cleaner is not None
    while manager.cleaner.clean_filthiest_log():
        pass
    assert manager.cleaner.manager.uncleanable(NAME) is None


@pytest.mark.parametrize("share", range(4))
def test_keys_keep_their_last_values_whatever_happens_between(share: int) -> None:
    left = 0
    for seed in range(knobs.SEED + share, knobs.SEED + SCRIPTS, 4):
        world = LiveWorld(seed)
        with told(world):
            for _ in live_through(world, 6):
                assert world.taken_over() == world.table()
                found = believed_checkpoint(LogView(PATH, fs=world.fs))
                left += found is not None and found.garbage_bytes > 0
    assert left, "some of them left something"


def test_a_manager_that_goes_on_remembers_what_it_left() -> None:
    kept = 0
    for seed in range(knobs.SEED, knobs.SEED + SCRIPTS):
        world = LiveWorld(seed)
        world.append(10)
        manager = world.manager(world.source.choice(SHARES), world.fs)
        assert manager.cleaner is not None
        garbage = manager.cleaner.manager.garbage
        assert garbage is not None
        log = manager.logs[NAME]
        with told(world):
            for _ in range(8):
                firsts = append(world, log)
                if world.source.random() < 0.2:
                    # At or above the end of the last clean, as these records are committed.
                    offset = world.source.choice(firsts)
                    manager.truncate_to({NAME: offset})
                    log.update_high_watermark(log.log_end_offset)
                    world.records = [one for one in world.records if one.offset < offset]
                    world.said.append(f"truncate to {offset}")
                log.roll()
                clean_up(manager)
                world.check()
                known = garbage.checkpoint(log)
                kept += known is not None and known.garbage_bytes > 0
                assert known == believed_checkpoint(LogView(PATH, fs=world.fs))
                assert manager.cleaner.await_cleaned(NAME, log.active_segment.base_offset, max_wait_ms=0)
            manager.shutdown()
            assert world.taken_over() == world.table()
    assert kept, "some of them left something"


def append(world: LiveWorld, log: Log) -> list[int]:
    """Append batches to the live log, and return where each begins; transactions are for the other tests."""
    firsts = []
    for _ in range(world.source.randint(1, 8)):
        pairs, *_ = world._batch()
        first = log.append(pairs)
        firsts.append(first)
        world.records += [Appended(first + at, key, value, True) for at, (key, value) in enumerate(pairs)]
        if world.source.random() < 0.2:
            log.roll()
    return firsts


def with_garbage() -> LiveWorld:
    """`a` and `c` have a superseded record each in the first segment, and `b` its value."""
    world = LiveWorld(1)
    world.write("a=1 b=1 c=1 k=100 | d=1")
    world.clean(0.3)
    world.write("a=2 c=2 | e=1")
    world.clean(0.3)
    world.check()
    assert 0 in offsets_of(LogView(PATH, fs=world.fs).segments[0])
    return world


def test_the_next_clean_begins_at_the_end_of_the_last_one_and_not_at_kafkas() -> None:
    world = with_garbage()
    own = believed_checkpoint(LogView(PATH, fs=world.fs))
    assert own is not None and own.cleaned_to > world.kafkas_checkpoint()
    world.write("e=2")
    manager = world.manager(0.3, world.fs)
    assert manager.cleaner is not None
    (status,) = statuses(manager, world.now_ms, {}, {})
    found = manager.cleaner.manager.grab_filthiest_compacted_log(world.now_ms)
    assert found is not None and (found.first_dirty_offset, found.restart) == (own.cleaned_to, own.first_killer)
    assert status.cleanable_ratio == pytest.approx(found.cleanable_ratio)


def test_what_is_older_than_max_compaction_lag_is_removed() -> None:
    world = with_garbage()
    world.write("e=2")
    world.pass_time(10_000)
    manager = Node(*LIVE, "max.compaction.lag.ms=5000", fs=world.fs, dirs=(ROOT,), now_ms=world.now_ms).manager
    manager.startup(index=True, min_dead=0.9)
    clean_up(manager)
    manager.shutdown()
    assert 0 not in offsets_of(LogView(PATH, fs=world.fs).segments[0])
    assert world.kafkas_checkpoint() == LogView(PATH, fs=world.fs).segments[-1].base_offset
    world.check()


def test_a_manager_without_it_removes_what_was_left_and_forgets() -> None:
    world = with_garbage()
    world.write("e=2")
    manager = world.manager(None, world.fs)
    clean_up(manager)
    manager.shutdown()
    assert not world.killers(world.kafkas_checkpoint()).keys() & {
        offset for segment in LogView(PATH, fs=world.fs).segments for offset in offsets_of(segment)
    }
    assert not any(name == "cleaned" or name.endswith(".pending") for name in world.index_files())


@pytest.mark.parametrize(("share", "index"), [(0.0, True), (1.0, True), (-0.1, True), (0.1, False)])
def test_a_share_that_is_none_and_one_without_indexes_are_refused(share: float, index: bool) -> None:
    manager = Node(*LIVE, dirs=(ROOT,)).manager
    with pytest.raises(RequestError, match="--min-dead"):
        manager.startup(index=index, min_dead=share)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_wherever_the_power_is_cut_nothing_is_lost_or_comes_back(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    world = LiveWorld(knobs.SEED + 9_000 + seed)
    for _ in range(3):
        world.append(8)
        world.clean(0.3)
        world.pass_time(RETENTION_MS + 1)
    world.append(6)
    world.check()
    whole = durable(world.fs)
    world.clean(0.1, fs=whole)
    every = max(1, len(whole.operations) // knobs.scaled(12, 1_000))
    cuts = Cuts(durable(world.fs), lambda fs: world.clean(0.1, fs=fs), sampled=2, subsets_max=2, every=every)
    for number, after in enumerate(cuts):
        world.check(after)
        if number % 3 == 0:
            assert world.taken_over(after) == world.table()
        again = durable(after)
        world.clean(0.1, fs=again)
        world.check(again)
    assert cuts.different > 10, (cuts.different, len(whole.operations))
    cuts.tell(record_property, "live cleans with min_dead")
