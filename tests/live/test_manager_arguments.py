"""Calls of a manager and its logs with invalid arguments, or after a log's deletion: clear errors, and no change."""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.common.errors import (
    ConfigError,
    CorruptRecordError,
    IllegalArgumentError,
    IllegalStateError,
    KafkaStorageError,
    NotFoundError,
    RequestError,
)
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import FetchIsolation, Log
from cordwood.live.log_manager import LogManager
from tests.live.live_logs import batch, read_all
from tests.live.nodes import ONE, Node


@pytest.fixture
def node() -> Node:
    made = Node("t:retention.ms=-1", dirs=("d1", "d2"))
    made.manager.startup()
    return made


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        (("t", 0), TypeError),
        ("t-0", TypeError),
        (TopicPartition("t", "0"), TypeError),  # type: ignore[arg-type]
        (TopicPartition("t", True), TypeError),
        (TopicPartition("t", -1), ValueError),
        (TopicPartition("t", 2**31), ValueError),
    ],
)
def test_what_is_no_partition_gets_no_log(node: Node, partition: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition"):
        node.manager.get_or_create_log(partition, is_new=True)
    if error is TypeError:
        for call in (node.manager.get_log, node.manager.async_delete):
            with pytest.raises(TypeError, match="partition"):
                call(partition)
    assert node.manager.all_logs == ()
    node.manager.shutdown()


def test_a_manager_that_does_not_run_says_so() -> None:
    node = Node(dirs=("d1",))
    other = TopicPartition("t", 1)
    calls = [lambda: node.manager.get_or_create_log(other, is_new=True), lambda: node.manager.async_delete(ONE)]
    for call in calls:
        with pytest.raises(IllegalStateError, match="does not run: call startup"):
            call()
    node.manager.startup()
    node.append(ONE, "a0")
    node.manager.shutdown()
    for call in calls:
        with pytest.raises(IllegalStateError, match="does not run"):
            call()


@pytest.mark.parametrize("offset", [-2, 2**70, None, "x", 1.5])
def test_a_log_does_not_begin_anew_at_what_is_no_offset(node: Node, offset: Any) -> None:
    log = node.append(ONE, "a0")
    log.roll()
    before = len(log.log_segments)
    with pytest.raises((TypeError, ValueError)):
        log.truncate_fully_and_start_at(offset)
    assert (len(log.log_segments), read_all(log)) == (before, {0: "a0"})


def test_offsets_are_whole_numbers_and_isolations_are_isolations(node: Node) -> None:
    log = node.append(ONE, "a0", "a1")
    calls = [
        lambda: log.truncate_to(1.5),  # type: ignore[arg-type]
        lambda: log.delete_records(1.5),  # type: ignore[arg-type]
        lambda: log.update_high_watermark("x"),  # type: ignore[arg-type]
        lambda: log.read(0, 10, "txn_committed"),  # type: ignore[arg-type]
        lambda: log.read(0.5, 10),  # type: ignore[arg-type]
        lambda: list(log.records("0")),  # type: ignore[arg-type]
        lambda: log.get(None),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(TypeError, match=" is "):
            call()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 2, 2)


def test_a_log_that_moves_keeps_its_topic_id_and_its_name(node: Node) -> None:
    topic_id = uuid.uuid4()
    log = node.manager.get_or_create_log(ONE, is_new=True, topic_id=topic_id)
    log.append({"a": "1"})
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    moved = node.manager.move_partition(ONE, target)
    assert (moved.topic_id, moved.name) == (topic_id, "t-0")
    node.manager.shutdown()
    node.start()
    node.manager.startup()
    assert node.manager.logs[ONE].topic_id == topic_id


def test_a_future_log_of_another_topic_of_the_same_name_is_dropped(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True, topic_id=uuid.uuid4())
    log.append({"a": "1"})
    (target,) = set(node.manager.live_log_dirs) - {log.parent_directory}
    node.manager.maybe_update_preferred_log_dir(ONE, target)
    node.manager.get_or_create_log(ONE, is_new=True, is_future=True, topic_id=uuid.uuid4())
    moved = node.manager.move_partition(ONE, target)
    assert moved.topic_id == log.topic_id and [one.value for one in moved.records()] == [b"1"]


def deleted(node: Node) -> None:
    node.manager.async_delete(ONE)


def moved(node: Node) -> None:
    home = node.manager.logs[ONE].parent_directory
    (target,) = set(node.manager.live_log_dirs) - {home}
    node.manager.move_partition(ONE, target)


def shut_down(node: Node) -> None:
    node.manager.shutdown()


@pytest.mark.parametrize("goes", [deleted, moved, shut_down])
def test_a_log_that_is_gone_takes_no_appends_and_who_follows_it_is_told(node: Node, goes: Any) -> None:
    log = node.append(ONE, "a0")
    ended: list[Exception] = []

    def follow() -> None:
        try:
            for _ in log.records(follow=True):
                pass
        except KafkaStorageError as error:
            ended.append(error)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    goes(node)
    with pytest.raises(KafkaStorageError):
        log.append({"b": "1"})
    reader.join(30)
    assert len(ended) == 1
    assert node.manager.failures.failures == ()


def test_records_whose_checksum_is_wrong_are_not_given_out(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True)
    log.append({"key": "valueAAAA"})
    with node.fs.open_for_update(f"{log.directory}/{0:020}.log") as file:
        data = file.read(0, 1000)
        file.write(data.index(b"AAAA"), b"ZZZZ")
    with pytest.raises(CorruptRecordError):
        list(log.records())


def test_a_directory_of_no_broker_has_all_that_was_acknowledged_after_a_crash(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True)
    for number in range(5):
        log.append({"k": str(number)})
    log.flush(force_active_segment=True)
    again = Node(fs=node.fs.crash(lambda change: change.parts))  # type: ignore[attr-defined]
    again.manager.startup()
    found = again.manager.logs[ONE]
    assert found.high_watermark == 5 and len(list(found.records())) == 5


# ---- configs ---------------------------------------------------------------------------------------------------------


def test_configs_of_a_topic_that_are_none_are_refused_and_nothing_changes(node: Node) -> None:
    node.manager.update_topic_config("t", {"cleanup.policy": "compact"})
    log = node.append(ONE, "a0")
    with pytest.raises(ConfigError, match=r"Did you mean cleanup\.policy"):
        node.manager.update_topic_config("t", {"cleanup.polcy": "compact"})
    with pytest.raises(ConfigError):
        node.manager.update_topic_config("t", {"log.retention.hours": "1"})
    with pytest.raises(TypeError, match="texts"):
        node.manager.update_topic_config("t", {"retention.ms": 1.5})  # type: ignore[dict-item]
    assert log.config.compact and not log.config.delete


def test_an_update_wins_over_what_the_manager_was_given(node: Node) -> None:
    node.manager.update_topic_config("t", {"retention.ms": 5})
    assert node.append(ONE, "a0").config.retention_ms == 5
    node.manager.update_topic_config("t", {})
    assert node.manager.logs[ONE].config.retention_ms == -1


def test_updates_of_several_topics_at_once_all_count(node: Node) -> None:
    topics = [f"topic{number}" for number in range(16)]
    begin = threading.Barrier(len(topics))

    def update(topic: str) -> None:
        begin.wait()
        for value in range(20):
            node.manager.update_topic_config(topic, {"retention.ms": str(value)})

    threads = [threading.Thread(target=update, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {node.manager.topic_config(topic)["retention.ms"].value for topic in topics} == {19}


def test_layers_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="overrides"):
        LogManager(PosixFileSystem(), ["d"], ["a=b"])  # type: ignore[list-item]


# ---- Files of a manager, as other tools read them --------------------------------------------------------------------


def test_nothing_is_found_in_a_log_that_a_follower_got_in_one_piece(tmp_path: Any) -> None:
    homes = [str(tmp_path / "d1"), str(tmp_path / "d2")]
    with LogManager(PosixFileSystem(), homes) as manager:
        log = manager.get_or_create_log(ONE, is_new=True)
        with contextlib.suppress(KeyError), log.transaction(1) as transaction:
            transaction.append({"a": "1"})
            raise KeyError
        log.append([(f"p{number}", "x") for number in range(10)])
        with log.transaction(2) as transaction:
            transaction.append({"b": "1"})
        (target,) = set(homes) - {log.parent_directory}
        moved_log: Log = manager.move_partition(ONE, target)
        (entry,) = moved_log.read(0, 10_000, FetchIsolation.TXN_COMMITTED).aborted or ()
        assert entry.last_stable_offset == 12, "where the next transaction begins, as all of it was one append"
    assert cordwood.check(moved_log.directory) == []


# ---- directories -----------------------------------------------------------------------------------------------------


def test_directories_that_are_none_are_refused_before_anything_is_locked(tmp_path: Path) -> None:
    fs, home = PosixFileSystem(), tmp_path / "d"
    for none in ([], [""]):
        with pytest.raises(ValueError, match="at least one directory"):
            LogManager(fs, none)
    with pytest.raises(IllegalStateError, match="Duplicate log directory"):
        LogManager(fs, [home, home]).startup()
    with LogManager(fs, [home]) as manager:
        partition = manager.get_or_create_log(ONE, is_new=True).directory
    before = sorted(path.name for path in Path(partition).iterdir())
    with pytest.raises(RequestError, match=f"is a partition's directory. Give the log directory .* {home}$"):
        LogManager(fs, [partition]).startup()
    assert sorted(path.name for path in Path(partition).iterdir()) == before


@pytest.mark.parametrize("call", [cordwood.ls, cordwood.plan, cordwood.check, cordwood.open_log])
def test_an_empty_path_is_not_a_directory(call: Any) -> None:
    with pytest.raises(NotFoundError, match="the path is empty"):
        call("")


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.append_as_leader(batch("a"), 2**31),
        lambda log: log.append_as_leader(batch("a"), 1.5),
        lambda log: log.assign_epoch_start_offset(2**40, 0),
        lambda log: log.assign_epoch_start_offset(True, 0),
        lambda log: log.maybe_increment_log_start_offset(1.5),
        lambda log: log.maybe_increment_log_start_offset(True),
        lambda log: log.maybe_increment_high_watermark(1.5),
        lambda log: log.fetch_offset_by_timestamp(1.5),
        lambda log: log.truncate_fully_and_start_at(5, 10),
        lambda log: log.assign_topic_id("abc"),
    ],
)
def test_what_no_number_or_id_of_a_log_can_be_is_refused_and_changes_nothing(node: Node, call: Any) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True)
    log.append({"a": "1", "b": "2"})
    with pytest.raises((TypeError, ValueError)):
        call(log)
    log.append({"c": "3"})
    assert (log.log_start_offset, len(list(log.records()))) == (0, 3)
    node.manager.shutdown()


def test_an_append_that_would_end_above_the_largest_offset_is_refused(node: Node) -> None:
    log = node.manager.get_or_create_log(ONE, is_new=True)
    log.truncate_fully_and_start_at(2**63 - 1)
    with pytest.raises(IllegalArgumentError):
        log.append({"a": "1"})
    node.manager.shutdown()
