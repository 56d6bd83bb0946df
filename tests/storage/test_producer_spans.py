"""The producers of a log, compared with a twin that reads batch by batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log import header_sample
from cordwood.storage.log import producer_spans as module
from cordwood.storage.log.producer_spans import ProducerSpan, ProducerSpans, producer_spans
from cordwood.storage.log.view import LogView
from tests.fixtures import fixture
from tests.logs import batch, make_large_log, make_log

BROKER = "kraft-classic-before"
LOGS = ("producers-0", "payments-1", "orders-0", "ledger-0", "__transaction_state-0")


def log_of(path: Path) -> LogView:
    return LogView(str(path), fs=PosixFileSystem())


def twin(log: LogView) -> list[ProducerSpan]:
    found: dict[int, ProducerSpan] = {}
    for one in log.batches():
        if one.producer_id < 0 or one.is_control:
            continue
        before = found.get(one.producer_id)
        found[one.producer_id] = ProducerSpan(
            one.producer_id,
            one.producer_epoch,
            one.base_offset if before is None else before.first_offset,
            one.last_offset,
            (0 if before is None else before.batches) + 1,
            (0 if before is None else before.records) + one.record_count,
            (0 if before is None else before.size_bytes) + one.size_bytes,
            (0 if before is None else before.transactional) + one.is_transactional,
        )
    return sorted(found.values(), key=lambda span: (-span.size_bytes, span.id))


@pytest.mark.parametrize("rows_max", [1, 1 << 18])
@pytest.mark.parametrize("name", LOGS)
def test_producers_are_those_of_a_twin(name: str, rows_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_MAX", rows_max)
    log = log_of(fixture(BROKER) / name)
    wanted = twin(log)
    assert producer_spans(log, 1_000) == ProducerSpans(len(wanted), tuple(wanted))
    assert producer_spans(log, 2) == ProducerSpans(len(wanted), tuple(wanted[:2]))


def test_of_several_epochs_the_last_counts_and_logs_without_producers_have_none(tmp_path: Path) -> None:
    make_log(
        tmp_path / "t-0",
        [batch(0, producer=7), batch(1, producer=8), batch(2, producer=7, producer_epoch=1)],
        [batch(3, producer=7, producer_epoch=2)],
    )
    first, second = producer_spans(log_of(tmp_path / "t-0"), 5).largest
    assert (first.id, first.epoch, first.first_offset, first.last_offset, first.batches) == (7, 2, 0, 3, 3)
    assert (second.id, second.epoch, second.batches) == (8, 0, 1)
    make_log(tmp_path / "u-0", [batch(0)], [])
    assert producer_spans(log_of(tmp_path / "u-0"), 5) == ProducerSpans(0, ())


def test_sums_of_producers_in_a_sampled_log_are_within_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, at, offset = np.random.default_rng(11), list[bytes](), 0
    for _ in range(900):
        producer = int(rng.choice([7, 8, 9, 10], p=[0.6, 0.3, 0.099, 0.001]))
        some = [(b"k", rng.bytes(int(rng.integers(10, 900)))) for _ in range(int(rng.integers(1, 8)))]
        at.append(batch(offset, *some, producer=producer))
        offset += len(some)
    log = make_log(tmp_path / "t-0", at[:450], at[450:])
    exact = producer_spans(log, 3, exact=False)
    assert not exact.is_sampled, "it is small"
    monkeypatch.setattr(header_sample, "EXACT_LOG_BYTES", 0)
    found = producer_spans(log, 3, exact=False)
    assert found.is_sampled and 3 <= found.count <= exact.count
    for one, known in zip(found.largest, exact.largest, strict=True):
        assert one.id == known.id and known.size_error == 0
        assert known.first_offset <= one.first_offset < one.last_offset <= known.last_offset
        assert abs(one.size_bytes - known.size_bytes) < 1.5 * one.size_error < known.size_bytes * 2
        assert one.records == pytest.approx(known.records, rel=0.7)
    assert producer_spans(log, 3) == exact


def test_a_large_log_without_producers_has_none_in_its_sample(tmp_path: Path) -> None:
    assert producer_spans(make_large_log(tmp_path / "t-0"), 5, exact=False) == ProducerSpans(0, (), is_sampled=True)
