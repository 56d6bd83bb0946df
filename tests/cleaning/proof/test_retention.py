"""The proof, whose rules are its own, accepts the segments that retention deletes, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cordwood.api import clean_in_place
from cordwood.cleaning.engine.facts import segment_facts
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.engine.task import FailureKind
from cordwood.cleaning.proof.retention import RetentionLimits, retention_faults
from cordwood.cleaning.rules.plan import PartitionPlan
from cordwood.cleaning.rules.retention import plan_retention
from cordwood.commands import clean_in_place as command
from cordwood.commands.plan import retain_after
from cordwood.common.types import NONE
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.log.view import LogView
from tests.cleaning.scripted import ScriptedLog

pytestmark = pytest.mark.more

NOW = 10_000
#: For each segment: number of records, and the timestamp of the newest.
SEGMENTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, NOW)), min_size=1, max_size=6)


def log_of(segments: list[tuple[int, int]], log_start_offset: int = 0) -> LogView:
    log = ScriptedLog()
    for at, (records, timestamp) in enumerate(segments):
        if at:
            log.roll()
        base = log.next_offset
        log.append(encode_batch([Record(base + one, timestamp, b"k", b"v") for one in range(records)]))
    return LogView(log.path, fs=log.fs, log_start_offset=log_start_offset)


@given(
    segments=SEGMENTS,
    start=st.integers(0, 12),
    mark=st.integers(0, 18),
    bytes_kept=st.sampled_from([NONE, 0, 100, 200, 300]),
    ms_kept=st.sampled_from([NONE, 0, 2_000, 6_000]),
)
def test_what_is_planned_is_accepted_and_one_segment_more_is_not(
    segments: list[tuple[int, int]], start: int, mark: int, bytes_kept: int, ms_kept: int
) -> None:
    log = log_of(segments, min(start, sum(records for records, _ in segments)))
    facts = [segment_facts(segment) for segment in log.segments]
    asked = {"retention.bytes": bytes_kept, "retention.ms": ms_kept}
    chosen: list[int] = []
    # Segments that one rule retains may be deleted by an earlier rule in the next run.
    while len(chosen) < len(facts):
        left = facts[len(chosen) :]
        start = max(log.log_start_offset, left[0].base_offset)
        taken = plan_retention(left, start, log.next_offset, mark, asked, NOW)
        if not taken:
            break
        chosen += [base for _, bases, _ in taken for base in bases]
    limits = RetentionLimits(mark, NOW, bytes_kept, ms_kept)
    assert not list(retention_faults(log, chosen, limits))
    if len(chosen) < len(facts):
        assert list(retention_faults(log, [*chosen, facts[len(chosen)].base_offset], limits))


def test_only_the_oldest_segments_may_go() -> None:
    log = log_of([(1, 0), (1, 0), (1, 0)])
    limits = RetentionLimits(3, NOW, ms_kept=0)
    assert not list(retention_faults(log, [0, 1], limits))
    assert list(retention_faults(log, [1, 2], limits)) == [
        "the segments from [1, 2] on are not the oldest ones, from [0, 1] on"
    ]


@pytest.mark.parametrize("verify", [True, False])
def test_a_deletion_that_cannot_be_proved_right_leaves_the_partition_as_it_is(
    verify: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ScriptedLog()
    for timestamp in (0, 5_000, NOW):
        log.append(encode_batch([Record(log.next_offset, timestamp, b"k%d" % timestamp, b"v")]))
        log.roll()
    (folder := tmp_path / "t-0").mkdir()
    for name, data in log.files().items():
        (folder / name).write_bytes(data)

    def one_more(*arguments: Any) -> PartitionPlan:
        """Retention as for a time in the future."""
        later = (*arguments[:-1], NOW + 5_000)
        return retain_after(*later)

    monkeypatch.setattr(command, "retain_after", one_more)
    result = clean_in_place(
        str(tmp_path),
        spark=spark,
        now_ms=NOW,
        retention=True,
        high_watermark="end",
        no_broker_elsewhere=True,
        verify=verify,
        overrides=["cleanup.policy=delete", "retention.ms=6000"],
    )
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    if verify:
        (failed,) = result.with_fate(Fate.FAILED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.BUG
        assert "no limit is exceeded by the segment from 1 on" in failed.failure.what
        assert bases == [0, 1, 2, 3]
    else:
        assert not result.with_fate(Fate.FAILED)
        assert bases == [2, 3]
