"""Time indexes find the same first record at or after a time as a scan of all records."""

from __future__ import annotations

import pytest

from cordwood.storage.log.segment import MAX_OFFSET
from cordwood.storage.log.times import first_since
from cordwood.storage.log.view import LogView
from tests.knobs import SEED
from tests.tables.source.random_logs import NOW_MS, PARTITIONS, ROOT, random_directory


@pytest.mark.parametrize("seed", range(4))
def test_the_first_record_since_a_time_is_found_by_indexes(seed: int) -> None:
    fs = random_directory(SEED + seed).fs
    for partition in PARTITIONS:
        log = LogView(f"{ROOT}/{partition}", fs=fs)
        records = list(log.records(isolation=None))
        times = sorted({record.timestamp for record in records})
        for since in (0, *times[::5], *(one + 1 for one in times[::7]), NOW_MS + 10**9):
            for start, end in ((0, MAX_OFFSET), (log.next_offset // 3, log.next_offset // 2)):
                wanted = (one.offset for one in records if one.timestamp >= since and start <= one.offset < end)
                found = first_since(log, since, start_offset=start, end_offset=end)
                assert found == next(wanted, None), (partition, since, start, end)
