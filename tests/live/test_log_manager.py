"""Logs in many directories: loaded, kept and shut down together."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.errors import IllegalStateError, KafkaStorageError, LockedError, LogDirNotFoundError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.live.log import FetchIsolation
from cordwood.live.log_manager import LogManager
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS, batch, read_all
from tests.live.nodes import ONE, TWO, Node


@pytest.fixture
def node() -> Node:
    made = Node()
    made.manager.startup()
    return made


def test_logs_are_there_again_after_a_shutdown_and_nothing_is_recovered(node: Node) -> None:
    node.append(ONE, "a1", "b1")
    node.append(TWO, "c1")
    assert sorted(log.parent_directory for log in node.manager.all_logs) == ["/d1", "/d2"]
    node.manager.shutdown()
    assert node.fs.exists("d1/.kafka_cleanshutdown")
    assert read_file(node.fs, "d1/recovery-point-offset-checkpoint") == b"0\n1\nt 0 2\n"
    node.start()
    seen: list[tuple[str, int, int]] = []
    node.manager.startup(lambda *progress: seen.append(progress))
    assert sorted(seen) == [("/d1", 1, 1), ("/d2", 1, 1)]
    assert not node.fs.exists("d1/.kafka_cleanshutdown"), "a crash from now on is one"
    log = node.manager.get_log(ONE)
    assert log is not None
    assert (read_all(log), log.recovery_point) == ({0: "a1", 1: "b1"}, 2)


def test_after_a_crash_logs_are_recovered_from_their_recovery_points(node: Node) -> None:
    log = node.append(ONE, "a1")
    log.flush()
    node.pass_time(60_000)  # the tasks write the checkpoints
    assert node.offsets("d1/recovery-point-offset-checkpoint") == {ONE: 1}
    assert node.offsets("d1/replication-offset-checkpoint") == {ONE: 1}
    node.append(ONE, "b1")
    with node.fs.open_for_update("d1/t-0/00000000000000000000.log") as file:
        file.truncate(file.size() - 1)
    again = Node(fs=_unlocked(node.fs))
    again.manager.startup()
    recovered = again.manager.get_log(ONE)
    assert recovered is not None
    assert read_all(recovered) == {0: "a1"}


def _unlocked(fs: LocalFileSystem) -> MemoryFileSystem:
    """The disk as after a crash: all files, and no lock held."""
    assert isinstance(fs, MemoryFileSystem)
    return fs.crash(lambda change: change.parts)


def test_a_directory_has_one_manager_at_a_time(node: Node) -> None:
    other = LogManager(node.fs, ["d2"])
    with pytest.raises(LockedError):
        other.startup()
    node.manager.shutdown()
    other.startup()
    other.shutdown()


def open_files(directory: Path) -> list[str]:
    """The files in a directory that this process has open."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [target for target in targets if target.startswith(str(directory))]


def test_after_a_shutdown_no_file_is_open_whatever_the_logs_went_through(tmp_path: Path) -> None:
    configs = ["log.cleaner.enable=false", "internal.segment.bytes=200", "file.delete.delay.ms=3600000"]
    node = Node(*configs, fs=PosixFileSystem(), dirs=tuple(str(tmp_path / name) for name in ("d1", "d2")))
    with node.manager:
        first, second = node.append(ONE, *"abcdef"), node.append(TWO, *"abcdef")
        removed = first.log_segments[0]
        first.delete_records(3)
        assert first.delete_old_segments() > 0
        second.fetch_offset_by_timestamp(NOW_MS)
        deleted = node.manager.async_delete(TWO)
        (target,) = set(node.manager.live_log_dirs) - {first.parent_directory}
        moved = node.manager.move_partition(ONE, target)
        assert deleted is second and moved is not first and removed.size_bytes
        assert len(open_files(tmp_path)) > 10
    assert open_files(tmp_path) == []


def test_after_a_start_that_failed_no_file_is_open_and_the_directories_are_free(tmp_path: Path) -> None:
    dirs = [str(tmp_path / name) for name in ("d1", "d2")]
    with LogManager(PosixFileSystem(), dirs) as manager:
        manager.get_or_create_log(ONE, is_new=True)
        (other,) = set(dirs) - {manager.get_or_create_log(ONE).parent_directory}
    os.mkdir(f"{other}/t-0")
    with pytest.raises(IllegalStateError, match="Duplicate log directories"):
        LogManager(PosixFileSystem(), dirs).startup()
    assert open_files(tmp_path) == []
    shutil.rmtree(f"{other}/t-0")
    with LogManager(PosixFileSystem(), dirs) as manager:
        assert set(manager.logs) == {ONE}


def test_a_second_startup_is_refused_and_changes_nothing(node: Node) -> None:
    node.append(ONE, "a1")
    with pytest.raises(IllegalStateError, match="started before"):
        node.manager.startup()
    assert node.manager.live_log_dirs == ("/d1", "/d2")
    assert node.append(ONE, "b1").log_end_offset == 2
    node.pass_time(120_000)
    node.manager.shutdown()
    node.manager.shutdown()
    assert node.fs.exists("d1/.kafka_cleanshutdown") and node.fs.exists("d2/.kafka_cleanshutdown")
    with pytest.raises(IllegalStateError, match="started before"):
        node.manager.startup()


def test_a_path_in_place_of_a_list_of_paths_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="sequence of paths"):
        LogManager(MemoryFileSystem(lambda: 0), "abc")


def test_retention_deletes_from_logs_that_are_not_compacted(node: Node) -> None:
    node.append(ONE, "a1")
    kept = node.append(TWO, "b1")
    node.manager.update_topic_config("t", {"cleanup.policy": "delete", "retention.ms": "1000"})
    node.manager.update_topic_config("k", {"cleanup.policy": "compact", "retention.ms": "1000"})
    compacted = node.append(TopicPartition("k", 0), "c1")
    log = node.manager.get_log(ONE)
    assert log is not None
    node.pass_time(30_000)
    assert (read_all(log), read_all(kept)) == ({}, {})
    assert read_all(compacted) == {0: "c1"}


def test_configs_of_a_topic_change_while_it_is_used(node: Node) -> None:
    log = node.append(ONE, "a1")
    node.manager.update_topic_config("t", {"segment.bytes": "2000000"})
    assert log.config.segment_bytes == 2_000_000
    assert node.append(TWO, "b1").config.segment_bytes == 2_000_000


def test_a_deleted_log_is_renamed_at_once_and_removed_after_its_delay(node: Node) -> None:
    node.append(ONE, "a1")
    node.append(TWO, "b1")
    node.pass_time(30_000)
    deleted = node.manager.async_delete(ONE)
    assert deleted is not None
    assert node.manager.get_log(ONE) is None
    assert deleted.directory.endswith("-delete")
    assert deleted.read(0, 100, FetchIsolation.LOG_END).records, "readers are not disturbed"
    assert node.offsets("d1/recovery-point-offset-checkpoint") == {}
    node.pass_time(59_999)
    assert node.fs.exists(deleted.directory)
    node.pass_time(60_000)
    assert not node.fs.exists(deleted.directory)
    assert node.manager.async_delete(ONE) is None


def test_a_deletion_that_a_crash_interrupted_is_finished(node: Node) -> None:
    node.append(ONE, "a1")
    deleted = node.manager.async_delete(ONE)
    assert deleted is not None
    again = Node(fs=_unlocked(node.fs))
    again.manager.startup()
    assert again.manager.get_log(ONE) is None
    for _ in range(3):
        again.pass_time(60_000)
    assert not again.fs.exists(deleted.directory)


def test_truncation_writes_the_recovery_point_down(node: Node) -> None:
    node.append(ONE, "a1", "b1").flush()
    node.manager.truncate_to({ONE: 1, TWO: 0})
    assert node.offsets("d1/recovery-point-offset-checkpoint") == {ONE: 1}
    node.manager.truncate_fully_and_start_at(ONE, 7)
    log = node.manager.get_log(ONE)
    assert log is not None
    assert (log.log_start_offset, node.offsets("d1/recovery-point-offset-checkpoint")) == (7, {ONE: 1})


def test_a_log_moves_to_another_directory_while_it_is_used(node: Node) -> None:
    log = node.append(ONE, *(f"a{number}" for number in range(30)))
    source = log.parent_directory
    (target,) = set(node.manager.live_log_dirs) - {source}
    log.maybe_increment_log_start_offset(3)
    expected = read_all(log)
    moved = node.manager.move_partition(ONE, target)
    assert node.manager.get_log(ONE) is moved and moved.parent_directory == target
    assert read_all(moved) == expected and moved.log_start_offset == 3
    assert moved.high_watermark == log.log_end_offset == 30
    for call in (lambda: log.append_as_leader(batch("b1"), 0), lambda: read_all(log)):
        with pytest.raises(KafkaStorageError):
            call()
    assert node.manager.failures.failures == ()
    node.append(ONE, "b2")
    assert node.manager.move_partition(ONE, target) is moved
    node.pass_time(120_000)
    assert [info.name for info in node.fs.list(source) if info.is_directory] == []
    assert ONE in node.offsets(f"{target}/recovery-point-offset-checkpoint")
    assert ONE not in node.offsets(f"{source}/recovery-point-offset-checkpoint")
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    log = node.manager.get_or_create_log(ONE)
    assert read_all(log) == expected | {30: "b2"} and log.parent_directory == target


@pytest.mark.parametrize("count", [0, 1], ids=["nothing", "a record"])
def test_a_log_moves_whose_last_offsets_are_cleaned_away(node: Node, count: int) -> None:
    log = node.append(ONE, *("a0", "b1")[:count])
    log.truncate_fully_and_start_at(0) if not count else log.roll()
    log.go_on_at(7)
    assert (log.log_end_offset, len(read_all(log))) == (7, count)
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    moved = node.manager.move_partition(ONE, target)
    assert (moved.log_end_offset, moved.log_start_offset, len(read_all(moved))) == (7, 0, count)
    node.append(ONE, "c7")
    expected = read_all(moved)
    assert max(expected) == 7
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    assert read_all(node.manager.get_or_create_log(ONE)) == expected


def test_a_move_that_was_interrupted_goes_on(node: Node) -> None:
    log = node.append(ONE, "a0", "a1")
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    node.manager.maybe_update_preferred_log_dir(ONE, target)
    future = node.manager.get_or_create_log(ONE, is_new=True, is_future=True)
    future.append_as_follower(log.read(0, 60, FetchIsolation.LOG_END).records, 9)
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    found = node.manager.get_log(ONE, is_future=True)
    assert found is not None and found.log_end_offset == 1
    node.append(ONE, "a2")
    assert read_all(node.manager.move_partition(ONE, target)) == {0: "a0", 1: "a1", 2: "a2"}
    assert node.manager.get_log(ONE, is_future=True) is None


def test_a_log_moves_only_to_a_directory_of_the_manager_that_works(node: Node) -> None:
    node.append(ONE, "a0")
    with pytest.raises(LogDirNotFoundError):
        node.manager.move_partition(ONE, "d3")
    with pytest.raises(KafkaStorageError, match="no log"):
        node.manager.move_partition(TWO, "d1")


def test_a_partition_in_two_directories_ends_the_start(node: Node) -> None:
    node.append(ONE, "a1")
    node.manager.shutdown()
    node.fs.make_directory("d2/t-0")
    node.start()
    with pytest.raises(IllegalStateError, match="Duplicate log directories for t-0"):
        node.manager.startup()
    # It holds no lock now.
    with LogManager(node.fs, ["d1"]) as other:
        assert other.get_log(ONE) is not None


class Failing(WrappedFileSystem):
    """A disk that fails to list one directory."""

    fails = ""

    def list(self, path: str):
        if self.fails and path.startswith(self.fails):
            raise OSError(errno.EIO, "the disk fails", path)
        return super().list(path)


def test_a_failing_directory_goes_offline_and_the_others_live_on() -> None:
    disk = Failing(MemoryFileSystem(lambda: NOW_MS * 1_000_000))
    node = Node(fs=disk)
    node.manager.startup()
    node.append(ONE, "a1")
    node.append(TWO, "b1")
    node.manager.shutdown()
    disk.fails = "/d1/t-0"
    node.start()
    node.manager.startup()
    assert (node.manager.get_log(ONE), node.manager.live_log_dirs) == (None, ("/d2",))
    assert not node.manager.is_log_dir_online("d1")
    with pytest.raises(LogDirNotFoundError):
        node.manager.is_log_dir_online("d3")
    kept = node.manager.get_log(TWO)
    assert kept is not None
    assert read_all(kept) == {0: "b1"}
    with pytest.raises(KafkaStorageError, match="offline"):
        node.manager.get_or_create_log(ONE)
    node.append(TopicPartition("new", 0), "c1")
    node.manager.shutdown()
    assert node.fs.exists("d2/.kafka_cleanshutdown")
    assert not node.fs.exists("d1/.kafka_cleanshutdown"), "d1 was not shut down properly"


def test_without_any_directory_left_there_is_no_start() -> None:
    disk = Failing(MemoryFileSystem(lambda: NOW_MS * 1_000_000))
    disk.make_directory("d1")
    disk.fails = "/d1"
    with pytest.raises(KafkaStorageError, match="No log directory is left"):
        Node(fs=disk, dirs=("d1",)).manager.startup()


def test_tasks_of_a_manager_run_in_threads_of_its_own(tmp_path: Path) -> None:
    manager = LogManager(
        PosixFileSystem(), [str(tmp_path / "d")], overrides(["log.initial.task.delay.ms=1", "segment.bytes=1048576"])
    )
    manager.startup()
    log = manager.get_or_create_log(ONE, is_new=True)
    log.append_as_leader(batch("a1"), 0)
    log.roll()  # flushed by a thread
    manager.shutdown()
    assert log.recovery_point == 1
    assert (tmp_path / "d/recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"
