from __future__ import annotations

import numpy as np
import pytest

from cordwood.common.types import Isolation
from cordwood.record.batch import encode_batch
from cordwood.storage.log.transactions import Transactions
from cordwood.storage.log.view import LogView
from cordwood.testing.memory import MemoryFileSystem
from tests.logs import batch, marker


def open_log(*batches: bytes) -> LogView:
    fs = MemoryFileSystem(lambda: 0)
    fs.make_directory("t-0")
    with fs.create("t-0/00000000000000000000.log") as file:
        file.write(0, b"".join(batches))
    return LogView("t-0", fs=fs)


def read(log: LogView, isolation: Isolation | None) -> list[int]:
    return [record.offset for record in log.records(isolation=isolation)]


INTERLEAVED = open_log(
    batch(0, "k=v k=v"),
    batch(2, "k=v k=v", producer=7),
    batch(4, "k=v k=v", producer=8),
    marker(6, 7, committed=False),
    batch(7, "k=v k=v", producer=7),
    marker(9, 8, committed=True),
    marker(10, 7, committed=True),
    batch(11, "k=v k=v"),
    batch(13, "k=v k=v", producer=9),
    batch(15, "k=v k=v"),
)


def test_without_isolation_everything_is_there() -> None:
    assert read(INTERLEAVED, None) == [*range(17)]


def test_read_uncommitted_leaves_out_control_records_only() -> None:
    assert read(INTERLEAVED, Isolation.READ_UNCOMMITTED) == [0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14, 15, 16]


def test_read_committed_skips_aborted_data_and_stops_at_an_open_transaction() -> None:
    assert read(INTERLEAVED, Isolation.READ_COMMITTED) == [0, 1, 4, 5, 7, 8, 11, 12]
    assert INTERLEAVED.transactions().last_stable_offset == 13


def test_a_producer_that_aborts_again_and_again_hides_only_what_each_abort_ends() -> None:
    log = open_log(
        batch(0, "k=v k=v", producer=7),
        marker(2, 7, committed=False),
        batch(3, "k=v k=v", producer=7),
        marker(5, 7, committed=True),
        batch(6, "k=v k=v", producer=7),
        marker(8, 7, committed=False),
    )
    assert read(log, Isolation.READ_COMMITTED) == [3, 4]
    assert log.transactions().aborted == {7: [(0, 2), (6, 8)]}


def test_markers_without_a_transaction_end_nothing() -> None:
    log = open_log(marker(0, 7, committed=False), batch(1, "k=v k=v"), marker(3, 7, committed=True))
    assert read(log, Isolation.READ_COMMITTED) == [1, 2]


def test_an_emptied_marker_ends_nothing() -> None:
    emptied = encode_batch(
        [], base_offset=2, last_offset=2, producer_id=7, producer_epoch=0, transactional=True, control=True
    )
    log = open_log(batch(0, "k=v k=v", producer=7), emptied)
    assert log.transactions().open == {7: 0}


def test_transactions_are_the_same_in_whatever_portions_the_headers_come() -> None:
    rows = np.concatenate([item.batches for _, item in INTERLEAVED.windows()])  # type: ignore[union-attr]
    whole, parts = Transactions(), Transactions()
    whole.add(rows)
    for row in range(rows.size):
        parts.add(rows[row : row + 1])
    assert whole == parts


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_names_of_kafkas_isolation_levels_are_taken(isolation: str) -> None:
    expected = [record.offset for record in INTERLEAVED.records(isolation=Isolation(isolation))]
    assert [record.offset for record in INTERLEAVED.records(isolation=isolation)] == expected
    assert INTERLEAVED.to_arrow(isolation=isolation)["offset"].to_pylist() == expected
