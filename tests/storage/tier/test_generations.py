"""Claims, commits and sweeps of a log's tier: one writer wins, others are fenced, and nothing that counts is lost."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cordwood.common.errors import CordwoodError, CorruptFileError, RequestError, StoreAccessError, StoreError
from cordwood.common.types import override
from cordwood.fs.base import Bytes, PutMode, TargetStore
from cordwood.fs.object_requests import Patience
from cordwood.fs.object_targets import ObjectTargetStore
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import tier_manifest_name
from cordwood.storage.tier.aiven import AivenLayout
from cordwood.storage.tier.generations import FencedError, Generations, check_store, make_folders, partitions_in
from cordwood.storage.tier.manifest import GoneSegment, TierState
from cordwood.storage.tier.packed import TierSegment
from cordwood.testing.memory import MemoryFileSystem, every_cut
from cordwood.testing.memory_journal import keep_all, lose_all
from tests.fs.object_server import BUCKET, Faults, Server, environment, faulty, running_server
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
        if now.generation % 25 == 0:
            assert tier.newest() == now
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
    """Run actions in threads that begin together; return their results and errors."""
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


# ---- power cuts ------------------------------------------------------------------------------------------------------


def test_a_power_cut_at_any_step_leaves_the_old_generation_or_the_new_one() -> None:
    def act(fs: MemoryFileSystem) -> None:
        writer = Tier(fs, "/tier/").writer()
        now = writer.claim("second", "")
        writer.sweep(now)
        Tier(fs, "/tier/").upload(numbered(1))
        writer.commit(grown(now, numbered(1)))

    def prepare() -> MemoryFileSystem:
        tier = Tier(MemoryFileSystem(lambda: 0), "/tier/")
        now = (writer := tier.writer()).claim("first", "")
        tier.upload(numbered(0), numbered(7))
        writer.commit(grown(now, numbered(0)))
        return tier.store  # type: ignore[return-value]

    seen = set()
    for fs in every_cut(prepare, act):
        for survives in (lose_all, keep_all):
            tier = Tier(fs.crash(survives), "/tier/")
            found = tier.newest()
            opened = tier.writer()
            opened.sweep(opened.claim("third", ""))
            assert tier.segments() == {one.segment.id for one in found.segments}
            seen.add((found.writer.run, len(found.segments)))
    assert seen == {("first", 1), ("second", 1), ("second", 2)}


def test_the_first_claim_survives_a_power_cut() -> None:
    fs = MemoryFileSystem(lambda: 0)
    claimed = Tier(fs, "/a/tier/").writer().claim("run", "")
    assert Tier(fs.crash(lose_all), "/a/tier/").newest() == claimed


# ---- an S3 server ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as started:
        yield started


@pytest.fixture
def faults(server: Server) -> Iterator[Faults]:
    with faulty(server.address) as (address, found), mock.patch.dict(os.environ, environment(address)):
        yield found


def in_bucket(tmp_path: Path, retry_seconds: int = 1) -> Tier:
    patience = Patience(first_pause_ms=1, longest_pause_ms=20, retry_seconds=retry_seconds, timeout_seconds=5)
    return Tier(ObjectTargetStore(patience), f"s3://{BUCKET}/{tmp_path.name}/")


@pytest.mark.more
@pytest.mark.parametrize("count", [2, 8])
def test_one_of_racing_writers_wins_in_a_bucket(server: Server, tmp_path: Path, count: int) -> None:
    check_races(in_bucket(tmp_path), count, 3)


@pytest.mark.more
def test_requests_of_a_claim_a_commit_and_a_sweep(faults: Faults, tmp_path: Path) -> None:
    tier = in_bucket(tmp_path)
    now = (writer := tier.writer()).claim("run", "")
    tier.upload(*map(numbered, range(5)))
    now = writer.commit(grown(now, *map(numbered, range(4))))
    now = writer.commit(grown(now, numbered(9)))

    def requests() -> Counter[str]:
        found = Counter(one.split()[0] for one in faults.asked)
        faults.begin({})
        return found

    requests()
    assert in_bucket(tmp_path).writer().newest() == now
    assert requests() == {"GET": 3}  # one list, the last generation and its base
    now = (opened := in_bucket(tmp_path).writer()).claim("next", "")
    assert requests() == {"GET": 3 + 1, "PUT": 1}
    opened.sweep(now)
    assert requests()["POST"] == 1  # the folders above are listed once, in case they are a copy of ours
    opened.sweep(now)
    assert requests() == {"GET": 2}
    opened.commit(grown(now, numbered(10)))
    assert requests() == {"GET": 1, "PUT": 1}


#: Kinds of faults, each with the seconds of retries by a client. With 0, it is unknown whether a request whose
#: answer was lost had an effect.
FAULTS = [("403", 1), ("500", 1), ("500", 0), ("lost", 1), ("lost", 0), ("dead", 0), ("cut", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "retry_seconds"), FAULTS)
def test_a_fault_at_any_request_loses_no_commit(
    server: Server, faults: Faults, tmp_path: Path, kind: str, retry_seconds: int
) -> None:
    first, second, orphan = numbered(0), numbered(1), numbered(2)
    seen = set()
    for at in range(40):
        tier = in_bucket(tmp_path / str(at), retry_seconds)
        tier = Tier(tier.store, f"{tier.root[:-1]}-{tmp_path.name}/")
        faults.begin({})
        now = (writer := tier.writer()).claim("first", "")
        tier.upload(first, orphan)
        writer.commit(grown(now, first))
        committed: list[TierState] = []
        faults.begin({at: kind})
        with contextlib.suppress(CordwoodError):
            opened = tier.writer()
            committed.append(opened.claim("second", ""))
            opened.sweep(committed[-1])
            tier.upload(second)
            committed.append(opened.commit(grown(committed[-1], second)))
        happened = bool(faults.happened)
        faults.settle()
        faults.begin({})
        found = tier.newest()
        assert not committed or found.generation >= committed[-1].generation
        assert {one.segment.id for one in (committed[-1].segments if committed else (first,))} <= {
            one.segment.id for one in found.segments
        }
        last = tier.writer()
        last.sweep(last.claim("third", ""))
        assert tier.segments() == {one.segment.id for one in found.segments}
        seen.add(len(found.segments))
        if not happened:
            break
    else:
        pytest.fail("more requests than expected")
    assert 2 in seen


@pytest.mark.more
def test_an_attempt_whose_answer_was_lost_is_replaced_by_the_next_commit(faults: Faults, tmp_path: Path) -> None:
    tier = in_bucket(tmp_path, retry_seconds=0)
    now = (writer := tier.writer()).claim("run", "")
    faults.begin({0: "lost", 1: "500", 2: "500"})
    with pytest.raises(StoreError):
        writer.commit(grown(now, numbered(0)))
    faults.settle()
    faults.begin({})
    assert list(tier.newest().segments) == [numbered(0)]  # it took effect, and the writer got no answer
    again = writer.commit(grown(now, numbered(0), numbered(1)))
    assert again.generation == now.generation + 2 and tier.newest() == again


@pytest.mark.more
def test_a_refused_commit_changes_nothing(faults: Faults, tmp_path: Path) -> None:
    tier = in_bucket(tmp_path)
    now = (writer := tier.writer()).claim("run", "")
    faults.begin({0: "403"})
    with pytest.raises(StoreAccessError):
        writer.commit(grown(now, numbered(0)))
    assert tier.newest() == now
    assert writer.commit(grown(now, numbered(0))).generation == now.generation + 1


# ---- stores ----------------------------------------------------------------------------------------------------------


class Replacing(PosixFileSystem):
    """A store that ignores the condition of a put, as some servers do."""

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE, **options: Any) -> None:
        super().put(path, data, **options)


def test_a_store_that_replaces_objects_is_refused(tier: Tier, tmp_path: Path) -> None:
    check_store(tier.store, f"{tier.root}new/logs")
    assert [*tier.store.names_in(f"{tier.root}new/logs")] == []
    with pytest.raises(RequestError, match="conditional writes"):
        check_store(Replacing(), str(tmp_path))
    assert list(tmp_path.glob(".*")) == []
