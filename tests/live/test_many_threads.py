"""Calls of a live log from several threads at once: no acknowledged record is lost or duplicated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from cordwood.cleaning.rules.retention import RetentionRule
from cordwood.common.config import overrides
from cordwood.common.errors import InvalidTxnStateError
from cordwood.common.types import TopicPartition
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.moves import Moves
from cordwood.live.scheduler import SteppedScheduler
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import Move
from tests.live.live_logs import NOW_MS, World, read_all

pytestmark = pytest.mark.more

PARTITION = TopicPartition("t", 0)


def all_at_once(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


@pytest.fixture
def manager() -> LogManager:
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    scheduler = SteppedScheduler(lambda: NOW_MS)
    manager = LogManager(fs, ["a", "b"], overrides([]), clock=lambda: NOW_MS, scheduler=scheduler)
    manager.startup()
    manager.maybe_update_preferred_log_dir(PARTITION, "a")
    return manager


def test_all_that_threads_append_to_one_transaction_is_written_once() -> None:
    log = World().load()

    def append(number: int) -> None:
        for at in range(50):
            transaction.append({f"{number}-{at}": "v"})

    with log.transaction(7) as transaction:
        all_at_once(*(lambda number=number: append(number) for number in range(4)))
    expected = {f"{number}-{at}".encode() for number in range(4) for at in range(50)}
    found = [record.key for record in log.records()]
    assert set(found) == expected and len(found) == len(expected)


def test_an_append_beside_the_end_of_its_transaction_belongs_to_it_or_is_refused() -> None:
    log = World().load()
    with log.transaction(7) as transaction:
        transaction.append({"a": "1"})
    with pytest.raises(InvalidTxnStateError):
        transaction.append({"a": "2"})
    assert log.open_transactions() == []


def test_what_an_append_has_shown_stays_to_be_seen_when_a_slower_one_ends() -> None:
    log = World().load()
    held, go_on = threading.Event(), threading.Event()
    real = log.commit_all

    def slow() -> None:
        if threading.current_thread().name == "slow":
            held.set()
            go_on.wait()
        real()

    with mock.patch.object(log, "commit_all", slow):
        # Several records: a single one is committed under the lock that it is appended under.
        first = threading.Thread(target=lambda: log.append({"a": "1", "b": "2"}), name="slow")
        first.start()
        held.wait()
        log.append({"a": "3"})
        assert values(log) == [b"1", b"2", b"3"]
        go_on.set()
        first.join()
    assert values(log) == [b"1", b"2", b"3"]


def test_a_flush_beside_a_truncation_makes_what_came_since_durable() -> None:
    fs = MemoryFileSystem(lambda: NOW_MS * 1_000_000)
    log = World(fs).load()
    for number in range(10):
        log.append({"a": f"old{number}"})
    fs.sync_directory("logs")
    segment, reached, go_on = log.active_segment, threading.Event(), threading.Event()
    real = segment.flush

    def slow() -> bool:
        found = real()
        reached.set()
        go_on.wait()
        return found

    with mock.patch.object(segment, "flush", slow):
        flushing = threading.Thread(target=log.flush)
        flushing.start()
        reached.wait()
        log.truncate_to(5)
        for number in range(5, 10):
            log.append({"a": f"new{number}"})
        go_on.set()
        flushing.join()
    log.flush()
    after = World(fs.crash(lambda one: one.parts if isinstance(one, Move) else 0))
    loaded = after.load(clean_shutdown=False, recovery_point=log.recovery_point)
    assert list(read_all(loaded).values()) == [f"old{at}" for at in range(5)] + [f"new{at}" for at in range(5, 10)]


def test_two_calls_of_retention_at_once_delete_no_more_than_one() -> None:
    log = World().load({"internal.segment.bytes": "1000", "retention.bytes": "10000", "cleanup.policy": "delete"})
    for _ in range(40):
        log.append({"a": "x" * 430})
    real, both = RetentionRule.deletable, threading.Barrier(2)

    def deletable(rule: RetentionRule, *facts: Any) -> Sequence[Any]:
        found = real(rule, *facts)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # both have chosen segments, if they can
        return found

    with mock.patch.object(RetentionRule, "deletable", deletable):
        all_at_once(log.delete_old_segments, log.delete_old_segments)
    assert 9_000 < log.size_bytes <= 11_000


def test_a_move_that_goes_on_after_a_truncation_takes_nothing_that_was_cut_off(manager: LogManager) -> None:
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for number in range(10):
        log.append({"k": f"old{number}"})
    with mock.patch.object(Moves, "_replace", side_effect=RuntimeError("interrupted")), pytest.raises(RuntimeError):
        manager.move_partition(PARTITION, "b")
    manager.truncate_to({PARTITION: 5})
    for number in range(8):
        log.append({"k": f"new{number}"})
    expected = values(log)
    assert values(manager.move_partition(PARTITION, "b")) == expected
    manager.shutdown()


def test_a_truncation_in_the_middle_of_a_move_is_one_of_both_logs(manager: LogManager) -> None:
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for number in range(10):
        log.append({"k": f"old{number}"})
    real, has_been = log.read, [False]

    def read(*arguments: object) -> object:
        data = real(*arguments)  # type: ignore[arg-type]
        if not has_been[0]:
            has_been[0] = True
            log.truncate_to(3)
            log.append({"k": "new"})
        return data

    with mock.patch.object(log, "read", read):
        moved = manager.move_partition(PARTITION, "b")
    assert values(moved) == [b"old0", b"old1", b"old2", b"new"]
    manager.shutdown()


def test_segments_that_wait_for_their_removal_go_under_the_new_name_of_the_directory() -> None:
    world = World()
    log = world.load()
    log.append({"k": "v"})
    log.roll()
    log.append({"k": "w"})
    log.truncate_to(0)
    log.rename_directory("logs/u-0")

    def waiting() -> list[str]:
        return [one.name for one in world.fs.list("logs/u-0") if one.name.endswith(".deleted")]

    assert waiting()
    world.pass_time(log.config.file_delete_delay_ms)
    assert waiting() == []
