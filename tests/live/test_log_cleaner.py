"""Cleaner threads over live logs: their output, aborts, and failed cleans."""

from __future__ import annotations

import ctypes
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cordwood.common.config import BrokerConfig, Source, SourceKind, overrides, resolve, resolve_broker
from cordwood.common.errors import ConfigError, IllegalStateError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import File, LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.live.clean import CleanRunner, LiveClean, run_here
from cordwood.live.cleaner_manager import Claim, LogCleanerManager, Paused
from cordwood.live.log import Log
from cordwood.live.log_cleaner import CleanerThread, LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.log_to_clean import log_to_clean
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import WORK_FOLDER
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.tasks.engines import Where
from cordwood.testing.memory import MemoryFileSystem
from tests.crashes import Cuts, durable
from tests.kafka_tools import Oracle
from tests.live.cleaner_nodes import COMPACT, PARTITION, Node, damage, layers, newest, repair, send
from tests.live.cleaning import clean_log
from tests.live.live_logs import NOW_MS, World, batch, read_all
from tests.live.nodes import until


class Slow(WrappedFileSystem):
    """Blocks each read of a log by a clean until the test releases it."""

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self.reading, self.go_on = threading.Event(), threading.Event()

    def open(self, path: str) -> File:
        if threading.current_thread().name.startswith("kafka-log-cleaner") and path.endswith(".log"):
            self.reading.set()
            self.go_on.wait(60)
        return super().open(path)


def test_a_compacted_log_keeps_the_last_value_of_each_key_and_goes_on() -> None:
    node = Node()
    node.fill()
    assert len(node.log.log_segments) > 5
    node.pass_time()
    found = read_all(node.log)
    assert len(found) < 10 and newest(node.log) == {"a": "a19", "b": "b19"}
    assert node.checkpoint() == node.log.active_segment.base_offset
    (stats,) = node.cleaner.last_stats
    assert stats.messages_read > stats.messages_written and stats.end_offset == node.checkpoint()
    node.append("c1")
    assert newest(node.log) == {"a": "a19", "b": "b19", "c": "c1"}
    node.manager.shutdown()
    again = Node(fs=node.fs)
    assert newest(again.log) == {"a": "a19", "b": "b19", "c": "c1"}


def test_each_clean_is_told_with_what_it_went_over() -> None:
    node, told = Node(), list[tuple[float, int, int]]()
    node.cleaner.on_clean = lambda found, stats: told.append(
        (found.cleanable_ratio, stats.end_offset, stats.messages_written)
    )
    for _ in range(3):
        node.fill()
        node.pass_time()
    ratios, ends, written = zip(*told, strict=True)
    assert len(told) == 3 and ratios[0] == 1 > ratios[1] > 0 and ends[-1] == node.checkpoint() and set(written) == {2}
    assert list(ends) == sorted(ends)


def test_a_log_that_is_not_dirty_enough_or_not_compacted_is_left() -> None:
    for configs in (layers(**{"min.cleanable.dirty.ratio": "1.0"}), layers(**{"cleanup.policy": "delete"})):
        node = Node(*configs)
        node.fill()
        node.pass_time()
        assert len(read_all(node.log)) == 40


def test_old_segments_of_a_compacted_log_are_deleted_by_the_cleaner() -> None:
    node = Node(*layers(**{"cleanup.policy": "compact,delete", "retention.ms": "1000"}))
    node.fill()
    node.pass_time()
    node.pass_time(60_000)
    assert node.log.log_start_offset > 0 and len(node.log.log_segments) == 1
    assert node.cleaner.manager.cleaning_state(PARTITION) is None


def test_a_log_that_moves_takes_its_checkpoint_along() -> None:
    node = Node(dirs=("d1", "d2"))
    node.fill()
    node.pass_time()
    checkpoint = node.checkpoint()
    (target,) = set(node.manager.live_log_dirs) - {node.log.parent_directory}
    moved = node.manager.move_partition(PARTITION, target)
    assert node.cleaner.manager.all_cleaner_checkpoints() == {PARTITION: checkpoint}
    assert checkpoints.decode(read_file(node.fs, f"{target}/cleaner-offset-checkpoint")) == {PARTITION: checkpoint}
    assert newest(moved) == {"a": "a19", "b": "b19"}
    assert node.cleaner.manager.cleaning_state(PARTITION) is None


def test_nothing_is_cleaned_without_log_cleaner_enable() -> None:
    node = Node(*layers("log.cleaner.enable=false"))
    node.fill()
    node.pass_time()
    assert node.manager.cleaner is None and len(read_all(node.log)) == 40


def test_a_truncation_below_the_active_segment_takes_the_checkpoint_back() -> None:
    node = Node()
    node.fill()
    node.pass_time()
    node.manager.truncate_to({PARTITION: 3})
    assert node.checkpoint() == node.log.active_segment.base_offset <= 3
    assert node.cleaner.manager.cleaning_state(PARTITION) is None


def test_a_deleted_log_leaves_the_checkpoint_file() -> None:
    node = Node()
    node.fill()
    node.pass_time()
    node.manager.async_delete(PARTITION)
    assert node.checkpoint() is None


def test_a_log_that_cannot_be_cleaned_is_left_longer_each_time_others_are_cleaned() -> None:
    node = Node()
    node.fill()
    other = node.manager.get_or_create_log(TopicPartition("t", 1), is_new=True)
    for number in range(20):
        other.append_as_leader(batch(f"a{number}"), 0)
    other.update_high_watermark(other.log_end_offset)
    byte = damage(node)
    node.pass_time()
    assert len(read_all(other)) < 10
    marked = node.cleaner.manager.uncleanable(PARTITION)
    assert marked is not None and "offset 0" in marked.reason and marked.failures == 1
    of = f'logDirectory="{node.manager.live_log_dirs[0]}"'
    metrics: dict[str, Any] = {str(name): value for name, value in node.cleaner.metrics().items()}
    assert metrics[f"kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count,{of}"] == 1
    assert metrics[f"kafka.log:type=LogCleanerManager,name=uncleanable-bytes,{of}"] > 500
    assert metrics["kafka.log:type=LogCleaner,name=DeadThreadCount"] == 0
    node.pass_time()
    assert node.cleaner.manager.uncleanable(PARTITION) == marked, "too early"
    node.pass_time(60_000)
    marked = node.cleaner.manager.uncleanable(PARTITION)
    assert marked is not None and marked.failures == 2
    repair(node, byte)
    node.pass_time(60_000)
    assert len(read_all(node.log)) == 40, "it waits for longer now"
    node.pass_time(60_000)
    assert node.cleaner.manager.uncleanable(PARTITION) is None and len(read_all(node.log)) < 10


def test_other_configs_are_a_reason_to_try_again_at_once() -> None:
    node = Node()
    node.fill()
    byte = damage(node)
    node.pass_time()
    repair(node, byte)
    node.manager.update_topic_config("t", COMPACT | {"internal.segment.bytes": "400"})
    node.pass_time()
    assert len(read_all(node.log)) < 10


# ---- threads ---------------------------------------------------------------------------------------------------------


#: For a manager whose cleaner checks its logs all the time.
QUICK = layers("log.cleaner.backoff.ms=5", **{"file.delete.delay.ms": "0"})


def broker_config(*configs: str, check: bool = True) -> BrokerConfig:
    """A broker's configs; without `check` also values that Kafka would refuse as too small."""
    if check:
        return resolve_broker(overrides(configs))
    values = dict(resolve_broker())
    for config in configs:
        name, _, text = config.partition("=")
        values[name] = replace(values[name], value=int(text), source=Source(SourceKind.OVERRIDE))
    return BrokerConfig(values)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    (tmp_path / "logs").mkdir()
    running = LogManager(PosixFileSystem(), [str(tmp_path / "logs")], overrides([*QUICK, "log.cleaner.threads=2"]))
    running.startup()
    yield running
    running.shutdown()


def test_threads_clean_and_no_reader_misses_a_last_value_meanwhile(manager: LogManager) -> None:
    manager.update_topic_config("t", COMPACT | {"internal.segment.bytes": "10000", "file.delete.delay.ms": "0"})
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for key in "bcdef":
        send(log, f"{key}0")
    failed: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                found = newest(log)
                assert {key: found.get(key) for key in "bcdef"} == {key: f"{key}0" for key in "bcdef"}
        except BaseException as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    cleaner = manager.cleaner
    assert cleaner is not None
    end = time.monotonic() + 2
    for number in itertools.count():
        send(log, f"a{number}")
        if time.monotonic() > end:
            break
    in_time = cleaner.await_cleaned(PARTITION, log.log_segments[0].base_offset + 1, 60_000)
    ended.set()
    for reader in readers:
        reader.join()
    assert in_time and not failed, failed
    assert newest(log)["a"] == f"a{number}"
    assert manager.failures.failures == () and cleaner.restarts == 0 and cleaner.dead_thread_count == 0


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[LogManager, Log, Slow]]:
    """A manager, a log whose clean has begun, and the file system that holds it up."""
    (tmp_path / "logs").mkdir()
    fs = Slow(PosixFileSystem())
    manager = LogManager(fs, [str(tmp_path / "logs")], overrides(QUICK))
    manager.startup()
    try:
        log = manager.get_or_create_log(PARTITION, is_new=True)
        for number in range(20):
            send(log, f"a{number}")
        assert fs.reading.wait(60)
        yield manager, log, fs
    finally:
        fs.go_on.set()
        manager.shutdown()


def cleaner_of(manager: LogManager) -> LogCleaner:
    assert manager.cleaner is not None
    return manager.cleaner


def test_an_abort_returns_while_the_clean_still_reads_and_the_log_stays_as_it_was(
    slow: tuple[LogManager, Log, Slow],
) -> None:
    # case 21, case 64
    manager, log, fs = slow
    cleaner = cleaner_of(manager)
    before = {info.name for info in fs.list(log.directory)}
    cleaner.abort_and_pause_cleaning(PARTITION)
    assert not fs.go_on.is_set(), "nobody has told the clean to go on"
    assert cleaner.manager.cleaning_state(PARTITION) == Paused(1)
    assert len(read_all(log)) == 20 and cleaner.manager.all_cleaner_checkpoints() == {}
    fs.go_on.set()
    until(lambda: {info.name for info in fs.list(log.directory)} == before - {".cordwood"})
    assert len(read_all(log)) == 20 and cleaner.manager.all_cleaner_checkpoints() == {}
    assert cleaner.manager.uncleanable(PARTITION) is None
    cleaner.resume_cleaning([PARTITION])
    assert cleaner.await_cleaned(PARTITION, log.active_segment.base_offset, 60_000)
    assert newest(log) == {"a": "a19"}
    with pytest.raises(IllegalStateError, match="not paused"):
        cleaner.resume_cleaning([PARTITION])


class Aborting(WrappedFileSystem):
    """Calls `abort` when a file of the partition is opened for the n-th time."""

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self.opens_left = 0
        self.abort: Callable[[], object] = lambda: None

    def open(self, path: str) -> File:
        self.opens_left -= "/t-0/" in path
        if self.opens_left == 0 and "/t-0/" in path:
            self.abort()
        return super().open(path)


def test_a_clean_that_is_aborted_at_whichever_file_is_an_info_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for count in range(1, 100):
        disk = Aborting(MemoryFileSystem(lambda: NOW_MS * 1_000_000))
        node = Node(fs=disk)
        node.fill(5)
        disk.opens_left, disk.abort = count, partial(node.cleaner.abort_cleaning, PARTITION)
        node.pass_time()
        if disk.opens_left > 0:
            break
    assert count > 5 and disk.opens_left > 0, "the clean was aborted at each of its files"
    assert caplog.text.count("the clean of t-0 was aborted") == count - 1
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_clean_that_begins_after_its_abort_leaves_the_folder_of_the_next_one() -> None:
    node = Node()
    node.fill()

    def claimed() -> tuple[Claim, LiveClean]:
        claim = node.cleaner.manager.claim_filthiest_compacted_log(node.now_ms)
        assert claim is not None
        return claim, LiveClean(node.fs, claim.found, node.now_ms, claim.check)

    _, slow = claimed()
    node.cleaner.abort_cleaning(PARTITION)
    claim, clean = claimed()
    with clean:
        outcome = run_here(clean.task, clean.check)
        with slow:
            pass
        clean.finish(outcome, claim.changing)
    assert newest(node.log) == {"a": "a19", "b": "b19"} and len(read_all(node.log)) < 40
    assert node.manager.failures.failures == ()
    assert not node.fs.exists(f"{node.log.directory}/{WORK_FOLDER}")


def test_folders_of_killed_cleans_are_removed_when_the_log_is_loaded_others_stay() -> None:
    node = Node()
    node.fill(1)
    work = f"{node.log.directory}/{WORK_FOLDER}"
    node.manager.shutdown()
    node.fs.make_directory(work)
    for name in ("0123456789abcdef0123456789abcdef", "progress", "index"):
        node.fs.make_directory(f"{work}/{name}")
        node.fs.create(f"{work}/{name}/file").close()
    again = Node(fs=node.fs)
    assert [info.name for info in again.fs.list(work)] == ["index"]
    again.fill()
    again.pass_time()
    assert len(read_all(again.log)) < 40 and again.fs.exists(f"{work}/index/file")


def test_a_log_can_be_deleted_and_made_anew_while_a_clean_of_it_still_reads(
    slow: tuple[LogManager, Log, Slow],
) -> None:
    manager, _, fs = slow
    manager.async_delete(PARTITION)
    log = manager.get_or_create_log(PARTITION, is_new=True)
    send(log, "a0", "b0", "c0")
    fs.go_on.set()
    for number in range(20):
        send(log, f"a{number}")
    assert cleaner_of(manager).await_cleaned(PARTITION, log.active_segment.base_offset, 60_000)
    assert newest(log) == {"a": "a19", "b": "b0", "c": "c0"}
    assert manager.failures.failures == () and cleaner_of(manager).restarts == 0


def test_a_reconfiguration_ends_cleans_and_their_checkpoints_stay(slow: tuple[LogManager, Log, Slow]) -> None:
    manager, log, fs = slow
    cleaner = cleaner_of(manager)
    configs = overrides(layers("log.cleaner.backoff.ms=1", **{"min.cleanable.dirty.ratio": "1"}))
    log.update_config(resolve("t", configs))  # it is not due any more
    threading.Timer(0.2, fs.go_on.set).start()
    manager.reconfigure(configs)
    # A log is in progress, too, while a thread deletes its old segments: once per millisecond here.
    until(lambda: cleaner.manager.cleaning_state(PARTITION) is None)
    assert cleaner.manager.all_cleaner_checkpoints() == {PARTITION: 0}, "where the clean began"
    assert len(read_all(log)) == 20 and cleaner.manager.uncleanable(PARTITION) is None


def names_of_threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if "cleaner" in one.name)


@pytest.mark.parametrize("error", [MemoryError, ValueError, KeyboardInterrupt, SystemExit])
def test_a_thread_goes_on_whatever_a_round_raises(error: type[BaseException]) -> None:
    world, rounds = World(), itertools.count()

    def logs() -> dict[TopicPartition, Log]:
        if next(rounds) < 3:
            raise error
        return {}

    cleaner = LogCleaner(world.fs, broker_config("log.cleaner.backoff.ms=1"), ["logs"], logs, world.failures)
    cleaner.startup()
    try:
        until(lambda: next(rounds) > 20)
        assert cleaner.restarts >= 1 and cleaner.dead_thread_count == 0
        assert shown(cleaner)["cordwood.log:type=LogCleaner,name=thread-restart-count"] == cleaner.restarts
    finally:
        cleaner.shutdown()


def test_an_interrupted_thread_goes_on_and_a_dead_one_is_counted_and_replaced() -> None:
    # case 66
    world = World()
    config = broker_config("log.cleaner.backoff.ms=1", "log.cleaner.threads=2")
    cleaner = LogCleaner(world.fs, config, ["logs"], dict, world.failures)
    cleaner.startup()
    try:
        for thread in threading.enumerate():
            if isinstance(thread, CleanerThread):
                interrupt(thread)
        until(lambda: cleaner.restarts >= 2)
        assert cleaner.dead_thread_count == 0, "Kafka's would be dead"
        killed = CleanerThread(9, lambda _: None)
        killed.start()
        killed.join()
        cleaner._threads = (*cleaner._threads, killed)
        assert cleaner.dead_thread_count == 1
        assert shown(cleaner)["kafka.log:type=LogCleaner,name=DeadThreadCount"] == 1
        cleaner.reconfigure(config, config)
        assert cleaner.dead_thread_count == 0
        assert names_of_threads() == ["kafka-log-cleaner-thread-0", "kafka-log-cleaner-thread-1"]
    finally:
        cleaner.shutdown()


def interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread, at its current instruction."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))


def test_the_number_of_threads_may_be_halved_or_doubled_and_no_more(manager: LogManager) -> None:
    cleaner = cleaner_of(manager)
    assert set(cleaner.reconfigurable_configs) >= {"log.cleaner.threads", "log.cleaner.backoff.ms", "message.max.bytes"}
    for threads, words in ((5, "increased to more than double the current value 2"), (0, "Kafka does not start")):
        with pytest.raises(ConfigError, match=words):
            manager.reconfigure(overrides([*QUICK, f"log.cleaner.threads={threads}"]))
    of_four = LogCleaner(*world_of(World(), broker_config("log.cleaner.threads=4")))
    with pytest.raises(ConfigError, match="reduced to less than half the current value 4"):
        of_four.validate_reconfiguration(broker_config("log.cleaner.threads=1"))
    assert len(names_of_threads()) == 2 and manager.config.integer("log.cleaner.threads") == 2


def world_of(world: World, config: BrokerConfig) -> tuple[Any, ...]:
    return world.fs, config, ["logs"], dict, world.failures


def test_other_threads_take_over_after_a_change_of_the_cleaners_configs(manager: LogManager) -> None:
    before = set(threading.enumerate())
    manager.reconfigure(overrides([*QUICK, "log.cleaner.threads=2", "log.retention.ms=70000"]))
    assert names_of_threads() == [f"kafka-log-cleaner-thread-{number}" for number in range(2)]
    assert set(threading.enumerate()) <= before, "nothing that is the cleaner's has changed"
    manager.reconfigure(overrides([*QUICK, "log.cleaner.threads=4", "log.cleaner.io.max.bytes.per.second=1000000"]))
    assert names_of_threads() == [f"kafka-log-cleaner-thread-{number}" for number in range(4)]
    assert not [one for one in threading.enumerate() if one in before and "cleaner" in one.name]
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for number in range(20):
        send(log, f"a{number}")
    assert cleaner_of(manager).await_cleaned(PARTITION, log.active_segment.base_offset, 60_000)


def test_startup_again_adds_threads_and_a_reconfiguration_goes_back_to_the_number() -> None:
    config = broker_config("log.cleaner.threads=2")
    cleaner = LogCleaner(*world_of(World(), config))
    cleaner.reconfigure(config, config)
    assert names_of_threads() == [], "it was not started"
    cleaner.startup()
    cleaner.startup()
    assert names_of_threads() == [f"kafka-log-cleaner-thread-{number}" for number in range(4)]
    cleaner.reconfigure(config, config)
    assert names_of_threads() == [f"kafka-log-cleaner-thread-{number}" for number in range(2)]
    cleaner.shutdown()
    assert names_of_threads() == []
    cleaner.reconfigure(config, config)
    assert names_of_threads() == [], "it was shut down"


def test_a_cleaner_that_is_a_task_stays_one_after_a_reconfiguration() -> None:
    node = Node()
    node.manager.reconfigure(overrides(layers("log.cleaner.threads=2", "log.cleaner.io.max.bytes.per.second=1")))
    assert names_of_threads() == []
    node.fill()
    node.pass_time()
    assert len(read_all(node.log)) < 10, "and at a clock that is set by hand nothing waits for its bytes"


# ---- metrics ---------------------------------------------------------------------------------------------------------


def shown(cleaner: LogCleaner) -> dict[str, Any]:
    return {str(name): value for name, value in cleaner.metrics().items()}


def test_all_metrics_of_kafkas_cleaner_are_there_until_the_shutdown() -> None:
    node = Node(*layers("log.cleaner.threads=1", **{"max.compaction.lag.ms": "10000"}), dirs=("d1", "d2"))
    at_first = shown(node.cleaner)
    names = {
        *(f"kafka.log:type=LogCleaner,name={name}" for name in OF_THREADS),
        *(f"kafka.log:type=LogCleanerManager,name={name}" for name in ("max-dirty-percent", "time-since-last-run-ms")),
        *(
            f'kafka.log:type=LogCleanerManager,name={name},logDirectory="/{path}"'
            for name in ("uncleanable-partitions-count", "uncleanable-bytes")
            for path in ("d1", "d2")
        ),
        "kafka.utils:type=Throttler,name=cleaner-io",
        *(f"cordwood.log:type=LogCleaner,name={name}" for name in ("thread-restart-count", *OF_TRAFFIC)),
    }
    assert at_first.keys() == names
    io = at_first.pop("kafka.utils:type=Throttler,name=cleaner-io")
    assert (io.count, set(at_first.values())) == (0, {0})
    node.fill()
    dirty_bytes = sum(segment.size_bytes for segment in node.log.log_segments[:-1])
    node.pass_time(20_000)
    now = shown(node.cleaner)
    (stats,) = node.cleaner.last_stats
    of = "kafka.log:type=LogCleaner,name="
    assert now[f"{of}cleaner-recopy-percent"] == 100 * stats.bytes_written // stats.bytes_read > 0
    assert now[f"{of}max-clean-time-secs"] == int(stats.seconds)
    assert now[f"{of}max-compaction-delay-secs"] == 10
    assert stats.bytes_read == dirty_bytes and stats.key_share > 0
    ours = "cordwood.log:type=LogCleaner,name="
    read, written, new = (now[f"{ours}bytes-{name}"] for name in ("read", "written", "new"))
    # Each byte is read for its key, and to be copied is still in memory; what is written is read again for the check.
    assert read >= dirty_bytes + stats.bytes_written and new == dirty_bytes and written > stats.bytes_written
    assert now["kafka.utils:type=Throttler,name=cleaner-io"].count == read + stats.bytes_written
    assert now[f"{ours}read-per-new-byte"] == read / new and now[f"{ours}written-per-new-byte"] == written / new
    assert node.cleaner.max_over_cleaner_threads(lambda one: 1000 * one.key_share) == int(1000 * stats.key_share)
    manager = "kafka.log:type=LogCleanerManager,name="
    assert now[f"{manager}max-dirty-percent"] == 0, "of the last selection, after the clean"
    assert now[f"{manager}time-since-last-run-ms"] == 0
    node.now_ms += 1234
    assert shown(node.cleaner)[f"{manager}time-since-last-run-ms"] == 1234
    node.cleaner.shutdown()
    assert shown(node.cleaner).keys() == {"kafka.utils:type=Throttler,name=cleaner-io"}


OF_TRAFFIC = ("bytes-read", "bytes-written", "bytes-new", "read-per-new-byte", "written-per-new-byte")
OF_THREADS = (
    "max-buffer-utilization-percent",
    "cleaner-recopy-percent",
    "max-clean-time-secs",
    "max-compaction-delay-secs",
    "DeadThreadCount",
)


def test_with_a_dedupe_buffer_that_is_set_the_utilization_is_that_of_kafkas_map() -> None:
    # 100 slots, a thread's half of the buffer: of 90 keys at most.
    node = Node(*layers("log.cleaner.dedupe.buffer.size=4194304"))
    small = broker_config("log.cleaner.dedupe.buffer.size=2400", "log.cleaner.threads=1", check=False)
    node.cleaner.reconfigure(node.manager.config, small)
    for number in range(60):
        node.append(f"{chr(0x100 + number)}{number}")
    node.log.roll()
    node.pass_time()
    utilization = "kafka.log:type=LogCleaner,name=max-buffer-utilization-percent"
    assert shown(node.cleaner)[utilization] == 60


def test_a_map_that_is_too_small_for_all_keys_is_filled_again_and_again() -> None:
    node = Node(*layers("log.cleaner.dedupe.buffer.size=4194304"))
    small = broker_config("log.cleaner.dedupe.buffer.size=240", "log.cleaner.threads=1", check=False)
    node.cleaner.reconfigure(node.manager.config, small)
    for _ in range(3):
        for number in range(26):
            node.append(f"{chr(97 + number)}{number}")
    node.log.roll()
    for _ in range(20):
        node.pass_time()
    assert node.checkpoint() == node.log.active_segment.base_offset
    assert newest(node.log) == {chr(97 + number): f"{chr(97 + number)}{number}" for number in range(26)}
    assert node.cleaner.last_stats[0].key_share == 0.9


@pytest.mark.slow
def test_a_large_log_is_cleaned_on_spark_to_the_same_end(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    manager = LogManager(PosixFileSystem(), [str(tmp_path / "logs")], overrides(layers("log.cleaner.enable=false")))
    manager.startup()
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for number in range(40):
        send(log, f"a{number}", f"b{number}")
    cleaner = LogCleaner(
        PosixFileSystem(),
        manager.config,
        manager.live_log_dirs,
        lambda: {PARTITION: log},
        manager.failures,
        runner=CleanRunner(PosixFileSystem(), Where(master="local[2]"), tasks_bytes_min=0),
    )
    try:
        assert cleaner.clean_filthiest_log()
        assert newest(log) == {"a": "a39", "b": "b39"} and len(read_all(log)) < 10
        assert cleaner.manager.uncleanable(PARTITION) is None
    finally:
        cleaner.shutdown()
        manager.shutdown()


# ---- power cuts ------------------------------------------------------------------------------------------------------


CUT_CONFIG = COMPACT | {"file.delete.delay.ms": "0", "segment.index.bytes": "64", "index.interval.bytes": "0"}


def dirty_log() -> tuple[MemoryFileSystem, dict[str, str], int]:
    """A log that is flushed, its last values, and its end."""
    start = World()
    log = start.load(CUT_CONFIG)
    for number in range(6):
        log.append_as_leader(batch(f"a{number}", f"b{number}", f"{number}x"), 0)
    log.append_as_leader(batch("b"), 0)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    log.flush(force_active_segment=True)
    expected, end = newest(log), log.recovery_point
    log.close_handlers()
    assert isinstance(start.fs, MemoryFileSystem)
    return start.fs, expected, end


def clean_once(fs: LocalFileSystem) -> None:
    world = World(fs)
    log = world.load(CUT_CONFIG, recovery_point=19)
    log.update_high_watermark(log.log_end_offset)
    manager = LogCleanerManager(fs, ["logs"], lambda: {PARTITION: log}, world.failures)
    cleaned = clean_log(fs, log_to_clean(PARTITION, log, None, NOW_MS), NOW_MS, lambda: None)
    assert cleaned.counts.records_superseded > 5
    manager.update_checkpoints("logs", add=(PARTITION, cleaned.end_offset))
    world.pass_time(1)


def test_a_power_cut_in_a_clean_loses_no_last_value(record_property: Callable[[str, object], None]) -> None:
    start, expected, end = dirty_log()
    cuts = Cuts(durable(start), clean_once, sampled=4, subsets_max=2)
    for after in cuts:
        log = World(after).load(CUT_CONFIG, clean_shutdown=False, recovery_point=end)
        assert newest(log) == expected
        assert log.log_end_offset == end
    cuts.tell(record_property, "a clean of a live log")
    assert cuts.different > 20


@pytest.mark.kafka
def test_kafka_loads_what_a_power_cut_in_a_clean_left(kafka_oracle: Oracle, tmp_path: Path) -> None:
    start, expected, end = dirty_log()
    states = random.Random(1).sample(list(Cuts(durable(start), clean_once, sampled=4, subsets_max=2)), 100)
    for number, fs in enumerate(states):
        place = tmp_path / f"t-{number}"
        place.mkdir()
        for info in fs.list("logs/t-0"):
            if not info.is_directory:
                (place / info.name).write_bytes(read_file(fs, f"logs/t-0/{info.name}"))
    config = [word for name, value in CUT_CONFIG.items() for word in ("--config", f"{name}={value}")]
    lines = kafka_oracle("select", tmp_path, "--now", str(NOW_MS), *config)
    assert {line["end"] for line in lines if line["type"] == "log"} == {end}
    for number in range(len(states)):
        log = LogView(str(tmp_path / f"t-{number}"), fs=PosixFileSystem())
        assert log.recovery.actions == (), "Kafka has repaired it all"
        last = {record.key: record.value for record in log.records()}
        assert {key.decode(): value.decode() for key, value in last.items() if key and value} == expected
