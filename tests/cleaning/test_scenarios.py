"""Kafka's scenarios (`tests/kafka/scenarios`) repeated by Cordwood, step by step, without Java.

The comparison on Kafka's own files in `test_against_kafka.py` runs all of them, and compares every clean that has a
counterpart.
"""

from __future__ import annotations

import pytest

from cordwood.common.errors import RequestError
from cordwood.storage.log.files import read_file
from tests.cleaning.modes import MODES, using
from tests.cleaning.replay import NOT_AT_ALL, PARTLY, SCENARIOS, replay
from tests.cleaning.scripted import contents


def test_the_tables_name_scenarios_that_exist() -> None:
    assert len(SCENARIOS) == 82
    assert PARTLY.keys() | NOT_AT_ALL.keys() <= SCENARIOS.keys()


@pytest.mark.parametrize("in_place", [False, True], ids=["a copy", "in place"])
@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - NOT_AT_ALL.keys()))
def test_every_step_of_a_scenario_leaves_what_it_leaves_in_kafka(name: str, in_place: bool) -> None:
    done = replay(name, in_place=in_place)
    assert done.differences == []
    stop, _ = PARTLY.get(name, (None, None))
    assert done.ended_at == stop


@pytest.mark.parametrize("mode", MODES)
def test_a_scenario_comes_out_as_in_kafka_in_each_mode(mode: str) -> None:
    with using(mode):
        done = replay(min(SCENARIOS.keys() - NOT_AT_ALL.keys() - PARTLY.keys()), in_place=mode == "batches")
    assert done.differences == []


@pytest.mark.more
@pytest.mark.parametrize("mode", ["chunks", "indexed", "stages", "batches"])
@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - NOT_AT_ALL.keys()))
def test_a_scenario_comes_out_as_in_kafka_however_the_work_is_cut(name: str, mode: str) -> None:
    with using(mode):
        done = replay(name, in_place=mode == "batches")
    assert done.differences == []


def test_an_index_that_would_overflow_ends_a_segment_instead_of_the_clean() -> None:
    # groups-index-overflow: merged segments may need more entries than their sources had; Kafka fails and gives up the
    # partition. In strict mode so do we.
    done = replay("groups-index-overflow")
    with pytest.raises(RequestError, match=r"segment.index.bytes=\d+. Kafka's cleaner fails here every time"):
        done.log.clean(strict_kafka=True)
    before = [record for one in done.log.log().segments for _, records in contents(one) for record in records]
    _, _, cleaned = done.log.clean()
    assert cleaned is not None
    segments = done.log.log().segments
    assert [base for group in cleaned.outputs for base in group] == [one.base_offset for one in segments[:-1]]
    assert any(len(group) > 1 for group in cleaned.outputs)
    newest = {record.key: record for record in before}
    after = [record for one in segments for _, records in contents(one) for record in records]
    assert {record.key: record for record in after} == newest
    limit = int(done.log.config["segment.index.bytes"])
    for name, data in done.log.files().items():
        assert not name.endswith("index") or len(data) <= limit


def test_an_old_batch_at_the_end_of_the_range_that_keeps_nothing_is_dropped() -> None:
    # legacy-last-batch-empty, case 86b: magic 0 and 1 have no empty batches; Kafka's clean fails there every time.
    done = replay("legacy-last-batch-empty")
    with pytest.raises(RequestError, match="magic 1 that ends at offset 1 keeps no record, and it ends the range"):
        done.log.clean(first_dirty=0, strict_kafka=True)
    _, _, cleaned = done.log.clean(first_dirty=0)
    assert cleaned is not None
    assert cleaned.counts.batches_dropped == 1
    (kept,) = contents(done.log.log().segments[0])
    assert [record.key for record in kept[1]] == [b"a"]


def test_expected_files_are_those_of_the_snapshots() -> None:
    # The replay compares check sums; once, and not only in print, the bytes themselves.
    done = replay("tombstone-horizon")
    expired = SCENARIOS["tombstone-horizon"].with_suffix(".snapshots") / "expired" / "t-0"
    for segment in done.log.log().segments:
        assert (expired / segment.files.log.name).read_bytes() == read_file(segment.fs, segment.path)


def test_producers_come_back_with_the_sequences_that_duplicates_are_known_by() -> None:
    # idempotent-last-batch, case 118: each has the fields of the producer's last batch before it lost records.
    log = replay("idempotent-last-batch").log
    assert {id: one.last_sequence for id, one in log.producers.by_id.items()} == {1: 2, 2: 2, 3: 1, 4: 0}


def test_batches_keep_their_leader_epoch_and_old_ones_have_none() -> None:
    # leader-epochs and legacy-converted, case 125.
    kept = [batch.leader_epoch for one in replay("leader-epochs").log.log().segments for batch, _ in contents(one)]
    assert kept == [3, 3, 7]
    converted = replay("legacy-converted").log.log().segments[0]
    # The other batches were written in magic 2.
    assert {batch.leader_epoch for batch, _ in contents(converted)} == {-1, 0}
