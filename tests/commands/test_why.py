"""Answers of `why`: a directory made for each answer, and for pairs of them; the first line names the cause."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CauseKind, PosixFileSystem, WhyPartition, WhyResult
from cordwood.cli.demo import unpack
from cordwood.commands.options import Selection, WhyOptions
from cordwood.commands.why.facts import could_lose
from cordwood.commands.why_node import why
from cordwood.common.text import bytes_text
from cordwood.common.types import TopicPartition
from cordwood.fs.base import FileInfo
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats import offset_index
from cordwood.storage.formats.filenames import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    FileKind,
    offset_name,
)
from cordwood.storage.index import key_sample, search
from cordwood.storage.index.key_sample import CountSource
from tests.command import run
from tests.commands.made_broker import MadeBroker, different, pairs, same
from tests.fixtures import tree
from tests.fs.lock_holders import HOLD_AS_A_BROKER, on_linux, other
from tests.logs import DAY, HOUR, LARGE_SEGMENTS, MINUTE, T0, batch, make_large_log, make_log
from tests.storage.messages import internal_record

pytestmark = pytest.mark.more

T = TopicPartition("t", 0)
NOW = T0 + DAY
#: The start of the name of a directory that was put aside.
ASIDE = f"t-0.{'a' * 32}-"
TRANSACTION = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


class Listed(PosixFileSystem):
    """Counts how often each directory is listed."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def list(self, path: str) -> Sequence[FileInfo]:
        self.times[Path(path).name] += 1
        return super().list(path)


def test_the_directory_of_each_partition_is_listed_once(tmp_path: Path) -> None:
    for name in ("t-0", "t-1"):
        make_log(tmp_path / name, [batch(0)])
    fs = Listed()
    assert len(why([str(tmp_path)], WhyOptions(), fs=fs).partitions) == 2
    assert (fs.times["t-0"], fs.times["t-1"]) == (1, 1)


def compacted(broker: MadeBroker, **config: Any) -> None:
    broker.topic("t", cleanup_policy="compact", **config)


def replicated(broker: MadeBroker, end: int) -> None:
    broker.checkpoints[HIGH_WATERMARKS][T] = end


def dirty_log(broker: MadeBroker, **choice: Any) -> Path:
    """50 records of one key in a closed segment, one in the active."""
    return broker.log("t-0", [batch(0, *same(50))], [batch(50, *same(1))], **choice)


# ---- one answer each -------------------------------------------------------------------------------------------------

#: Makes a broker's directory, and returns further arguments of `why`.
Make = Callable[[MadeBroker], Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A directory, and the first line for t-0 or another partition.

    Attributes:
        also: kinds of further causes.
        finish: arguments of `MadeBroker.finish`.
    """

    make: Callable[[MadeBroker], object]
    kind: CauseKind
    first_line: str
    name: str = "t-0"
    also: tuple[CauseKind, ...] = ()
    finish: Mapping[str, Any] = field(default_factory=dict)


def _no_partition(broker: MadeBroker) -> Mapping[str, Any]:
    path = broker.log("lost", [batch(0, *same(5))])
    broker.topic("t")
    broker.log("t-0", [batch(0, *same(5))])
    return {"paths": [str(path)]}


def _state(suffix: str) -> Make:
    def make(broker: MadeBroker) -> Mapping[str, Any]:
        broker.topic("u")
        broker.log(ASIDE + suffix, [batch(0, *same(50))])
        return {}

    return make


def _moving(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    broker.log(ASIDE + "future", [batch(0, *same(5))])


def _duplicate(broker: MadeBroker) -> Mapping[str, Any]:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)
    twin = broker.path.parent / "twin"
    (twin / "t-0").mkdir(parents=True)
    shutil.copytree(broker.path / "t-0", twin / "t-0", dirs_exist_ok=True)
    (twin / ".kafka_cleanshutdown").write_bytes(b"")
    return {"paths": [str(broker.path), str(twin)], "metadata": str(broker.path)}


def _metadata_log(broker: MadeBroker) -> Mapping[str, Any]:
    broker.topic("t")
    return {"topics": ["__cluster_metadata"]}


def _wrong_config(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="compost")
    dirty_log(broker)


def _unknown_policy(broker: MadeBroker) -> None:
    dirty_log(broker)


def _tiered(broker: MadeBroker) -> None:
    broker.topic("t", remote_storage_enable="true", local_retention_ms=1000)
    dirty_log(broker)


def _offline(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)


def _unreadable(broker: MadeBroker) -> None:
    compacted(broker)
    path = dirty_log(broker)
    index = path / offset_name(0, FileKind.TIME_INDEX)
    index.unlink()
    os.mkfifo(index)


def _null_keys(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [batch(0, *[(None, b"v" * 100)] * 50)], [batch(50, *same(1))])
    replicated(broker, 51)


def _unique_keys(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [batch(0, *different(300))], [batch(300, *different(300, 300))])
    replicated(broker, 600)


def _cleaner_off(broker: MadeBroker) -> Mapping[str, Any]:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)
    return {"overrides": ["log.cleaner.enable=false"]}


def _damaged(broker: MadeBroker) -> None:
    compacted(broker)
    good = batch(0, *same(20))
    broker.log("t-0", [good, b"\xff" * 200, batch(20, *same(20))], [batch(40, *same(1))])
    replicated(broker, 41)


def _cleaner_checkpoint(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)


def _cleaner_dead(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)
    broker.times = {HIGH_WATERMARKS: T0 + 5 * HOUR, CLEANER_OFFSETS: T0 - HOUR}


def _given_up(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)
    broker.times = {HIGH_WATERMARKS: T0 + 5 * HOUR, CLEANER_OFFSETS: T0 + 4 * HOUR}


def _no_broker(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    replicated(broker, 51)
    broker.times = {HIGH_WATERMARKS: T0 + 5 * MINUTE}


def _overdue(broker: MadeBroker) -> None:
    """Too little is dirty, but max.compaction.lag.ms is over."""
    compacted(broker, max_compaction_lag_ms=HOUR)
    broker.log("t-0", [batch(0, *same(50))], [batch(50, *same(5))], [batch(55, *same(1))])
    broker.checkpoints[CLEANER_OFFSETS][T] = 50
    replicated(broker, 56)


def _transaction(broker: MadeBroker, *, state: int | None, timeout: int = MINUTE, whole: bool = True) -> None:
    """A transaction of producer 7 that begins at offset 10, in a closed segment; and its coordinator's records."""
    compacted(broker)
    if whole:
        broker.topic("__transaction_state", cleanup_policy="compact")
    open_batch = batch(10, *same(10), **TRANSACTION)
    broker.log("t-0", [batch(0, *same(10)), open_batch, batch(20, *same(30))], [batch(50, *same(1))])
    replicated(broker, 51)
    value = None if state is None else {
        "producer_id": 7, "producer_epoch": 0, "transaction_timeout_ms": timeout, "transaction_status": state,
        "transaction_start_timestamp_ms": T0, "transaction_last_update_timestamp_ms": T0,
        "transaction_partitions": ({"topic": "t", "partition_ids": (0,)},) if state else (),
    }  # fmt: skip
    records = [] if value is None else [internal_record("TransactionLog", value, {"transactional_id": "payer"}, 0)]
    if whole or records:
        broker.log("__transaction_state-0", [batch(0, *records)] if records else [])
        broker.checkpoints[HIGH_WATERMARKS][TopicPartition("__transaction_state", 0)] = len(records)


def _hanging(broker: MadeBroker) -> None:
    _transaction(broker, state=None)


def _hanging_of_a_known_producer(broker: MadeBroker) -> None:
    """Its coordinator lists the producer, but no transaction: its state is Empty."""
    _transaction(broker, state=0)


def _long(broker: MadeBroker) -> None:
    _transaction(broker, state=1)


def _open(broker: MadeBroker) -> None:
    _transaction(broker, state=1, timeout=10 * DAY)


def _ending(broker: MadeBroker) -> None:
    _transaction(broker, state=3)


def _unknown_transaction(broker: MadeBroker) -> None:
    _transaction(broker, state=None, whole=False)


def _high_watermark(broker: MadeBroker) -> None:
    broker.topic("t", replicas=(1, 2), cleanup_policy="compact")
    dirty_log(broker)
    replicated(broker, 5)


def _min_lag(broker: MadeBroker) -> None:
    compacted(broker, min_compaction_lag_ms=10 * DAY)
    dirty_log(broker)
    replicated(broker, 51)


def _ratio(broker: MadeBroker) -> None:
    compacted(broker, min_cleanable_dirty_ratio=0.9)
    broker.log("t-0", [batch(0, *same(50))], [batch(50, *same(20))], [batch(70, *same(1))])
    broker.checkpoints[CLEANER_OFFSETS][T] = 50
    replicated(broker, 71)


def _ratio_of_all(broker: MadeBroker) -> None:
    compacted(broker, min_cleanable_dirty_ratio=1)
    dirty_log(broker)
    replicated(broker, 51)


def _active(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [batch(0, *same(60))])
    replicated(broker, 60)


def _active_behind_clean(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [batch(0, *different(20))], [batch(20, *pairs([*range(20)] * 10))])
    broker.checkpoints[CLEANER_OFFSETS][T] = 20
    replicated(broker, 220)


def _tombstones(broker: MadeBroker) -> None:
    compacted(broker)
    gone = batch(0, *((b"key-%d" % at, None) for at in range(50)), delete_horizon_ms=NOW + DAY)
    broker.log("t-0", [gone, batch(50, *different(2))], [])
    broker.checkpoints[CLEANER_OFFSETS][T] = 52
    replicated(broker, 52)


def _expired_tombstones(broker: MadeBroker) -> None:
    compacted(broker)
    gone = batch(0, *((b"key-%d" % at, None) for at in range(50)), delete_horizon_ms=NOW - HOUR)
    broker.log("t-0", [gone, batch(50, *different(2))], [])
    broker.checkpoints[CLEANER_OFFSETS][T] = 52
    replicated(broker, 52)


def _kept_forever(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="")
    dirty_log(broker)
    replicated(broker, 51)


def _retention_off(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=-1)
    dirty_log(broker)
    replicated(broker, 51)


def _future_times(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
    dirty_log(broker, written=(T0 + 1000 * DAY, T0))
    replicated(broker, 51)


def timed(broker: MadeBroker, *segments: Sequence[int], size: int = 100) -> Path:
    """A log with a batch of a record at each time, replicated."""
    offset, made_segments = 0, []
    for times in segments:
        made_segments.append(
            [batch(offset + at, *same(1, value=b"v" * size), time=time) for at, time in enumerate(times)]
        )
        offset += len(times)
    path = broker.log("t-0", *made_segments, written=[max(times) for times in segments])
    replicated(broker, offset)
    return path


def _future_in_the_second(broker: MadeBroker) -> None:
    """The oldest segment is due; a record of the next year holds back all behind it."""
    broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
    timed(broker, [T0, T0], [T0, NOW + 365 * DAY, T0], [T0] * 20, [T0] * 20, [NOW])


def _younger_in_front(broker: MadeBroker) -> None:
    """A segment within its retention in front of ten that are not."""
    broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
    timed(broker, [T0, NOW - MINUTE], *[[T0] * 5] * 10, [NOW])


def _trickle(broker: MadeBroker) -> None:
    """Most records of the active segment are too old, and the whole segment waits for the newest one."""
    broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
    timed(broker, [*[T0] * 40, NOW])


def _active_beyond_bytes(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=-1, retention_bytes=500)
    timed(broker, [NOW] * 40)


def _retention_due(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
    dirty_log(broker)
    replicated(broker, 51)


def _retention_due_by_size(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=-1, retention_bytes=100)
    dirty_log(broker)
    replicated(broker, 51)


def _retention_due_by_default(broker: MadeBroker) -> Mapping[str, Any]:
    broker.topic("t")
    dirty_log(broker)
    replicated(broker, 51)
    return {"now_ms": T0 + 8 * DAY}


def _not_replicated(broker: MadeBroker) -> None:
    broker.topic("t", replicas=(1, 2), cleanup_policy="delete", retention_ms=HOUR)
    dirty_log(broker)
    replicated(broker, 5)


def _far(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=400 * DAY)
    dirty_log(broker)
    replicated(broker, 51)


def _below_start(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    broker.log("t-0", [batch(0, *same(100))], [batch(100, *same(1))])
    broker.checkpoints[LOG_START_OFFSETS][T] = 80
    replicated(broker, 101)


def _leftovers(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    path = dirty_log(broker)
    replicated(broker, 51)
    (path / f"{0:020d}.log.cleaned").write_bytes(b"x" * 100_000)
    (path / f"{7:020d}.log.deleted").write_bytes(b"x" * 100_000)


def _work_folder(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    path = dirty_log(broker)
    replicated(broker, 51)
    (path / ".cordwood" / "attempt").mkdir(parents=True)
    (path / ".cordwood" / "attempt" / "output").write_bytes(b"x" * 100_000)


def _foreign(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    path = dirty_log(broker)
    replicated(broker, 51)
    (path / "backup.tar").write_bytes(b"x" * 100_000)


def _indexes(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    path = dirty_log(broker)
    replicated(broker, 51)
    (path / offset_name(50, FileKind.TIME_INDEX)).write_bytes(b"\0" * (2 << 20))


def _key_indexes(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete")
    path = dirty_log(broker)
    replicated(broker, 51)
    (path / ".cordwood" / "index").mkdir(parents=True)
    (path / ".cordwood" / "index" / f"{0:020d}.keyhashes").write_bytes(b"x" * 100_000)


def _within(broker: MadeBroker) -> None:
    broker.topic("t", cleanup_policy="delete", retention_ms=3 * DAY)
    dirty_log(broker)
    replicated(broker, 51)


def _live_data(broker: MadeBroker) -> None:
    """Cleaned: its keys no longer repeat, but offsets are missing."""
    compacted(broker)
    cleaned = [batch(10 * at, *pairs([at], b"v" * 1000)) for at in range(100)]
    broker.log("t-0", cleaned, [batch(1000, *pairs([3]))])
    broker.checkpoints[CLEANER_OFFSETS][T] = 1000
    replicated(broker, 1001)


def _empty(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [])


def _ends_below_start(broker: MadeBroker) -> None:
    compacted(broker)
    dirty_log(broker)
    broker.checkpoints[LOG_START_OFFSETS][T] = 1000


# ---- pairs -----------------------------------------------------------------------------------------------------------


def _off_and_hanging(broker: MadeBroker) -> Mapping[str, Any]:
    _hanging(broker)
    return {"overrides": ["log.cleaner.enable=false"]}


def _ratio_and_leftovers(broker: MadeBroker) -> None:
    _ratio(broker)
    (broker.path / "t-0" / f"{7:020d}.log.deleted").write_bytes(b"x" * 100_000)


def _hanging_and_ratio(broker: MadeBroker) -> None:
    """A little could be cleaned but for the ratio; most waits for the transaction."""
    compacted(broker, min_cleanable_dirty_ratio=1)
    broker.topic("__transaction_state", cleanup_policy="compact")
    open_batch = batch(10, *same(10), **TRANSACTION)
    broker.log("t-0", [batch(0, *same(10))], [open_batch, batch(20, *same(100))], [batch(120, *same(1))])
    broker.log("__transaction_state-0", [])
    replicated(broker, 121)


def _compact_and_delete(broker: MadeBroker) -> None:
    """Retention would delete the whole log; a clean is due, too."""
    broker.topic("t", cleanup_policy="compact,delete", retention_ms=HOUR)
    broker.log("t-0", [batch(0, *different(50)), batch(50, *different(10))], [batch(60, *same(1))])
    replicated(broker, 61)


def _dead_and_active(broker: MadeBroker) -> None:
    compacted(broker)
    broker.log("t-0", [batch(0, *same(50))], [batch(50, *same(20))])
    replicated(broker, 70)
    broker.times = {HIGH_WATERMARKS: T0 + 5 * HOUR, CLEANER_OFFSETS: T0 - HOUR}


def _damage_and_transaction(broker: MadeBroker) -> None:
    """Damage below a transaction that is open."""
    compacted(broker)
    broker.log(
        "t-0",
        [batch(0, *same(20)), b"\xff" * 200, batch(20, *same(20))],
        [batch(40, *same(5), **TRANSACTION)],
        [batch(45, *same(1))],
    )
    replicated(broker, 46)


KIND = CauseKind
CASES = {
    "no partition": Case(_no_partition, KIND.NO_PARTITION, "not named like a partition", "lost"),
    "delete": Case(_state("delete"), KIND.TO_BE_DELETED, "about to be removed", ASIDE + "delete"),
    "stray": Case(_state("stray"), KIND.STRAY, "it is not part of the cluster", ASIDE + "stray"),
    "future": Case(_state("future"), KIND.FUTURE, "a copy in the making", ASIDE + "future"),
    "moving": Case(_moving, KIND.MOVING, "it is being moved to"),
    "duplicate": Case(_duplicate, KIND.DUPLICATE, "it is also in"),
    "metadata": Case(_metadata_log, KIND.METADATA_LOG, "never cleaned", "__cluster_metadata-0"),
    "wrong config": Case(_wrong_config, KIND.WRONG_CONFIG, "cleanup.policy=compost"),
    "unknown policy": Case(_unknown_policy, KIND.UNKNOWN_POLICY, "not in the metadata"),
    "no metadata": Case(_unknown_policy, KIND.UNKNOWN_POLICY, "no metadata log", finish={"metadata": False}),
    "tiered": Case(_tiered, KIND.TIERED, "remote.storage.enable"),
    "offline": Case(
        _offline, KIND.OFFLINE, "takes its log directory offline", finish={"texts": {LOG_START_OFFSETS: "x"}}
    ),
    "unreadable": Case(_unreadable, KIND.UNREADABLE, "cannot be read"),
    "null keys": Case(_null_keys, KIND.NULL_KEYS, "98% of its records have no key", also=(KIND.NO_BROKER,)),
    "unique keys": Case(_unique_keys, KIND.UNIQUE_KEYS, "its keys never repeat"),
    "cleaner off": Case(_cleaner_off, KIND.CLEANER_OFF, "log.cleaner.enable=false"),
    "damaged": Case(_damaged, KIND.DAMAGED, "gives up on it"),
    "cleaner checkpoint": Case(
        _cleaner_checkpoint, KIND.CLEANER_CHECKPOINT, "cannot be read", finish={"texts": {CLEANER_OFFSETS: "x"}}
    ),
    "cleaner dead": Case(_cleaner_dead, KIND.CLEANER_DEAD, "has not moved since 2023-11-14 21:13:20 UTC"),
    "given up": Case(_given_up, KIND.GIVEN_UP, "other logs were cleaned meanwhile"),
    "no broker": Case(_no_broker, KIND.NO_BROKER, "no broker runs that would do it"),
    "overdue": Case(_overdue, KIND.NO_BROKER, "a clean is due"),
    "hanging": Case(_hanging, KIND.HANGING_TRANSACTION, "a transaction of producer 7 hangs"),
    "hanging, known": Case(_hanging_of_a_known_producer, KIND.HANGING_TRANSACTION, "of payer (producer 7) hangs"),
    "long": Case(_long, KIND.LONG_TRANSACTION, "of payer (producer 7) is open for longer than its timeout since 2023"),
    "open": Case(_open, KIND.OPEN_TRANSACTION, "of payer (producer 7) is open since 2023-11-14 22:13:20 UTC"),
    "ending": Case(_ending, KIND.OPEN_TRANSACTION, "its marker is still to be written"),
    "unknown transaction": Case(_unknown_transaction, KIND.UNKNOWN_TRANSACTION, "its coordinator's log is not all"),
    "high watermark": Case(_high_watermark, KIND.HIGH_WATERMARK, "the high watermark 5 on may not be replicated"),
    "min lag": Case(_min_lag, KIND.MIN_LAG, "min.compaction.lag.ms=864000000"),
    "ratio": Case(_ratio, KIND.DIRTY_RATIO, "min.cleanable.dirty.ratio=0.9"),
    "ratio of all": Case(_ratio_of_all, KIND.DIRTY_RATIO, "more than 100 % is required"),
    "active": Case(_active, KIND.ACTIVE_SEGMENT, "its active segment"),
    "active behind clean": Case(_active_behind_clean, KIND.ACTIVE_SEGMENT, "from offset 20 to 219"),
    "tombstones": Case(_tombstones, KIND.TOMBSTONES, "wait for their time, the last until 2023-11-16 22:13:20 UTC"),
    "expired tombstones": Case(_expired_tombstones, KIND.EXPIRED_TOMBSTONES, "may go, but nothing is dirty"),
    "kept forever": Case(_kept_forever, KIND.KEPT_FOREVER, "its cleanup.policy is empty"),
    "retention off": Case(_retention_off, KIND.RETENTION_OFF, "retention is off"),
    "future times": Case(_future_times, KIND.FUTURE_TIMES, "claims to have records of 2026-08-10"),
    "future in the second": Case(
        _future_in_the_second, KIND.FUTURE_TIMES, "the segment from offset 2 on claims", also=(KIND.RETENTION_DUE,)
    ),
    "younger in front": Case(_younger_in_front, KIND.YOUNGER_RECORD, "segments are deleted whole and in order"),
    "trickle": Case(_trickle, KIND.ACTIVE_SEGMENT, "but in its active segment, which goes as a whole"),
    "active beyond bytes": Case(_active_beyond_bytes, KIND.ACTIVE_SEGMENT, "beyond retention.bytes, but in its active"),
    "retention due": Case(_retention_due, KIND.RETENTION_DUE, "beyond retention.ms, and no broker runs"),
    "retention by size": Case(_retention_due_by_size, KIND.RETENTION_DUE, "beyond retention.bytes, and no broker runs"),
    "retention by default": Case(_retention_due_by_default, KIND.RETENTION_DUE, "beyond retention.ms"),
    "not replicated": Case(_not_replicated, KIND.NOT_REPLICATED, "the high watermark is 5"),
    "far": Case(_far, KIND.RETENTION_FAR, "retention deletes nothing before 2024-12-18"),
    "below start": Case(_below_start, KIND.BELOW_START, "below the log start offset 80"),
    "leftovers": Case(_leftovers, KIND.LEFTOVERS, "2 files left over"),
    "work folder": Case(_work_folder, KIND.LEFTOVERS, "1 file left over"),
    "foreign": Case(_foreign, KIND.FOREIGN_FILES, "no log's: backup.tar"),
    "indexes": Case(_indexes, KIND.INDEXES, "its indexes take 2.1 MB"),
    "key indexes": Case(_key_indexes, KIND.KEY_INDEXES, "key indexes of Cordwood"),
    "within": Case(_within, KIND.WITHIN_RETENTION, "the oldest segment goes at 2023-11-17 22:13:20 UTC"),
    "live data": Case(_live_data, KIND.LIVE_DATA, "about 100 keys of 6 B, with values of 991 B"),
    "empty": Case(_empty, KIND.EMPTY, "next to nothing"),
    "ends below start": Case(_ends_below_start, KIND.EMPTY, "below its log start offset"),
    # Pairs.
    "off and hanging": Case(
        _off_and_hanging, KIND.CLEANER_OFF, "log.cleaner.enable=false", also=(KIND.HANGING_TRANSACTION,)
    ),
    "ratio and leftovers": Case(
        _ratio_and_leftovers, KIND.LEFTOVERS, "1 file left over", also=(KIND.DIRTY_RATIO,)
    ),
    "hanging and ratio": Case(
        _hanging_and_ratio, KIND.HANGING_TRANSACTION, "producer 7 hangs", also=(KIND.DIRTY_RATIO,)
    ),
    "compact and delete": Case(
        _compact_and_delete, KIND.RETENTION_DUE, "beyond retention.ms", also=(KIND.NO_BROKER,)
    ),
    "dead and active": Case(_dead_and_active, KIND.CLEANER_DEAD, "seems to be dead", also=(KIND.ACTIVE_SEGMENT,)),
    "damage and transaction": Case(
        _damage_and_transaction, KIND.DAMAGED, "gives up on it", also=(KIND.UNKNOWN_TRANSACTION,)
    ),
}  # fmt: skip
assert len(CASES) >= 45


def made(tmp_path: Path, case: Case) -> tuple[list[str], dict[str, Any]]:
    broker = MadeBroker(tmp_path / "broker")
    asked = case.make(broker)
    given: dict[str, Any] = dict(asked) if isinstance(asked, Mapping) else {}
    broker.finish(**case.finish)
    if os.path.exists(tmp_path / "twin"):
        (tmp_path / "twin" / HIGH_WATERMARKS).write_text("0\n0\n")
    return given.pop("paths", [str(broker.path)]), {"now_ms": NOW, **given}


def found(result: cordwood.WhyResult, name: str) -> WhyPartition:
    return next(one for one in result.partitions if one.name == name)


@pytest.mark.parametrize("name", CASES)
def test_the_first_line_names_the_cause(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    paths, given = made(tmp_path, case)
    result = cordwood.why(*paths, **given)
    partition = found(result, case.name)
    assert partition.cause.kind is case.kind, partition.causes
    (line,) = [line for line in result.text().splitlines() if line.startswith(f"{partition.name}: ")][:1]
    assert case.first_line in line
    assert {one.kind for one in partition.causes} >= set(case.also)
    assert 0 <= partition.could_lose_bytes <= partition.usage.total_bytes
    assert all(one.next_step for one in partition.causes if one.kind is not KIND.EMPTY)


def test_what_a_load_would_empty_is_told_with_how_to_keep_it(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["ends below start"])
    (partition,) = cordwood.why(*paths, topics=["t"], **given).partitions
    assert partition.could_lose_bytes == partition.usage.logs > 0
    assert "correct its line in log-start-offset-checkpoint" in partition.cause.next_step
    (listed,) = cordwood.ls(*paths, topics=["t"]).partitions
    assert listed.notes[0] == (
        "ends below its log start offset, 1000: the next load empties it; if it is not to go, correct its line in "
        "log-start-offset-checkpoint"
    )


def test_what_is_held_back_is_all_that_no_other_cause_counts(tmp_path: Path) -> None:
    found_now = why_of(tmp_path, _future_in_the_second)
    sizes = {one.kind: one.bytes_max for one in found_now.causes}
    due, behind = sizes[KIND.RETENTION_DUE], sizes[KIND.FUTURE_TIMES]
    assert behind == pytest.approx(43 / 2 * due, rel=0.05)
    assert found_now.could_lose_bytes == due + behind


def test_the_active_segment_waits_for_no_date_that_each_record_puts_off(tmp_path: Path) -> None:
    cause = why_of(tmp_path, _trickle).cause
    assert "segment.ms" in cause.next_step and "shorter retention" not in cause.next_step
    assert cause.by_itself.startswith("it rolls after")


@pytest.mark.parametrize(
    ("keep_ms", "said"), [(-1, " more (retention.bytes)"), (9 * DAY, "at the latest (retention.ms)")]
)
def test_a_limit_of_bytes_is_foretold_in_bytes(tmp_path: Path, keep_ms: int, said: str) -> None:
    def make(broker: MadeBroker) -> None:
        broker.topic("t", cleanup_policy="delete", retention_ms=keep_ms, retention_bytes=4000)
        timed(broker, [NOW] * 10, [NOW] * 10)

    partition = why_of(tmp_path, make)
    assert partition.cause.kind is KIND.WITHIN_RETENTION
    assert re.search(r"the oldest segment goes after [\d.]+ k?B more \(retention.bytes\)", partition.cause.what)
    assert partition.cause.what.endswith(said)


def test_segments_of_a_record_could_lose_blocks_and_not_only_their_bytes(tmp_path: Path) -> None:
    def make(broker: MadeBroker) -> None:
        broker.topic("t", cleanup_policy="delete", retention_ms=HOUR)
        timed(broker, *[[T0]] * 50, [NOW])

    partition = why_of(tmp_path, make)
    assert partition.could_lose_disk_bytes >= 50 * 4096 > 10 * partition.could_lose_bytes
    assert partition.cause.what.startswith(f"{bytes_text(partition.could_lose_disk_bytes)} are beyond retention.ms")


@on_linux
def test_what_a_running_broker_deletes_is_no_leftover_and_never_the_main_cause(tmp_path: Path) -> None:
    def make(broker: MadeBroker) -> None:
        broker.topic("t", cleanup_policy="delete", retention_ms=3 * DAY)
        path = timed(broker, [NOW] * 3, [NOW] * 3)
        (path / f"{0:020d}.log.deleted").write_bytes(b"x" * 100_000)

    paths, given = made(tmp_path, Case(make, KIND.DUE, ""))
    with other(HOLD_AS_A_BROKER, Path(paths[0]) / ".lock"):
        live = found(cordwood.why(*paths, **given), "t-0")
        (listed,) = cordwood.ls(*paths, topics=["t"]).partitions
        notes = cordwood.plan(*paths, topics=["t"], **given).partitions[0].notes
    assert [one.kind for one in live.causes] == [KIND.WITHIN_RETENTION, KIND.DELETING]
    assert "file.delete.delay.ms" in live.causes[1].what and "start the broker" not in live.causes[1].next_step
    assert not listed.recovery and not [note for note in notes if "recovery" in note]


def test_files_that_a_program_deletes_and_files_of_a_stopped_broker_differ(tmp_path: Path) -> None:
    def make(broker: MadeBroker) -> None:
        broker.topic("t", cleanup_policy="delete", retention_ms=3 * DAY)
        path = timed(broker, [NOW] * 3, [NOW] * 3)
        (path / f"{0:020d}.index.deleted").write_bytes(b"x" * 100_000)

    paths, given = made(tmp_path, Case(make, KIND.DUE, ""))
    (listed,) = cordwood.ls(*paths, topics=["t"]).partitions
    stopped = found(cordwood.why(*paths, **given), "t-0")
    assert listed.recovery and "the broker would have deleted" in stopped.cause.what
    with PosixFileSystem().lock_directory(paths[0]):
        (listed,) = cordwood.ls(*paths, topics=["t"]).partitions
        held = found(cordwood.why(*paths, **given), "t-0")
    assert not listed.recovery and [one.kind for one in held.causes] == [KIND.WITHIN_RETENTION, KIND.DELETING]
    assert "the running program" in held.causes[1].what


@pytest.mark.parametrize("dense", [True, False])
def test_a_preallocated_active_segment_is_no_data(tmp_path: Path, dense: bool) -> None:
    def make(broker: MadeBroker) -> None:
        broker.topic("t", cleanup_policy="delete", retention_ms=3 * DAY, retention_bytes=1_000_000)
        path = timed(broker, [NOW] * 3, [NOW] * 3)
        active = max(path.glob("*.log"))
        for name, size in ((active, 20 << 20), (active.with_suffix(".index"), 10 << 20)):
            with name.open("ab") as file:
                file.truncate(size)
            if dense and name is not active:
                name.write_bytes(name.read_bytes())

    paths, given = made(tmp_path, Case(make, KIND.DUE, ""))
    (Path(paths[0]) / CLEAN_SHUTDOWN).unlink()
    copy = tmp_path / "copy" / "t-0"
    shutil.copytree(Path(paths[0]) / "t-0", copy, copy_function=PosixFileSystem().copy)
    assert sum(one.stat().st_blocks for one in copy.iterdir()) * 512 < (10 << 20) * dense + 100_000
    policy = ["t:cleanup.policy=delete", "t:retention.bytes=1000000"]
    (planned,) = cordwood.plan(str(copy), overrides=policy, retention=True, **given).partitions
    partition = found(cordwood.why(str(copy), overrides=policy, **given), "t-0")
    (listed,) = cordwood.ls(str(copy)).partitions
    assert not planned.retention and listed.size_bytes < 10_000
    assert [one.kind for one in partition.causes if one.kind is KIND.RETENTION_DUE] == []
    assert dense == ("nearly all zeros" in partition.cause.what)


def test_a_partition_alone_gets_the_verdict_on_its_transaction_that_its_node_gets(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["hanging"])
    alone = cordwood.why(f"{paths[0]}/t-0", **given)
    assert found(alone, "t-0").cause == found(cordwood.why(*paths, **given), "t-0").cause


def test_of_duplicates_one_copy_stays(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["duplicate"])
    result = cordwood.why(*paths, topics=["t"], **given)
    copies = [one.could_lose_disk_bytes for one in result.partitions]
    assert len(copies) == 2 and min(copies) > 0
    assert could_lose(result.partitions) == max(copies)
    assert could_lose(result.partitions[:1]) == copies[0]
    assert result.document()["totals"]["could_lose_disk_bytes"] == max(copies)
    assert f"up to {bytes_text(max(copies))} could go" in result.text().splitlines()[-1]


def test_a_segment_that_the_first_dirty_offset_is_inside_of_could_go_once(tmp_path: Path) -> None:
    def most(first_dirty: int) -> int:
        broker = MadeBroker(tmp_path / str(first_dirty))
        compacted(broker, min_cleanable_dirty_ratio=1)
        broker.log("t-0", [batch(0, *different(30)), batch(30, *same(20))], [batch(50, *same(1))])
        broker.checkpoints[CLEANER_OFFSETS][T] = first_dirty
        replicated(broker, 51)
        (partition,) = cordwood.why(str(broker.finish()), topics=["t"], now_ms=NOW).partitions
        assert partition.cause.kind is KIND.DIRTY_RATIO
        return partition.cause.bytes_max

    assert most(30) == most(0) > 0


def test_nobody_is_told_to_delete_the_state_of_share_groups(tmp_path: Path) -> None:
    unpack(tmp_path)
    (state,) = cordwood.why(str(tmp_path / "kafka-groups"), topics=["__share_group_state"]).partitions
    assert state.cause.kind is KIND.LIVE_DATA
    assert "retention.ms=-1" in state.cause.evidence[0].what
    assert "nothing to do" in state.cause.next_step
    assert state.could_lose_bytes == 0


def test_nobody_is_told_to_delete_where_remote_segments_are(tmp_path: Path) -> None:
    broker = MadeBroker(tmp_path / "broker")
    name = "__remote_log_metadata"
    broker.topic(name, retention_ms=-1, cleanup_policy="delete")
    broker.log(f"{name}-0", [batch(0, *different(50))], [batch(50, *different(50))])
    (state,) = cordwood.why(str(broker.finish()), topics=[name], now_ms=NOW).partitions
    assert state.cause.kind is KIND.LIVE_DATA
    assert "Kafka keeps all of it" in state.cause.what
    assert "nothing to do" in state.cause.next_step
    assert state.could_lose_bytes == 0


# ---- Building blocks -------------------------------------------------------------------------------------------------


def why_of(tmp_path: Path, make: Callable[[MadeBroker], object], **given: Any) -> WhyPartition:
    paths, more = made(tmp_path, Case(make, KIND.DUE, ""))
    return found(cordwood.why(*paths, **{**more, **given}), "t-0")


@on_linux
def test_while_a_broker_runs_it_is_due_or_passed_over(tmp_path: Path) -> None:
    paths, given = made(tmp_path, Case(_no_broker, KIND.DUE, ""))
    with other(HOLD_AS_A_BROKER, Path(paths[0]) / ".lock"):
        soon = found(cordwood.why(*paths, **{**given, "now_ms": T0 + 5 * MINUTE}), "t-0")
        late = found(cordwood.why(*paths, **given), "t-0")
    assert (soon.cause.kind, soon.broker) == (KIND.DUE, "cleans it in its next rounds")
    assert (late.cause.kind, late.broker) == (KIND.CLEANER_DEAD, "cleans it after a restart")


def test_each_cause_has_its_evidence_with_where_it_stands(tmp_path: Path) -> None:
    partition = why_of(tmp_path, _ratio)
    place = f"topic t in {tmp_path}/broker/__cluster_metadata-0"
    assert [(one.what.partition(":")[0], one.source) for one in partition.cause.evidence] == [
        ("min.cleanable.dirty.ratio=0.9", place),
        ("first dirty offset 50, first uncleanable offset 70", "cleaner-offset-checkpoint"),
    ]
    assert partition.offline.startswith("cordwood clean --ignore-ratio reads")


def test_an_active_segment_says_when_it_rolls(tmp_path: Path) -> None:
    partition = why_of(tmp_path, _active)
    rolls = "it rolls after 1.1 GB more, or with the first record from 2023-11-21 22:13:20 UTC on"
    assert partition.cause.by_itself == rolls
    assert partition.broker == f"nothing yet: {rolls}"


def test_what_a_default_deletes_names_the_command_that_deletes_it(tmp_path: Path) -> None:
    partition = why_of(tmp_path, _retention_due_by_default)
    assert partition.broker == "deletes them soon after its start"
    command = "cordwood clean --retention --config t:cleanup.policy=delete --config t:retention.ms=604800000"
    assert partition.cause.next_step == f"start the broker, or run {command}"
    paths, given = made(tmp_path / "again", Case(_retention_due_by_default, KIND.RETENTION_DUE, ""))
    again = cordwood.plan(*paths, retention=True, overrides=command.split()[4::2], now_ms=given["now_ms"])
    (taken,) = next(one for one in again.partitions if one.name == "t-0").retention
    assert taken.size_bytes == partition.cause.bytes_max


def test_an_open_transaction_says_how_it_is_ended_early(tmp_path: Path) -> None:
    step = why_of(tmp_path, _open).cause.next_step
    assert step == "wait for its end; a producer that starts as payer aborts it (initTransactions)"
    assert why_of(tmp_path / "ending", _ending).cause.next_step == "wait for its end"


def test_what_could_go_follows_how_many_keys_repeat(tmp_path: Path) -> None:
    def half(broker: MadeBroker) -> None:
        compacted(broker)
        broker.log("t-0", [batch(0, *pairs([*range(500), *range(500)]))], [])
        replicated(broker, 1000)

    partition = why_of(tmp_path, half)
    assert partition.keys is not None
    assert (partition.keys.source, partition.keys.keys_in_log, partition.keys.superseded_share) == (
        "all records",
        500,
        0.5,
    )
    assert partition.could_lose_bytes == pytest.approx(partition.usage.logs / 2, rel=0.2)
    without = found(cordwood.why(partition.path, now_ms=NOW, metadata=str(tmp_path / "broker"), keys=False), "t-0")
    assert without.keys is None
    assert without.could_lose_bytes > 1.8 * partition.could_lose_bytes


def many_keys(broker: MadeBroker, keys: int, records: int) -> Path:
    """Batches of 100 records, each of a key by chance."""
    compacted(broker)
    chosen = random.Random(7).choices(range(keys), k=records)
    batches = [batch(at, *pairs(chosen[at : at + 100], b"v" * 300)) for at in range(0, records, 100)]
    path = broker.log("t-0", batches, [])
    entries = [(at, sum(map(len, batches[: at // 100]))) for at in range(100, records, 100)]
    offsets, positions = (np.array(column) for column in zip(*entries, strict=True))
    index = offset_index.OffsetIndex(0, offsets, positions, len(entries), b"")
    (path / offset_name(0, FileKind.OFFSET_INDEX)).write_bytes(offset_index.encode(index))
    replicated(broker, records)
    return path


@pytest.mark.parametrize("keys", [200, 20_000, 10**9])
def test_a_sample_of_a_large_log_tells_about_how_many_keys_it_has(tmp_path: Path, keys: int) -> None:
    records = 40_000
    partition = why_of(tmp_path, lambda broker: many_keys(broker, keys, records), sample_bytes=4 << 20)
    counts = partition.keys
    assert counts is not None and counts.source is CountSource.SAMPLE
    assert counts.read_bytes <= 5 << 20
    different = len(set(random.Random(7).choices(range(keys), k=records)))
    assert counts.keys_in_log == pytest.approx(different, rel=0.15)
    everything = why_of(tmp_path / "all", lambda broker: many_keys(broker, keys, records), read_all=True).keys
    assert everything is not None and everything.source is CountSource.ALL and everything.keys_in_log == different


def test_a_large_log_is_explained_from_a_few_reads_a_segment_and_a_sample(tmp_path: Path) -> None:
    log = make_large_log(tmp_path / "t-0")
    of_segments = LARGE_SEGMENTS * (200 << 10)

    def explained(**options: Any) -> tuple[WhyResult, int]:
        counted = CountedStore(PosixFileSystem())
        chosen = Selection(overrides=("cleanup.policy=compact,delete",))
        return why([log.path], WhyOptions(selection=chosen, now_ms=NOW, **options), fs=counted), counted.bytes_read

    without_keys, few = explained(keys=False)
    exact, all_headers = explained(keys=False, exact=True)
    assert without_keys == exact
    assert few < of_segments + (2 << 20) < all_headers
    with_keys, sampled = explained()
    keys = with_keys.partitions[0].keys
    assert keys is not None
    assert keys.source is CountSource.SAMPLE
    assert sampled < of_segments + (10 << 20)


def test_key_indexes_count_all_keys_without_reading_the_log(tmp_path: Path) -> None:
    paths, given = made(tmp_path, Case(lambda broker: many_keys(broker, 5_000, 40_000), KIND.DUE, ""))
    cordwood.index(paths[0], topics=["t"])
    counts = found(cordwood.why(*paths, **given, sample_bytes=1 << 20), "t-0").keys
    assert counts is not None and counts.source is CountSource.INDEX
    assert (counts.read_bytes, counts.keys_in_log, counts.keyed) == (0, 4_999, 40_000)


def test_of_large_key_indexes_a_part_of_the_keys_is_counted_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, given = made(tmp_path, Case(lambda broker: many_keys(broker, 5_000, 40_000), KIND.DUE, ""))
    cordwood.index(paths[0], topics=["t"])
    monkeypatch.setattr(search, "_ENTRIES_MIN", 1000)
    result = cordwood.why(*paths, **given)
    counts = found(result, "t-0").keys
    assert counts is not None and counts.source is CountSource.INDEX
    assert (counts.records, counts.keyed) == (40_000, 40_000)
    assert abs(counts.keys - 4_999) < 1.5 * counts.keys_error < 2_500
    assert "(by key indexes, sampled: keys are ± " in result.text()
    exact = found(cordwood.why(*paths, **given, exact=True), "t-0").keys
    assert exact is not None and (exact.keys, exact.keys_error) == (4_999, 0)


def test_key_indexes_may_be_elsewhere(tmp_path: Path) -> None:
    paths, given = made(tmp_path, Case(lambda broker: many_keys(broker, 5_000, 40_000), KIND.DUE, ""))
    cordwood.index(paths[0], topics=["t"], index_dir=str(tmp_path / "indexes"))
    counts = found(cordwood.why(*paths, **given, index_dir=str(tmp_path / "indexes")), "t-0").keys
    assert counts is not None and counts.source is CountSource.INDEX


def test_more_keys_than_are_kept_are_counted_by_a_part_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sample, "_HASHES_MAX", 4_000)
    counts = why_of(tmp_path, lambda broker: many_keys(broker, 20_000, 40_000)).keys
    assert counts is not None
    assert counts.keys_in_log == pytest.approx(17_300, rel=0.1)


def test_reading_for_keys_ends_with_what_is_allowed(tmp_path: Path) -> None:
    broker = MadeBroker(tmp_path / "broker")
    broker.topic("t", partitions=80, cleanup_policy="compact")
    for number in range(80):
        broker.log(f"t-{number}", [batch(0, *same(50, value=b"v" * 1000))], [])
        broker.checkpoints[HIGH_WATERMARKS][TopicPartition("t", number)] = 50
    result = cordwood.why(str(broker.finish()), now_ms=NOW, sample_bytes=50 * 1024)
    assert 10 <= len(result.keys_not_counted) <= 17
    assert "keys were not counted in" in result.text()


@pytest.mark.parametrize(
    "name", ["min lag", "ratio", "active", "leftovers", "retention off", "cleaner dead", "damaged"]
)
def test_a_plan_says_the_same_in_a_line(tmp_path: Path, name: str) -> None:
    paths, given = made(tmp_path, CASES[name])
    plan = cordwood.plan(*paths, **given)
    (partition,) = [one for one in plan.partitions if one.name == "t-0"]
    assert partition.cause == found(cordwood.why(*paths, **given), "t-0").cause.what
    assert f"  t-0: {partition.cause}" in plan.text().splitlines()
    assert CASES[name].first_line in partition.cause


def test_a_plan_does_not_judge_a_transaction_whose_coordinator_it_did_not_ask(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["hanging"])
    (partition,) = [one for one in cordwood.plan(*paths, **given).partitions if one.name == "t-0"]
    assert partition.cause == "a transaction of producer 7 is open: nothing from offset 10 on is cleaned"


# ---- ranks, sums, forms ----------------------------------------------------------------------------------------------


def test_those_that_could_lose_most_come_first_and_the_rest_is_summed_up(tmp_path: Path) -> None:
    broker = MadeBroker(tmp_path / "broker")
    broker.topic("t", partitions=30, cleanup_policy="compact")
    for number in range(30):
        broker.log(f"t-{number}", [batch(0, *same(10 + 10 * number))], [])
        broker.checkpoints[HIGH_WATERMARKS][TopicPartition("t", number)] = 10 + 10 * number
    path = str(broker.finish())
    done = run("why", path, "--now", NOW, "--limit", "3")
    told = [line.partition(":")[0] for line in done.output.splitlines() if " on disk, " in line]
    assert told[:3] == ["t-29", "t-28", "t-27"]
    assert re.search(r"^no broker +30 ", done.output, re.MULTILINE)
    assert "the 3 that could lose most are above; --limit shows more" in done.output


def test_json_is_what_the_function_returns(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["hanging"])
    done = run("why", *paths, "--now", NOW, "--json")
    result = cordwood.why(*paths, **given)
    assert json.loads(done.output) == json.loads(json.dumps(result.document()))
    assert "producer 7 hangs" in result._repr_html_()


@pytest.mark.parametrize(("name", "code"), [("damaged", 1), ("unreadable", 2), ("no broker", 0)])
def test_damage_and_unreadable_files_are_in_the_exit_status(tmp_path: Path, name: str, code: int) -> None:
    paths, _ = made(tmp_path, CASES[name])
    run("why", *paths, "--now", NOW, exits=code)


@pytest.mark.parametrize("name", ["leftovers", "work folder", "foreign", "indexes", "live data"])
def test_usage_is_what_du_says(tmp_path: Path, name: str) -> None:
    paths, given = made(tmp_path, CASES[name])
    usage = found(cordwood.why(*paths, **given), "t-0").usage
    said = subprocess.run(["du", "-s", "-B1", f"{paths[0]}/t-0"], capture_output=True, text=True, check=True).stdout
    assert usage.total_bytes == int(said.split()[0])


def test_nothing_is_changed(tmp_path: Path) -> None:
    paths, given = made(tmp_path, CASES["leftovers"])
    before = tree(tmp_path)
    cordwood.why(*paths, **given)
    assert tree(tmp_path) == before
