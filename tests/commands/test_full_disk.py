"""A disk that fills at any moment, and an interrupt at any moment: no copy is left, and the original is unchanged.

The exhaustive runs fail every single operation that may need room, by a file system that is passed to `clean`; so tasks
run in this process, and they and the driver use the same disk. Runs on real Spark have a real small disk.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean
from cordwood.cleaning.engine.results import Fate
from cordwood.common.errors import NoSpaceError
from cordwood.fs.base import Bytes, File, LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem
from tests.command import start
from tests.fixtures import copy_of, fixture, tree
from tests.fs.disks import small_disk

pytestmark = pytest.mark.slow


class Disk(WrappedFileSystem):
    """A disk that refuses one operation that needs room, or that one and all after it.

    Attributes:
        operations: that may need room, so far.
    """

    def __init__(self, refused: int, *, stays_full: bool) -> None:
        super().__init__(PosixFileSystem())
        self.operations = 0
        self._refused = refused
        self._stays_full = stays_full
        self._one_at_a_time = threading.Lock()

    def take_room(self, path: str) -> None:
        with self._one_at_a_time:
            number = self.operations
            self.operations += 1
        if number == self._refused or (self._stays_full and number > self._refused):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def open(self, path: str) -> File:
        return _OnDisk(super().open(path), self)

    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        LocalFileSystem.copy(self, source, target, mode=mode)  # through the verbs below

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        self.take_room(path)
        return _OnDisk(super().create(path, exclusive=exclusive, mode=mode), self)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        self.take_room(path)
        super().make_directory(path, mode=mode)

    def rename(self, source: str, target: str) -> None:
        self.take_room(target)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.take_room(path)
        super().sync_directory(path)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self.take_room(path)
        super().set_mtime_ns(path, mtime_ns)


class _OnDisk(WrappedFile):
    """A file whose writes need room."""

    def __init__(self, file: File, disk: Disk) -> None:
        super().__init__(file)
        self._disk = disk

    def write(self, position: int, data: Bytes) -> None:
        self._disk.take_room(self.path)
        self._file.write(position, data)

    def sync(self) -> None:
        self._disk.take_room(self.path)
        self._file.sync()


def has_room(disk: Disk, source: Path, target: Path, options: Mapping[str, Any]) -> bool:
    """Whether a clean on a disk of this size finishes."""
    why_not = ""
    try:
        result = clean(str(source), output=str(target), fs=disk, **options)
        assert not result.with_fate(Fate.FAILED), result.text()
    except NoSpaceError as error:
        why_not = str(error)
    assert not why_not or "No space left" in why_not
    return not why_not


def contents(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in found.items()}


def thin(partition: Path) -> None:
    """Leave only the first two segments and the last."""
    bases = sorted(path.stem for path in partition.glob("*.log"))
    for path in partition.iterdir():
        if path.stem in bases[2:-1]:
            path.unlink()


BARE_CONFIGS = ("cleanup.policy=compact", "trimmed-both:cleanup.policy=compact,delete", "trimmed-both:retention.ms=1")


def bare(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Partitions without a broker: one is cleaned, and has no index; of the other, retention deletes segments, too."""
    for name in ("ledger-0", "trimmed-both-0"):
        thin(copy_of(fixture("kraft-classic-before") / name, folder / "logs" / name))
    (folder / "logs" / "ledger-0" / "00000000000000000000.index").unlink()
    return folder / "logs", {"retention": True, "overrides": BARE_CONFIGS}


def crashed(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """A broker's directory that has to be recovered: a swap to be ended, a segment to be cut; then it is cleaned."""
    source = folder / "logs"
    source.mkdir()
    for path in fixture("kraft-crashed-torn").iterdir():
        if path.is_file():
            shutil.copy2(path, source)
    thin(copy_of(fixture("kraft-crashed-torn") / "plain-1", source / "plain-1"))
    first = min((source / "plain-1").glob("*.log"))
    first.rename(f"{first}.swap")
    return source, {"overrides": ["cleanup.policy=compact"], "high_watermark": "end", "ignore_ratio": True}


@pytest.mark.parametrize("stays_full", [False, True], ids=["for a moment", "for good"])
@pytest.mark.parametrize("make", [bare, crashed])
def test_a_disk_that_fills_at_any_operation_leaves_nothing(
    make: Callable[[Path], tuple[Path, Mapping[str, Any]]], stays_full: bool, tmp_path: Path
) -> None:
    source, options = make(tmp_path)
    options = {**options, "now_ms": 4_000_000_000_000}
    before = tree(source)
    whole = Disk(10**9, stays_full=stays_full)
    assert has_room(whole, source, tmp_path / "whole", options)
    expected = contents(tmp_path / "whole")
    refused = 0
    for number in range(whole.operations):
        if has_room(Disk(number, stays_full=stays_full), source, tmp_path / "new", options):
            # The failed write was optional: a task's progress note.
            assert contents(tmp_path / "new") == expected
            shutil.rmtree(tmp_path / "new")
        else:
            refused += 1
        assert sorted(os.listdir(tmp_path)) == ["logs", "whole"], number
    assert tree(source) == before
    assert refused > 0.9 * whole.operations > 50


# ---- real disks, real processes --------------------------------------------------------------------------------------


def test_a_small_disk_fills_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    source, options = crashed(tmp_path)
    bare_source, bare_options = bare(tmp_path / "bare")
    before = [tree(source), tree(bare_source)]
    outcomes = set()
    with small_disk(tmp_path / "disk", 4) as disk:
        for path, said in ((source, options), (bare_source, bare_options)):
            for size_kib in (*range(8, 200, 32), 4000):
                subprocess.run(["mount", "-o", f"remount,size={size_kib}k", disk], check=True)
                try:
                    result = clean(str(path), output=str(disk / "new"), spark=spark, **said)
                    assert not result.with_fate(Fate.FAILED), result.text()
                    outcomes.add("cleaned")
                    assert os.listdir(disk) == ["new"]
                except NoSpaceError:
                    outcomes.add("full")
                    assert os.listdir(disk) == []
                shutil.rmtree(disk / "new", ignore_errors=True)
    assert outcomes == {"cleaned", "full"}
    assert [tree(source), tree(bare_source)] == before


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_end_at_any_moment_leaves_nothing(sent: signal.Signals, seed: int, tmp_path: Path) -> None:
    source, _ = bare(tmp_path)
    before = tree(source)
    configs = (word for one in BARE_CONFIGS for word in ("--config", one))
    words = ("clean", source, "--output", tmp_path / "new", "--retention", *configs)
    with start(*words, start_new_session=True) as running:
        # From the start of Java to the end.
        while not list(tmp_path.glob(".new.cordwood-*")) and running.poll() is None:
            time.sleep(0.01)
        time.sleep(random.Random(f"{sent} {seed}").uniform(0, 10))
        if running.poll() is None:
            os.killpg(running.pid, sent) if sent is signal.SIGINT else running.send_signal(sent)
        # Java has the same output: a process that stayed behind would keep it open.
        _, said = running.communicate(timeout=120)
    ended = {signal.SIGINT: 130, signal.SIGTERM: 143}[sent]
    assert running.returncode in (0, ended), said
    # The interrupt was too late, or no file is left.
    assert sorted(os.listdir(tmp_path)) == (["logs", "new"] if running.returncode == 0 else ["logs"])
    assert tree(source) == before
    assert "Traceback" not in said
