"""A load like that of `__consumer_offsets`: many small updates of few keys, most of them in a partition that is never
idle. Sizes stay within what the configs promise, and no partition waits for ever.

    promised:  clean part / (1 - min.cleanable.dirty.ratio)    the log is due above that, counted
               + segment.bytes                                 in whole segments, but for
               + segment.bytes                                 the active one
               + bytes appended between two rounds of the cleaner
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_cleaner import LogCleaner
from cordwood.live.log_manager import LogManager
from cordwood.live.log_to_clean import log_to_clean
from cordwood.live.scheduler import SteppedScheduler
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.testing.memory import MemoryFileSystem
from tests.live.live_logs import NOW_MS

pytestmark = pytest.mark.more

TOPIC, PARTITIONS, KEYS = "__consumer_offsets", 20, 20
SEGMENT_BYTES, RATIO, BACKOFF_MS = 6_000, 0.5, 5_000
#: Duration of a slow clean.
SLOW_SECONDS = 2
SECONDS = 300
CONFIGS = [
    f"{TOPIC}:{name}={value}"
    for name, value in {
        "cleanup.policy": "compact",
        "internal.segment.bytes": SEGMENT_BYTES,
        "segment.index.bytes": 2_000,
        "min.cleanable.dirty.ratio": RATIO,
        "file.delete.delay.ms": 0,
    }.items()
]


@dataclass
class Offsets:
    """The partitions, and the last value of each of their keys."""

    manager: LogManager
    chosen: random.Random = field(default_factory=lambda: random.Random(1))
    logs: list[Log] = field(init=False)
    last: list[dict[bytes, bytes]] = field(init=False)
    update_bytes: int = 0

    def __post_init__(self) -> None:
        names = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self.logs = [self.manager.get_or_create_log(name, is_new=True) for name in names]
        self.last = [{} for _ in names]

    def commit(self, number: int, now_ms: int) -> None:
        """An update of one key, in a batch of its own."""
        key = b"group-%d" % self.chosen.randrange(KEYS)
        value = b"%012d" % self.chosen.randrange(10**12)
        batch = encode_batch([Record(0, now_ms, key, value)], base_offset=0)
        log = self.logs[number]
        log.append_as_leader(batch, 0)
        log.update_high_watermark(log.log_end_offset)
        self.last[number][key] = value
        self.update_bytes = max(self.update_bytes, len(batch))

    def promised_bytes(self, updates_between: int) -> int:
        """Maximum size of a log with this number of updates between two rounds."""
        clean = KEYS * self.update_bytes
        return int(clean / (1 - RATIO)) + 2 * SEGMENT_BYTES + updates_between * self.update_bytes

    def check(self) -> None:
        """Each key has its last value."""
        for log, last in zip(self.logs, self.last, strict=True):
            found = {record.key: record.value for record in log.records()}
            assert found == last


def manager_of(fs: LocalFileSystem, path: str, *configs: str, **options: object) -> LogManager:
    manager = LogManager(fs, [path], overrides([*CONFIGS, *configs]), **options)  # type: ignore[arg-type]
    manager.startup()
    return manager


@pytest.mark.parametrize("is_slow", [False, True], ids=["cleans take no time", "a clean takes two seconds"])
def test_sizes_stay_within_the_promise_and_no_partition_waits_for_long(is_slow: bool) -> None:
    now_ms = NOW_MS
    fs = MemoryFileSystem(lambda: now_ms * 1_000_000, can_crash=False)
    scheduler = SteppedScheduler(lambda: now_ms)
    enable = f"log.cleaner.enable={str(not is_slow).lower()}"
    manager = manager_of(
        fs, "logs", enable, f"log.cleaner.backoff.ms={BACKOFF_MS}", clock=lambda: now_ms, scheduler=scheduler
    )
    offsets = Offsets(manager)
    cleaner = manager.cleaner or LogCleaner(
        fs,
        manager.config,
        manager.live_log_dirs,
        lambda: manager.logs,
        manager.failures,
        lambda: now_ms,
        lambda: now_ms,
    )
    cleans: Counter[int] = Counter()
    cleaner.on_clean = lambda found, _: cleans.update([found.partition.partition])
    due_since: dict[int, int] = {}
    waited_ms = 0
    hot, others = 10, 10
    # All rounds together take six seconds of ten, so a log may have to wait for a few others.
    longest_ms = 5 * SLOW_SECONDS * 1_000 if is_slow else BACKOFF_MS
    for second in range(SECONDS):
        now_ms += 1_000
        for _ in range(hot):
            offsets.commit(0, now_ms)
        for _ in range(others):
            # All others get as many, one after the other in bursts.
            offsets.commit(1 + (second // 5 + offsets.chosen.randrange(4)) % (PARTITIONS - 1), now_ms)
        scheduler.run_due()
        if is_slow and second % SLOW_SECONDS == 0:
            cleaner.clean_filthiest_log()
        known = cleaner.manager.all_cleaner_checkpoints()
        for number, log in enumerate(offsets.logs):
            name = TopicPartition(TOPIC, number)
            if log_to_clean(name, log, known.get(name), now_ms).is_due:
                waited_ms = max(waited_ms, now_ms - due_since.setdefault(number, now_ms))
            else:
                due_since.pop(number, None)
        assert max(log.size_bytes for log in offsets.logs) <= offsets.promised_bytes(longest_ms // 1_000 * hot)
    assert waited_ms <= longest_ms
    appended_bytes = SECONDS * (hot + others) * offsets.update_bytes
    assert sum(log.size_bytes for log in offsets.logs) < appended_bytes / 2
    assert cleans[0] > 20 and set(cleans) == set(range(PARTITIONS)), "each of them was dirty now and then"
    offsets.check()
    print(f"{sum(cleans.values())} cleans, {cleans[0]} of the hot one; the longest wait was {waited_ms} ms")


@pytest.mark.slow
def test_threads_come_to_every_partition_while_one_is_never_idle(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    manager = manager_of(
        PosixFileSystem(), str(tmp_path / "logs"), "log.cleaner.backoff.ms=20", "log.cleaner.threads=2"
    )
    cleaner = manager.cleaner
    assert cleaner is not None
    cleans: Counter[int] = Counter()
    cleaner.on_clean = lambda found, _: cleans.update([found.partition.partition])
    offsets, ended = Offsets(manager), threading.Event()

    def write() -> None:
        while not ended.is_set():
            offsets.commit(0, int(time.time() * 1_000))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        others = Offsets(manager, random.Random(2))
        for number in range(1, PARTITIONS):
            while len(others.logs[number].log_segments) < 2:
                others.commit(number, int(time.time() * 1_000))
        for number in range(1, PARTITIONS):
            offsets.last[number] = others.last[number]
            base = others.logs[number].active_segment.base_offset
            assert cleaner.await_cleaned(TopicPartition(TOPIC, number), base, 120_000), f"{number} waits for ever"
        assert cleaner.await_cleaned(TopicPartition(TOPIC, 0), 1, 120_000)
    finally:
        ended.set()
        writer.join()
    assert until(lambda: offsets.logs[0].size_bytes <= offsets.promised_bytes(0))
    assert cleaner.restarts == 0 and manager.failures.failures == ()
    offsets.check()
    print(f"{sum(cleans.values())} cleans, {cleans[0]} of the hot one")
    manager.shutdown()


def until(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
    return is_so()
