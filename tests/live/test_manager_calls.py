"""The calls of a manager about topic ids, places, future and stray logs, deletions, configs."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable

import pytest

from cordwood.common.config import overrides
from cordwood.common.errors import IllegalStateError, InconsistentTopicIdError, KafkaStorageError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.live.log import FetchIsolation
from cordwood.storage.formats import properties
from cordwood.storage.log.files import read_file, write_file
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.knobs import scaled
from tests.live.cleaning import begin_abort
from tests.live.live_logs import NOW_MS, batch
from tests.live.nodes import ONE, TWO, Node
from tests.storage.index_twins import all_keys, index_all, plain_history
from tests.tables.source.random_logs import PARTITIONS, random_directory

ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
DIRECTORY_IDS = {"d1": uuid.UUID(int=11), "d2": uuid.UUID(int=12)}


@pytest.fixture
def node() -> Node:
    made = Node()
    made.manager.startup()
    return made


def with_directory_ids() -> Node:
    """A manager on directories of a KRaft broker."""
    made = Node()
    for name, directory_id in DIRECTORY_IDS.items():
        made.fs.make_directory(name)
        text = f"version=1\nnode.id=1\ncluster.id=c\ndirectory.id={properties.encode_id(directory_id)}\n"
        write_file(made.fs, f"{name}/meta.properties", text.encode())
    made.manager.startup()
    return made


# ---- topic ids -------------------------------------------------------------------------------------------------------


def test_the_topic_id_of_a_new_log_is_in_its_file_as_a_broker_writes_it(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True, topic_id=ID)
    assert log.topic_id == ID
    assert read_file(node.fs, f"{log.directory}/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    assert node.manager.get_or_create_log(ONE, topic_id=ID).topic_id == ID


def test_a_log_of_another_topic_of_the_same_name_is_refused(node: Node) -> None:
    node.manager.get_or_create_log(ONE, is_new=True, topic_id=ID)
    with pytest.raises(InconsistentTopicIdError):
        node.manager.get_or_create_log(ONE, topic_id=OTHER_ID)
    log = node.manager.get_log(ONE)
    assert log is not None
    with pytest.raises(InconsistentTopicIdError, match="AAAAAAAAAAAAAAAAAAAAAg"):
        log.assign_topic_id(OTHER_ID)


def test_a_log_without_an_id_gets_one_when_it_is_asked_for(node: Node) -> None:
    assert node.append(ONE, "a1").topic_id is None
    log = node.manager.get_or_create_log(ONE, topic_id=ID)
    assert log.topic_id == ID and node.fs.exists(f"{log.directory}/partition.metadata")


class NoMetadata(WrappedFileSystem):
    """A disk that fails to write `partition.metadata`."""

    def rename(self, source: str, target: str) -> None:
        if target.endswith("partition.metadata"):
            raise OSError(errno.EIO, "the disk fails", target)
        super().rename(source, target)


def test_an_id_that_cannot_be_written_takes_the_directory_offline() -> None:
    node = Node(fs=NoMetadata(MemoryFileSystem(lambda: NOW_MS)))
    node.manager.startup()
    with pytest.raises(KafkaStorageError):
        node.manager.get_or_create_log(ONE, is_new=True, topic_id=ID)
    assert node.manager.live_log_dirs == ("/d2",)


# ---- places ----------------------------------------------------------------------------------------------------------


def test_a_new_log_goes_where_it_is_assigned_or_preferred_or_where_there_are_fewest() -> None:
    node = with_directory_ids()
    manager = node.manager
    assert {path: manager.directory_id(path) for path in node.dirs} == DIRECTORY_IDS
    for number in range(3):
        log = manager.get_or_create_log(
            TopicPartition("t", number), is_new=True, target_directory_id=DIRECTORY_IDS["d2"]
        )
        assert log.parent_directory == "/d2"
    preferred = TopicPartition("t", 3)
    manager.maybe_update_preferred_log_dir(preferred, "d2")
    assert manager.get_or_create_log(preferred, is_new=True).parent_directory == "/d2"
    assert manager.get_or_create_log(TopicPartition("t", 4), is_new=True).parent_directory == "/d1"
    unknown = manager.get_or_create_log(TopicPartition("t", 5), is_new=True, target_directory_id=uuid.UUID(int=99))
    assert unknown.parent_directory == "/d1"


def test_cordoned_directories_get_no_new_logs_but_when_all_are() -> None:
    node = Node("cordoned.log.dirs=d1")
    node.manager.startup()
    assert {node.append(TopicPartition("t", number), "a").parent_directory for number in range(3)} == {"/d2"}
    everywhere = Node("cordoned.log.dirs=*")
    everywhere.manager.startup()
    assert everywhere.append(ONE, "a").parent_directory == "/d1"


def test_a_preferred_directory_that_is_offline_gets_no_log(node: Node) -> None:
    node.manager.maybe_update_preferred_log_dir(ONE, "d2")
    node.manager.failures.maybe_add_offline_log_dir("/d2", "it fails", OSError())
    with pytest.raises(KafkaStorageError, match="/d2 is offline"):
        node.manager.get_or_create_log(ONE, is_new=True)


def test_a_future_log_needs_a_preferred_directory_that_is_another(node: Node) -> None:
    log = node.append(ONE, "a1")
    with pytest.raises(IllegalStateError, match="without having a preferred"):
        node.manager.get_or_create_log(ONE, is_new=True, is_future=True)
    node.manager.maybe_update_preferred_log_dir(ONE, log.parent_directory)
    with pytest.raises(IllegalStateError, match="without having a preferred"):
        node.manager.get_or_create_log(ONE, is_new=True, is_future=True)


# ---- future logs -----------------------------------------------------------------------------------------------------


def begun_move(node: Node) -> None:
    """A log, and a future log with the same records."""
    log = node.append(ONE, "a0", "a1")
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    node.manager.maybe_update_preferred_log_dir(ONE, target)
    future = node.manager.get_or_create_log(ONE, is_new=True, is_future=True)
    assert future.directory.endswith("-future")
    future.append_as_follower(log.read(0, 1000, FetchIsolation.LOG_END).records, 0)


# ---- strays and deletions --------------------------------------------------------------------------------------------


def test_a_log_that_a_broker_has_set_aside_as_stray_is_not_loaded_and_stays(node: Node) -> None:
    log = node.append(ONE, "a1")
    node.append(TWO, "b1")
    node.manager.shutdown()
    path = f"{log.directory}.{'0' * 32}-stray"
    node.fs.rename(log.directory, path)
    node.start()
    node.manager.startup()
    assert node.manager.stray_logs == {ONE: path}
    assert (node.manager.get_log(ONE), set(node.manager.logs)) == (None, {TWO})
    node.pass_time(120_000)
    assert node.fs.exists(path)


def test_many_logs_are_deleted_with_their_future_logs_and_errors_reach_the_caller() -> None:
    node = Node("log.cleanup.policy=compact")
    node.manager.startup()
    begun_move(node)
    node.append(TWO, "b1")
    assert node.manager.cleaner is not None
    waiting = begin_abort(node.manager.cleaner.manager, TWO)
    failed: list[TopicPartition] = []
    missing = TopicPartition("t", 9)
    node.manager.async_delete_all([ONE, TWO, missing], on_error=lambda partition, _: failed.append(partition))
    node.manager.cleaner.manager.done_deleting([TWO])
    waiting.join()
    assert failed == [TWO]
    assert set(node.manager.all_logs) == {node.manager.get_log(TWO)}
    assert ONE not in node.offsets("d1/recovery-point-offset-checkpoint")


# ---- configs, epochs, high watermarks --------------------------------------------------------------------------------


class Interrupted(WrappedFileSystem):
    """Something happens while the directory of a partition is made."""

    happens: Callable[[], object] = staticmethod(lambda: None)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        super().make_directory(path, mode=mode)
        if path.endswith("/t-0"):
            self.happens()


@pytest.mark.parametrize("what", ["topic", "all"])
def test_configs_that_change_while_a_log_is_made_reach_it(what: str) -> None:
    disk = Interrupted(MemoryFileSystem(lambda: NOW_MS * 1_000_000))
    node = Node(fs=disk)
    node.manager.startup()
    if what == "topic":
        disk.happens = lambda: node.manager.update_topic_config("t", {"segment.bytes": "2000000"})
    else:
        disk.happens = lambda: node.manager.reconfigure(overrides(["t:segment.bytes=2000000"]))
    assert node.append(ONE).config.segment_bytes == 2_000_000


def test_the_broker_epoch_is_that_with_which_all_directories_were_shut_down(node: Node) -> None:
    node.manager.shutdown(broker_epoch=17)
    node.start()
    assert node.manager.read_broker_epoch_from_clean_shutdown_files() == 17
    write_file(node.fs, "d2/.kafka_cleanshutdown", properties.encode_clean_shutdown(18))
    assert node.manager.read_broker_epoch_from_clean_shutdown_files() is None
    node.fs.unlink("d2/.kafka_cleanshutdown")
    assert node.manager.read_broker_epoch_from_clean_shutdown_files() is None


def test_after_a_start_a_brokers_high_watermark_is_what_its_checkpoint_says(node: Node) -> None:
    for path in node.dirs:
        write_file(node.fs, f"{path}/meta.properties", b"version=1\ncluster.id=x\nnode.id=1\n")
    node.append(ONE, "a0", "a1")
    log = node.append(TWO, "b0")
    log.append_as_leader(batch("b1"), 0)  # not replicated yet
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    marks = {partition: log.high_watermark for partition, log in node.manager.logs.items()}
    assert marks == {ONE: 2, TWO: 1}


# ---- failing disks ---------------------------------------------------------------------------------------------------


class Failing(WrappedFileSystem):
    """A disk that fails to write one directory's files."""

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self.fails = ""

    def rename(self, source: str, target: str) -> None:
        if self.fails and target.startswith(self.fails):
            raise OSError(errno.EIO, "the disk fails", target)
        super().rename(source, target)


def test_a_directory_that_fails_while_it_is_used_is_dropped_and_the_others_live_on() -> None:
    disk = Failing(MemoryFileSystem(lambda: NOW_MS))
    node = Node(fs=disk)
    node.manager.startup()
    first, second = node.append(ONE, "a1"), node.append(TWO, "b1")
    disk.fails = first.parent_directory
    node.manager.checkpoint_log_recovery_offsets()
    with pytest.raises(KafkaStorageError, match="already offline"):
        first.append_as_leader(batch("b1"), 0)
    assert node.manager.get_log(ONE) is first, "the thread that met the failure holds locks"
    node.pass_time(1)
    assert set(node.manager.logs) == {TWO}
    assert node.manager.live_log_dirs == (second.parent_directory,)
    node.append(TWO, "b2")
    node.manager.shutdown()


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_the_records_of_a_key_are_found_in_the_log_of_a_partition(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True)
    log.append({"a": "1", "b": "2"})
    assert [one.value for one in node.manager.get(ONE, "a")] == [b"1"]
    assert node.manager.get(TWO, "a") == []


@pytest.mark.parametrize("seed", range(scaled(6, 100)))
def test_keys_are_found_in_live_logs_that_were_cleaned_as_by_a_full_scan(seed: int) -> None:
    writer = random_directory(seed, stop=False)
    for partition in PARTITIONS:
        log = writer.log(partition)
        view = LogView(log.directory, fs=writer.fs, live=True, log_start_offset=log.log_start_offset)
        index_all(writer.fs, view)
        known = all_keys(view)
        found = [one for key in known for one in writer.manager.get(partition, key)]
        assert sorted(found, key=lambda one: one.offset) == plain_history(view, known)
    writer.manager.shutdown()
