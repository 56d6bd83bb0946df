"""Claims, commits and sweeps of a log's tier: one writer wins, others are fenced, and nothing that counts is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cordwood.common.errors import CordwoodError, CorruptFileError, RequestError
from cordwood.fs.base import TargetStore
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import tier_manifest_name
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import FencedError, Generations, make_folders, partitions_in
from cordwood.storage.tier.manifest import GoneSegment, TierSegment, TierState
from cordwood.testing.memory import MemoryFileSystem
from tests.storage.tier.states import PARTITION, segment

FOLDER = f"t-{PARTITION.topic_id}/0"


class Tier:
    """A tier in a store, with writers of one partition.

    Attributes:
        root: its place, with a slash at its end.
    """

    def __init__(self, store: TargetStore, root: str) -> None:
        self.store = store
        self.root = root

    def writer(self) -> Generations:
        return Generations(self.store, AivenLayout(self.store, self.root), PARTITION)

    def newest(self) -> TierState:
        found = self.writer().newest()
        assert found is not None
        return found

    def names(self) -> list[str]:
        return sorted(self.store.names_in(f"{self.root}{FOLDER}/.cordwood-tier"))

    def numbers(self) -> list[int]:
        return [int(name[:20]) for name in self.names()]

    def segments(self) -> set[str]:
        """Ids of the segments that have objects."""
        return {name[21:43] for name in self.store.names_in(f"{self.root}{FOLDER}") if name[0] != "."}

    def upload(self, *segments: TierSegment) -> None:
        """Write the objects of segments, in the form that matters here: their names."""
        for one in segments:
            for ending in (".log", ".indexes", ".rsm-manifest"):
                path = f"{self.root}{FOLDER}/{one.segment.start_offset:020d}-{one.segment.id}{ending}"
                self.store.put(path, b"x")


def grown(before: TierState, *segments: TierSegment) -> TierState:
    return replace(before, segments=(*before.segments, *segments))


def numbered(at: int) -> TierSegment:
    return segment(f"segment {at}", 100 * at, 100 * at + 99)


@pytest.fixture(params=["disk", "memory", "bucket"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    if request.param == "bucket":
        return Tier(ObjectTargetStore(), f"memory://tier/{tmp_path.name}/")
    return (
        Tier(PosixFileSystem(), f"{tmp_path}/")
        if request.param == "disk"
        else Tier(MemoryFileSystem(lambda: 0), "/tier/")
    )


# ---- one writer ------------------------------------------------------------------------------------------------------


def test_a_log_is_claimed_changed_and_claimed_again(tier: Tier) -> None:
    writer = tier.writer()
    assert writer.newest() is None
    claimed = writer.claim("first", "here")
    assert (claimed.generation, claimed.writer.epoch, claimed.segments) == (1, 1, ())
    copied = writer.commit(grown(claimed, numbered(0), numbered(1)))
    assert (copied.generation, copied.copied_end) == (2, 200)
    assert tier.newest() == copied
    again = tier.writer().claim("second", "there")
    assert (again.generation, again.writer.epoch, again.segments) == (3, 2, copied.segments)
    assert list(partitions_in(AivenLayout(tier.store, tier.root))) == [PARTITION]


def test_a_zombie_is_told_who_has_claimed_its_log(tier: Tier) -> None:
    zombie = tier.writer()
    before = zombie.claim("zombie", "old-host")
    claimed = tier.writer().claim("new run", "new-host")
    for attempt in (zombie.commit, zombie.sweep):
        with pytest.raises(FencedError, match=r"run 'new run' on 'new-host', writer epoch 2.*open the log again"):
            attempt(grown(before, numbered(0)))
    assert tier.newest() == claimed


def test_a_zombie_finds_its_next_number_free_and_is_fenced_nevertheless(tier: Tier) -> None:
    zombie = tier.writer()
    before = zombie.claim("zombie", "")
    writer = tier.writer()
    now = writer.claim("writer", "")
    for at in range(30):
        now = writer.commit(grown(now, numbered(at)))
    assert before.generation + 1 not in tier.numbers()
    with pytest.raises(FencedError, match="'writer'"):
        zombie.commit(grown(before, numbered(99)))
    assert tier.newest() == now
    late = tier.writer().claim("late", "")
    assert (late.generation, late.segments) == (now.generation + 1, now.segments)


def test_old_generations_are_deleted_except_the_last_and_their_base(tier: Tier) -> None:
    writer = tier.writer()
    now = writer.claim("run", "")
    for at in range(230):
        now = writer.commit(grown(now, numbered(at)))
        assert len(tier.numbers()) < 120
    assert tier.newest() == now
    assert tier.writer().sweep(now) > 0
    base, *later = tier.numbers()
    assert tier.newest() == now and base < later[0] and later == list(range(now.generation - 9, now.generation + 1))


# ---- sweep -----------------------------------------------------------------------------------------------------------


def test_a_sweep_deletes_what_no_manifest_names(tier: Tier) -> None:
    writer = tier.writer()
    now = writer.claim("run", "")
    named, gone, orphan = numbered(0), numbered(1), numbered(2)
    tier.upload(named, gone, orphan)
    now = writer.commit(replace(grown(now, named), gone=(GoneSegment(gone.segment, 0),)))
    folder = f"{tier.root}{FOLDER}"
    leftovers = [
        f"{folder}/{7:020d}-{orphan.segment.id}.log.12ab.tmp",
        f"{folder}/.cordwood-tier/{tier_manifest_name(2)}.12ab.tmp",
    ]
    others = [f"{folder}/README", f"{folder}/.cordwood-tier/{tier_manifest_name(99)}.12ab.tmp"]
    for path in leftovers + others:
        tier.store.put(path, b"")
    now = (opened := tier.writer()).claim("later", "")
    assert opened.sweep(now) == 3 + len(leftovers) + 1  # the first generation
    assert tier.segments() - {""} == {named.segment.id, gone.segment.id}
    assert [tier.store.exists(path) for path in leftovers + others] == [False, False, True, True]
    assert tier.newest() == now
    assert opened.sweep(now) == 0


def test_a_log_whose_segments_a_broker_wrote_is_not_claimed(tier: Tier) -> None:
    make_folders_for(tier)
    tier.upload(numbered(0))
    with pytest.raises(RequestError, match="1 segment and no manifest"):
        tier.writer().claim("run", "")
    assert tier.segments() == {numbered(0).segment.id}


def make_folders_for(tier: Tier) -> None:
    if not tier.root.startswith("memory:"):
        make_folders(tier.store, f"{tier.root}{FOLDER}")


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_missing_base_and_a_base_that_is_not_whole_are_named(tier: Tier) -> None:
    writer = tier.writer()
    now = writer.claim("run", "")
    now = writer.commit(grown(now, *map(numbered, range(9))))
    now = writer.commit(grown(now, numbered(9)))
    folder = f"{tier.root}{FOLDER}/.cordwood-tier"
    data = bytes(content(tier.store, f"{folder}/{tier_manifest_name(3)}"))
    tier.store.put(f"{folder}/{tier_manifest_name(4)}", data.replace(b'"base":2', b'"base":3'))
    with pytest.raises(CorruptFileError, match="not whole") as caught:
        tier.writer().newest()
    assert caught.value.path == f"{folder}/{tier_manifest_name(3)}"
    tier.store.delete(f"{folder}/{tier_manifest_name(4)}")
    tier.store.delete(f"{folder}/{tier_manifest_name(2)}")
    with pytest.raises(CorruptFileError, match=f"generation that is missing: .*{tier_manifest_name(2)}"):
        tier.writer().newest()


def content(store: TargetStore, path: str) -> bytes:
    with store.open(path) as file:
        return file.read(0, file.size())


# ---- racing writers --------------------------------------------------------------------------------------------------


def race(actions: Sequence[Callable[[], TierState]]) -> list[TierState | CordwoodError]:
    """Run actions in threads that begin together; return what each returned or raised."""
    results: dict[int, TierState | CordwoodError] = {}
    barrier = threading.Barrier(len(actions))

    def run(at: int) -> None:
        barrier.wait()
        try:
            results[at] = actions[at]()
        except CordwoodError as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[at] for at in range(len(actions))]


def check_races(tier: Tier, count: int, rounds: int) -> None:
    for number in range(1, rounds + 1):
        writers = [tier.writer() for _ in range(count)]
        claims = race([partial(one.claim, f"run {at}", "") for at, one in enumerate(writers)])
        newest = tier.newest()
        # A claim that begins after another one ended wins, too; then the earlier winner is fenced.
        won = [(writer, claim) for writer, claim in zip(writers, claims, strict=True) if isinstance(claim, TierState)]
        assert newest in claims
        assert len({claim.writer.epoch for _, claim in won}) == len({claim.generation for _, claim in won}) == len(won)
        commits = race([partial(writer.commit, grown(claim, numbered(number))) for writer, claim in won])
        (committed,) = [one for one in commits if isinstance(one, TierState)]
        assert committed.writer == newest.writer and tier.newest() == committed
        assert all(isinstance(one, TierState | FencedError) for one in claims + commits), claims + commits


@pytest.mark.parametrize("count", [2, 8])
def test_one_of_racing_writers_wins(tier: Tier, count: int) -> None:
    check_races(tier, count, 6)
