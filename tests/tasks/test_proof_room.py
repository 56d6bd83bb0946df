"""The planned room for the files of a proof is enough, and little more than they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.cleaning.proof import producers, prove, room
from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cleaning.proof.site import TaskSite
from cordwood.cleaning.rules.plan import Compaction
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.proof_room import proof_bytes
from tests.fixtures import copy_of, fixture

FS = PosixFileSystem()


def compaction_of(partition: Path) -> Compaction:
    planned = cordwood.plan(
        str(partition), overrides=["cleanup.policy=compact"], high_watermark="end", ignore_ratio=True
    )
    (found,) = planned.partitions
    assert found.compaction is not None
    return found.compaction


def files_of_proof(partition: Path, end: int, scratch: Path) -> int:
    """Bytes of the files that a proof leaves until it has ended."""

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        return [do(item) for item in items]

    scratch.mkdir()
    side = Side(str(partition), 0)
    pair = Pair(None, side, side, first_uncleanable=end)
    (verdict,) = prove.prove(each, 2, FS, [pair], TaskSite(FS.location(), Scratch(FS.location(), str(scratch))))
    assert verdict.holds
    return sum(path.stat().st_size for path in scratch.iterdir())


@pytest.fixture
def _all_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no entries in memory."""
    for name in ("WHOLE_BYTES", "HERE_BYTES", "WHOLE_HERE_BYTES"):
        monkeypatch.setattr(prove, name, 0)
    monkeypatch.setattr(prove, "RANGE_BYTES", 1)
    for name in ("RANGE_BYTES", "WHOLE_HERE_BYTES"):
        monkeypatch.setattr(room, name, 0)
    monkeypatch.setattr(producers, "STEPS_AT_ONCE", 1)


@pytest.mark.usefixtures("_all_in_files")
@pytest.mark.parametrize("name", ["orders-0", "payments-0", "producers-0", "sessions-0", "codec-zstd-0"])
def test_the_files_of_a_proof_take_no_more_than_is_planned(name: str, tmp_path: Path) -> None:
    partition = copy_of(fixture("kraft-before") / name, tmp_path / name)
    compaction = compaction_of(partition)
    taken = files_of_proof(partition, compaction.range.first_uncleanable_offset, tmp_path / "scratch")
    blocks = 4096 * (1 + sum(map(len, compaction.groups)))
    assert 0 < taken <= proof_bytes(compaction) < 2 * taken + blocks, (taken, proof_bytes(compaction))


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(value_bytes=10, aborted=True, batch_bytes=40)], ids=["plain", "aborted"]
)
@pytest.mark.usefixtures("_all_in_files")
def test_the_files_of_a_large_proof_take_no_more_than_is_planned(shape: Shape, tmp_path: Path) -> None:
    partition = tmp_path / "t-0"
    partition.mkdir()
    write_keyed_log(FS, str(partition), records=50_000, keys=KeyPattern(1000), shape=shape, segment_bytes=1 << 20)
    compaction = compaction_of(partition)
    taken = files_of_proof(partition, compaction.range.first_uncleanable_offset, tmp_path / "scratch")
    assert taken <= proof_bytes(compaction) < 1.1 * taken, (taken, proof_bytes(compaction))


def test_the_proof_of_a_small_partition_needs_no_room() -> None:
    assert proof_bytes(compaction_of(fixture("kraft-before") / "orders-0")) == 0
