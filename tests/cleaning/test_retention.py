"""The segments that retention selects, without a log around them; the live log's tests cover the deletion."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from cordwood.cleaning.rules.plan import SegmentFacts
from cordwood.cleaning.rules.retention import RETENTION_RULES, RetentionRule, plan_local_retention
from tests.kafka_tools import Oracle
from tests.knobs import SEED, scaled

BELOW, SIZE, AGE = RETENTION_RULES


@dataclass
class Sized:
    """The properties of a segment that retention reads."""

    base_offset: int
    size_bytes: int = 10
    largest_timestamp: int = 0


#: Offsets 0 to 3, 4 to 7, and the active segment from 8 to 9.
SEGMENTS = [Sized(0, largest_timestamp=100), Sized(4, largest_timestamp=200), Sized(8, largest_timestamp=300)]


def named(
    rule: RetentionRule, limit: int, now_ms: int = 0, *, high_watermark: int = 10, segments: list[Sized] = SEGMENTS
) -> list[int]:
    return [segment.base_offset for segment in rule.deletable(segments, limit, now_ms, 10, high_watermark)]


@pytest.mark.parametrize(("log_start", "expected"), [(0, []), (3, []), (4, [0]), (9, [0, 4]), (10, [0, 4])])
def test_segments_below_the_log_start_go_but_never_the_last(log_start: int, expected: list[int]) -> None:
    assert named(BELOW, log_start) == expected


@pytest.mark.parametrize(("limit", "expected"), [(-1, []), (30, []), (21, []), (20, [0]), (11, [0]), (0, [0, 4, 8])])
def test_a_log_keeps_at_least_as_many_bytes_as_its_limit(limit: int, expected: list[int]) -> None:
    assert named(SIZE, limit) == expected


@pytest.mark.parametrize(("limit", "expected"), [(-1, []), (300, []), (299, [0]), (199, [0, 4]), (0, [0, 4, 8])])
def test_segments_go_once_their_last_record_is_older_than_the_limit(limit: int, expected: list[int]) -> None:
    assert named(AGE, limit, 400) == expected


def test_the_first_segment_that_stays_keeps_all_behind_it() -> None:
    young_first = [Sized(0, largest_timestamp=400), Sized(4, largest_timestamp=0), Sized(8)]
    assert named(AGE, 100, 450, segments=young_first) == []


def test_what_is_not_replicated_and_an_empty_last_segment_stay() -> None:
    assert named(AGE, 0, 400, high_watermark=9) == [0, 4]
    assert named(AGE, 0, 400, high_watermark=7) == [0]
    assert named(AGE, 0, 400, segments=[Sized(0), Sized(10, size_bytes=0)]) == [0]


def test_a_log_without_segments_loses_none() -> None:
    assert [named(rule, 0, segments=[]) for rule in RETENTION_RULES] == [[], [], []]


# ---- tiered logs -----------------------------------------------------------------------------------------------------


def test_kafkas_log_deletes_the_same_local_segments_of_a_tiered_log(kafka_oracle: Oracle) -> None:
    random = Random(SEED)
    cases: list[tuple[dict[str, int], dict[str, int], int]] = []
    questions: list[dict[str, Any]] = []
    for _ in range(scaled(200, 2000)):
        segments = [[random.randint(1, 9), random.randint(0, 90)] for _ in range(random.randint(1, 6))]
        segments += [[0, 0]] * random.randint(0, 1)
        end = sum(count for count, _ in segments)
        mark = random.choice((end, end, random.randint(0, end)))
        case = {"high_watermark": mark, "log_start": random.choice((0, 0, random.randint(0, mark))), "now": 100}
        case["copied"] = random.choice((-1, end - 1, random.randint(0, end)))
        limits = {"retention.ms": random.choice((-1, random.randint(0, 100)))}
        limits["retention.bytes"] = random.choice((-1, random.randint(0, 800)))
        config = {f"local.{name}": str(random.choice((-2, limit))) for name, limit in limits.items()}
        config |= {name: str(limit) for name, limit in limits.items()}
        cases.append((case, limits, end))
        questions.append({"do": "local_retention", "segments": segments, "config": config, **case})
    deleted = 0
    for (case, limits, end), answer in zip(cases, kafka_oracle.tier(questions), strict=True):
        listed = [SegmentFacts(base, size, 0, 0, 0, largest) for base, size, largest in answer["before"]]
        offsets = (case["log_start"], end, case["high_watermark"], case["copied"])
        gone = {base for _, bases, _ in plan_local_retention(listed, *offsets, limits, 100) for base in bases}
        assert gone == {one.base_offset for one in listed} - {*answer["after"]}, (case, limits, answer)
        deleted += len(gone)
    assert deleted > len(cases) / 2
