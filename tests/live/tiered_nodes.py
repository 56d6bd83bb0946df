"""A manager with a tier, whose clock is set by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from cordwood import LogManager, PosixFileSystem, TopicPartition, overrides
from cordwood.live.log import Log
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.tiered_log import TieredLog
from cordwood.live.tiering import Tiering
from cordwood.storage.log.files import read_file
from cordwood.storage.log.view import LogView
from cordwood.storage.tier.manifest import TierState

FS = PosixFileSystem()
NOW = 1_800_000_000_000
ORDERS = TopicPartition("orders", 0)
CONFIGS = {
    "remote.storage.enable": "true",
    "cleanup.policy": "delete",
    "internal.segment.bytes": "2000",
    "index.interval.bytes": "300",
    "retention.ms": "-1",
    "local.retention.ms": "1000",
    "file.delete.delay.ms": "100",
}


class Node:
    """A manager with a tier, and its time."""

    def __init__(
        self,
        root: Path,
        name: str = "logs",
        now_ms: int = NOW,
        *,
        with_tier: bool = True,
        tier: str | Path | None = None,
        configs: Mapping[str, str] = MappingProxyType({}),
        engine: str | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.scheduler = SteppedScheduler(lambda: self.now_ms)
        (root / name).mkdir(exist_ok=True)
        (root / "tier").mkdir(exist_ok=True)
        self.texts = CONFIGS | dict(configs) | ({} if with_tier else {"remote.storage.enable": "false"})
        layers = overrides([f"orders:{key}={value}" for key, value in self.texts.items()])
        self.manager = LogManager(
            FS,
            [root / name],
            layers,
            clock=lambda: self.now_ms,
            scheduler=self.scheduler,
            tier=(tier or root / "tier") if with_tier else None,
            engine=engine,
        )

    @property
    def log(self) -> Log:
        return self.manager.get_or_create_log(ORDERS)

    @property
    def tiering(self) -> Tiering:
        assert self.manager.tiering is not None
        return self.manager.tiering

    @property
    def tiered(self) -> TieredLog:
        found = self.tiering.status(ORDERS)
        assert found is not None
        return found

    @property
    def state(self) -> TierState:
        return self.tiered.state

    def files(self) -> dict[int, bytes]:
        """The content of each `.log`, by base offset, wherever it is."""
        log = self.log
        store = FS if log.remote is None else log.remote.beside(FS, log.directory)
        view = LogView(log.directory, fs=store, log_start_offset=log.log_start_offset)
        return {one.base_offset: read_file(store, one.path) for one in view.segments}

    def offset_at(self, timestamp: int) -> int:
        found = self.log.fetch_offset_by_timestamp(timestamp)
        assert found is not None
        return found.offset

    def fill(self, count: int, first: int = 0) -> None:
        """Append records, a batch each, some 15 to a segment; their times are a second apart."""
        for number in range(first, first + count):
            self.log.append({f"key-{number % 7}": f"{number}".rjust(100)}, timestamp_ms=NOW - 1_000_000 + 1000 * number)

    def step(self, ms: int = 40_000) -> None:
        """Let time pass, with all tasks that are due; the cleaner is one of them."""
        self.now_ms += ms
        for log in self.manager.logs.values():
            log.flush()
        if self.manager.tiering is not None:
            self.step_tier()
        self.manager.cleanup_logs()
        self.scheduler.run_due()

    def step_tier(self) -> None:
        """Copy all closed segments, and remove them from the disk."""
        for log in self.manager.logs.values():
            log.flush()
        self.tiering.run()
        self.manager.cleanup_logs()


@contextmanager
def node(
    root: Path, name: str = "logs", now_ms: int = NOW, configs: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Node]:
    one = Node(root, name, now_ms, configs=configs)
    with one.manager:
        yield one


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [f"{number}".rjust(100).encode() for number in range(first, count)]
