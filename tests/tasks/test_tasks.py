"""Work is divided into tasks, and any failure of one partition is returned as a value."""

from __future__ import annotations

import errno
import gc
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.progress import total
from cordwood.cleaning.engine.task import Failure, FailureKind, Output, PartitionTask, check_output, run_task, tasks_of
from cordwood.cleaning.rules.key_table import MemoryShare
from cordwood.cleaning.rules.superseded import Chunk
from cordwood.common.errors import MemoryNeed
from cordwood.fs.base import File
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.tasks.tasks import TASKS_PER_CORE, cleaning, pack, share_memory, shared_by
from tests.fixtures import copy_of, fixture
from tests.logs import batch, make_log

FS = PosixFileSystem()
HERE = FS.location()


def task(size_bytes: int = 0, path: str = "/nowhere/t-0") -> PartitionTask:
    return PartitionTask(
        location=HERE,
        path=path,
        log_start_offset=0,
        first_dirty=0,
        first_uncleanable=1,
        now_ms=0,
        settings=CleanSettings(),
        size_bytes=size_bytes,
    )


def folders(root: Path) -> tuple[str, str]:
    paths = (root / "outputs", root / "progress")
    for path in paths:
        path.mkdir()
    return str(paths[0]), str(paths[1])


def orders(directory: Path, fs: PosixFileSystem = FS) -> PartitionTask:
    (found,) = tasks_of(make_plan(str(directory), partitions=["orders-0"], ignore_ratio=True), fs.location())
    return found


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_every_partition_is_in_one_task_and_no_task_is_empty(sizes: list[int], cores: int) -> None:
    packs = pack(sizes, cores)
    assert sorted(at for one in packs for at in one) == list(range(len(sizes)))
    assert all(packs)
    assert len(packs) <= TASKS_PER_CORE * cores


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 8))
def test_the_largest_partitions_are_begun_first(sizes: list[int], cores: int) -> None:
    begun = [[sizes[at] for at in one] for one in pack(sizes, cores)]
    assert [one[0] for one in begun] == sorted(sizes, reverse=True)[: len(begun)]
    assert all(one == sorted(one, reverse=True) for one in begun)


def test_large_partitions_are_spread_and_tiny_ones_packed() -> None:
    sizes = [100_000_000] * 4 + [20_000] * 500
    packs = pack(sizes, 2)
    assert [sum(sizes[at] > 10**6 for at in one) for one in packs] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert all(len(one) > 120 for one in packs[4:])


def test_one_core_runs_one_task_unless_there_is_much_to_do_again() -> None:
    assert list(map(len, pack([100_000_000] * 4 + [20_000] * 500, 1))) == [504]
    assert list(map(len, pack([6 << 30] * 2, 1))) == [1, 1]
    assert list(map(len, pack([1 << 40] * 100, 1))) == [25] * 4


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


def test_progress_of_a_small_log_adds_up_to_one_of_two_announced_passes(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    one = orders(fixture("kraft-before"))
    run_task(one, outputs, progress)
    assert one.size_bytes / 2 <= total(PosixFileSystem(), progress) <= 0.6 * one.size_bytes


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
    wrong = replace(one, first_dirty="0")  # type: ignore[arg-type]
    found = run_task(wrong, *folders(tmp_path))
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.BUG
    assert "Traceback" in found.detail


class Full(PosixFileSystem):
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:  # type: ignore[override]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_full_disk_comes_back_as_one(tmp_path: Path) -> None:
    fs = Full()
    found = run_task(orders(fixture("kraft-before"), fs), *folders(tmp_path))
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.FULL
    assert "No space left on device" in found.what


def test_a_task_that_fails_leaves_no_table_of_keys_to_python_to_collect(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-before"), tmp_path / "kraft")
    (log,) = (directory / "orders-0").glob("00000000000000000000.log")
    stored = bytearray(log.read_bytes())
    stored[len(stored) // 2] ^= 1
    log.write_bytes(stored)
    damaged = orders(directory)

    def tables() -> int:
        return sum(isinstance(one, Chunk) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = tables()
        found = run_task(damaged, *folders(tmp_path))
        after = tables()
    finally:
        gc.enable()
    assert isinstance(found, Failure)
    assert after == before


def test_a_task_answers_partition_by_partition(tmp_path: Path) -> None:
    tasks = [task(path="/nowhere/a-0"), task(path="/nowhere/b-0"), task(path="/nowhere/c-0")]
    step = pickle.loads(pickle.dumps(cleaning(*folders(tmp_path))))
    answers = list(step([(0, tasks[0]), (2, tasks[2]), (1, tasks[1])]))
    assert [at for at, _ in answers] == [0, 2, 1]
    assert [one for _, (one, _) in answers] == [tasks[0], tasks[2], tasks[1]]
    assert [failure.what.split()[0] for _, (_, failure) in answers] == ["/nowhere/a-0", "/nowhere/c-0", "/nowhere/b-0"]


def limited(**choice: Any) -> PartitionTask:
    plan = make_plan(str(fixture("kraft-before")), partitions=["orders-0"], ignore_ratio=True, **choice)
    (found,) = tasks_of(plan, HERE)
    return found


def test_a_clean_in_rounds_keeps_what_one_without_a_limit_keeps_and_passes_the_check(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    small, whole = limited(offset_map=240), limited()
    rounds, once = (run_task(one, outputs, progress) for one in (small, whole))
    assert isinstance(rounds, Output) and isinstance(once, Output)
    assert rounds.cleaned.rounds > 1 == once.cleaned.rounds
    assert rounds.cleaned.end_offset == once.cleaned.end_offset
    assert rounds.cleaned.counts.records_read == once.cleaned.counts.records_read
    assert rounds.cleaned.replaced[0][0] == once.cleaned.replaced[0][0]
    kept = [[r.offset for r in LogView(one.folder, log_start_offset=0, fs=FS).records()] for one in (rounds, once)]
    assert kept[0] == kept[1]
    assert check_output(small, rounds) is rounds


def test_a_clean_in_rounds_on_trial_comes_to_the_same(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    done, tried = (run_task(limited(offset_map=240), outputs, progress, discard=trial) for trial in (False, True))
    assert isinstance(done, Output) and isinstance(tried, Output)
    assert (tried.cleaned, tried.files) == (done.cleaned, done.files)


def test_tasks_have_an_equal_part_of_the_memory_as_many_as_run_at_once() -> None:
    whole = replace(task(), settings=CleanSettings(memory=MemoryShare(1000)))
    assert [one.settings.memory for one in share_memory([whole] * 8, 4)] == [MemoryShare(250, 4)] * 8
    (alone,) = share_memory([whole], 4)
    assert alone.settings.memory == MemoryShare(1000)
    # Cleaned by many tasks, it has a share for each that runs at once.
    assert [one.settings.memory for one in shared_by([alone], 4)] == [MemoryShare(250, 4)]
    assert limited(memory=1000).settings.memory == MemoryShare(1000)
    by_default = limited().settings.memory
    assert by_default is not None and 1 << 24 < by_default.size_bytes < 1 << 50


def test_an_offset_map_that_needs_more_than_its_memory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    make_log(
        directory,
        *((base, [batch(base + at, (b"%d" % (base + at), b"v")) for at in range(2500)]) for base in (0, 2500)),
    )
    policy = ["cleanup.policy=compact"]
    plan = make_plan(str(directory), overrides=policy, ignore_ratio=True, offset_map=2_400_000, memory=50_000)
    (one,) = share_memory(tasks_of(plan, HERE), 4)
    found = run_task(one, *folders(tmp_path))
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.MEMORY
    assert found.what == (
        "A table of 2500 keys takes 2400000 bytes, and 50000 are allowed (--memory 50000). "
        "Give at least --memory 2400000; --memory 2400000 is enough, however many keys follow"
    )
    assert found.memory == MemoryNeed(2500, 2_400_000, 50_000, tasks=1, bytes_enough=2_400_000)
    enough = replace(one, settings=replace(one.settings, memory=MemoryShare(2_400_000)))
    assert isinstance(run_task(enough, str(tmp_path / "outputs"), str(tmp_path / "progress")), Output)


def test_where_kafkas_cleaner_would_fail_a_strict_clean_fails_and_others_go_on(tmp_path: Path) -> None:
    outputs, progress = folders(tmp_path)
    whole = limited()
    tiny = IndexLimits(interval_bytes=0, size_bytes=36)
    strict = replace(whole, settings=replace(whole.settings, index=tiny, strict_kafka=True))
    lenient = replace(whole, settings=replace(whole.settings, index=tiny))
    assert isinstance(run_task(lenient, outputs, progress), Output)
    found = run_task(strict, outputs, progress)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.OTHER
    assert "Kafka's cleaner fails here every time; without --strict-kafka" in found.what
