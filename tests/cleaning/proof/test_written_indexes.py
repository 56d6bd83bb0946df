"""The proof of a clean in place compares the indexes of written segments with their batches, and counts these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.cleaning.proof.pairs import Count, Pair, Side, ViolationKind
from cordwood.cleaning.proof.violations import Verdict
from cordwood.commands import verify
from cordwood.fs.posix import PosixFileSystem
from cordwood.tasks.runner import InThisProcess
from tests.logs import batch, make_log

pytestmark = pytest.mark.more

FS = PosixFileSystem()
#: Positions 4,000 bytes apart, so that the offset index has entries.
BATCHES, VALUE = 8, b"v" * 4_000


def proof(folder: Path, spoil: Callable[[Path], object], *, written: frozenset[int]) -> Verdict:
    """Prove that a log may become a log without its first record, after something happened to the indexes."""
    sides = []
    for name, first in (("was", 0), ("now", 1)):
        log = make_log(
            folder / name / "t-0",
            (0, [batch(at, (b"k", VALUE), time=at) for at in range(first, BATCHES)]),
            (BATCHES, [batch(BATCHES, (b"k", b"active"), time=BATCHES)]),
        )
        sides.append(Side(log.path, 0))
    spoil(folder / "now" / "t-0")
    before, after = sides
    pair = Pair(None, before, after, first_uncleanable=BATCHES, now_ms=100, witnesses=True, written=written)
    (verdict,) = verify.verify_pairs(InThisProcess(), FS, [pair], FS)
    return verdict


def flip(suffix: str, position: int) -> Callable[[Path], object]:
    def spoil(partition: Path) -> None:
        path = partition / f"{0:020d}{suffix}"
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    return spoil


def lose(suffix: str) -> Callable[[Path], object]:
    return lambda partition: (partition / f"{0:020d}{suffix}").unlink()


SPOILS = {
    "position": flip(".index", 7),
    "offset": flip(".index", 3),
    "timestamp": flip(".timeindex", 7),
    "offset of a time": flip(".timeindex", 11),
    "no offset index": lose(".index"),
    "no time index": lose(".timeindex"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_an_index_that_does_not_fit_a_written_segment_is_a_violation(name: str, tmp_path: Path) -> None:
    verdict = proof(tmp_path / "written", SPOILS[name], written=frozenset({0}))
    assert set(verdict.totals) == {ViolationKind.INDEX}
    assert proof(tmp_path / "other", SPOILS[name], written=frozenset()).holds


def test_the_batches_of_written_segments_are_counted(tmp_path: Path) -> None:
    verdict = proof(tmp_path, lambda _: None, written=frozenset({0}))
    assert verdict.holds
    assert [verdict.counts[count] for count in (Count.BATCHES_WRITTEN, Count.RECORDS_WRITTEN)] == [BATCHES - 1] * 2
