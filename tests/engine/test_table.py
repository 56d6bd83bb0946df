"""Tables of latest values beside a plain replay in Python, on random logs and on those of real brokers."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from tests.engine.replayed_tables import TIME, points_of, random_log, table_of

#: Random logs; 300 of them are drawn with CORDWOOD_TABLE_LOGS=300, and with as many points each.
LOGS = int(os.environ.get("CORDWOOD_TABLE_LOGS", "24"))
POINTS = 20 if LOGS >= 300 else 4


@pytest.mark.parametrize("seed", range(LOGS))
def test_the_table_of_a_random_log_is_that_of_a_plain_replay(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = random_log(random, tmp_path / "users-3")
    assert table_of(log.path) == log.replay(log.last_stable_offset)
    for end in points_of(log, random, POINTS):
        whole = log.replay(end)
        assert table_of(log.path, as_of=end) == whole
        values = {key: row for key, row in whole.items() if row[1] is not None}
        assert table_of(log.path, as_of=end, deletes=False) == values


@pytest.mark.parametrize("seed", range(LOGS))
def test_a_table_as_of_a_time_ends_at_the_first_record_that_is_as_late(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = random_log(random, tmp_path / "users-3")
    for _ in range(POINTS // 2):
        ms = random.randint(TIME - 100, max(one.timestamp for one in log.records) + 100)
        text = datetime.fromtimestamp(ms / 1000, UTC).isoformat()
        assert table_of(log.path, as_of=text) == log.replay(log.offset_at(ms))
