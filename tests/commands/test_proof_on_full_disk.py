"""The disk of the temporary files fills while a proof runs: the error names it, and no file changes or is left over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place, verify
from cordwood.bench.generate import KeyPattern, Shape, write_keyed_log
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.engine.task import FailureKind
from cordwood.commands.verify import verify_pairs
from cordwood.common.errors import NoSpaceError
from cordwood.fs.posix import PosixFileSystem
from tests.fixtures import copy_of
from tests.fs.disks import small_disk

pytestmark = pytest.mark.slow

KIB, MIB = 1 << 10, 1 << 20
RECORDS = 1_200_000
#: More than its entries take, 24 bytes a record.
DISK_KIB = 40 << 10
#: Its proof is one task, whose entries no longer fit in memory; or many tasks.
SHAPES = {"one task": Shape(value_bytes=1, key_bytes=8), "many tasks": Shape()}
#: No folder can be made; no file; the first write is cut; a later one is.
FREE_BYTES = (0, 4 * KIB, 64 * KIB, 8 * MIB)


@pytest.fixture(scope="module", params=SHAPES)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with a million small records."""
    path = tmp_path_factory.mktemp("logs") / "t-0"
    path.mkdir()
    write_keyed_log(
        PosixFileSystem(), str(path), records=RECORDS, keys=KeyPattern(RECORDS), shape=SHAPES[request.param]
    )
    return path


@pytest.fixture
def disk(engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk, for the temporary files of this process. Spark's session, if any, has its files elsewhere."""
    with small_disk(tmp_path / "disk", DISK_KIB) as path:
        monkeypatch.setattr(tempfile, "tempdir", str(path))
        yield path


@pytest.fixture(params=["here", "spark"])
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The engine of the tasks."""
    if request.param == "here":
        return {"engine": "here"}
    spark: SparkSession = request.getfixturevalue("spark")
    return {"spark": spark}


def fill(disk: Path, free_bytes: int) -> Path:
    """Fill a disk up to this free space."""
    there = os.statvfs(disk)
    path = disk / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, there.f_bavail * there.f_frsize - free_bytes)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("free_bytes", FREE_BYTES)
def test_a_proof_says_that_the_disk_of_its_files_is_full_and_leaves_none(
    log: Path, disk: Path, engine: dict[str, Any], free_bytes: int
) -> None:
    # Counters of tasks are on that disk, too; do not count them as the proof's.
    filler = fill(disk, free_bytes)
    with pytest.raises((NoSpaceError, OSError), match="No space left on device") as raised:
        verify(str(log), str(log), **engine)
    if free_bytes > 4 * KIB:
        assert isinstance(raised.value, NoSpaceError)
        assert "there is no result. Free some of that disk, or name a folder on another one with TMPDIR" in str(
            raised.value
        )
    assert list(disk.iterdir()) == [filler]
    filler.unlink()
    assert verify(str(log), str(log), **engine).holds
    assert not list(disk.iterdir())


def test_a_clean_in_place_changes_nothing_if_the_disk_fills_while_it_is_proved(
    log: Path, disk: Path, engine: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = copy_of(log, tmp_path / "logs" / log.name)
    before = files(mine)

    def filled(*arguments: Any, **options: Any) -> Any:
        fill(disk, 4 * MIB)
        return verify_pairs(*arguments, **options)

    config: dict[str, Any] = {"overrides": ["cleanup.policy=compact"], "ignore_ratio": True, "single_copy": True}
    with monkeypatch.context() as patch:
        patch.setattr("cordwood.commands.in_place.proving.verify_pairs", filled)
        result = clean_in_place(str(mine), **engine, **config)
    (failed,) = result.partitions
    assert failed.fate is Fate.FAILED and failed.failure is not None and failed.failure.kind is FailureKind.FULL
    assert "they cannot be proved right: No space left on device" in failed.why
    assert "Nothing was changed" in result.text()
    assert files(mine) == before
    (filler,) = disk.iterdir()
    filler.unlink()
    result = clean_in_place(str(mine), **engine, **config)
    assert [one.fate for one in result.partitions] == [Fate.CLEANED]
    assert not list(disk.iterdir())
