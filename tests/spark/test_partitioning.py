"""How work is cut, and that whatever happens to one partition comes back as a value."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cordwood.fs.base import File
from cordwood.fs.posix import PosixFileSystem
from cordwood.spark.partitioning import (
    TASKS_PER_CORE,
    Failure,
    FailureKind,
    Output,
    PartitionTask,
    pack,
    run_task,
    tasks_of,
    worker,
)
from cordwood.spark.planning import make_plan
from cordwood.spark.progress import total
from cordwood.spark.tasks import CleanSettings
from tests.fixtures import copy_of, fixture


def task(size_bytes: int = 0, path: str = "/nowhere/t-0") -> PartitionTask:
    return PartitionTask(path, 0, 0, 1, 0, CleanSettings(), size_bytes)


def folders(root: Path) -> tuple[str, str]:
    paths = (root / "outputs", root / "progress")
    for path in paths:
        path.mkdir()
    return str(paths[0]), str(paths[1])


def orders(directory: Path) -> PartitionTask:
    (found,) = tasks_of(make_plan(str(directory), partitions=["orders-0"], ignore_ratio=True))
    return found


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_every_partition_is_in_one_task_and_no_task_is_empty(sizes: list[int], cores: int) -> None:
    packs = pack([task(size) for size in sizes], cores)
    assert sorted(at for one in packs for at in one) == list(range(len(sizes)))
    assert all(packs)
    assert len(packs) <= TASKS_PER_CORE * cores


def test_large_partitions_are_spread_and_tiny_ones_packed() -> None:
    sizes = [100_000_000] * 4 + [20_000] * 500
    packs = pack([task(size) for size in sizes], 1)
    assert [sum(sizes[at] > 10**6 for at in one) for one in packs] == [1, 1, 1, 1]
    assert all(120 <= len(one) <= 130 for one in packs)


def test_a_task_is_plain_values_that_survive_pickling() -> None:
    one = orders(fixture("kraft-before"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.size_bytes > 0


def test_two_attempts_write_the_same_into_folders_of_their_own(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    one = orders(fixture("kraft-before"))
    first, second = run_task(one, outputs, progress), run_task(one, outputs, progress)
    assert isinstance(first, Output) and isinstance(second, Output)
    assert first.folder != second.folder
    assert first.files == second.files
    for name, size in first.files:
        data = Path(first.folder, name).read_bytes()
        assert len(data) == size
        assert data == Path(second.folder, name).read_bytes()


def test_progress_adds_up_to_about_what_was_announced(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    one = orders(fixture("kraft-before"))
    run_task(one, outputs, progress)
    assert one.size_bytes <= total(PosixFileSystem(), progress) <= 2 * one.size_bytes


def test_damage_comes_back_with_its_place(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    directory = copy_of(fixture("kraft-before"), tmp_path / "logs")
    one = orders(directory)
    log = directory / "orders-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    found = run_task(one, outputs, progress)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.DAMAGE
    assert "CRC-32C mismatch" in found.what and f"in {log} at position 0" in found.what


def test_a_partition_that_is_gone_comes_back_as_a_failure(tmp_path: Path) -> None:
    found = run_task(task(), *folders(tmp_path))
    assert isinstance(found, Failure)
    assert (found.kind, found.detail) == (FailureKind.OTHER, "")


def test_our_own_mistakes_come_back_with_the_place_in_the_code(tmp_path: Path) -> None:
    one = orders(fixture("kraft-before"))
    wrong = PartitionTask(one.path, 0, "0", one.first_uncleanable, 0, one.settings)  # type: ignore[arg-type]
    found = run_task(wrong, *folders(tmp_path))
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.BUG
    assert "Traceback" in found.detail


class Full(PosixFileSystem):
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:  # type: ignore[override]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_full_disk_comes_back_as_one(tmp_path: Path) -> None:
    found = run_task(orders(fixture("kraft-before")), *folders(tmp_path), Full())
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.FULL
    assert "No space left on device" in found.what


def test_the_function_that_spark_runs_answers_row_by_row(tmp_path: Path) -> None:
    import pyarrow as pa

    tasks = [task(path="/nowhere/a-0"), task(path="/nowhere/b-0"), task(path="/nowhere/c-0")]
    run = worker([[(0, tasks[0]), (2, tasks[2])], [(1, tasks[1])]], *folders(tmp_path))
    rows = [pa.RecordBatch.from_arrays([pa.array([pack])], ["id"]) for pack in (1, 0)]
    answers = [(batch["at"][0].as_py(), pickle.loads(batch["outcome"][0].as_py())) for batch in run(rows)]
    assert [at for at, _ in answers] == [1, 0, 2]
    assert [one.what.split()[0] for _, one in answers] == ["/nowhere/b-0", "/nowhere/a-0", "/nowhere/c-0"]
