"""A clean reports a full disk before it starts, and freeing the space that it names is enough."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean, clean_in_place
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.cleaning.engine.results import Fate
from cordwood.common.errors import NoSpaceError
from cordwood.fs.posix import PosixFileSystem
from tests.commands.in_process import InThisProcess
from tests.fixtures import copy_of, facts, fixture
from tests.fs.disks import small_disk

pytestmark = pytest.mark.more

SPARK = cast(SparkSession, InThisProcess())
#: A session that must not be used.
NO_SPARK = cast(SparkSession, object())
NAMES = ("orders-0", "sessions-0")
MIB = 1 << 20
RECORDS = 1_200_000


def filled(disk: Path, free_bytes: int) -> Path:
    """A file that fills a disk up to this free space."""
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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition whose proof writes files: its entries do not fit into one task."""
    path = tmp_path_factory.mktemp("large") / "t-0"
    path.mkdir()
    shape = Shape(value_bytes=1, key_bytes=8)
    write_keyed_log(PosixFileSystem(), str(path), records=RECORDS, keys=KeyPattern(RECORDS), shape=shape)
    return path


@pytest.mark.parametrize("free_bytes", [0, 16 * MIB, 30 * MIB])
@pytest.mark.parametrize("is_same", [True, False], ids=["the log's disk", "a disk of its own"])
def test_the_files_of_a_proof_are_counted_and_freeing_what_is_asked_for_is_enough(
    large: Path, is_same: bool, free_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "single_copy": True}
    with small_disk(tmp_path / "disk", 160 << 10) as disk:
        folder = disk / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        mine = copy_of(large, disk / "t-0" if is_same else tmp_path / "logs" / "t-0")
        before = files(mine.parent)
        filler = filled(disk, free_bytes)
        result = clean_in_place(str(mine), spark=NO_SPARK, **config)
        assert [one.fate for one in result.partitions] == [Fate.FAILED]
        assert "temporary files of its proof" in result.text() and str(folder) in result.text()
        assert "Nothing was changed" in result.text() and "TMPDIR" in result.text()
        assert files(mine.parent) == before and not list(folder.iterdir())
        (freed,) = re.findall(r"free at least ([0-9,]+) B of that disk", result.text())
        make_room(filler, freed)
        result = clean_in_place(str(mine), engine="here", **config)
        assert [one.fate for one in result.partitions] == [Fate.CLEANED], result.text()
        assert result.in_place is not None
        assert result.in_place.verified is not None and result.in_place.verified > RECORDS
        assert result.in_place.proof_bytes_max > 24 * RECORDS
        assert not list(folder.iterdir())


def test_without_a_proof_its_files_are_not_counted(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = copy_of(large, tmp_path / "logs" / "t-0")
    with small_disk(tmp_path / "disk", 64) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        options: dict[str, Any] = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "spark": SPARK}
        result = clean_in_place(str(mine), verify=False, **options)
    assert [one.fate for one in result.partitions] == [Fate.CLEANED], result.text()


def test_partitions_whose_proof_has_no_room_are_refused_and_others_are_cleaned(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "logs"
    copy_of(large, mine / "t-0")
    copy_of(large, mine / "t-1")
    copy_of(fixture("kraft-before") / "orders-0", mine / "orders-0")
    with small_disk(tmp_path / "disk", 16 << 10) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        options: dict[str, Any] = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "engine": "here"}
        result = clean_in_place(str(mine), **options)
    assert [one.name for one in result.with_fate(Fate.FAILED)] == ["t-0", "t-1"]
    assert [one.name for one in result.with_fate(Fate.CLEANED)] == ["orders-0"]
    assert len(re.findall("free at least", result.text())) == 1, "it is said once for all"


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
