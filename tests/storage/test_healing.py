"""Damaged batches are read from another replica, if that has the same bytes at the same offsets."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import DataError
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.record import Record
from cordwood.storage.log.healing import HealedStore, Healer, OtherReplica
from cordwood.storage.log.view import LogView
from tests.commands.cluster_scene import CLUSTER_ARCHIVE, directories
from tests.fixtures import copy_of, unpacked

#: The active segment of two replicas: broker 1 has the batches 71–75, 76–80, … 101–105, broker 2 the first three.
ACTIVE = "00000000000000000071.log"
SHARED_BYTES, BATCHES = 568, {71: 0, 76: 186, 81: 377, 86: 568}
#: A closed segment, which a cleaner has rewritten in brokers 1 and 2, but not in broker 3; it begins with batch 50–54.
CLEANED = "00000000000000000000.log"


@pytest.fixture
def replicas(tmp_path: Path) -> list[Path]:
    """Copies of the three replicas of a partition."""
    return copies(tmp_path)


def copies(folder: Path) -> list[Path]:
    brokers = directories(unpacked(CLUSTER_ARCHIVE))
    return [copy_of(path / "orders-1", folder / path.name / "orders-1") for path in brokers]


def flip(path: Path, positions: Iterable[int], mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    for position in positions:
        data[position] ^= mask
    path.write_bytes(data)


def view(path: Path) -> LogView:
    return LogView(str(path), fs=PosixFileSystem())


def read(log: LogView) -> tuple[list[Record], list[DataError]]:
    problems: list[DataError] = []
    return list(log.records(on_damage=problems.append)), problems


def healed(path: Path, *others: Path) -> tuple[list[Record], list[DataError], Healer]:
    """Read a log with other replicas at hand: its records, the damage that remains, and the healer."""
    log, healer = view(path), Healer(heals=True)
    healer.know(log, [OtherReplica(str(number), str(other)) for number, other in enumerate(others, 2)])
    records, problems = read(log)
    while problems and healer.heal(problems):
        records, problems = read(healer.healed(log))
    return records, problems, healer


@pytest.mark.parametrize(
    ("what", "at"),
    [("a record", [300]), ("the checksum", [203]), ("the size", [197]), ("the magic", [202]), ("all", range(186, 377))],
)
def test_a_damaged_batch_is_read_from_another_replica(replicas: list[Path], what: str, at: Iterable[int]) -> None:
    sound, _ = read(view(replicas[0]))
    flip(replicas[0] / ACTIVE, at)
    records, problems, healer = healed(*replicas[:2])
    assert (records, problems) == (sound, [])
    (log,) = healer.logs
    assert (log.broker, log.batches, log.size_bytes, log.start_offset, log.end_offset) == ("2", 1, 191, 76, 81)
    assert str(log) == f"healed: 1 damaged batch was read from broker 2, in offsets 76 to 80 of {replicas[0]}"


def test_batches_that_a_cleaner_has_left_alike_are_healed(replicas: list[Path]) -> None:
    sound, _ = read(view(replicas[0]))
    flip(replicas[0] / CLEANED, [60, 100])
    records, problems, healer = healed(*replicas[:2])
    assert (records, problems) == (sound, []) and healer.logs[0].batches == 2


def test_a_batch_that_only_one_replica_has_cleaned_is_not_used(replicas: list[Path]) -> None:
    flip(replicas[0] / CLEANED, [60])
    _, (problem,), healer = healed(replicas[0], replicas[2])
    assert not healer.patches
    assert "No other replica can heal it: that of broker 2 has " in str(problem)
    assert "bytes at these offsets instead of 73: one of the two was cleaned or cut" in str(problem)


def test_a_batch_of_another_leader_is_not_used(replicas: list[Path]) -> None:
    flip(replicas[0] / ACTIVE, [300])
    (replicas[1] / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 70\n")
    _, (problem,), healer = healed(*replicas[:2])
    assert not healer.patches
    assert "has other leader epochs at these offsets: 3 from 76 instead of 0 from 76" in str(problem)
    (replicas[1] / "leader-epoch-checkpoint").unlink()
    _, (problem,), _ = healed(*replicas[:2])
    assert "other leader epochs at these offsets: none instead of 0 from 76" in str(problem)


def test_what_is_damaged_or_missing_everywhere_stays_damage(replicas: list[Path]) -> None:
    flip(replicas[0] / ACTIVE, [300, 600])
    flip(replicas[1] / ACTIVE, [301])
    _, problems, healer = healed(*replicas[:2])
    assert not healer.patches
    assert [one.offset for one in problems] == [76, 86]
    assert all("that of broker 2 has no whole batch at these offsets" in one.advice for one in problems)


def test_neighbours_are_healed_from_different_replicas(replicas: list[Path], tmp_path: Path) -> None:
    third = copy_of(replicas[1], tmp_path / "third" / "orders-1")
    sound, _ = read(view(replicas[0]))
    for path, at in zip((replicas[0], replicas[1], third), ([100, 300], [100], [300]), strict=True):
        flip(path / ACTIVE, at)
    records, problems, healer = healed(replicas[0], replicas[1], third)
    assert (records, problems) == (sound, [])
    assert [(one.broker, one.start_offset) for one in healer.logs] == [("2", 76), ("3", 71)]


def test_without_heal_an_error_names_it(replicas: list[Path]) -> None:
    flip(replicas[0] / ACTIVE, [300])
    log, healer = view(replicas[0]), Healer()
    healer.know(log, [OtherReplica("2", str(replicas[1]))])
    _, (problem,) = read(log)
    assert not healer.heal([problem]) and not healer.patches
    assert str(problem).endswith(". The replica of broker 2 has these bytes undamaged: --heal reads them from there")


def test_a_task_in_another_process_sees_the_healed_log(replicas: list[Path]) -> None:
    sound = (replicas[0] / ACTIVE).read_bytes()
    flip(replicas[0] / ACTIVE, [300])
    _, _, healer = healed(*replicas[:2])
    location = pickle.loads(pickle.dumps(healer.location(PosixFileSystem().location())))
    store = location.open()
    assert isinstance(store, HealedStore)
    with store.open(str(replicas[0] / ACTIVE)) as file:
        assert file.read(0, 10_000) == sound
        assert file.read(299, 2) == sound[299:301] and file.read(len(sound), 5) == b""


#: Positions in the batches that both replicas have, except in base offsets, which no checksum covers.
POSITIONS = st.sets(
    st.integers(0, SHARED_BYTES - 1).filter(lambda at: all(not 0 <= at - first < 8 for first in BATCHES.values())),
    max_size=4,
)


@given(POSITIONS, POSITIONS, st.integers(1, 255))
def test_healing_never_makes_up_a_record(here: set[int], there: set[int], mask: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, other, _ = copies(Path(folder))
        sound, _ = read(view(first))
        flip(first / ACTIVE, here, mask)
        flip(other / ACTIVE, there, mask)
        damaged, _ = read(view(first))
        records, problems, _ = healed(first, other)
        assert set(map(repr, damaged)) <= set(map(repr, records)) <= set(map(repr, sound))
        if not there:
            assert (records, problems) == (sound, [])
