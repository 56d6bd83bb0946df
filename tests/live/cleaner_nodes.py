"""A manager with a cleaner, whose clock the test sets; and helpers for tests of cleaners."""

from __future__ import annotations

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.scheduler import SteppedScheduler
from cordwood.storage.formats import checkpoints
from cordwood.storage.formats.filenames import FileKind
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS, batch, read_all

PARTITION = TopicPartition("t", 0)
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "300", "min.cleanable.dirty.ratio": "0.01"}


def layers(*more: str, **configs: str) -> list[str]:
    """The configs of a manager's topic `t`, and of its broker."""
    return [*(f"t:{name}={value}" for name, value in (COMPACT | configs).items()), *more]


class Node:
    """A manager whose clock is set by hand; its cleaner is a task."""

    def __init__(
        self,
        *configs: str,
        fs: LocalFileSystem | None = None,
        dirs: tuple[str, ...] = ("d1",),
        index: bool = False,
    ) -> None:
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
        self.manager.startup(index=index)
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


def damage(node: Node) -> bytes:
    """Damage the first batch; returns the bytes that were there."""
    with node.fs.open_for_update(node.log.log_segments[0].path(FileKind.LOG)) as file:
        before = file.read(80, 1)
        file.write(80, bytes([before[0] ^ 1]))
    return before


def repair(node: Node, byte: bytes) -> None:
    with node.fs.open_for_update(node.log.log_segments[0].path(FileKind.LOG)) as file:
        file.write(80, byte)


def send(log: Log, *values: str) -> None:
    log.append_as_leader(batch(*values), 0)
    log.update_high_watermark(log.log_end_offset)
