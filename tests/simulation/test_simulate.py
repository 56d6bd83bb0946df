"""The predicted disk usage of a topic: compared with arithmetic, at several scales, and with two sets of configs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import cordwood
from cordwood import Outcome, Stay
from cordwood.common.config import DAY_MS, HOUR_MS
from cordwood.common.errors import ConfigError, NotFoundError, RequestError
from tests.knobs import in_turns

pytestmark = pytest.mark.more

GB = 10**9


def simulated(*configs: str, **options: Any) -> Outcome:
    result = cordwood.simulate(overrides=configs, **options)
    (outcome,) = result.outcomes
    return outcome


def test_the_preallocated_rest_of_an_index_is_a_hole_and_takes_no_disk() -> None:
    outcome = simulated("cleanup.policy=delete", "retention.ms=3600000", rate="4/day", record_size=100, days=2)
    assert 161 <= outcome.peak_bytes < 1000


# ---- scales ----------------------------------------------------------------------------------------------------------

#: Name: rate, configs, other options, and a scale at which some ten thousand records are written.
WORKLOADS: dict[str, dict[str, Any]] = {
    "even updates": {
        "rate": "100",
        "keys": 4_000_000,
        "tombstones": 0.05,
        "overrides": ["cleanup.policy=compact"],
        "scale": 10_000,
    },
    "skewed updates of small records": {
        "rate": "500",
        "keys": 3_000_000,
        "skew": 1.0,
        "record_size": 200,
        "batch_records": 3,
        "preload": True,
        "overrides": ["cleanup.policy=compact", "min.cleanable.dirty.ratio=0.2"],
        "scale": 40_000,
    },
    "lags and retention": {
        "rate": "100",
        "keys": 500_000,
        "transactions": 10,
        "aborted": 0.2,
        "overrides": [
            "cleanup.policy=compact,delete",
            f"max.compaction.lag.ms={2 * DAY_MS}",
            f"min.compaction.lag.ms={12 * HOUR_MS}",
            f"retention.ms={5 * DAY_MS}",
        ],
        "scale": 10_000,
    },
    "retention of what is not updated": {
        "rate": "1m",
        "partitions": 4,
        "overrides": [f"retention.ms={4 * DAY_MS}", "retention.bytes=60000000000"],
        "scale": 15_000,
    },
}


def _figures(one: Outcome) -> dict[str, float]:
    """Figures that should not depend on the scale."""

    def median(stay: Stay | None) -> float:
        return 0.0 if stay is None or stay.median_ms is None else stay.median_ms

    return {
        "mean": one.mean_bytes,
        "peak": one.peak_bytes,
        "values": one.contents.values,
        "superseded": one.contents.superseded,
        "segments": one.segments_mean,
        "cleaned": one.cleaned_per_byte,
        "read": one.read_per_byte,
        "superseded stay": median(one.superseded),
        "tombstones stay": median(one.tombstones),
        "age": median(one.deleted),
    }


@pytest.mark.parametrize("name", in_turns(WORKLOADS, "lags and retention"))
def test_half_the_scale_gives_the_same_answers(name: str) -> None:
    options = {"days": 7.0} | WORKLOADS[name]
    coarse = cordwood.simulate(**options).outcomes[0]
    fine = cordwood.simulate(**options | {"scale": options["scale"] / 2}).outcomes[0]
    assert fine.appended_records == pytest.approx(coarse.appended_records, rel=0.01)
    for what, value in _figures(fine).items():
        # By a few percent: one clean more or less, before the end, is one of twenty; and it is earlier or later.
        assert _figures(coarse)[what] == pytest.approx(value, rel=0.06, abs=3 * HOUR_MS if "stay" in what else 0), what


def test_the_same_seed_gives_the_same_answer_and_leaves_the_random_numbers_alone() -> None:
    options: dict[str, Any] = {
        "rate": "100",
        "keys": 100_000,
        "days": 1,
        "scale": 10_000,
        "overrides": ["cleanup.policy=compact", f"segment.ms={2 * HOUR_MS}", f"segment.jitter.ms={HOUR_MS}"],
    }
    random.seed(5)
    first = cordwood.simulate(**options)
    drawn = random.random()
    assert first == cordwood.simulate(**options)
    assert drawn == random.Random(5).random()
    assert first.outcomes != cordwood.simulate(**options, seed=8).outcomes


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_retention_by_time_keeps_its_time_and_half_a_segment_more() -> None:
    # Records of 1,000 bytes, 2 in a batch, whose header is 30.5 of each: 206,100 bytes a second.
    found = simulated(f"retention.ms={DAY_MS}", rate="200", record_size=1000, batch_records=2, days=5, scale=10_000)
    rate = 200 * 1030.5
    span_ms = (1 << 30) / rate * 1000
    assert found.appended_bytes == pytest.approx(rate * 5 * 86_400, rel=0.01)
    assert found.mean_bytes == pytest.approx(rate * (DAY_MS + span_ms / 2) / 1000, rel=0.02)
    assert found.peak_bytes == pytest.approx(rate * (DAY_MS + 1.5 * span_ms) / 1000, rel=0.02)
    assert found.deleted is not None and found.deleted.median_ms == pytest.approx(DAY_MS + span_ms / 2, rel=0.02)
    assert DAY_MS < found.deleted.max_ms < DAY_MS + 1.3 * span_ms
    assert found.deletions.first_ms == pytest.approx(DAY_MS + span_ms, rel=0.02)
    assert (found.deletions.by_size, found.cleans.count, found.superseded) == (0, 0, None)
    assert found.rolls.by_time == 0 and found.rolls.by_size == pytest.approx(5 * DAY_MS / span_ms, abs=2)


def test_retention_by_size_keeps_at_least_that_size() -> None:
    limit = 20 * GB
    found = simulated(f"retention.bytes={limit}", rate="300", record_size=1000, days=3, scale=10_000)
    assert limit < found.mean_bytes < limit + (1 << 30)
    assert found.peak_bytes < limit + 2.2 * (1 << 30)
    assert found.deletions.by_time == 0 < found.deletions.by_size
    assert found.deletions.deleted_bytes + found.end_bytes == pytest.approx(found.appended_bytes, rel=0.01)


@pytest.mark.parametrize("ratio", [0.5, 0.25])
def test_the_cleaner_writes_what_the_dirty_ratio_says(ratio: float) -> None:
    # Each clean leaves the last values; the next one is due when the dirty part is `dirty` times as large.
    keys, size = 500_000, 1000
    found = simulated(
        "cleanup.policy=compact",
        f"min.cleanable.dirty.ratio={ratio}",
        "segment.bytes=40000000",
        **{"rate": "100", "keys": keys, "record_size": size, "batch_records": 1, "preload": True},
        days=0.6,
        scale=1000,
    )
    clean, dirty = 1, ratio / (1 - ratio)
    assert found.contents.values == pytest.approx(keys * size, rel=0.01)
    # In whole segments; 13 of them are clean.
    assert found.cleaned_per_byte == pytest.approx(clean / dirty, rel=0.2)
    assert found.cleans.by_lag == 0 < found.cleans.by_ratio
    assert found.peak_bytes == pytest.approx(keys * (size + 61) * (2 * clean + dirty), rel=0.1)
    assert sum(
        (found.contents.values, found.contents.superseded, found.contents.tombstones, found.contents.rest)
    ) == pytest.approx(found.mean_bytes, rel=0.01)


def test_new_keys_are_never_superseded_and_the_log_grows_with_them() -> None:
    found = simulated("cleanup.policy=compact", "segment.bytes=50000000", rate="50", days=1, scale=1000)
    assert found.contents.superseded == 0 and found.superseded is None
    assert found.end_bytes == pytest.approx(found.appended_bytes, rel=0.01)
    assert found.growth_bytes == pytest.approx(found.appended_bytes, rel=0.05)
    # Each of Kafka's cleans rewrites the whole log, although it drops no record; each is twice as large as the last.
    assert found.cleaned_per_byte == pytest.approx(1, abs=0.5)
    assert found.peak_bytes > 1.05 * found.end_bytes
    assert any("still grows" in note for note in found.notes)


def test_tombstones_stay_for_their_time_and_until_the_next_clean() -> None:
    found = simulated(
        "cleanup.policy=compact",
        f"delete.retention.ms={6 * HOUR_MS}",
        f"max.compaction.lag.ms={HOUR_MS}",
        **{"rate": "50", "keys": 5_000_000, "tombstones": 0.2},
        days=2,
        scale=1000,
    )
    stay = found.tombstones
    assert stay is not None and stay.median_ms is not None
    # The first clean is one lag after its segment was closed, which one lag had been open.
    assert 6 * HOUR_MS < stay.median_ms < stay.max_ms < (6 + 4) * HOUR_MS
    assert found.rolls.by_time > found.rolls.by_size == 0
    assert found.cleans.by_lag > 20


# ---- configs ---------------------------------------------------------------------------------------------------------


def test_two_sets_get_the_same_records_and_are_compared() -> None:
    result = cordwood.simulate(
        rate="100",
        keys=1_000_000,
        partitions=3,
        days=1,
        scale=2000,
        overrides=["cleanup.policy=compact", "segment.bytes=104857600"],
        against=["min.cleanable.dirty.ratio=0.05"],
    )
    lazy, eager = result.outcomes
    assert (lazy.label, eager.label) == ("A", "B")
    assert eager.configs == dict(lazy.configs) | {"min.cleanable.dirty.ratio": "0.05"}
    assert lazy.appended_bytes == eager.appended_bytes
    assert eager.mean_bytes < lazy.mean_bytes and eager.cleaned_per_byte > lazy.cleaned_per_byte
    verdict = "\n".join(result.verdict)
    assert "B takes less disk on average" in verdict and "The cleaner of A reads and writes less" in verdict
    assert "Choose A for less work for the cleaner; B for" in verdict
    document = json.loads(json.dumps(result.document()))
    assert [one["topic_peak_bytes"] for one in document["outcomes"]] == [3 * lazy.peak_bytes, 3 * eager.peak_bytes]
    assert document["verdict"] == list(result.verdict) and document["workload"]["records_per_second"] == 100
    texts = [one.text for one in ElementTree.fromstring(result.svg()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"days; a point stands for 6 min", "B: last values of keys", "A: last values of keys"} <= set(texts)
    # The history has one mark per clean, unless there are more cleans than points.
    assert lazy.cleans.count < len(lazy.history)
    assert "A: disk, with a mark for each clean" in texts
    is_band = eager.cleans.count > len(eager.history)
    assert ("B: from the least to the most" in texts) is is_band
    marked = [one for one in (lazy, eager) if one.cleans.count <= len(one.history)]
    points = sum(bool(point.cleans) for one in marked for point in one.history)
    assert result.svg().count("<circle") == points > 0
    assert sum(point.cleans for point in eager.history) == eager.cleans.count
    assert all(point.least_bytes <= point.disk_bytes <= point.peak_bytes for point in eager.history)
    assert result.svg() in result._repr_html_()


def test_a_server_properties_gives_what_is_not_set(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.retention.hours=10\nlog.segment.bytes=50000000\nlog.cleaner.threads=2\nbroker.id=3\n")
    found = simulated(rate="100", days=1, scale=1000, server_properties=str(path))
    assert found.configs == {"retention.ms": "36000000", "segment.bytes": "50000000", "log.cleaner.threads": "2"}
    assert found.deletions.by_time > 0
    found = simulated("retention.ms=-1", rate="100", days=1, scale=1000, server_properties=str(path))
    assert found.deletions.by_time == 0 and "nothing was deleted: there is no limit" in found.notes
    with pytest.raises(NotFoundError, match="missing does not exist; it was to be the"):
        simulated(rate="1", server_properties=str(tmp_path / "missing"))


def test_without_a_cleaner_a_compacted_topic_grows() -> None:
    found = simulated("cleanup.policy=compact", "log.cleaner.enable=false", rate="100", keys=10, days=1, scale=1000)
    assert found.end_bytes == pytest.approx(found.appended_bytes, rel=0.01) and found.cleans.count == 0
    assert any("the broker has no cleaner" in note for note in found.notes)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"overrides": ["min.cleanable.dirty.ratio=2"]}, ConfigError, "not a value that Kafka accepts"),
        ({"overrides": ["retention=5"]}, ConfigError, "Did you mean"),
        ({"overrides": ["orders:retention.ms=5"]}, ConfigError, "there is one topic here; write retention.ms="),
        ({"against": ["orders:retention.ms=5"]}, ConfigError, "there is one topic here"),
        ({"days": 0.0}, RequestError, "days=0"),
        ({"scale": 0.5}, RequestError, "scale=0.5"),
        ({"seed": -1}, RequestError, "seed=-1"),
        ({"rate": ""}, RequestError, "with rate=: "),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        cordwood.simulate(**{"rate": "1"} | options)


def test_progress_goes_up_to_the_end_over_both_sets() -> None:
    told: list[float] = []
    cordwood.simulate(rate="1", days=1, scale=100, against=["retention.ms=43200000"], on_progress=told.append)
    assert told == sorted(told) and told[-1] == 1 and 0.5 in told
