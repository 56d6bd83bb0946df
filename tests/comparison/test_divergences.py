"""Made divergences: each is named at its offset, and nothing else is; what timing alone explains is not named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cordwood.comparison import comparing
from cordwood.comparison.values import ComparedReplica
from cordwood.storage.formats import leader_epochs
from cordwood.storage.formats.leader_epochs import EpochEntry
from tests.comparison.comparing import compare_replicas, named, replica
from tests.logs import Segment, batch, make_log, marker

Batches = list[bytes]


@dataclass(frozen=True)
class Case:
    """Two replicas of a partition, and the differences that a comparison names.

    Attributes:
        newest, other: from a number of batches before the interesting ones, the segments of each.
        expected: by the offset of the first interesting batch.
    """

    newest: Callable[[int], list[Segment]]
    other: Callable[[int], list[Segment]]
    expected: Callable[[int], list[str]]
    known: dict[str, Any] = field(default_factory=lambda: {"compacted": True})
    checkpoints: Callable[[int], tuple[dict[str, Any], dict[str, Any]]] = lambda n: ({}, {})
    epochs: Callable[[int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = lambda n: ([(0, 0)], [(0, 0)])


def lead(count: int) -> Batches:
    """Batches that both replicas have, one record each."""
    return [batch(at, f"lead{at}={at}") for at in range(count)]


def segment(n: int, *words: str, **header: Any) -> Batches:
    """A batch for each word, from offset `n` on; `.` is an offset without a batch."""
    return [batch(n + at, word, **header) for at, word in enumerate(words) if word != "."]


NEVER_CLEANED: dict[str, Any] = {"compacted": False}

CASES = {
    # ---- silent ----
    "equal": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=1")],
        lambda n: [],
    ),
    "equal, other segments": Case(
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "b=1")],
        lambda n: [[*lead(n), *segment(n, "a=1", "b=1")]],
        lambda n: [],
    ),
    "the newest one was cleaned": Case(
        lambda n: [lead(n), segment(n, ".", "a=2"), segment(n + 2, "c=1")],
        lambda n: [lead(n), segment(n, "a=1", "a=2"), segment(n + 2, "c=1")],
        lambda n: [],
    ),
    "the other one was cleaned": Case(
        lambda n: [lead(n), segment(n, "a=1", "a=2"), segment(n + 2, "c=1")],
        lambda n: [lead(n), segment(n, ".", "a=2"), segment(n + 2, "c=1")],
        lambda n: [],
    ),
    "both were cleaned, at different times": Case(
        lambda n: [lead(n), segment(n, ".", "a=2", "b=1", "b=2", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", "a=2", ".", "b=2", "c=1")],
        lambda n: [],
    ),
    "a part of a batch was cleaned": Case(
        lambda n: [lead(n), [batch(n, "a=1 b=1 a=2"), batch(n + 3, "c=1")]],
        lambda n: [lead(n), [batch(n + 1, "b=1 a=2"), batch(n + 3, "c=1")]],
        lambda n: [],
    ),
    "a tombstone's time has come on one side": Case(
        lambda n: [lead(n), segment(n, "a=1", "a", "c=1")],
        lambda n: [lead(n), segment(n, ".", ".", "c=1")],
        lambda n: [],
    ),
    "a tombstone is gone, its value before": Case(
        lambda n: [lead(n), segment(n, ".", "a", "c=1")],
        lambda n: [lead(n), segment(n, ".", ".", "c=1")],
        lambda n: [],
    ),
    "retention at different times": Case(
        lambda n: [(n, segment(n, "a=1", "b=1"))] if n else [segment(0, "a=1", "b=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=1")],
        lambda n: [],
        NEVER_CLEANED,
    ),
    "the other one lags": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1", "c=1")],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [],
        NEVER_CLEANED,
    ),
    "the other one lags, and its value was cleaned": Case(
        lambda n: [lead(n), segment(n, ".", "b=1", "a=2")],
        lambda n: [lead(n), segment(n, "a=1", "b=1")],
        lambda n: [],
    ),
    "an uncommitted tail of another leader": Case(
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "b=1", leader_epoch=2)],
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "c=1", leader_epoch=1)],
        lambda n: [],
        NEVER_CLEANED,
        lambda n: ({"high_watermark": n + 1}, {"high_watermark": n + 1}),
        lambda n: ([(0, 0), (2, n + 1)], [(0, 0), (1, n + 1)]),
    ),
    "a marker is gone with its data": Case(
        lambda n: [lead(n), [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=True)], segment(n + 2, "a=2")],
        lambda n: [lead(n), segment(n + 2, "a=2")],
        lambda n: [],
    ),
    "aborted data is gone on one side": Case(
        lambda n: [lead(n), [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=False)], segment(n + 2, "b=2")],
        lambda n: [lead(n), segment(n + 2, "b=2")],
        lambda n: [],
    ),
    "a transaction is open": Case(
        lambda n: [lead(n), [batch(n, "a=1", producer=7)]],
        lambda n: [lead(n), [batch(n, "a=1", producer=7)]],
        lambda n: [],
    ),
    "the other one lags in a transaction, whose end the cleaner knew": Case(
        lambda n: [
            lead(n),
            segment(n, "."),
            [batch(n + 1, "a=2", producer=7), marker(n + 2, 7, committed=True)],
        ],
        lambda n: [lead(n), segment(n, "a=1"), [batch(n + 1, "a=2", producer=7)]],
        lambda n: [],
    ),
    # ---- lineage ----
    "unclean election": Case(
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "b=1", "c=1", leader_epoch=1)],
        lambda n: [lead(n), segment(n, "a=1", "d=1", "e=1", "f=1")],
        lambda n: [f"diverged other {n + 1}-{n + 3}"],
        NEVER_CLEANED,
        epochs=lambda n: ([(0, 0), (1, n + 1)], [(0, 0)]),
    ),
    "unclean election, seen only in batches": Case(
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "b=1", "c=1", leader_epoch=1)],
        lambda n: [lead(n), segment(n, "a=1", "d=1", "e=1")],
        lambda n: [f"diverged other {n + 1}-{n + 2}"],
        epochs=lambda n: ([], []),
    ),
    "a new leader has not written yet": Case(
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [],
        epochs=lambda n: ([(0, 0), (1, n + 1)], [(0, 0)]),
    ),
    "a new leader has not written yet, and another one has": Case(
        lambda n: [lead(n), segment(n, "a=1"), segment(n + 1, "b=1", leader_epoch=2)],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [],
        NEVER_CLEANED,
        epochs=lambda n: ([(0, 0), (2, n + 1)], [(0, 0), (1, n + 1)]),
    ),
    "a new leader lacks committed records": Case(
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=1")],
        lambda n: [f"diverged other {n + 1}"],
        epochs=lambda n: ([(0, 0), (1, n + 1)], [(0, 0)]),
    ),
    "truncated follower": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1", "c=1")],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [f"truncated other {n + 1}-{n + 2}"],
        NEVER_CLEANED,
        lambda n: ({"high_watermark": n + 3}, {"high_watermark": n + 3}),
    ),
    # ---- bytes ----
    "other bytes": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=2", "c=1")],
        lambda n: [f"changed other {n + 1}"],
        NEVER_CLEANED,
    ),
    "other bytes of a compacted topic": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=2", "c=1")],
        lambda n: [f"changed other {n + 1}"],
    ),
    "another timestamp": Case(
        lambda n: [lead(n), [batch(n, "a=1")]],
        lambda n: [lead(n), [batch(n, "a=1", time=5)]],
        lambda n: [f"changed other {n}"],
    ),
    "a segment is missing": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1"), segment(n + 2, "c=1")],
        lambda n: [lead(n), segment(n + 2, "c=1")],
        lambda n: [f"missing other {n}-{n + 1}"],
        NEVER_CLEANED,
    ),
    "a segment is missing on the newest side": Case(
        lambda n: [lead(n), segment(n + 2, "c=1")],
        lambda n: [lead(n), segment(n, "a=1", "b=1"), segment(n + 2, "c=1")],
        lambda n: [f"missing newest {n}-{n + 1}"],
        NEVER_CLEANED,
    ),
    "a segment that no cleaner has reached is missing": Case(
        lambda n: [lead(n), segment(n, "a=1", "b=1"), segment(n + 2, "a=2", "b=2", "c=1")],
        lambda n: [lead(n), segment(n + 2, "a=2", "b=2", "c=1")],
        lambda n: [f"missing other {n}-{n + 1}"],
        {"compacted": True, "cleaned_below": 0},
    ),
    "records without a key are missing, and nobody knows the policy": Case(
        lambda n: [lead(n), [batch(n, (None, b"1")), batch(n + 1, (None, b"2"))]],
        lambda n: [lead(n), [batch(n + 1, (None, b"2"))]],
        lambda n: [f"missing other {n}"],
        {},
    ),
    # ---- keys ----
    "resurrected: the tombstone is there": Case(
        lambda n: [lead(n), segment(n, ".", "a", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", ".", "c=1")],
        lambda n: [f"resurrected other {n + 1} a"],
    ),
    "resurrected on the newest side": Case(
        lambda n: [lead(n), segment(n, "a=1", ".", "c=1")],
        lambda n: [lead(n), segment(n, ".", "a", "c=1")],
        lambda n: [f"resurrected newest {n + 1} a"],
    ),
    "resurrected: the tombstone is gone, too": Case(
        lambda n: [lead(n), segment(n, ".", ".", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", ".", "c=1")],
        lambda n: [f"resurrected other {n} a"],
    ),
    "lost": Case(
        lambda n: [lead(n), segment(n, "a=1", "c=1")],
        lambda n: [lead(n), segment(n, ".", "c=1")],
        lambda n: [f"lost other {n} a"],
    ),
    "lost: an older tombstone is there": Case(
        lambda n: [lead(n), segment(n, ".", "a=1", "c=1")],
        lambda n: [lead(n), segment(n, "a", ".", "c=1")],
        lambda n: [f"lost other {n + 1} a"],
    ),
    "different": Case(
        lambda n: [lead(n), segment(n, ".", "a=2", "c=1")],
        lambda n: [lead(n), segment(n, "a=1", ".", "c=1")],
        lambda n: [f"different other {n + 1} a"],
    ),
    # ---- transactions ----
    "aborted data served": Case(
        lambda n: [
            lead(n),
            [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=False)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=True)],
        ],
        lambda n: [
            lead(n),
            [batch(n, "a=1", producer=7)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=True)],
        ],
        lambda n: [f"aborted-served other {n}"],
    ),
    "aborted data served, which the newest one has removed": Case(
        lambda n: [
            lead(n),
            [marker(n + 1, 7, committed=False)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=True)],
        ],
        lambda n: [
            lead(n),
            [batch(n, "a=1", producer=7)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=True)],
        ],
        lambda n: [f"aborted-served other {n}"],
    ),
    "committed data hidden": Case(
        lambda n: [
            lead(n),
            [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=True)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=False)],
        ],
        lambda n: [
            lead(n),
            [batch(n, "a=1", producer=7)],
            [batch(n + 2, "b=1", producer=7), marker(n + 3, 7, committed=False)],
        ],
        lambda n: [f"committed-hidden other {n}"],
    ),
    "a marker is missing": Case(
        lambda n: [lead(n), [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=True)], segment(n + 2, "b=1")],
        lambda n: [lead(n), [batch(n, "a=1", producer=7)], segment(n + 2, "b=1")],
        lambda n: [f"marker-missing other {n + 1}"],
    ),
    "a marker is missing that no cleaner has reached": Case(
        lambda n: [lead(n), [batch(n, "a=1", producer=7), marker(n + 1, 7, committed=True)], segment(n + 2, "b=1")],
        lambda n: [lead(n), [batch(n, "a=1", producer=7)], segment(n + 2, "b=1")],
        lambda n: [f"marker-missing other {n + 1}"],
        NEVER_CLEANED,
    ),
    "a transaction hangs whose data the other one has removed": Case(
        lambda n: [lead(n), segment(n, ".", "b=1")],
        lambda n: [lead(n), [batch(n, "a=1", producer=7)], segment(n + 1, "b=1")],
        lambda n: [f"marker-missing other {n}"],
    ),
    # ---- checkpoints ----
    "the cleaner's checkpoint is above the end": Case(
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [f"checkpoint other {n + 1}-{n + 4}"],
        checkpoints=lambda n: ({}, {"clean_below": n + 5}),
    ),
    "the recovery point is above the end": Case(
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [lead(n), segment(n, "a=1")],
        lambda n: [f"checkpoint other {n + 1}-{n + 4}"],
        checkpoints=lambda n: ({}, {"recovery_point": n + 5}),
    ),
}
SIZES = (1, 40, 500)


def put_epochs(folder: Path, epochs: list[tuple[int, int]]) -> None:
    if epochs:
        entries = [EpochEntry(*one) for one in epochs]
        (folder / "leader-epoch-checkpoint").write_bytes(leader_epochs.encode(entries))


def make_replicas(folder: Path, case: Case, count: int) -> list[ComparedReplica]:
    """Write the replicas of a case."""
    folders = folder / "newest" / "t-0", folder / "other" / "t-0"
    made = zip(folders, (case.newest, case.other), case.checkpoints(count), case.epochs(count), strict=True)
    found = []
    for path, segments, known, epochs in made:
        make_log(path, *[one for one in segments(count) if one])
        put_epochs(path, epochs)
        found.append(replica(path, **known))
    return found


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_a_divergence_is_named_and_nothing_else(tmp_path: Path, name: str, count: int) -> None:
    case = CASES[name]
    found = compare_replicas(tmp_path / "scratch", make_replicas(tmp_path, case, count), **case.known)
    assert found.newest == "newest"
    assert named(found) == case.expected(count)
    assert found.agrees == all(line.startswith("checkpoint") for line in case.expected(count))


@pytest.mark.parametrize("name", CASES)
def test_divergences_are_the_same_in_many_tasks(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "WHOLE_BYTES", 0)
    monkeypatch.setattr(comparing, "RANGE_BYTES", 1)
    monkeypatch.setattr(comparing, "HERE_BYTES", 0)
    case = CASES[name]
    found = compare_replicas(tmp_path / "scratch", make_replicas(tmp_path, case, 9), cores=2, **case.known)
    assert named(found) == case.expected(9)


# ---- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


#: Places of a byte in a batch of one record.
PLACES = {"size": 10, "checksum": 18, "attributes": 22, "value": 68}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("count", SIZES)
def test_a_flipped_byte_is_named_at_its_offset_and_the_rest_is_compared(
    tmp_path: Path, place: str, compacted: bool, count: int
) -> None:
    """Another batch of the same segment differs, and its difference is named, too."""
    n = count
    parts = [lead(n), segment(n, "a=1", "b=1", "c=1", "d=1", "e=1")]
    logs = [make_log(tmp_path / name / "t-0", *parts) for name in ("newest", "other")]
    size = len(parts[1][0])
    path = Path(logs[1].segments[-1].path)
    data = path.read_bytes()
    path.write_bytes(data[: 4 * size] + batch(n + 4, "e=2"))
    flip(path, size + PLACES[place])
    replicas = [replica(Path(log.path)) for log in logs]
    found = compare_replicas(tmp_path / "scratch", replicas, compacted=compacted)
    assert named(found) == [f"damaged other {n + 1}", f"changed other {n + 4}"]
    assert found.pairs[0].differences[0].what.count(path.name) == 1


def test_a_key_with_a_record_in_damage_is_not_judged(tmp_path: Path) -> None:
    """The cleaned replica has no older value of a; so the damage may hide that both agree, or not."""
    newest = make_log(tmp_path / "newest" / "t-0", lead(2), segment(2, ".", "a=2", "b=1"))
    other = make_log(tmp_path / "other" / "t-0", lead(2), segment(2, "a=1", "a=2", "b=1"))
    path = Path(other.segments[-1].path)
    flip(path, len(batch(2, "a=1")) + PLACES["value"])
    found = compare_replicas(tmp_path / "scratch", [replica(Path(one.path)) for one in (newest, other)], compacted=True)
    assert named(found) == ["damaged other 3"]
    assert found.pairs[0].sums["bytes_not_judged"] > 0


def test_directories_of_another_topic_are_named_and_not_compared(tmp_path: Path) -> None:
    logs = [make_log(tmp_path / name / "t-0", lead(3)) for name in ("newest", "other")]
    replicas = [replica(Path(log.path), topic_id=name) for log, name in zip(logs, "xy", strict=True)]
    assert named(compare_replicas(tmp_path / "scratch", replicas)) == ["other-topic other 0--1"]
