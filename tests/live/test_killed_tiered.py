"""A process that appends to a tiered log, copies it, and retains or cleans it is killed, again and again."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cordwood.common.config import overrides
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.live.log import Log
from cordwood.live.log_manager import LogManager
from cordwood.storage.index import build
from tests import knobs
from tests.live.live_logs import batch, read_all

pytestmark = pytest.mark.slow

KILLS = knobs.scaled(6, 300)
TIERED = TopicPartition("tiered", 0)
CONFIGS = (
    "log.retention.check.interval.ms=10",
    "log.initial.task.delay.ms=0",
    "log.flush.offset.checkpoint.interval.ms=20",
    "tiered:remote.storage.enable=true",
    "tiered:internal.segment.bytes=4000",
    "tiered:retention.ms=-1",  # the records have old timestamps
    "tiered:local.retention.bytes=6000",
    "tiered:local.retention.ms=-1",
    "tiered:file.delete.delay.ms=1",
)
POLICIES = {
    "delete": ("tiered:cleanup.policy=delete", "tiered:retention.bytes=60000", "log.cleaner.enable=false"),
    "compact": ("tiered:cleanup.policy=compact", "tiered:min.cleanable.dirty.ratio=0.1", "log.cleaner.backoff.ms=10"),
}
POLICIES["indexed"] = POLICIES["compact"]


def manager_of(root: Path, policy: str, interval_ms: int = 20) -> LogManager:
    layers = overrides([*CONFIGS, *POLICIES[policy], f"remote.log.manager.task.interval.ms={interval_ms}"])
    return LogManager(PosixFileSystem(), [root / "logs"], layers, tier=root / "tier")


def value(number: int) -> str:
    """One of 20 keys, and the number."""
    return f"{chr(ord('a') + number % 20)}{number}"


def append_for_ever(root: str, policy: str) -> None:
    """Append numbers, and print the last flushed one."""
    manager = manager_of(Path(root), policy)
    if policy == "indexed":
        build.SEGMENT_SHARE = 0  # segments of this size would have no key index
    manager.startup(index=policy == "indexed")
    log = manager.get_or_create_log(TIERED, is_new=True)
    number = log.log_end_offset
    while True:
        for _ in range(random.randrange(1, 60)):
            log.append_as_leader(batch(value(number)), 0)
            log.update_high_watermark(log.log_end_offset)
            number += 1
        log.flush(force_active_segment=True)
        print(number - 1, flush=True)
        if policy != "delete":
            time.sleep(0.01)  # a cleaner needs a moment to begin


def killed_after(root: Path, policy: str, flushes: int, seconds: float) -> int:
    """Let a process append, and kill it a moment after this number of flushes; return the last flushed number."""
    words = [sys.executable, "-c", f"from {__name__} import *; append_for_ever({str(root)!r}, {policy!r})"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        flushed = [int(running.stdout.readline()) for _ in range(flushes)]
        timer = threading.Timer(seconds, running.kill)
        timer.start()
        flushed += [int(line) for line in running.stdout if line.endswith("\n")]
    assert running.returncode == -9
    return flushed[-1]


def check(log: Log, policy: str, least: int) -> None:
    """Each offset has its own number, up to a number at least; of a compacted log, the last of each key is there."""
    values, start, end = read_all(log), log.log_start_offset, log.log_end_offset
    assert all(found == value(offset) for offset, found in values.items())
    assert values.keys() >= set(range(start if policy == "delete" else max(start, end - 20), end)), (
        "a record is missing"
    )
    assert end > least


@pytest.mark.parametrize("policy", POLICIES)
def test_kills_at_any_moment_lose_nothing_and_leave_no_orphan(tmp_path: Path, policy: str) -> None:
    for name in ("logs", "tier"):
        (tmp_path / name).mkdir()
    chosen, lost_disks, changed, indexed = random.Random(knobs.SEED), 0, 0, 0
    for number in range(KILLS):
        flushed = killed_after(
            tmp_path, policy, chosen.randrange(1, 12 if policy == "delete" else 400), chosen.random() * 0.2
        )
        if is_lost := number % 3 == 2:
            shutil.rmtree(tmp_path / "logs")
            (tmp_path / "logs").mkdir()
            lost_disks += 1
        with manager_of(tmp_path, policy, 1_000_000) as manager:
            log, tiering = manager.get_log(TIERED), manager.tiering
            if is_lost and log is None:
                continue  # it was killed before the first copy
            assert log is not None and tiering is not None
            one = tiering.status(TIERED)
            assert one is not None
            check(log, policy, one.state.copied_end - 1 if is_lost else flushed)
            indexed += any((tmp_path / "tier").rglob("*.keyhashes"))
            changed += log.log_start_offset > 0 or one.state.local_floor > 0
            with one.lock:
                objects = {path.name[21:43] for path in (tmp_path / "tier").rglob("0*-*.*")}
                gone = {each.segment.id for each in one.state.gone}
                assert objects - gone <= {each.segment.id for each in one.state.segments}, "an orphan"
                assert {each.segment.id for each in one.state.segments} <= objects
    print(
        f"kills of a tiered log: {KILLS}, {lost_disks} with the loss of the disk, {changed} after a change of the tier"
    )
    assert lost_disks and (changed or KILLS < 10)
    assert bool(indexed) == (policy == "indexed")
