"""Files that tasks of a proof write for each other are damaged: the proof has the same result or fails with an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cordwood.cleaning.proof import prove
from cordwood.cleaning.proof.pairs import Pair, Side
from cordwood.cleaning.proof.scratch import Scratch
from cordwood.cleaning.proof.site import TaskSite
from cordwood.cleaning.proof.violations import Verdict
from cordwood.common.errors import DataError
from cordwood.fs.posix import PosixFileSystem
from tests.cleaning.proof.planting import NOW, cleaned_example
from tests.commands.in_process import InThisProcess

pytestmark = pytest.mark.more

FS = PosixFileSystem()


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def cut(path: Path) -> None:
    path.write_bytes(b"")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The example and a clean of it, whose proof consists of many tasks that exchange files."""
    before, _ = cleaned_example(tmp_path, InThisProcess())  # type: ignore[arg-type]
    monkeypatch.setattr(prove, "WHOLE_BYTES", -1)
    monkeypatch.setattr(prove, "HERE_BYTES", 0)
    monkeypatch.setattr(prove, "RANGE_BYTES", 1)
    after = tmp_path / "after" / "t-0"
    start = min(int(log.stem) for log in after.glob("*.log"))
    return Pair(None, Side(str(before), 0), Side(str(after), start), now_ms=NOW, new_horizon_ms=NOW + 86_400_000)


def proved(pair: Pair, folder: Path, spoil: Callable[[Path], None], stage: str, times: int) -> tuple[Verdict, int]:
    """Return the verdict, and the number of tasks that compared ranges, when files are damaged this many times before a
    stage.
    """
    folder.mkdir()
    left, compared = times, 0

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        nonlocal left, compared
        name = str(do)
        compared += len(items) * ("function compare" in name)
        if left and f"function {stage}" in name:
            left -= 1
            files = sorted(folder.iterdir())
            assert files, "tasks leave files"
            for path in files:
                spoil(path)
        return [do(item) for item in items]

    site = TaskSite(FS.location(), Scratch(FS.location(), str(folder)))
    (verdict,) = prove.prove(each, 2, FS, [pair], site)
    return verdict, compared


@pytest.mark.parametrize("spoil", [lose, flip, cut])
@pytest.mark.parametrize("stage", ["conclude", "judge"])
def test_tasks_whose_files_are_spoilt_are_run_again(
    pair: Pair, tmp_path: Path, spoil: Callable[[Path], None], stage: str
) -> None:
    whole, ranges = proved(pair, tmp_path / "whole", spoil, stage, 0)
    assert whole.holds
    verdict, compared = proved(pair, tmp_path / "spoilt", spoil, stage, 1)
    assert verdict == whole and ranges < compared <= 2 * ranges
    assert proved(pair, tmp_path / "often", spoil, stage, 3)[0] == whole


def test_where_there_is_one_core_one_task_compares_all_ranges_and_judges(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "WHOLE_HERE_BYTES", 0)
    verdicts, run = [], []

    def each(do: Callable[[Any], Any], items: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        run.append(len(items))
        return [do(item) for item in items]

    monkeypatch.setattr(prove, "WHOLE_BYTES", 1 << 10)
    for cores in (2, 1):
        folder = tmp_path / f"{cores}"
        folder.mkdir()
        run.clear()
        verdicts += prove.prove(each, cores, FS, [pair], TaskSite(FS.location(), Scratch(FS.location(), str(folder))))
        assert any(folder.iterdir()), "what is large is in files"
        assert (sum(run) == 1) == (cores == 1)
    assert verdicts[0] == verdicts[1] and verdicts[0].holds


@pytest.mark.parametrize("spoil", [lose, flip])
def test_a_proof_whose_files_are_spoilt_each_time_says_so(
    pair: Pair, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    with pytest.raises(DataError, match="were lost or damaged 4 times, so there is no result") as caught:
        proved(pair, tmp_path / "spoilt", spoil, "judge", 100)
    assert "TMPDIR" in str(caught.value)
