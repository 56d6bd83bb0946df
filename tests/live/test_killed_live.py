"""A process that appends, cleans and retains at once is killed, again and again, on one directory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from tests import knobs
from tests.live.live_logs import batch, read_all

pytestmark = pytest.mark.slow

KILLS = knobs.scaled(4, 200)
COMPACTED, RETAINED = TopicPartition("compacted", 0), TopicPartition("retained", 0)
CONFIGS = (
    "log.cleaner.backoff.ms=1",
    "log.retention.check.interval.ms=10",
    "log.initial.task.delay.ms=0",
    "log.flush.offset.checkpoint.interval.ms=20",
    "compacted:cleanup.policy=compact",
    "compacted:internal.segment.bytes=4000",
    "compacted:min.cleanable.dirty.ratio=0.01",
    "compacted:file.delete.delay.ms=1",
    "retained:cleanup.policy=delete",
    "retained:internal.segment.bytes=4000",
    "retained:retention.bytes=20000",
    "retained:retention.ms=-1",  # the records have old timestamps
    "retained:file.delete.delay.ms=1",
)
KEYS = "abcdefghijklmnop"


def append_for_ever(directory: str) -> None:
    """Append numbers, and print the last flushed one: `cordwood` must not lose numbers up to it any more."""
    manager = LogManager(PosixFileSystem(), [directory], overrides(CONFIGS))
    manager.startup()
    logs = [manager.get_or_create_log(partition, is_new=True) for partition in (COMPACTED, RETAINED)]
    number = max((int(value[1:]) for log in logs for value in read_all(log).values()), default=-1) + 1
    while True:
        for _ in range(random.randrange(1, 60)):
            for log in logs:
                log.append_as_leader(batch(f"{KEYS[number % len(KEYS)]}{number}"), 0)
                log.update_high_watermark(log.log_end_offset)
            number += 1
        for log in logs:
            log.flush(force_active_segment=True)
        print(number - 1, flush=True)


def killed_after(directory: str, flushes: int, seconds: float) -> int:
    """Let a process append, and kill it a moment after this number of flushes; return the last number that it
    flushed.
    """
    words = [sys.executable, "-c", f"from {__name__} import *; append_for_ever({directory!r})"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        flushed = [int(running.stdout.readline()) for _ in range(flushes)]
        timer = threading.Timer(seconds, running.kill)
        timer.start()
        flushed += [int(line) for line in running.stdout if line.endswith("\n")]
    assert running.returncode == -9
    return flushed[-1]


def check_compacted(log: Log, flushed: int) -> None:
    newest = {value[:1]: int(value[1:]) for _, value in sorted(read_all(log).items())}
    for number in range(max(0, flushed - len(KEYS) + 1), flushed + 1):
        assert newest[KEYS[number % len(KEYS)]] >= number, "a last value is gone"


def check_retained(log: Log, flushed: int) -> None:
    values = read_all(log)
    assert list(values) == list(range(log.log_start_offset, log.log_end_offset)), "a record is missing"
    numbers = [int(value[1:]) for value in values.values()]
    assert numbers == sorted(set(numbers)) and numbers[-1] >= flushed
    # A kill between the appends to the two logs leaves a number in only one of them.
    assert numbers[-1] - numbers[0] + 1 - len(numbers) <= KILLS


def test_kills_at_any_moment_lose_nothing_that_was_flushed(tmp_path: Path) -> None:
    directory = str(tmp_path / "logs")
    os.mkdir(directory)
    chosen = random.Random(knobs.SEED)
    cleaned = deleted = 0
    for _ in range(KILLS):
        flushed = killed_after(directory, chosen.randrange(1, 12), chosen.random() * 0.2)
        manager = LogManager(PosixFileSystem(), [directory], overrides(CONFIGS))
        manager.startup()
        compacted, retained = manager.get_log(COMPACTED), manager.get_log(RETAINED)
        assert compacted is not None and retained is not None
        check_compacted(compacted, flushed)
        check_retained(retained, flushed)
        cleaned += len(read_all(compacted)) < compacted.log_end_offset
        assert manager.cleaner is not None
        compacted.update_high_watermark(compacted.log_end_offset)
        # A killed clean is finished or repeated.
        assert manager.cleaner.await_cleaned(COMPACTED, compacted.active_segment.base_offset, 60_000)
        check_compacted(compacted, flushed)
        deleted += retained.log_start_offset > 0
        manager.shutdown()
        if chosen.random() < 0.5:  # the next manager loads the log after a crash
            os.unlink(f"{directory}/.kafka_cleanshutdown")
    print(f"kills of a live engine: {KILLS}, {cleaned} found a cleaned log, {deleted} one that was retained")
    assert cleaned and deleted
