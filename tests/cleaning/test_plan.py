"""Consequences of a log's facts, without a log: ranges, ratios, decisions, groups, retention.

Numbers of cases in comments are those of docs/cases.md.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import cordwood.commands.plan  # noqa: F401 - so that plans can show themselves
from cordwood.cleaning.rules.plan import (
    BlockingTransaction,
    Bound,
    Choices,
    Compaction,
    Decision,
    HeaderFacts,
    HighWatermark,
    LogFacts,
    PartitionPlan,
    Plan,
    Reason,
    RetentionTotals,
    SegmentFacts,
    Taken,
    utc,
)
from cordwood.cleaning.rules.retention import plan_retention, retention
from cordwood.cleaning.rules.selection import (
    MAX_OFFSET_SPAN,
    decide,
    first_dirty_offset,
    group_segments,
    high_watermark,
    hint,
    plan_compaction,
)
from cordwood.common.config import Layer, Source, SourceKind, TopicConfig, resolve
from cordwood.common.types import NONE

T0 = 1_700_000_000_000
HOUR = 3_600_000
AS_USUAL = Choices()


def segment(base: int, size: int = 100, time: int = T0, index: int = 0, times: int = 0) -> SegmentFacts:
    return SegmentFacts(base, size, index, times, time, time)


def facts(
    *segments: SegmentFacts,
    end: int,
    start: int = 0,
    checkpoint: int | None = None,
    mark: int | None = None,
    open_at: Sequence[tuple[int, int]] = (),
    **headers: Any,
) -> LogFacts:
    known = tuple(replace(HeaderFacts(one.largest_timestamp, 1), **headers) for one in segments)
    return LogFacts(
        segments,
        known,
        start,
        end,
        HighWatermark(end if mark is None else mark, "replication-offset-checkpoint"),
        checkpoint,
        tuple(BlockingTransaction(*one) for one in open_at),
        min((first for first, _ in open_at), default=None),
    )


def config(**texts: object) -> TopicConfig:
    names = {name.replace("_", "."): str(value) for name, value in texts.items()}
    source = Source(SourceKind.TOPIC, "__cluster_metadata-0", "orders")
    return resolve("orders", [Layer(source, {"cleanup.policy": "compact", **names})])


def compaction(of: LogFacts, now_ms: int = T0, choices: Choices = AS_USUAL, **texts: object) -> Compaction:
    return plan_compaction(of, config(**texts), choices, now_ms)


def decision(of: LogFacts, now_ms: int = T0, choices: Choices = AS_USUAL, **texts: object) -> tuple[Decision, Reason]:
    found = plan_compaction(of, config(**texts), choices, now_ms)
    return decide(found, of, config(**texts), choices, now_ms)


def offsets(of: Compaction) -> tuple[int, int]:
    return of.range.first_dirty_offset, max(of.range.first_dirty_offset, of.range.bound_offset)


# ---- where the dirty section starts: 28 to 34 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint", "start", "end", "expected"),
    [
        (None, 7, 50, (7, "never cleaned")),
        (200, 0, 50, (0, "checkpoint 200 is above the log end offset")),  # case 28
        (0, 10, 50, (10, "checkpoint 0 is below the log start offset")),  # case 29
        (15, 20, 20, (20, "checkpoint 15 is below the log start offset")),  # case 32
        (10, 15, 50, (15, "checkpoint 10 is below the log start offset")),  # case 33
        (15, 10, 20, (15, "")),  # case 34
        (15, 20, 40, (20, "checkpoint 15 is below the log start offset")),
        (25, 10, 20, (10, "checkpoint 25 is above the log end offset")),
        (20, 10, 20, (20, "")),
    ],
)
def test_dirty_section_starts_at_the_checkpoint_unless_that_lies_outside_of_the_log(
    checkpoint: int | None, start: int, end: int, expected: tuple[int, str]
) -> None:
    assert first_dirty_offset(checkpoint, start, end) == expected


def test_a_log_of_one_segment_has_nothing_to_clean() -> None:
    one = facts(segment(0), start=2, end=10, checkpoint=0)  # case 30
    assert (compaction(one).cleanable_bytes, decision(one)[0]) == (0, Decision.LEAVE)
    inside = facts(segment(0), end=10, checkpoint=3)  # case 31
    assert decision(inside) == (
        Decision.LEAVE,
        Reason("all dirty data (offsets 3 to 9) is in the active segment", until="cleanable after it rolls"),
    )


def test_what_was_asked_for_wins_over_the_checkpoint() -> None:
    log = facts(segment(0), segment(10), segment(20), start=5, end=30, checkpoint=20)
    found = compaction(log, choices=Choices(first_dirty=0))
    assert (found.range.first_dirty_offset, found.first_dirty_reason) == (
        5,
        "--first-dirty 0, which is below the log start offset",
    )
    assert (found.clean_bytes, found.cleanable_bytes, found.groups) == (100, 200, ((0, 10),))
    assert compaction(log).cleanable_bytes == 0


# ---- where it ends: 35 to 39, 44, 48 ---------------------------------------------------------------------------------

EIGHT = [segment(base * 10) for base in range(8)]


def test_range_ends_at_the_high_watermark_rounded_down_to_a_segment() -> None:
    log = facts(*EIGHT, end=80, mark=50)  # case 35
    assert offsets(compaction(log)) == (0, 50)
    assert compaction(log).range.bound is Bound.HIGH_WATERMARK
    inside = compaction(facts(*EIGHT, end=80, mark=55))
    assert (inside.range.bound_offset, inside.range.first_uncleanable_offset) == (55, 50)
    assert str(inside.bound_reason) == (
        "records from the high watermark 55 on may not be replicated yet "
        "(replication-offset-checkpoint); cleanable once they are, or with --high-watermark OFFSET|end"
    )


def test_range_ends_at_the_active_segment_at_the_latest() -> None:
    found = compaction(facts(*EIGHT, end=80))  # case 36
    assert (offsets(found), found.range.bound) == ((0, 70), Bound.ACTIVE_SEGMENT)
    at_end = compaction(facts(segment(0), segment(1), end=1, checkpoint=1))  # case 48
    assert (offsets(at_end), at_end.cleanable_bytes) == ((1, 1), 0)


def test_range_ends_at_the_first_segment_that_is_too_young() -> None:
    old, young = T0, T0 + HOUR + 1
    log = facts(*(segment(base, time=old if base < 4 else young) for base in range(8)), end=8)  # case 37
    found = compaction(log, now_ms=young, min_compaction_lag_ms=HOUR)
    assert (offsets(found), found.range.bound) == ((0, 4), Bound.MIN_COMPACTION_LAG)
    assert found.bound_reason == Reason(
        f"min.compaction.lag.ms={HOUR}: the segment from 4 on has records of {utc(young)}",
        "topic orders in __cluster_metadata-0",
        f"cleanable from {utc(young + HOUR)} on",
    )
    assert offsets(compaction(log, now_ms=young + HOUR - 1, min_compaction_lag_ms=HOUR)) == (0, 4)
    assert offsets(compaction(log, now_ms=young + HOUR, min_compaction_lag_ms=HOUR)) == (0, 7)  # case 38


def test_an_old_segment_behind_a_young_one_stays_too() -> None:
    log = facts(segment(0), segment(1, time=T0 + HOUR), segment(2), segment(3), end=4)
    assert offsets(compaction(log, now_ms=T0 + HOUR, min_compaction_lag_ms=HOUR)) == (0, 1)
    # Only the dirty section is looked at.
    assert offsets(compaction(replace(log, checkpoint=2), now_ms=T0 + HOUR, min_compaction_lag_ms=HOUR)) == (2, 3)


def test_range_ends_at_the_first_open_transaction() -> None:
    data = segment(0)
    undecided = facts(data, segment(3, 0), end=3, open_at=[(0, 12)])  # case 39
    found = compaction(undecided, now_ms=T0 + 2 * HOUR, min_compaction_lag_ms=HOUR)
    assert (offsets(found), found.range.bound) == ((0, 0), Bound.LAST_STABLE_OFFSET)
    assert decision(undecided) == (
        Decision.LEAVE,
        Reason(
            "the last stable offset is 0: the transaction of producer 12, open since offset 0, has no marker",
            until="cleanable once it ends",
        ),
    )
    marker = facts(data, segment(3, time=T0 + 2 * HOUR), segment(4, 0), end=4)
    assert offsets(compaction(marker, now_ms=T0 + 2 * HOUR, min_compaction_lag_ms=HOUR)) == (0, 3)
    assert offsets(compaction(marker, now_ms=T0 + 3 * HOUR, min_compaction_lag_ms=HOUR)) == (0, 4)


def test_a_marker_above_the_high_watermark_ends_nothing() -> None:
    log = facts(*EIGHT, end=80, mark=75, open_at=[(33, 12)])
    assert compaction(log).range.first_uncleanable_offset == 30
    assert str(compaction(log).bound_reason).endswith("has no marker below the high watermark; cleanable once it ends")


def test_a_clean_ends_where_what_is_left_of_an_open_transaction_may_start() -> None:
    log = facts(*EIGHT, start=20, end=80, open_at=[(5, 12)])
    begins = replace(log, first_unstable_offset=20)
    assert begins.last_stable_offset == 20
    assert decision(begins)[0] is Decision.LEAVE
    assert compaction(replace(log, first_unstable_offset=43)).range.first_uncleanable_offset == 40
    assert replace(log, first_unstable_offset=None).last_stable_offset == 80


# ---- sizes and decisions: 24, 40 to 43, 45 ---------------------------------------------------------------------------


def test_clean_and_cleanable_bytes_are_those_of_whole_segments() -> None:
    sizes = [segment(base, 100 + base) for base in range(7)]  # case 40
    found = compaction(facts(*sizes, end=7, checkpoint=2, mark=4))
    assert (found.clean_bytes, found.cleanable_bytes) == (100 + 101, 102 + 103)
    assert found.cleanable_ratio == 205 / 406
    clean = compaction(facts(*sizes, end=7, checkpoint=6))  # case 41
    assert (clean.total_bytes, clean.cleanable_ratio) == (sum(one.size_bytes for one in sizes[:-1]), 0)


def test_a_segment_that_is_half_clean_counts_on_both_sides() -> None:
    found = compaction(facts(segment(0), segment(10), segment(20), end=30, checkpoint=15))
    assert (found.clean_bytes, found.cleanable_bytes) == (200, 100)


def test_the_dirtier_a_log_the_larger_its_ratio() -> None:
    logs = [
        facts(*(segment(base) for base in range(count)), end=count, checkpoint=19) for count in (20, 25, 30)
    ]  # case 24
    assert [compaction(one).cleanable_ratio for one in logs] == [0, 5 / 24, 10 / 29]


def test_a_ratio_that_is_just_reached_is_not_enough() -> None:
    log = facts(segment(0), segment(1), segment(2), end=3, checkpoint=1)  # case 42
    assert decision(log, min_cleanable_dirty_ratio=0.5) == (
        Decision.LEAVE,
        Reason(
            "min.cleanable.dirty.ratio=0.5: 50 % of 200 bytes is dirty, more than 50 % is required",
            "topic orders in __cluster_metadata-0",
            "cleanable once more is dirty, or with --ignore-ratio",
        ),
    )
    assert decision(log, min_cleanable_dirty_ratio=0.49)[0] is Decision.CLEAN
    assert decision(log, choices=Choices(ignore_ratio=True)) == (
        Decision.CLEAN,
        Reason("50 % of 200 bytes is dirty", "--ignore-ratio"),
    )


def test_a_ratio_of_one_is_never_exceeded() -> None:
    found, reason = decision(facts(segment(0), segment(1), end=2), min_cleanable_dirty_ratio=1.0)
    assert (found, reason.until) == (Decision.LEAVE, "only with --ignore-ratio")


def test_what_waited_for_longer_than_the_max_lag_is_cleaned_whatever_the_ratio() -> None:
    log = facts(segment(0, 900), segment(1), segment(2), end=3, checkpoint=1)  # cases 43, 44
    lag: dict[str, Any] = {"max_compaction_lag_ms": 6 * HOUR, "min_compaction_lag_ms": HOUR}
    found, reason = decision(log, T0 + 6 * HOUR, **lag)
    assert found is Decision.LEAVE
    assert f"from {utc(T0 + 6 * HOUR + 1)} on by max.compaction.lag.ms={6 * HOUR}" in reason.until
    found, reason = decision(log, T0 + 6 * HOUR + 1, **lag)
    assert found is Decision.CLEAN
    assert reason.what.startswith(f"max.compaction.lag.ms={6 * HOUR}: ")
    # Without a cleanable range the delay does not matter.
    assert decision(replace(log, checkpoint=2), T0 + 9 * HOUR, **lag)[0] is Decision.LEAVE


def test_segments_without_a_time_are_never_overdue() -> None:
    log = facts(segment(0), segment(1), segment(2), segment(3), end=4)  # case 45
    times = [replace(one, first_timestamp=time) for one, time in zip(log.headers, (NONE, 2000, 1000, 500), strict=True)]
    assert compaction(replace(log, headers=tuple(times)), 1100, max_compaction_lag_ms=1).overdue_ms == 99
    none = tuple(replace(one, first_timestamp=0) for one in log.headers)
    assert compaction(replace(log, headers=none), T0, max_compaction_lag_ms=1).overdue_ms == 0


def test_damage_in_the_range_is_refused_and_elsewhere_is_not() -> None:  # case 46
    log = facts(segment(0), segment(1), segment(2), segment(3), end=4, mark=2)
    broken = [replace(one, damage="bytes in the way") if at == 1 else one for at, one in enumerate(log.headers)]
    assert decision(replace(log, headers=tuple(broken))) == (
        Decision.REFUSE,
        Reason("damaged: bytes in the way", until="cleanable once it is repaired"),
    )
    behind = [replace(one, damage="bytes in the way") if at == 2 else one for at, one in enumerate(log.headers)]
    assert decision(replace(log, headers=tuple(behind)))[0] is Decision.CLEAN


def test_what_may_go_is_at_most_all_of_the_rewritten_segments() -> None:
    log = facts(segment(0), segment(1), segment(2), end=3, checkpoint=1, records=7)
    bounds = compaction(log).bounds
    assert (bounds.records_max, bounds.bytes_max, bounds.may_grow) == (14, 200, False)
    old = compaction(facts(segment(0), segment(1), end=2, wrappers=True, legacy=True)).bounds
    assert (old.records_max, old.bytes_max, old.may_grow) == (None, 100, True)
    assert compaction(replace(log, checkpoint=2)).bounds.bytes_max == 0


def test_expired_tombstones_are_hinted_at_when_nothing_is_dirty() -> None:
    clean = compaction(facts(segment(0), segment(1), segment(2), end=3, checkpoint=2, expired_batches=2))
    assert hint(clean, deletes_for_good=True) == (
        "up to 4 batches hold expired tombstones or markers; to remove them: --first-dirty 0"
    )
    assert "--single-copy" in hint(clean, deletes_for_good=False)
    dirty = compaction(facts(segment(0), segment(1), end=2, expired_batches=2))
    assert hint(dirty, deletes_for_good=True) == ""
    assert hint(compaction(facts(segment(0), segment(1), end=1, checkpoint=1)), deletes_for_good=True) == ""


# ---- the high watermark ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "brokers", "replicas", "asked", "offset", "source"),
    [
        (40, True, 3, None, 40, "replication-offset-checkpoint"),
        (400, True, 3, None, 80, "replication-offset-checkpoint"),
        (2, True, 3, None, 10, "replication-offset-checkpoint"),
        (None, True, 3, None, 10, "the log start"),
        (None, True, None, None, 10, "the log start"),
        (None, True, 1, None, 80, "the log end: it is the only replica"),
        (None, False, None, None, 80, "the log end: no broker's directory"),
        (40, True, 3, "end", 80, "--high-watermark end"),
        (40, True, 3, 50, 50, "--high-watermark 50"),
        (40, True, 3, 500, 80, "--high-watermark 500"),
    ],
)
def test_high_watermark_is_what_the_checkpoint_the_replicas_or_the_user_say(
    entry: int | None, brokers: bool, replicas: int | None, asked: int | str | None, offset: int, source: str
) -> None:
    found = high_watermark(entry, 10, 80, brokers=brokers, replicas=replicas, asked=asked)
    assert found.offset == offset and found.source.startswith(source)


# ---- groups: 67 to 73 ------------------------------------------------------------------------------------------------


def groups(segments: Sequence[SegmentFacts], end: int, size: int = 10**9, index: int = 10**9) -> list[list[int]]:
    found = group_segments(segments, end, segment_bytes=size, index_bytes=index)
    return [[one.base_offset for one in group] for group in found]


TEN = [segment(base, 100, index=8, times=12) for base in range(10)]


@pytest.mark.parametrize(
    ("size", "index", "expected"),
    [
        (10**9, 10**9, [10]),  # case 67
        (1, 10**9, [1] * 10),  # case 68
        (10**9, 1, [1] * 10),
        (301, 10**9, [3, 3, 3, 1]),  # case 69
        (300, 10**9, [3, 3, 3, 1]),
        (299, 10**9, [2] * 5),
        (10**9, 3 * 12 + 1, [3, 3, 3, 1]),
        (10**9, 3 * 12 - 1, [2] * 5),
    ],
)
def test_groups_grow_to_the_limits_of_bytes_and_index_entries(size: int, index: int, expected: list[int]) -> None:
    assert [len(group) for group in groups(TEN, 10, size, index)] == expected


def test_groups_end_where_offsets_no_longer_fit_the_first_base() -> None:
    two = [segment(0), segment(5)]
    assert groups(two, MAX_OFFSET_SPAN + 1) == [[0, 5]]  # case 70
    assert groups(two, MAX_OFFSET_SPAN + 2) == [[0], [5]]  # case 71: only the next base offset bounds its end
    far = [segment(0), segment(2**31), segment(2**32)]
    assert groups(far, 3 * 2**31) == [[0], [2**31], [2**32]]  # case 72
    assert groups([segment(0, 0), segment(2**31, 0), segment(2**32)], 3 * 2**31) == [[0, 2**31], [2**32]]


def test_groups_go_by_sizes_before_the_clean() -> None:
    five = [segment(base, 142) for base in (0, 2, 4, 6, 8)]  # case 73
    assert groups(five, 10, 200) == [[0], [2], [4], [6], [8]]
    emptied = [segment(0, 0), segment(2, 0), segment(4, 0), segment(6, 71), segment(8, 142)]
    assert groups(emptied, 10, 200) == [[0, 2, 4, 6], [8]]


# ---- retention -------------------------------------------------------------------------------------------------------


def taken(log: LogFacts, now_ms: int = T0, **limits: int) -> dict[str, tuple[int, ...]]:
    by_name = {name.replace("_", "."): limit for name, limit in limits.items()}
    mark = log.high_watermark.offset
    found = plan_retention(log.segments, log.log_start_offset, log.log_end_offset, mark, by_name, now_ms)
    return {name: bases for name, bases, _ in found}


def test_segments_below_the_log_start_go() -> None:
    assert taken(facts(segment(0), segment(5), segment(10), start=5, end=15)) == {"log start offset": (0,)}  # case 160
    assert taken(facts(segment(0), segment(5), segment(10), start=4, end=15)) == {}


def test_size_retention_never_leaves_less_than_its_limit() -> None:
    three = facts(segment(0), segment(5), segment(10), end=15)  # case 158
    assert taken(three, retention_bytes=200) == {"retention.bytes": (0,)}
    assert taken(three, retention_bytes=201) == {}
    assert taken(three, retention_bytes=300) == {}
    assert taken(three, retention_bytes=-1) == {}
    assert taken(three, retention_bytes=0) == {"retention.bytes": (0, 5, 10)}


def test_time_retention_stops_at_the_first_segment_that_is_young_enough() -> None:
    log = facts(segment(0), segment(5, time=T0 + 10), segment(10), end=15)
    assert taken(log, T0 + 100, retention_ms=100) == {}
    assert taken(log, T0 + 101, retention_ms=100) == {"retention.ms": (0,)}
    assert taken(log, T0 + 111, retention_ms=100) == {
        "retention.ms": (0, 5, 10)
    }  # case 159: the active one rolls first


def test_a_young_first_segment_blocks_older_ones_until_the_log_start_is_past_it() -> None:
    log = facts(segment(0, time=T0 + 1000), segment(5), segment(10, 0), end=10)  # case 162
    assert taken(log, T0 + 200, retention_ms=100) == {}
    assert taken(replace(log, log_start_offset=5), T0 + 200, retention_ms=100) == {
        "log start offset": (0,),
        "retention.ms": (5,),
    }


def test_retention_takes_nothing_that_reaches_above_the_high_watermark() -> None:
    log = facts(segment(0), segment(5), segment(10), end=15, mark=9)  # case 161
    assert taken(log, T0 + 1000, retention_ms=1) == {"retention.ms": (0,)}
    assert taken(replace(log, high_watermark=HighWatermark(4, "")), T0 + 1000, retention_ms=1) == {}


def test_an_empty_active_segment_stays() -> None:
    assert taken(facts(segment(0, 0), end=0), T0 + 1000, retention_ms=1) == {}
    assert taken(facts(segment(0), segment(5, 0), end=5), T0 + 1000, retention_ms=1) == {"retention.ms": (0,)}


def test_rules_of_retention_see_what_those_before_them_left() -> None:
    log = facts(*(segment(base) for base in range(5)), start=1, end=5)
    assert taken(log, T0 + 100, retention_bytes=300, retention_ms=1) == {
        "log start offset": (0,),
        "retention.bytes": (1,),
        "retention.ms": (2, 3, 4),
    }


def test_limits_that_nobody_set_delete_nothing_and_say_so() -> None:
    log = facts(segment(0), segment(5), end=10)
    settled = config(cleanup_policy="compact,delete", retention_ms=1)
    found, notes = retention(log, settled, lambda name: name == "retention.ms", T0 + 1000)
    assert [(one.rule, one.base_offsets, one.size_bytes, one.reason.what) for one in found] == [
        ("retention.ms", (0, 5), 200, "retention.ms=1")
    ]
    assert notes == ()
    assert retention(log, config(cleanup_policy="delete"), lambda _: False, T0 + 10**12) == (
        (),
        ("retention.ms is not set; Kafka's default, 604800000, is not applied; give it with --config to apply it",),
    )
    compact = config(cleanup_policy="compact", retention_ms=1)
    assert retention(log, compact, lambda _: True, T0 + 1000) == ((), ())


# ---- the value -------------------------------------------------------------------------------------------------------


def test_a_plan_can_be_pickled_compared_and_written_as_json() -> None:
    log = facts(segment(0), segment(1), end=2)
    found, reason = decision(log)
    one = PartitionPlan("/data/orders-0", None, found, reason, compaction=compaction(log))
    plan = Plan(T0, (one,))
    assert pickle.loads(pickle.dumps(plan)) == plan
    document = json.loads(json.dumps(plan.document()))
    assert document["now_ms"] == T0
    (partition,) = document["partitions"]
    assert partition["decision"] == "clean" and partition["compaction"]["cleanable_ratio"] == 1.0
    assert partition["compaction"]["range"]["bound"] == "active segment"
    assert str(plan) == "Plan of 2023-11-14 22:13:20 UTC: 1 to clean, 0 to leave alone, 0 to refuse"


def test_totals_add_up_all_partitions_and_what_may_go_from_those_to_clean() -> None:
    log = facts(segment(0), segment(1), segment(2), end=3)
    why = Reason("why")
    clean = PartitionPlan("/data/a-0", None, Decision.CLEAN, why, compaction=compaction(log))
    leave = replace(clean, decision=Decision.LEAVE)
    taken = (Taken("retention.ms", (0, 1), 200, why), Taken("retention.bytes", (2,), 100, why))
    only_delete = replace(leave, compaction=None, only_with_retention=taken)
    totals = Plan(T0, (clean, clean, leave, only_delete)).totals
    assert (totals.partitions, totals.partitions_to_clean, totals.partitions_left_alone) == (4, 2, 2)
    assert (totals.segments, totals.segments_after, totals.cleanable_bytes) == (6, 3, 600)
    assert (totals.records_max, totals.bytes_max) == (4, 400)
    assert (totals.retention, totals.only_with_retention) == (RetentionTotals(), RetentionTotals(1, 3, 300))

    hidden = replace(clean, compaction=compaction(replace(log, headers=(HeaderFacts(wrappers=True),) * 3)))
    assert Plan(T0, (clean, hidden)).totals.records_max is None
    assert Plan(T0, ()).totals.partitions == 0


def test_times_that_are_no_dates_are_shown_as_numbers() -> None:
    assert (utc(T0 + 5), utc(2**62)) == ("2023-11-14 22:13:20.005 UTC", f"{2**62} ms")
