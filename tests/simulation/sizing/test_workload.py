"""Workloads of a topic: rates as people write them, and the distribution of keys."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cordwood.common.errors import RequestError
from cordwood.simulation.sizing.workload import Keys, Workload, key_shares


@pytest.mark.parametrize(
    ("rate", "records_per_second"),
    [
        ("500", 500),
        ("500/s", 500),
        ("90/min", 1.5),
        ("36 / h", 0.01),
        ("2000/day", 2000 / 86_400),
        ("0.5", 0.5),
        ("1085b", 1),
        ("1085 B/s", 1),
        ("1085k/s", 1024),
        ("1m", 1024 * 1024 / 1085),
        ("1MiB/min", 1024 * 1024 / 1085 / 60),
        ("40g/day", 40 * 1024**3 / 1085 / 86_400),
    ],
)
def test_a_rate_is_records_or_with_a_unit_bytes(rate: str, records_per_second: float) -> None:
    # A record needs 1024 bytes, and alone in its batch 61 more.
    workload = Workload(rate=rate, record_size=1024, batch_records=1)
    assert workload.records_per_second == pytest.approx(records_per_second)
    assert workload.bytes_per_second == pytest.approx(1085 * records_per_second)


def test_tombstones_take_less_than_other_records() -> None:
    workload = Workload(rate="100", record_size=1000, tombstones=0.5, batch_records=1)
    assert workload.bytes_per_second == pytest.approx(100 * (500 + 7.5 + 61))
    assert Workload(rate="56850b", record_size=1000, tombstones=0.5, batch_records=1).records_per_second == 100


def test_batches_are_those_of_a_producer_with_defaults() -> None:
    assert Workload(rate="100").records_per_batch == 1  # no other record arrives within 5 ms
    assert Workload(rate="2000").records_per_batch == 10
    assert Workload(rate="2000", partitions=4).records_per_batch == 2
    assert Workload(rate="100m").records_per_batch == 16  # 16 KiB
    assert Workload(rate="100m", batch_records=500).records_per_batch == 500


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"rate": ""}, "--rate: records per second"),
        ({"rate": "much"}, "--rate much: give records per second"),
        ({"rate": "0/s"}, "--rate 0/s: give"),
        ({"rate": "5/week"}, "--rate 5/week: give"),
        ({"rate": "-5"}, "--rate -5: give"),
        ({"rate": "1", "keys": 0}, "--keys 0: give 1 or more"),
        ({"rate": "1", "partitions": 0}, "--partitions 0"),
        ({"rate": "1", "tombstones": 1.0}, "--tombstones 1: give a share"),
        ({"rate": "1", "transactions": 5, "aborted": -0.1}, "--aborted -0.1"),
        ({"rate": "1", "aborted": 0.1}, "--aborted needs --transactions"),
        ({"rate": "1", "keys": 5, "skew": -1.0}, "--skew -1"),
        ({"rate": "1", "skew": 1.0}, "go with --keys"),
        ({"rate": "1", "preload": True}, "go with --keys"),
        ({"rate": "1", "record_size": 20}, "--record-size 20: a record takes at least 27 bytes"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option(options: dict[str, object], what: str) -> None:
    with pytest.raises(RequestError, match=what):
        _ = Workload(**options).records_per_second  # type: ignore[arg-type]


# ---- keys ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from([0.0, 0.5, 1.0, 1.3, 3.0]))
def test_a_key_gets_what_the_keys_get_that_it_stands_for(keys: int, parts: int, skew: float) -> None:
    count = max(1, keys // parts)
    shares = key_shares(keys, count, skew)
    assert shares.sum() == pytest.approx(1) and (np.diff(shares) <= 1e-12).all()
    # In thousandths of a key, so that the edges of all parts are whole.
    ranks = np.arange(1, keys + 1, dtype=float) ** -skew
    fine = np.repeat(ranks / count, count)
    wanted = fine.reshape(count, keys).sum(axis=1)
    assert shares == pytest.approx(wanted / wanted.sum())


@pytest.mark.parametrize("skew", [0.7, 1.0, 1.2])
def test_many_keys_are_not_summed_one_by_one_and_the_shares_are_the_same(skew: float) -> None:
    keys, count = 3_000_000, 100
    ranks = (np.arange(1, keys + 1, dtype=float) ** -skew).reshape(count, -1).sum(axis=1)
    assert key_shares(keys, count, skew) == pytest.approx(ranks / ranks.sum(), rel=1e-6)


def drawn(workload: Workload, factor: float = 1, records: int = 100_000) -> tuple[np.ndarray, np.ndarray]:
    return Keys(workload, factor, np.random.default_rng(1)).draw(records)


def test_updates_are_spread_evenly_unless_they_are_skewed() -> None:
    keys, tombstones = drawn(Workload(rate="1", keys=3000, partitions=3, tombstones=0.25), 10)
    counts = np.bincount(keys)
    assert counts.size == 100 and counts.min() > 850 and counts.max() < 1150
    assert tombstones.mean() == pytest.approx(0.25, abs=0.01)
    keys, _ = drawn(Workload(rate="1", keys=100, skew=1.0))
    assert np.bincount(keys)[:3] / 100_000 == pytest.approx(key_shares(100, 100, 1.0)[:3], abs=0.01)


@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([0.0, 0.3, 0.5, 0.9]), st.integers(0, 100))
def test_new_keys_come_in_order_and_tombstones_delete_the_oldest(sizes: list[int], share: float, seed: int) -> None:
    source = Keys(Workload(rate="1", tombstones=share), 1, np.random.default_rng(seed))
    alive: deque[int] = deque()
    new = 0
    for size in sizes:
        for key, is_tombstone in zip(*(one.tolist() for one in source.draw(size)), strict=True):
            if is_tombstone:
                assert key == alive.popleft()
            else:
                assert key == new
                alive.append(new)
                new += 1
