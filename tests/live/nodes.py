"""A manager whose clock is set by hand, on a file system that outlives it."""

from __future__ import annotations

import time
from collections.abc import Callable

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.storage.formats import checkpoints
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
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
