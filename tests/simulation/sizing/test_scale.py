"""The scale at which a topic is simulated."""

from __future__ import annotations

import pytest

from cordwood.common.config import DAY_MS, TopicConfig, overrides, resolve
from cordwood.common.errors import RequestError
from cordwood.simulation.sizing.workload import STEPS_MAX, STEPS_MIN, Scale, Workload, choose_scale, scaled_configs

pytestmark = pytest.mark.more

MONTH_MS = 30 * DAY_MS


def config(*texts: str) -> TopicConfig:
    return resolve("t", overrides(texts))


def test_little_is_written_in_full_size() -> None:
    scale = choose_scale(Workload(rate="1/min"), [config()], MONTH_MS)
    assert scale.factor == pytest.approx(1.08, rel=0.01)  # 43,200 batches, and 40,000 are written
    assert choose_scale(Workload(rate="30/h"), [config()], MONTH_MS).factor == 1


@pytest.mark.parametrize(
    ("workload", "records"),
    [
        (Workload(rate="100", batch_records=1), 40_000),  # as many batches
        (Workload(rate="100", batch_records=2), 80_000),
        (Workload(rate="100", batch_records=1, transactions=1), 20_000),  # each with a marker
        (Workload(rate="1m", batch_records=16), 400_000_000 / 1024),  # as many bytes
        (Workload(rate="100000", record_size=27, batch_records=100), 1_500_000),
        (Workload(rate="100000", keys=10**12, preload=True, record_size=27, batch_records=100), 1_500_000),
    ],
)
def test_the_factor_leaves_so_many_records(workload: Workload, records: float) -> None:
    scale = choose_scale(workload, [config("internal.segment.bytes=2000000000")], MONTH_MS)
    written = workload.records_per_second * MONTH_MS / 1000 + (workload.keys or 0)
    assert written / scale.factor == pytest.approx(records)


def test_what_is_asked_for_is_taken() -> None:
    assert choose_scale(Workload(rate="100"), [config()], MONTH_MS, 123.5).factor == 123.5


def test_batches_are_smaller_where_a_segment_would_hold_too_few() -> None:
    workload = Workload(rate="20m", partitions=10)
    scale = choose_scale(workload, [config()], MONTH_MS)
    assert workload.records_per_batch == 10 > scale.batch_records == 3
    (note,) = scale.notes
    assert note == "batches have 3 records rather than 10, as a segment is so small"
    # Appended records have the same size: fewer of them share a batch header.
    assert scale.record_bytes + 61 / 3 == pytest.approx(1024 + 61 / 10, abs=1)


def test_a_scale_at_which_a_segment_holds_no_records_is_refused() -> None:
    with pytest.raises(RequestError, match=r"--scale 1e\+06: a segment of 1.1 GB would hold fewer than 8 records"):
        choose_scale(Workload(rate="20m"), [config()], MONTH_MS, 1_000_000)


def test_too_many_segments_are_refused_with_the_days_that_would_do() -> None:
    workload, small = Workload(rate="20m"), [config("segment.bytes=1048576")]
    with pytest.raises(RequestError, match=r"segments of 1\.0 MB .* Give at most --days 0\.042") as refused:
        choose_scale(workload, small, MONTH_MS)
    days = float(str(refused.value).split("--days ")[1].split(",")[0])
    choose_scale(workload, small, round(days * DAY_MS))


def test_keys_that_are_mostly_not_written_are_refused() -> None:
    with pytest.raises(RequestError, match="--keys 1000000000: most of these keys are not written in 30 days"):
        choose_scale(Workload(rate="0.1", keys=10**9), [config()], MONTH_MS)
    choose_scale(Workload(rate="0.1", keys=10**9, preload=True), [config()], MONTH_MS)


def test_a_record_that_a_broker_refuses_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"--record-size 1048588: a broker refuses .* max\.message\.bytes is 1048588"
    ):
        choose_scale(Workload(rate="1", record_size=1048588), [config()], MONTH_MS)
    choose_scale(Workload(rate="1/h", record_size=1048500), [config()], MONTH_MS)


def test_the_smallest_segment_of_two_sets_counts() -> None:
    workload = Workload(rate="1m")
    both = choose_scale(workload, [config(), config("segment.bytes=100000000")], MONTH_MS)
    assert both == choose_scale(workload, [config("segment.bytes=100000000"), config()], MONTH_MS)
    assert both.factor < choose_scale(workload, [config()], MONTH_MS).factor


@pytest.mark.parametrize(
    ("rate", "texts", "step_ms"),
    [
        ("1/min", [], MONTH_MS / STEPS_MIN),
        ("1/min", ["segment.ms=14400000"], 14_400_000 / 20),
        ("1/min", ["cleanup.policy=compact", "max.compaction.lag.ms=14400000"], 14_400_000 / 20),
        ("1/min", ["max.compaction.lag.ms=14400000"], MONTH_MS / STEPS_MIN),  # not compacted
        ("1/min", ["retention.ms=-1"], MONTH_MS / STEPS_MIN),
        ("1/min", ["segment.ms=1000"], MONTH_MS / STEPS_MAX),
        ("1000000b", ["segment.bytes=90000000"], MONTH_MS / STEPS_MAX),
        ("100000b", ["segment.bytes=1073741824"], 1_073_741_824 / 100_000 / 4 * 1000),
    ],
)
def test_a_step_is_short_beside_what_happens(rate: str, texts: list[str], step_ms: float) -> None:
    scale = choose_scale(Workload(rate=rate), [config(*texts)], MONTH_MS)
    assert scale.step_ms == pytest.approx(step_ms, abs=1)


def test_a_time_that_is_no_longer_than_steps_is_told() -> None:
    scale = choose_scale(Workload(rate="1/min"), [config("segment.ms=1000")], MONTH_MS)
    assert scale.notes == ("segment.ms=1000 is short compared with a step, so its effects come late",)


def test_limits_in_bytes_are_divided_and_times_are_not() -> None:
    scale = Scale(100, 5, 100, MONTH_MS, 1000)
    texts = scaled_configs(config("segment.bytes=2000000", "retention.bytes=50000000", "compression.type=zstd"), scale)
    # Half a batch is left free on average.
    assert int(texts["internal.segment.bytes"]) == 20_000 + (61 + 5 * 100) // 2
    assert texts["retention.bytes"] == "500000" and texts["compression.type"] == "producer"
    assert not {"segment.ms", "retention.ms", "min.cleanable.dirty.ratio"} & texts.keys()
    assert "retention.bytes" not in scaled_configs(config(), scale)
    # An index is full where it is full in full size: here after 1,000 entries of 8 bytes, one for each 61 bytes or so.
    small = config("segment.index.bytes=800000", "index.interval.bytes=0")
    assert scaled_configs(small, scale)["segment.index.bytes"] == "8000"
    assert int(scaled_configs(config(), scale)["segment.index.bytes"]) < 10_485_760 / 100
