"""Cleaner threads over live logs: what they leave, who may stop them, and what happens when a clean fails."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cordwood.config import overrides
from cordwood.errors import ConfigError, IllegalStateError, LogError
from cordwood.fs.base import File, LocalFileSystem
from cordwood.fs.memory import MemoryFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.service.clean import clean_log, run_here
from cordwood.service.cleaner_manager import LogCleanerManager, Paused, log_to_clean
from cordwood.service.log import Log
from cordwood.service.log_cleaner import LogCleaner
from cordwood.service.log_manager import LogManager
from cordwood.service.scheduler import SteppedScheduler
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.types import TopicPartition
from tests.crashes import Cuts, durable
from tests.kafka_tools import Oracle
from tests.service.live_logs import NOW_MS, World, batch, read_all

PARTITION = TopicPartition("t", 0)
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "300", "min.cleanable.dirty.ratio": "0.01"}
#: How long calls are thrown at a cleaner; more by hand.
CONTENTION_SECONDS = float(os.environ.get("CORDWOOD_CONTENTION_SECONDS", "4"))


def layers(*more: str, **configs: str) -> list[str]:
    """The configs of a manager's topic `t`, and of its broker."""
    return [*(f"t:{name}={value}" for name, value in (COMPACT | configs).items()), *more]


class Node:
    """A manager whose clock is set by hand; its cleaner is a task."""

    def __init__(self, *configs: str, fs: LocalFileSystem | None = None, dirs: tuple[str, ...] = ("d1",)) -> None:
        self.now_ms = NOW_MS
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000) if fs is None else fs
        self.scheduler = SteppedScheduler(lambda: self.now_ms)
        self.manager = LogManager(
            self.fs,
            dirs,
            overrides(configs or layers()),
            clock=lambda: self.now_ms,
            scheduler=self.scheduler,
        )
        self.manager.startup()
        self.log = self.manager.get_or_create_log(PARTITION, is_new=True)

    @property
    def cleaner(self) -> LogCleaner:
        assert self.manager.cleaner is not None
        return self.manager.cleaner

    def append(self, *values: str) -> None:
        self.log.append_as_leader(batch(*values), 0)
        self.log.update_high_watermark(self.log.log_end_offset)

    def fill(self, rounds: int = 20) -> None:
        for number in range(rounds):
            self.append(f"a{number}", f"b{number}")

    def pass_time(self, ms: int = 15_000) -> None:
        self.now_ms += ms
        self.scheduler.run_due()

    def checkpoint(self) -> int | None:
        return checkpoints.decode(read_file(self.fs, "d1/cleaner-offset-checkpoint")).get(PARTITION)


def newest(log: Log) -> dict[str, str]:
    """The last value of each key; the first letter of a value is its key."""
    return {value[:1]: value for _, value in sorted(read_all(log).items())}


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


def damage(node: Node) -> bytes:
    """Damage the first batch; returns the bytes that were there."""
    with node.fs.open_for_update(node.log.log_segments[0].path(FileKind.LOG)) as file:
        before = file.read(80, 1)
        file.write(80, bytes([before[0] ^ 1]))
    return before


def repair(node: Node, byte: bytes) -> None:
    with node.fs.open_for_update(node.log.log_segments[0].path(FileKind.LOG)) as file:
        file.write(80, byte)


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


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    (tmp_path / "logs").mkdir()
    configs = layers("log.cleaner.backoff.ms=5", "log.cleaner.threads=2", **{"file.delete.delay.ms": "0"})
    running = LogManager(PosixFileSystem(), [str(tmp_path / "logs")], overrides(configs))
    running.startup()
    yield running
    running.shutdown()


def send(log: Log, *values: str) -> None:
    log.append_as_leader(batch(*values), 0)
    log.update_high_watermark(log.log_end_offset)


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


POLICIES = ("compact", "compact,delete", "delete")


def calls(
    manager: LogManager, cleaner: LogCleaner, partition: TopicPartition, chosen: random.Random
) -> list[Callable[[], object]]:
    """What may be called while a cleaner runs."""
    log = manager.get_log(partition)

    def pause() -> None:
        cleaner.abort_and_pause_cleaning(partition)
        cleaner.resume_cleaning([partition])

    def append() -> None:
        if log is not None:
            send(log, chosen.choice("abc") + "1", "d2")

    def read() -> None:
        if log is not None:
            newest(log)

    return [
        pause,
        read,
        manager.cleanup_logs,
        lambda: cleaner.abort_cleaning(partition),
        lambda: manager.truncate_to({partition: chosen.randrange(40)}),
        lambda: manager.truncate_fully_and_start_at(partition, chosen.randrange(40)),
        lambda: manager.async_delete(partition),
        lambda: manager.get_or_create_log(partition, is_new=True),
        lambda: cleaner.update_checkpoints(manager.live_log_dirs[0]),
        lambda: cleaner.await_cleaned(partition, 0, 1),
        lambda: manager.update_topic_config("t", COMPACT | {"cleanup.policy": chosen.choice(POLICIES)}),
        *[append] * 12,
    ]


def test_the_calls_of_others_during_cleans_end_and_fail_only_as_they_may(manager: LogManager) -> None:
    partitions = [TopicPartition("t", number) for number in range(3)]
    for partition in partitions:
        manager.get_or_create_log(partition, is_new=True)
    cleaner = manager.cleaner
    assert cleaner is not None
    unexpected: list[BaseException] = []
    end = time.monotonic() + CONTENTION_SECONDS

    def throw(seed: int) -> None:
        chosen = random.Random(seed)
        while time.monotonic() < end:
            partition = chosen.choice(partitions)
            try:
                chosen.choice(calls(manager, cleaner, partition, chosen))()
            except LogError:
                pass  # a log that is gone, or another thread that waits for the same abort
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=throw, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CONTENTION_SECONDS + 60)
    assert not any(thread.is_alive() for thread in threads), "nobody waits for ever"
    if unexpected:
        raise unexpected[0]
    assert manager.failures.failures == (), manager.failures.failures
    assert cleaner.restarts == 0


class Slow(WrappedFileSystem):
    """Waits in each read of a log by a clean, until it is told to go on."""

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self.reading, self.go_on = threading.Event(), threading.Event()

    def open(self, path: str) -> File:
        if threading.current_thread().name.startswith("kafka-log-cleaner") and path.endswith(".log"):
            self.reading.set()
            self.go_on.wait(20)
        return super().open(path)


def test_an_abort_stops_a_clean_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    fs = Slow(PosixFileSystem())
    manager = LogManager(fs, [str(tmp_path / "logs")], overrides(layers("log.cleaner.backoff.ms=5")))
    manager.startup()
    cleaner = manager.cleaner
    assert cleaner is not None
    try:
        log = manager.get_or_create_log(PARTITION, is_new=True)
        for number in range(20):
            send(log, f"a{number}")
        assert fs.reading.wait(20)
        threading.Timer(0.2, fs.go_on.set).start()
        cleaner.abort_and_pause_cleaning(PARTITION)
        assert cleaner.manager.cleaning_state(PARTITION) == Paused(1)
        assert len(read_all(log)) == 20 and cleaner.manager.all_cleaner_checkpoints() == {}
        cleaner.resume_cleaning([PARTITION])
        assert cleaner.await_cleaned(PARTITION, log.active_segment.base_offset, 30_000)
        assert newest(log) == {"a": "a19"}
        with pytest.raises(IllegalStateError, match="not paused"):
            cleaner.resume_cleaning([PARTITION])
    finally:
        fs.go_on.set()
        manager.shutdown()


def test_a_thread_goes_on_whatever_a_round_raises() -> None:
    world, rounds = World(), itertools.count()

    def logs() -> dict[TopicPartition, Log]:
        if next(rounds) < 3:
            raise MemoryError
        return {}

    config = LogManager(world.fs, ["logs"], overrides(["log.cleaner.backoff.ms=1"])).config
    cleaner = LogCleaner(world.fs, config, ["logs"], logs, world.failures)
    cleaner.startup()
    try:
        end = time.monotonic() + 20
        while next(rounds) < 20 and time.monotonic() < end:
            time.sleep(0.01)
        assert cleaner.restarts >= 1 and cleaner.dead_thread_count == 0
    finally:
        cleaner.shutdown()


def test_reconfiguring_checks_how_many_threads_there_are(manager: LogManager) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="double"):
        manager.reconfigure(overrides(layers("log.cleaner.threads=5")))
    manager.reconfigure(
        overrides(
            layers("log.cleaner.threads=4", "log.cleaner.backoff.ms=5", "log.cleaner.io.max.bytes.per.second=1000000")
        )
    )
    begun = [one.name for one in threading.enumerate() if one not in before and "cleaner" in one.name]
    assert sorted(begun) == [f"kafka-log-cleaner-thread-{number}" for number in range(4)]
    log = manager.get_or_create_log(PARTITION, is_new=True)
    for number in range(20):
        send(log, f"a{number}")
    assert manager.cleaner is not None
    assert manager.cleaner.await_cleaned(PARTITION, log.active_segment.base_offset, 30_000)


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
        master="local[2]",
        spark_bytes_min=0,
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
    cleaned = clean_log(fs, log_to_clean(PARTITION, log, None, NOW_MS), NOW_MS, run_here, lambda: None)
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
