"""A process that appends to a tiered log, copies it and retains it is killed, again and again."""

from __future__ import annotations

import random
import shutil
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

KILLS = knobs.scaled(6, 300)
TIERED = TopicPartition("tiered", 0)
CONFIGS = (
    "log.cleaner.enable=false",
    "log.retention.check.interval.ms=10",
    "log.initial.task.delay.ms=0",
    "log.flush.offset.checkpoint.interval.ms=20",
    "tiered:remote.storage.enable=true",
    "tiered:cleanup.policy=delete",
    "tiered:internal.segment.bytes=4000",
    "tiered:retention.bytes=60000",
    "tiered:retention.ms=-1",  # the records have old timestamps
    "tiered:local.retention.bytes=6000",
    "tiered:local.retention.ms=-1",
    "tiered:file.delete.delay.ms=1",
)


def manager_of(root: Path, interval_ms: int = 20) -> LogManager:
    layers = overrides([*CONFIGS, f"remote.log.manager.task.interval.ms={interval_ms}"])
    return LogManager(PosixFileSystem(), [root / "logs"], layers, tier=root / "tier")


def append_for_ever(root: str) -> None:
    """Append numbers, and print the last flushed one."""
    manager = manager_of(Path(root))
    manager.startup()
    log = manager.get_or_create_log(TIERED, is_new=True)
    number = log.log_end_offset
    while True:
        for _ in range(random.randrange(1, 60)):
            log.append_as_leader(batch(f"k{number}"), 0)
            log.update_high_watermark(log.log_end_offset)
            number += 1
        log.flush(force_active_segment=True)
        print(number - 1, flush=True)


def killed_after(root: Path, flushes: int, seconds: float) -> int:
    """Let a process append, and kill it a moment after this number of flushes; return the last flushed number."""
    words = [sys.executable, "-c", f"from {__name__} import *; append_for_ever({str(root)!r})"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        flushed = [int(running.stdout.readline()) for _ in range(flushes)]
        timer = threading.Timer(seconds, running.kill)
        timer.start()
        flushed += [int(line) for line in running.stdout if line.endswith("\n")]
    assert running.returncode == -9
    return flushed[-1]


def check(log: Log, least: int) -> None:
    """Each offset has its own number, up to a number at least."""
    values = read_all(log)
    assert list(values) == list(range(log.log_start_offset, log.log_end_offset)), "a record is missing"
    assert all(value == f"k{offset}" for offset, value in values.items())
    assert log.log_end_offset > least


def test_kills_at_any_moment_lose_nothing_and_leave_no_orphan(tmp_path: Path) -> None:
    for name in ("logs", "tier"):
        (tmp_path / name).mkdir()
    chosen, lost_disks, retained = random.Random(knobs.SEED), 0, 0
    for number in range(KILLS):
        flushed = killed_after(tmp_path, chosen.randrange(1, 12), chosen.random() * 0.2)
        if is_lost := number % 3 == 2:
            shutil.rmtree(tmp_path / "logs")
            (tmp_path / "logs").mkdir()
            lost_disks += 1
        with manager_of(tmp_path, 1_000_000) as manager:
            log, tiering = manager.get_log(TIERED), manager.tiering
            if is_lost and log is None:
                continue  # it was killed before the first copy
            assert log is not None and tiering is not None
            one = tiering.status(TIERED)
            assert one is not None
            check(log, one.state.copied_end - 1 if is_lost else flushed)
            retained += log.log_start_offset > 0
            objects = {path.name[21:43] for path in (tmp_path / "tier").rglob("0*-*.*")}
            gone = {each.segment.id for each in one.state.gone}
            assert objects - gone <= {each.segment.id for each in one.state.segments}, "an orphan"
            assert {each.segment.id for each in one.state.segments} <= objects
    print(f"kills of a tiered log: {KILLS}, {lost_disks} with the loss of the disk, {retained} after remote retention")
    assert lost_disks and (retained or KILLS < 10)
