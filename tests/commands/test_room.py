"""A full disk is known before anything starts, and what the message says to free is enough."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean, clean_in_place
from cordwood.engine.results import Fate
from cordwood.errors import NoSpaceError
from tests.commands.disks import small_disk
from tests.commands.in_process import InThisProcess
from tests.fixtures import copy_of, facts, fixture

SPARK = cast(SparkSession, InThisProcess())
#: Stands for a session that must not be used.
NO_SPARK = cast(SparkSession, object())
NAMES = ("orders-0", "sessions-0")
MIB = 1 << 20


def filled(disk: Path, free_bytes: int) -> Path:
    """A file that leaves so much of a disk free."""
    there = os.statvfs(disk)
    path = disk / "filler"
    path.write_bytes(bytes(there.f_bavail * there.f_frsize - free_bytes))
    return path


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*-*/*")}


def make_room(filler: Path, freed: str) -> None:
    os.truncate(filler, filler.stat().st_size - int(freed.replace(",", "")))


@pytest.mark.parametrize("free_bytes", [0, 3 * MIB, 8 * MIB])
def test_on_a_full_disk_freeing_what_a_clean_in_place_asks_for_is_enough(free_bytes: int, tmp_path: Path) -> None:
    options = {"now_ms": int(facts("kraft")["cleaning_1_ended_ms"]), "single_copy": True}
    with small_disk(tmp_path / "disk", 40 << 10) as disk:
        mine = disk / "logs"
        for name in NAMES:
            copy_of(fixture("kraft-before") / name, mine / name)
        # The proof needs Spark itself.
        config = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "verify": False}
        filler = filled(disk, free_bytes)
        before = files(mine)
        result = clean_in_place(str(mine), spark=NO_SPARK, **options, **config)  # type: ignore[arg-type]
        assert [one.fate for one in result.partitions] == [Fate.FAILED] * 2
        assert "Nothing was changed" in result.text()
        assert files(mine) == before
        (freed,) = re.findall(r"free at least ([0-9,]+) B of that disk", result.text())
        make_room(filler, freed)
        result = clean_in_place(str(mine), spark=SPARK, **options, **config)  # type: ignore[arg-type]
        assert [one.fate for one in result.partitions] == [Fate.CLEANED] * 2, result.text()


@pytest.mark.parametrize("free_bytes", [0, 300 << 10])
def test_on_a_full_disk_freeing_what_a_copy_asks_for_is_enough(free_bytes: int, tmp_path: Path) -> None:
    source = fixture("kraft-before")
    now_ms = int(facts("kraft")["cleaning_1_ended_ms"])
    with small_disk(tmp_path / "disk", 140 << 10) as disk:
        filler = filled(disk, free_bytes)
        with pytest.raises(NoSpaceError, match="Nothing was changed") as raised:
            clean(str(source), output=str(disk / "new"), spark=NO_SPARK, now_ms=now_ms)
        assert os.listdir(disk) == ["filler"]
        (freed,) = re.findall(r"Free at least ([0-9,]+) bytes there", str(raised.value))
        make_room(filler, freed)
        result = clean(str(source), output=str(disk / "new"), spark=SPARK, now_ms=now_ms)
        assert not result.with_fate(Fate.FAILED)
