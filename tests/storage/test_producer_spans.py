"""The producers of a log, compared with a twin that reads batch by batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.log import producer_spans as module
from cordwood.storage.log.producer_spans import ProducerSpan, ProducerSpans, producer_spans
from cordwood.storage.log.view import LogView
from tests.fixtures import fixture
from tests.logs import batch, make_log

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
