"""A simulated month of many partitions with mixed policies: each stays as small as its configs promise.

Eleven partitions run for four days; with `pytest -m month`, 220 for thirty, which takes half an hour. This module
states the promises once more, from the segments of each log and from its appends, without the engine's own rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from cordwood import check
from cordwood.common.config import DAY_MS, HOUR_MS
from cordwood.common.text import Column, bytes_text, duration_text, table
from cordwood.live.log_cleaner import CleanerStats
from cordwood.live.log_manager import LogManager
from cordwood.live.log_to_clean import LogToClean
from cordwood.live.metrics import MeterReading, MetricName, Reading, TimerReading
from cordwood.live.scheduler import SteppedScheduler
from cordwood.live.segment import LogSegment
from cordwood.simulation.recorder import RecordState
from cordwood.simulation.sizing.result import Stay
from cordwood.simulation.sizing.workload import Workload
from cordwood.simulation.world import Member, World
from cordwood.storage.check import Severity
from tests.simulation.worlds import Topic, add, records_there, world_of
from tests.summary import lines_of

STEP_MS = HOUR_MS
RECORD_BYTES, BATCH_RECORDS = 200, 5
#: A record alone in its batch; a cleaned record is no larger.
ALONE_BYTES = RECORD_BYTES + 61

LAG_MS, MIN_LAG_MS, TOMBSTONES_MS, RETENTION_MS = 12 * HOUR_MS, 6 * HOUR_MS, 6 * HOUR_MS, 2 * DAY_MS
RETENTION_BYTES = 150_000


def topic(rate: str, configs: Mapping[str, object], **workload: object) -> Topic:
    common = {"delete.retention.ms": TOMBSTONES_MS, "internal.segment.bytes": 20_000, "segment.index.bytes": 4096}
    texts = {name: str(value) for name, value in (common | dict(configs)).items()}
    return Topic(Workload(rate=rate, record_size=RECORD_BYTES, **workload), texts, BATCH_RECORDS)  # type: ignore[arg-type]


COMPACT = {"cleanup.policy": "compact"}
TOPICS = {
    "compact": topic("40/h", COMPACT, keys=300, tombstones=0.05),
    "eager": topic("40/h", COMPACT | {"min.cleanable.dirty.ratio": 0.1}, keys=300, skew=1.0),
    "max-lag": topic(
        "40/h",
        COMPACT
        | {"min.cleanable.dirty.ratio": 1.0, "max.compaction.lag.ms": LAG_MS, "internal.segment.bytes": 10_000_000},
        keys=200,
        tombstones=0.2,
    ),
    "min-lag": topic(
        "40/h", COMPACT | {"min.cleanable.dirty.ratio": 0.2, "min.compaction.lag.ms": MIN_LAG_MS}, keys=150
    ),
    "transactions": topic(
        "40/h", COMPACT | {"min.cleanable.dirty.ratio": 0.3}, keys=200, transactions=7, aborted=0.3, preload=True
    ),
    "sessions": topic("30/h", COMPACT | {"min.cleanable.dirty.ratio": 0.3}, tombstones=0.48),
    "large": topic("40/h", COMPACT | {"internal.segment.bytes": 10_000_000, "segment.ms": DAY_MS}, keys=200),
    "tiny": topic("20/h", COMPACT | {"internal.segment.bytes": 3_000}, keys=50, tombstones=0.3),
    "by-time": topic("40/h", {"cleanup.policy": "delete", "retention.ms": RETENTION_MS}),
    "by-size": topic("40/h", {"cleanup.policy": "delete", "retention.ms": -1, "retention.bytes": RETENTION_BYTES}),
    "both": topic(
        "40/h", {"cleanup.policy": "compact,delete", "retention.ms": RETENTION_MS}, keys=2_000, tombstones=0.1
    ),
}
#: Bytes per partition and hour, headers included: batches of five.
HOUR_BYTES = 40 * (RECORD_BYTES + 61 / BATCH_RECORDS)


@dataclass
class Month:
    """History of a partition.

    Attributes:
        member: its log.
        sizes: size of the log at each step.
        cleans, read_bytes, written_bytes: the cleaner's totals.
    """

    member: Member
    sizes: list[int] = field(default_factory=list)
    cleans: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


# ---- promises: each of a log at a time, after the tasks of a step ----------------------------------------------------


def closed(member: Member) -> tuple[LogSegment, ...]:
    """The segments that are not appended to any more."""
    return member.log.log_segments[:-1]


def dirty_share_is_bounded(member: Member, checkpoint: int, now_ms: int) -> None:
    """The cleanable range is no dirtier than `min.cleanable.dirty.ratio`."""
    config, cleaned_at_ms = member.log.config, now_ms - STEP_MS
    clean = [one for one in closed(member) if one.base_offset < checkpoint]
    dirty = []
    for one in closed(member)[len(clean) :]:
        if config.min_compaction_lag_ms and one.largest_timestamp > cleaned_at_ms - config.min_compaction_lag_ms:
            break
        dirty.append(one)
    sizes = [sum(one.size_bytes for one in part) for part in (clean, dirty)]
    assert sizes[1] <= config.min_cleanable_dirty_ratio * sum(sizes), (member.log.name, sizes)


def nothing_waits_longer_than_its_lag(member: Member, checkpoint: int, now_ms: int) -> None:
    """`max.compaction.lag.ms`: no segment is open, and none dirty, for longer."""
    for one in member.log.log_segments:
        if one.base_offset >= checkpoint and one.size_bytes:
            assert now_ms - one.first_timestamp <= LAG_MS + 2 * STEP_MS, member.log.name


def nothing_is_older_than_retention(member: Member, checkpoint: int, now_ms: int) -> None:
    """`retention.ms`: the newest record of a segment is no older."""
    for one in closed(member):
        assert now_ms - one.largest_timestamp <= RETENTION_MS + 2 * STEP_MS, member.log.name


def size_is_bounded(member: Member, checkpoint: int, now_ms: int) -> None:
    """`retention.bytes`: without its first segment the log is smaller."""
    log = member.log
    assert log.size_bytes - log.log_segments[0].size_bytes < RETENTION_BYTES, log.name


def live_data_bounds_the_size(keys: int, ratio: float, *, more_bytes: float = 0) -> Callable[[Member, int, int], None]:
    """The last values, as much more as the ratio allows, and the active segment."""

    def promise(member: Member, checkpoint: int, now_ms: int) -> None:
        bound = keys * ALONE_BYTES / (1 - ratio) + 2 * member.log.config.segment_bytes + more_bytes
        assert member.log.size_bytes <= bound, (member.log.name, member.log.size_bytes, bound)

    return promise


Promise = Callable[[Member, int, int], None]
PROMISES: Mapping[str, Sequence[Promise]] = {
    "compact": (dirty_share_is_bounded, live_data_bounds_the_size(300, 0.5)),
    "eager": (dirty_share_is_bounded, live_data_bounds_the_size(300, 0.1)),
    "max-lag": (nothing_waits_longer_than_its_lag,),
    "min-lag": (
        dirty_share_is_bounded,
        live_data_bounds_the_size(150, 0.2, more_bytes=HOUR_BYTES * MIN_LAG_MS / HOUR_MS),
    ),
    "transactions": (dirty_share_is_bounded, live_data_bounds_the_size(200, 0.3, more_bytes=20_000)),
    "sessions": (dirty_share_is_bounded,),
    "large": (dirty_share_is_bounded,),
    "tiny": (dirty_share_is_bounded, live_data_bounds_the_size(50, 0.5)),
    "by-time": (nothing_is_older_than_retention,),
    "by-size": (size_is_bounded,),
    "both": (dirty_share_is_bounded, nothing_is_older_than_retention),
}


def each_key_is_there_once(member: Member, checkpoint: int) -> None:
    """Below the cleaner's checkpoint no key has two records, unless a transaction was aborted."""
    keys = Counter(key for offset, (key, _) in records_there(member.log).items() if offset < checkpoint)
    assert not keys or max(keys.values()) == 1, member.log.name


# ---- metrics ---------------------------------------------------------------------------------------------------------


def metrics_are_sensible(metrics: Mapping[MetricName, Reading], world: World) -> None:
    for name, value in metrics.items():
        if isinstance(value, MeterReading | TimerReading):
            assert value.count >= 0 and value.rate >= 0, name
        elif name.name.endswith(("-percent", "InPercent")):
            assert 0 <= value <= 100 or (name.name == "RetentionSizeInPercent" and value < 130), (name, value)
        else:
            assert value >= 0, (name, value)
    by_name = {str(which): value for which, value in metrics.items()}
    for gauge in ("DeadThreadCount", "max-compaction-delay-secs"):
        assert by_name[f"kafka.log:type=LogCleaner,name={gauge}"] == 0
    assert by_name["kafka.log:type=LogCleanerManager,name=time-since-last-run-ms"] <= STEP_MS  # type: ignore[operator]
    assert by_name["kafka.log:type=LogManager,name=OfflineLogDirectoryCount"] == 0
    assert not any(value for which, value in by_name.items() if "uncleanable" in which)
    for partition, member in world.members.items():
        tags = f"topic={partition.topic},partition={partition.partition}"
        size = by_name[f"kafka.log:type=Log,name=Size,{tags}"]
        assert size == sum(one.size_bytes for one in member.log.log_segments) > 0
        start, end = (by_name[f"kafka.log:type=Log,name=Log{one}Offset,{tags}"] for one in ("Start", "End"))
        assert 0 <= start < end >= member.recorder.appended_records  # type: ignore[operator]
    flushes = by_name["kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"]
    assert isinstance(flushes, TimerReading) and flushes.count >= sum(one.rolls.count for one in world.members.values())


# ---- Duration of stays -----------------------------------------------------------------------------------------------


def stays_are_bounded(months: Mapping[str, Sequence[Month]], now_ms: int) -> None:
    def least(name: str, find: Callable[[Member], Stay | None]) -> float:
        stays = [stay for one in months[name] if (stay := find(one.member)) is not None]
        return min((one.min_ms for one in stays if one.min_ms is not None), default=0)

    def most(name: str, find: Callable[[Member], Stay | None]) -> float:
        stays = [find(one.member) for one in months[name]]
        assert all(one is not None and one.count > one.still_there for one in stays), name
        return max(one.max_ms for one in stays if one is not None)

    # A lag while its segment is open, and until the next step; the superseding record is cleaned at once then.
    longest = most("max-lag", lambda member: member.recorder.superseded(now_ms))
    assert longest <= 2 * LAG_MS + 3 * STEP_MS
    # The same until the first clean; its time; and until the next clean.
    longest = most("max-lag", lambda member: member.recorder.tombstones(now_ms))
    assert longest <= TOMBSTONES_MS + 4 * LAG_MS + 4 * STEP_MS
    longest = most("by-time", lambda member: member.recorder.deleted(now_ms))
    # A segment of 20,000 bytes is three hours.
    assert longest <= RETENTION_MS + 20_000 / HOUR_BYTES * HOUR_MS + 3 * STEP_MS
    # And as long as was promised: who reads the log at least so often sees each tombstone.
    assert least("by-time", lambda member: member.recorder.deleted(now_ms)) > RETENTION_MS
    for name in ("compact", "max-lag", "sessions", "tiny"):
        assert least(name, lambda member: member.recorder.tombstones(now_ms)) >= TOMBSTONES_MS
    for one in months["transactions"]:
        aborted = one.member.recorder.aborted(now_ms)
        assert aborted is not None and aborted.still_there < 0.2 * aborted.count


# ---- the month -------------------------------------------------------------------------------------------------------


def run(months: Mapping[str, Sequence[Month]], world: World, days: int) -> int:
    """Run the simulation, check each promise after each step, and return the largest use of the disk."""
    by_member = {id(one.member): one for group in months.values() for one in group}
    cleaner = world.manager.cleaner
    assert cleaner is not None
    steps = peak_bytes = 0

    def on_clean(member: Member, found: LogToClean, stats: CleanerStats) -> None:
        month = by_member[id(member)]
        month.cleans += 1
        month.read_bytes += stats.bytes_read
        month.written_bytes += stats.bytes_written

    def on_step() -> None:
        nonlocal steps, peak_bytes
        steps, peak_bytes = steps + 1, max(peak_bytes, world.disk.take_peak())
        checkpoints = cleaner.manager.all_cleaner_checkpoints()
        is_new_day = steps * STEP_MS % DAY_MS == 0
        for partition, member in world.members.items():
            checkpoint = checkpoints.get(partition, 0)
            by_member[id(member)].sizes.append(member.log.size_bytes)
            for promise in PROMISES[partition.topic]:
                promise(member, checkpoint, world.now_ms)
            if is_new_day and member.log.config.compact and partition.topic != "transactions":
                each_key_is_there_once(member, checkpoint)
        if is_new_day:
            metrics_are_sensible(world.manager.metrics(), world)

    world.on_clean = on_clean
    world.run(days * DAY_MS, on_step)
    return peak_bytes


def rows(months: Mapping[str, Sequence[Month]], now_ms: int) -> Iterator[list[str]]:
    """The figures of each topic, its partitions taken together."""

    def longest(group: Sequence[Month], find: Callable[[Member], Stay | None]) -> str:
        found = [stay.max_ms for one in group if (stay := find(one.member)) is not None]
        return duration_text(max(found)) if found else "-"

    for name, group in months.items():
        late = [sum(one.sizes[len(one.sizes) // 3 :]) / (len(one.sizes) - len(one.sizes) // 3) for one in group]
        appended = sum(one.member.recorder.appended_bytes for one in group)
        values = sum(one.member.recorder.bytes_of(RecordState.VALUE) for one in group)
        deleted = sum(one.member.recorder.deleted_bytes for one in group)
        yield [
            name,
            str(len(group)),
            bytes_text(round(sum(late) / len(group))),
            bytes_text(max(max(one.sizes) for one in group)),
            bytes_text(values // len(group)) if group[0].member.log.config.compact else "-",
            bytes_text(appended // len(group)),
            bytes_text(deleted // len(group)),
            str(sum(one.cleans for one in group) // len(group)),
            f"{sum(one.written_bytes for one in group) / appended:.2f}",
            longest(group, lambda member: member.recorder.superseded(now_ms) if member.log.config.compact else None),
            longest(group, lambda member: member.recorder.tombstones(now_ms) if member.log.config.compact else None),
            longest(group, lambda member: member.recorder.deleted(now_ms)),
        ]


_TITLES = (
    *("PARTITIONS", "AVERAGE", "MOST", "VALUES", "APPENDED", "DELETED", "CLEANS", "REWRITTEN"),
    *("SUPERSEDED", "TOMBSTONE", "AGE"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "days"), [(1, 4), pytest.param(20, 30, marks=pytest.mark.month)])
def test_a_month_of_mixed_policies_stays_within_its_promises(
    partitions: int,
    days: int,
    record_property: Callable[[str, object], None],
) -> None:
    with world_of(TOPICS, "log.cleaner.backoff.ms=15000", step_ms=STEP_MS) as world:
        months = {name: [Month(add(world, TOPICS, name, number)) for number in range(partitions)] for name in TOPICS}
        peak_bytes = run(months, world, days)
        stays_are_bounded(months, world.now_ms)
        for group in months.values():
            for one in group:
                assert (one.cleans > 0) is one.member.log.config.compact
                assert (one.member.recorder.deleted_bytes > 0) is one.member.log.config.delete
        count = len(world.members)
        columns = [Column("TOPIC"), *(Column(title, right=True) for title in _TITLES)]
        record_property(
            *lines_of(
                [
                    f"{days} simulated days of {count} partitions; all together took {bytes_text(peak_bytes)} at most",
                    *table(columns, list(rows(months, world.now_ms))),
                ]
            )
        )
        assert peak_bytes < 3 * sum(max(one.sizes) for group in months.values() for one in group)
        logs = {str(name): (one.log.log_start_offset, one.log.log_end_offset) for name, one in world.members.items()}
    assert [one for one in check("/logs", fs=world.fs) if one.severity is not Severity.NOTE] == []
    again = LogManager(world.fs, ["/logs"], scheduler=SteppedScheduler(lambda: world.now_ms))
    again.startup()
    assert {log.name: (log.log_start_offset, log.log_end_offset) for log in again.all_logs} == logs
    again.shutdown()
