"""A manager whose clock is set by hand, on a file system that outlives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordwood.common.config import overrides
from cordwood.common.types import Clock, TopicPartition, monotonic_clock
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
from cordwood.view.running import LiveNode, LiveOptions
from tests.live.live_logs import NOW_MS, batch

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Node:
    """A manager with its clock and its tasks."""

    def __init__(
        self,
        *configs: str,
        fs: LocalFileSystem | None = None,
        dirs: tuple[str, ...] = ("d1", "d2"),
        now_ms: int = NOW_MS,
    ) -> None:
        self.now_ms = now_ms
        self.fs = MemoryFileSystem(lambda: self.now_ms * 1_000_000) if fs is None else fs
        self.dirs = dirs
        self.configs = configs
        self.start()

    def start(self) -> None:
        """A new manager, which is not started up."""
        self.scheduler = SteppedScheduler(lambda: self.now_ms)
        self.manager = LogManager(
            self.fs, self.dirs, overrides(self.configs), clock=lambda: self.now_ms, scheduler=self.scheduler
        )

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.scheduler.run_due()

    def append(self, partition: TopicPartition, *values: str) -> Log:
        """Append values, each as a batch, and let readers have them."""
        log = self.manager.get_or_create_log(partition, is_new=True)
        for value in values:
            log.append_as_leader(batch(value), 0)
        log.update_high_watermark(log.log_end_offset)
        return log

    def offsets(self, path: str) -> dict[TopicPartition, int]:
        """Read a checkpoint file."""
        return checkpoints.decode(read_file(self.fs, path))


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that threads do."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)


# ---- directories of `cordwood run` -----------------------------------------------------------------------------------


#: Cleans at once, and again and again.
QUICK = ("log.cleaner.backoff.ms=1", "log.initial.task.delay.ms=0", "log.retention.check.interval.ms=1")


@contextmanager
def running(path: Path, *configs: str, clock: Clock = monotonic_clock, **options: Any) -> Iterator[LiveNode]:
    live = LiveOptions(overrides=(*QUICK, *configs), port=0, **options)
    node = LiveNode(PosixFileSystem(), [str(path)], live, clock=clock)
    node.startup()
    try:
        yield node
    finally:
        node.shutdown()


def made(tmp_path: Path, **counts: int) -> Path:
    """A directory without a broker, with a log per topic of this number of rounds of two keys."""
    path = tmp_path / "logs"
    path.mkdir(parents=True)
    configs = overrides(["log.cleaner.enable=false", "internal.segment.bytes=300"])
    manager = LogManager(PosixFileSystem(), [str(path)], configs)
    manager.startup()
    for topic, count in counts.items():
        log = manager.get_or_create_log(TopicPartition(topic, 0), is_new=True)
        for number in range(count):
            log.append_as_leader(batch(f"a{number}", f"b{number}"), 0)
        log.update_high_watermark(log.log_end_offset)
    manager.shutdown()
    return path


def made_damaged(tmp_path: Path) -> Path:
    """A directory whose log `t` cannot be cleaned, as its first batch is damaged."""
    path = made(tmp_path, t=20)
    damage(path / "t-0")
    return path


def damage(partition: Path) -> None:
    """Damage the first batch of a log, where only its cleaner looks."""
    first = min(partition.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[80] ^= 1
    first.write_bytes(data)
    (partition.parent / filenames.CLEAN_SHUTDOWN).touch()  # otherwise the start would cut it off


def made_dirty(path: Path, *topics: str) -> None:
    """A directory with a log per topic, of four closed segments with mostly superseded records."""
    manager = LogManager(PosixFileSystem(), [str(path)], overrides(["log.cleaner.enable=false"]))
    manager.startup()
    for topic in topics:
        log = manager.get_or_create_log(TopicPartition(topic, 0), is_new=True)
        for number in range(20):
            log.append_as_leader(batch(f"a{number}"), 0)
            if number % 5 == 4:
                log.roll()
        log.update_high_watermark(log.log_end_offset)
    manager.shutdown()


def wait(node: LiveNode, topic: str) -> None:
    """Until a log is cleaned up to its active segment, and old segments are deleted."""
    partition = TopicPartition(topic, 0)
    log = node.manager.get_log(partition)
    assert log is not None and node.manager.cleaner is not None
    assert node.manager.cleaner.await_cleaned(partition, log.active_segment.base_offset)
