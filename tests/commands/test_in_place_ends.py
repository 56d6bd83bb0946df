"""Cleans in place on a real small disk, and cleans ended by signals: finished groups stay, the next run does the
remaining ones.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.results import Fate
from cordwood.cli.clean import exit_code_of
from cordwood.cli.main import EXIT_FULL, EXIT_OK
from cordwood.common.errors import NoSpaceError
from cordwood.fs.base import is_full
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.storage.log.view import LogView
from tests.command import start
from tests.commands.in_memory import View, view
from tests.fixtures import copy_of, facts, fixture
from tests.fs.disks import Room, small_disk
from tests.knobs import drawn

pytestmark = pytest.mark.slow

TOPICS = ("orders", "payments", "producers", "codec-lz4")
LEFTOVERS = (WORK_FOLDER, ".cleaned", ".swap", ".deleted")


@pytest.fixture(scope="module")
def now_ms() -> int:
    return int(facts("kraft")["cleaning_1_ended_ms"])


def options(now_ms: int, spark: SparkSession) -> dict[str, Any]:
    return {"spark": spark, "now_ms": now_ms, "single_copy": True, "topics": TOPICS}


def words(now_ms: int) -> list[str]:
    return ["--in-place", "--single-copy", "--now", str(now_ms), *(f"--topic={one}" for one in TOPICS)]


def views(root: Path) -> dict[str, View]:
    """All records of all partitions."""
    found = (path for path in root.iterdir() if path.name.rpartition("-")[0] in TOPICS)
    return {path.name: view(LogView(str(path), fs=PosixFileSystem())) for path in found}


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.endswith(LEFTOVERS)]


@pytest.fixture(scope="module")
def expected(spark: SparkSession, now_ms: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, View]:
    """The directory after an uninterrupted clean."""
    mine = copy_of(fixture("kraft-before"), tmp_path_factory.mktemp("expected") / "mine")
    clean_in_place(str(mine), **options(now_ms, spark))
    return views(mine)


class Measured(PosixFileSystem):
    """Notes how full the disk is before anything gives room back.

    Attributes:
        peak_bytes: the most that was used.
    """

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self.peak_bytes = self.used_bytes()

    def used_bytes(self) -> int:
        found = os.statvfs(self._disk)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def unlink(self, path: str) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes())
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes())
        super().rename(source, target)


@pytest.mark.parametrize("work_space", [None, 400_000])
def test_no_more_room_is_taken_than_the_plan_says(
    work_space: int | None, spark: SparkSession, now_ms: int, expected: dict[str, View], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 200_000) as disk:
        mine = copy_of(fixture("kraft-before"), disk / "mine")
        fs = Measured(disk)
        before = fs.used_bytes()
        result = clean_in_place(str(mine), fs=fs, work_space=work_space, **options(now_ms, spark))
        assert not result.with_fate(Fate.FAILED)
        assert result.in_place is not None
        taken = fs.peak_bytes - before
        print(f"{result.in_place.waves} waves, {taken} bytes taken, {result.in_place.work_bytes_max} said")
        assert 0 < taken <= result.in_place.work_bytes_max
        assert work_space is None or (result.in_place.work_bytes_max <= work_space and result.in_place.waves > 1)
        assert views(mine) == expected


def test_a_disk_without_room_is_told_and_a_later_run_finishes(
    spark: SparkSession, now_ms: int, expected: dict[str, View], tmp_path: Path
) -> None:
    # The clean checks the free space first. Here another process fills the disk meanwhile.
    codes = []
    with small_disk(tmp_path / "disk", 200_000) as disk:
        mine = copy_of(fixture("kraft-before"), disk / "mine")
        before = views(mine)
        for room_kib in (*range(4, 600, 48), 100_000):
            size_kib = Measured(disk).used_bytes() // 1024 + room_kib
            subprocess.run(["mount", "-o", f"remount,size={size_kib}k", disk], check=True)
            try:
                codes.append(exit_code_of(clean_in_place(str(mine), fs=Room(None), **options(now_ms, spark))))
            except NoSpaceError:
                codes.append(EXIT_FULL)
            except OSError as error:
                if not is_full(error):
                    raise
                codes.append(EXIT_FULL)
            assert codes[-1] in (EXIT_OK, EXIT_FULL)
            assert leftovers(mine) == []
            for name, seen in views(mine).items():
                assert set(expected[name]) <= set(seen) <= set(before[name])
            if codes[-1] == EXIT_OK:
                assert views(mine) == expected
    assert codes[0] == EXIT_FULL and codes[-1] == EXIT_OK and codes.count(EXIT_FULL) > 3


@pytest.mark.parametrize("seed", drawn(range(8)))
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_end_at_any_moment_leaves_what_is_finished_and_the_next_run_does_the_rest(
    sent: signal.Signals, seed: int, spark: SparkSession, now_ms: int, expected: dict[str, View], tmp_path: Path
) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    before = views(mine)
    with start("clean", mine, *words(now_ms), "--work-space", "400000", start_new_session=True) as running:
        while not list(mine.glob(f"*/{WORK_FOLDER}")) and running.poll() is None:
            time.sleep(0.01)
        time.sleep(random.Random(f"{sent} {seed}").uniform(0, 14))
        if running.poll() is None:
            os.killpg(running.pid, sent) if sent is signal.SIGINT else running.send_signal(sent)
        _, said = running.communicate(timeout=120)
    ended = {signal.SIGINT: 130, signal.SIGTERM: 143}[sent]
    assert running.returncode in (0, ended), said
    assert "Traceback" not in said
    if running.returncode:
        assert "partitions are cleaned" in said or "no partition was cleaned" in said
    assert leftovers(mine) == []
    for name, seen in views(mine).items():
        assert set(expected[name]) <= set(seen) <= set(before[name])
    assert not clean_in_place(str(mine), **options(now_ms, spark)).with_fate(Fate.FAILED)
    assert views(mine) == expected
