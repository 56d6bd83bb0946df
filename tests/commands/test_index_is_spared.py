"""Key indexes in a partition's work folder stay, whatever else changes in that folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.cleaning.engine.results import Fate
from cordwood.fs.base import LocalFileSystem
from cordwood.live import work_folder
from cordwood.storage.formats.filenames import FileKind, index_folder, key_index_path
from cordwood.storage.log.files import write_file
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.in_place import recover_in_place
from cordwood.testing.memory import MemoryFileSystem
from tests.commands.in_memory import CONFIG, FIRST, LATER_MS, PATHS, ROOT, SECOND, crashed, directory
from tests.commands.in_process import InThisProcess
from tests.live.live_logs import NOW_MS, PATH, World, batch

pytestmark = pytest.mark.more

OPTIONS: dict[str, Any] = {"now_ms": LATER_MS, "single_copy": True, "ignore_ratio": True, "overrides": CONFIG}
INDEX = b"an index"
#: The folder of a clean that was killed.
LEFT = "0123456789abcdef0123456789abcdef"


def plant(fs: LocalFileSystem, partition: str, base_offset: int = 0) -> None:
    """Key indexes, one of them half written, and leftovers of killed runs."""
    work = f"{partition}/.cordwood"
    for folder in (work, index_folder(partition), f"{work}/{LEFT}"):
        fs.make_directory(folder)
    write_file(fs, key_index_path(partition, base_offset), INDEX)
    write_file(fs, f"{key_index_path(partition, base_offset + 5)}.tmp", INDEX)
    write_file(fs, f"{work}/{LEFT}/00000000000000000000.log", b"half a log")


def work_of(fs: LocalFileSystem, partition: str) -> dict[str, bytes]:
    """All files in a work folder, by their paths in it."""

    def files(path: str) -> Iterator[tuple[str, bytes]]:
        for info in fs.list(path):
            if info.is_directory:
                yield from files(f"{path}/{info.name}")
            else:
                with fs.open(f"{path}/{info.name}") as file:
                    yield f"{path}/{info.name}", file.read(0, 100)

    work = f"{partition}/.cordwood"
    return {path.removeprefix(f"{work}/"): data for path, data in files(work)}


SPARED = {"index/00000000000000000000.keyhashes": INDEX}


@pytest.mark.parametrize("is_crashed", [False, True])
def test_a_clean_in_place_and_its_undo_leave_only_the_indexes(is_crashed: bool) -> None:
    fs = crashed() if is_crashed else directory(FIRST, SECOND)
    # Those of segments that a clean replaces are removed.
    active = {path: LogView(path, fs=fs, log_start_offset=0).segments[-1].base_offset for path in PATHS}
    spared = [{f"index/{active[path]:020d}.keyhashes": INDEX} for path in PATHS]
    for path in PATHS:
        plant(fs, path, active[path])
    spark = cast(SparkSession, InThisProcess())
    result = cordwood.clean_in_place(ROOT, fs=fs, spark=spark, verify=False, keep_old="/kept", **OPTIONS)
    assert len(result.with_fate(Fate.CLEANED)) == len(PATHS)
    assert [work_of(fs, path) for path in PATHS] == spared
    assert not cordwood.clean_in_place(ROOT, fs=fs, spark=spark, verify=False, **OPTIONS).with_fate(Fate.CLEANED)
    assert cordwood.undo("/kept", fs=fs).partitions
    assert [work_of(fs, path) for path in PATHS] == spared


def written(lost: Sequence[FileKind]) -> MemoryFileSystem:
    """A live log of three segments whose process was killed; it has lost files of some kinds."""
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000, can_crash=False)
    log = World(fs).load({"segment.index.bytes": "64"})
    for number in range(3):
        log.append_as_leader(batch(f"a{number}"), 0)
        log.roll()
    log.flush(force_active_segment=True)
    log.close_handlers()
    for info in fs.list(PATH):
        if info.name.endswith(tuple(lost)):
            fs.unlink(f"{PATH}/{info.name}")
    plant(fs, PATH)
    return fs


def load_live(fs: LocalFileSystem) -> None:
    World(fs).load({"segment.index.bytes": "64"}, clean_shutdown=False)


def recover(fs: LocalFileSystem) -> None:
    recover_in_place(fs, LogView(PATH, fs=fs), crashed=True, recovery_point=0, now_ms=NOW_MS)


def load_in_place(fs: LocalFileSystem) -> None:
    recover_in_place(fs, LogView(PATH, fs=fs), crashed=False, recovery_point=0, now_ms=NOW_MS)


@pytest.mark.parametrize("lost", [(), (FileKind.OFFSET_INDEX, FileKind.PRODUCER_SNAPSHOT)], ids=["whole", "lost files"])
@pytest.mark.parametrize("load", [load_live, recover, load_in_place])
def test_loads_and_recoveries_leave_only_the_indexes(
    load: Callable[[LocalFileSystem], None], lost: Sequence[FileKind]
) -> None:
    fs = written(lost)
    load(fs)
    kept = {path: data for path, data in work_of(fs, PATH).items() if not path.endswith(".tmp")}
    assert kept == SPARED
    assert {info.name for info in fs.list(f"{PATH}/.cordwood")} == {"index"}
    assert all(fs.exists(f"{PATH}/{base:020d}.index") for base in range(3))


def test_a_live_clean_leaves_the_indexes() -> None:
    fs = written(())
    folder = work_folder.new_folder(PATH)
    work_folder.make(fs, folder)
    work_folder.remove(fs, folder)
    assert set(SPARED) <= work_of(fs, PATH).keys()
