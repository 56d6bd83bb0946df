"""Which limits count, and how two sets of configs compare: in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordwood.common.config import DAY_MS, HOUR_MS, overrides, resolve, resolve_broker
from cordwood.simulation.sizing.notes import compare, notes_on
from cordwood.simulation.sizing.result import Cleans, Contents, Deletions, Outcome, Rolls, Stay

GB = 10**9


def stay(median_ms: float, *, most_ms: float | None = None, max_ms: float | None = None) -> Stay:
    most = median_ms if most_ms is None else most_ms
    return Stay(100, 0, 0.0, median_ms, most, most if max_ms is None else max_ms)


#: A compacted partition that gets no note except about its first clean.
PLAIN = Outcome(
    label="A",
    configs={},
    compact=True,
    delete=False,
    duration_ms=30 * DAY_MS,
    appended_bytes=300 * GB,
    appended_records=3 * 10**8,
    mean_bytes=10 * GB,
    peak_bytes=15 * GB,
    end_bytes=10 * GB,
    growth_bytes=0,
    contents=Contents(values=5 * GB, tombstones=0, superseded=4 * GB, aborted=0, rest=GB),
    active_bytes=GB,
    segments_mean=10,
    segments_max=15,
    rolls=Rolls(by_size=280, closed_bytes=280 * GB),
    deletions=Deletions(),
    cleans=Cleans(
        by_ratio=60, read_bytes=900 * GB, written_bytes=300 * GB, first_ms=HOUR_MS, keys_max=10, map_keys=100
    ),
    superseded=stay(HOUR_MS, most_ms=2 * HOUR_MS),
    tombstones=None,
    aborted=None,
    deleted=None,
    history=(),
)
DELETED = replace(PLAIN, compact=False, delete=True, cleans=Cleans(), superseded=None, deleted=stay(7 * DAY_MS))


def notes(outcome: Outcome, *texts: str, partitions: int = 1) -> str:
    layers = overrides(texts)
    return "\n".join(notes_on(outcome, resolve("t", layers), resolve_broker(layers), partitions))


FIRST = "the first clean is after 1 h; because of min.cleanable.dirty.ratio (0.5)"


def test_a_plain_partition_has_its_first_clean_only() -> None:
    assert notes(PLAIN) == FIRST


def test_configs_that_the_policy_does_not_look_at_are_told() -> None:
    compacted = ("cleanup.policy=compact", "retention.ms=3600000", "min.cleanable.dirty.ratio=0.3")
    assert notes(PLAIN, *compacted).splitlines()[-1] == "no effect with cleanup.policy=compact: retention.ms"
    deleted = notes(DELETED, "cleanup.policy=delete", "min.cleanable.dirty.ratio=0.3", "retention.ms=3600000")
    assert deleted.splitlines()[-1] == "no effect with cleanup.policy=delete: min.cleanable.dirty.ratio"
    both = replace(PLAIN, delete=True, deleted=stay(7 * DAY_MS))
    assert "no effect" not in notes(both, "cleanup.policy=compact,delete", *compacted[1:])


@pytest.mark.parametrize(
    ("outcome", "texts", "said"),
    [
        (
            replace(PLAIN, rolls=Rolls(), cleans=Cleans()),
            (),
            "no segment was closed: the active one has not reached segment.bytes (1.1 GB) or segment.ms (7 days), "
            "and is neither cleaned nor deleted before",
        ),
        (
            replace(PLAIN, rolls=Rolls(by_time=4, by_size=1, closed_bytes=500_000_000)),
            (),
            "segments are closed by segment.ms (7 days), with 100.0 MB of the 1.1 GB that segment.bytes allows",
        ),
        (
            replace(PLAIN, rolls=Rolls(by_time=4, closed_bytes=400_000_000), active_bytes=6 * GB),
            ("max.compaction.lag.ms=3600000",),
            "segments are closed by max.compaction.lag.ms (1 h), with 100.0 MB of the 1.1 GB that segment.bytes "
            "allows\n60 % of the disk is the active segment, which is never cleaned: a shorter max.compaction.lag.ms "
            "would help",
        ),
        (
            replace(PLAIN, active_bytes=6 * GB),
            (),
            "60 % of the disk is the active segment, which is never cleaned: a smaller segment.bytes would help",
        ),
        (replace(PLAIN, rolls=Rolls(by_size=5, by_index=2)), (), "2 segments closed because an index was full"),
        (
            replace(PLAIN, cleans=replace(PLAIN.cleans, by_lag=15)),
            ("max.compaction.lag.ms=86400000",),
            "15 of 75 cleans because of max.compaction.lag.ms (1 day), all other cleans because of "
            "min.cleanable.dirty.ratio",
        ),
        (
            replace(PLAIN, cleans=replace(PLAIN.cleans, by_ratio=0, by_lag=15)),
            ("max.compaction.lag.ms=86400000",),
            "; all cleans because of max.compaction.lag.ms (1 day)",
        ),
        (
            replace(PLAIN, cleans=Cleans()),
            (),
            "nothing was cleaned: the cleanable part did not reach min.cleanable.dirty.ratio (0.5)",
        ),
        (
            replace(PLAIN, cleans=Cleans()),
            ("log.cleaner.enable=false",),
            "nothing is cleaned: the broker has no cleaner",
        ),
        (
            replace(PLAIN, cleans=replace(PLAIN.cleans, keys_max=2_000)),
            (),
            "a clean meets up to 2,000 new keys, and the map of a broker's cleaner thread holds 100",
        ),
        (
            replace(PLAIN, tombstones=stay(3 * DAY_MS)),
            (),
            "tombstones stay longer than delete.retention.ms (1 day)",
        ),
        (
            replace(PLAIN, growth_bytes=GB),
            (),
            "at the end a partition still grows, by 1.0 GB a day: more days give more",
        ),
        (DELETED, (), "nothing was deleted: retention.ms (7 days) was not reached"),
        (
            DELETED,
            ("retention.bytes=5000000",),
            "nothing was deleted: retention.ms (7 days) and retention.bytes (5.0 MB of a partition) were not reached",
        ),
        (DELETED, ("retention.ms=-1",), "nothing was deleted: there is no limit"),
        (
            replace(DELETED, deletions=Deletions(by_time=9, first_ms=8 * DAY_MS)),
            ("retention.bytes=5000000",),
            "the first segment is deleted after 8 days, by retention.ms (7 days); retention.bytes (5.0 MB of a "
            "partition) is never reached",
        ),
        (
            replace(DELETED, deletions=Deletions(by_size=9, first_ms=8 * DAY_MS)),
            ("retention.bytes=5000000",),
            "by retention.bytes (5.0 MB of a partition); retention.ms (7 days) is never reached",
        ),
        (
            replace(DELETED, deletions=Deletions(by_size=9, by_time=2, first_ms=8 * DAY_MS)),
            ("retention.bytes=5000000",),
            "; 9 by retention.bytes (5.0 MB of a partition), 2 by retention.ms (7 days)",
        ),
        (
            replace(DELETED, deleted=stay(10 * DAY_MS), deletions=Deletions(by_time=9, first_ms=8 * DAY_MS)),
            (),
            "records are up to 10 days old when they are deleted: a segment goes once its newest record is too old",
        ),
    ],
)
def test_what_counts_is_told(outcome: Outcome, texts: tuple[str, ...], said: str) -> None:
    assert said in notes(outcome, *texts)


def test_a_cleaner_that_is_too_slow_for_all_partitions_is_told() -> None:
    # 1,200 GB in 30 days are 463 kB a second, in each of the partitions.
    limit = "log.cleaner.io.max.bytes.per.second=1000000"
    assert notes(PLAIN, limit, partitions=2) == FIRST
    said = notes(PLAIN, limit, partitions=3)
    assert "the cleaner would not keep up: it needs 1.4 MB/s on average for this topic alone" in said


def test_equal_sets_are_equal() -> None:
    almost = replace(PLAIN, label="B", mean_bytes=round(PLAIN.mean_bytes * 1.04))
    assert compare(PLAIN, almost) == ("Neither is better: nothing differs by more than 5 %",)


def test_a_set_that_is_better_in_everything_is_named() -> None:
    better = replace(PLAIN, label="B", mean_bytes=5 * GB, peak_bytes=10 * GB)
    assert compare(PLAIN, better) == (
        "B takes less disk at its peak: 10.0 GB per partition, A 15.0 GB (1.5 times)",
        "B takes less disk on average: 5.0 GB per partition, A 10.0 GB (2 times)",
        "A cleans a partition 2 times a day, and 40 % of its disk is superseded; "
        "B cleans a partition 2 times a day, and 80 % of its disk is superseded",
        "B is better in all that differs by more than 5 %",
    )


def test_what_speaks_for_each_is_told() -> None:
    eager = replace(
        PLAIN,
        label="B",
        contents=replace(PLAIN.contents, superseded=GB),
        mean_bytes=7 * GB,
        cleans=replace(PLAIN.cleans, by_ratio=300, written_bytes=1500 * GB),
        superseded=stay(HOUR_MS / 4),
    )
    lines = compare(PLAIN, eager)
    assert (
        lines[-1]
        == "Choose A for less work for the cleaner; B for less disk on average, superseded records that go sooner"
    )
    assert "B cleans a partition 10 times a day, and 14 % of its disk is superseded" in lines[-2]
    assert "The cleaner of A reads and writes less: 463.0 kB/s per partition, B 925.9 kB/s (2 times)" in lines
    assert "Superseded records go sooner with B: 95 % within 15 min, A 2 h" in lines


def test_what_one_set_does_not_have_is_not_compared() -> None:
    assert compare(PLAIN, replace(DELETED, label="B")) == ("Neither is better: nothing differs by more than 5 %",)
