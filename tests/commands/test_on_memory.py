"""Every command on the memory file system: commands use only the file system that was passed in; no patch."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.engine.results import Fate
from cordwood.storage.check import Severity
from cordwood.storage.formats.filenames import CLEAN_SHUTDOWN
from cordwood.testing.memory import MemoryFileSystem
from tests.commands.in_memory import CONFIG, FIRST, LATER_MS, PATHS, ROOT, SECOND, crashed, directory
from tests.fs.disks import ReadOnlyStore, spoil
from tests.fs.trees import tree

pytestmark = pytest.mark.more

OPTIONS: dict[str, Any] = {"now_ms": LATER_MS, "single_copy": True, "ignore_ratio": True, "overrides": CONFIG}


@pytest.fixture(params=["left in good order", "crashed"])
def fs(request: pytest.FixtureRequest) -> MemoryFileSystem:
    return crashed() if request.param == "crashed" else directory(FIRST, SECOND)


def without_work(fs: MemoryFileSystem) -> dict[str, bytes | None]:
    return {name: data for name, data in tree(fs, ROOT).items() if ".cordwood" not in name}


def test_reading_commands_read_memory_and_change_nothing(fs: MemoryFileSystem) -> None:
    operations = len(fs.operations)
    assert len(cordwood.ls(ROOT, fs=fs).partitions) == len(PATHS)
    assert not [one for one in cordwood.check(PATHS[1], fs=fs) if one.severity is Severity.DAMAGE]
    assert len(list(cordwood.open_log(PATHS[1], fs=fs).records())) > 10
    assert len(cordwood.plan(ROOT, fs=fs, **OPTIONS).partitions) == len(PATHS)
    assert len(fs.operations) == operations


def test_a_copy_in_memory_is_foretold_made_and_proved(fs: MemoryFileSystem, spark: SparkSession) -> None:
    before = tree(fs, ROOT)
    foretold = cordwood.plan_exact(ROOT, fs=fs, **OPTIONS).result
    assert tree(fs, ROOT) == before and fs.list("/tmp") == []
    result = cordwood.clean(ROOT, output="/new", fs=fs, **OPTIONS)
    assert len(result.with_fate(Fate.CLEANED)) == len(PATHS)
    assert tree(fs, ROOT) == before
    sizes = [[(one.name, one.bytes_before, one.bytes_after) for one in each.partitions] for each in (foretold, result)]
    assert sizes[0] == sizes[1]
    proved = cordwood.verify(ROOT, "/new", spark=spark, now_ms=LATER_MS, overrides=CONFIG, fs=fs)
    assert proved.holds, proved.text()
    assert fs.list("/tmp") == []


def test_damage_that_is_read_in_a_recovered_copy_is_named_in_the_source() -> None:
    fs = directory(FIRST, SECOND)
    damaged = cordwood.open_log(PATHS[0], fs=fs).segments[0].path
    spoil(fs, damaged)
    # It is below the recovery point, so a recovery does not see it.
    fs.unlink(f"{ROOT}/{CLEAN_SHUTDOWN}")
    for result in (
        cordwood.plan_exact(ROOT, fs=fs, **OPTIONS).result,
        cordwood.clean(ROOT, output="/new", fs=fs, **OPTIONS),
    ):
        (failed,) = result.with_fate(Fate.FAILED)
        assert f" in {damaged} at position" in failed.why


def test_verify_finds_a_lost_record_in_memory(spark: SparkSession) -> None:
    fs = directory(FIRST, SECOND)
    cordwood.clean(ROOT, output="/new", fs=fs, **OPTIONS)
    log = cordwood.open_log("/new/a-0", fs=fs)
    fs.unlink(log.segments[-2].path)
    assert not cordwood.verify(ROOT, "/new", spark=spark, now_ms=LATER_MS, overrides=CONFIG, fs=fs).holds


def test_a_relative_path_in_memory_begins_at_its_root(spark: SparkSession) -> None:
    fs = directory(FIRST, SECOND)
    relative = ROOT.lstrip("/")
    assert cordwood.plan_exact(relative, fs=fs, **OPTIONS).result.with_fate(Fate.CLEANED)
    assert cordwood.clean(relative, output="new", fs=fs, **OPTIONS).with_fate(Fate.CLEANED)
    assert cordwood.verify(relative, "new", spark=spark, now_ms=LATER_MS, overrides=CONFIG, fs=fs).holds
    result = cordwood.clean_in_place(relative, keep_old="kept", fs=fs, verify=False, **OPTIONS)
    assert result.with_fate(Fate.CLEANED) and cordwood.undo("kept", fs=fs).removed


def test_verify_works_on_a_store_that_can_only_be_read(spark: SparkSession) -> None:
    local = directory(FIRST, SECOND)
    cordwood.clean(ROOT, output="/new", fs=local, **OPTIONS)
    options: dict[str, Any] = {"spark": spark, "now_ms": LATER_MS, "overrides": CONFIG}
    proved = cordwood.verify(ROOT, "/new", fs=ReadOnlyStore.copy_of(local, ROOT, "/new"), **options)
    assert proved.holds, proved.text()
    local.unlink(cordwood.open_log("/new/a-0", fs=local).segments[-2].path)
    assert not cordwood.verify(ROOT, "/new", fs=ReadOnlyStore.copy_of(local, ROOT, "/new"), **options).holds


def test_a_clean_in_place_in_memory_is_proved_and_undone(spark: SparkSession) -> None:
    fs = directory(FIRST, SECOND)
    before = without_work(fs)
    result = cordwood.clean_in_place(ROOT, keep_old="/kept", spark=spark, fs=fs, **OPTIONS)
    assert len(result.with_fate(Fate.CLEANED)) == len(PATHS), result.text()
    assert result.in_place is not None and result.in_place.verified
    assert without_work(fs) != before
    undone = cordwood.undo("/kept", fs=fs)
    assert not undone.changes and undone.removed
    assert without_work(fs) == before


def test_a_nearly_full_disk_in_memory_takes_several_waves() -> None:
    fs = directory(FIRST, SECOND)
    whole = cordwood.clean_in_place(ROOT, fs=directory(FIRST, SECOND), verify=False, **OPTIONS)
    free = (8 << 20) + 55_000  # 8 MiB of it stay free
    fs.capacity_bytes = free + sum(len(data or b"") for data in tree(fs, "/").values())
    # The proof has tests of its own; here the disk is the point, and no Spark is needed.
    result = cordwood.clean_in_place(ROOT, fs=fs, verify=False, **OPTIONS)
    assert not result.with_fate(Fate.FAILED), result.text()
    assert whole.in_place is not None and result.in_place is not None
    assert whole.in_place.waves == 1 < result.in_place.waves


def test_threads_work_on_one_memory_file_system() -> None:
    alone, together = directory(FIRST, SECOND), directory(FIRST, SECOND, concurrency=8)
    for fs in (alone, together):
        cordwood.clean(ROOT, output="/new", fs=fs, **OPTIONS)
    assert tree(alone, "/") == tree(together, "/")
