"""Small partitions cost few file operations each, and share their syncs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cordwood.api import clean
from cordwood.bench.workloads import WORKLOADS, write
from cordwood.fs.base import FileInfo
from cordwood.fs.posix import PosixFile, PosixFileSystem
from cordwood.testing.memory_journal import Move
from tests.commands.in_memory import CONFIG, FIRST, LATER_MS, ROOT, SECOND, directory
from tests.fs.trees import tree

NOW_MS = 1_800_000_000_000


class Counting(PosixFileSystem):
    """Counts operations; tasks run in this process, as no other one can open it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def open(self, path: str) -> PosixFile:
        self.done["open"] += 1
        return super().open(path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> PosixFile:
        self.done["create"] += "/progress/" not in path
        return super().create(path, exclusive=exclusive, mode=mode)

    def list(self, path: str) -> Sequence[FileInfo]:
        self.done["list"] += 1
        return super().list(path)


def operations(root: Path, partitions: int) -> Counter[str]:
    """Clean this many partitions of one small segment and an active one into a copy."""
    write(root / "logs", WORKLOADS["tiny"], partitions / 1000)
    fs = Counting()
    options = {"now_ms": NOW_MS, "overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "fs": fs}
    result = clean(str(root / "logs"), output=str(root / "copy"), **options)  # type: ignore[arg-type]
    assert all(one.counts.records_superseded for one in result.partitions) and len(result.partitions) == partitions
    return fs.done


def test_another_small_partition_costs_few_opened_files_and_listings(tmp_path: Path) -> None:
    few, more = (operations(tmp_path / str(count), count) for count in (2, 5))
    each = {name: (more[name] - few[name]) / 3 for name in more}
    # Read by the plan: the log, an index of each segment, the active log and a snapshot; and a missing file of configs.
    # Read by the task: the log and the snapshot. Checked: the three files of the output. Copied: four files.
    limits = {"open": 16, "create": 7, "list": 7}
    assert {name: min(each[name], limit) for name, limit in limits.items()} == each


def test_in_a_published_copy_of_small_partitions_no_byte_depends_on_a_later_sync() -> None:
    fs = directory(FIRST, SECOND)
    clean(ROOT, output="/new", fs=fs, now_ms=LATER_MS, single_copy=True, ignore_ratio=True, overrides=CONFIG)
    cut = fs.crash(lambda change: change.parts if isinstance(change, Move) else 0)
    assert tree(cut, "/new") == tree(fs, "/new")
