"""Kafka's scenarios (`tests/kafka/scenarios`) done by us, step by step, without Java.

`PARTLY` and `NOT_AT_ALL` say which are not replayed to their end, and why. The comparison on Kafka's own files in
`test_against_kafka.py` runs all of them, and compares every clean that has a counterpart.
"""

from __future__ import annotations

import json

import pytest

from cordwood.storage.log import read_file
from tests.cleaning.replay import Replay
from tests.cleaning.scripted import contents
from tests.kafka_tools import FOLDER, Line

SCENARIOS = {path.stem: path for path in sorted((FOLDER / "scenarios").glob("*.json"))}

RELOAD = "what a log is after it was closed and loaded again, recovered or not"
SELECTION = "which log is cleaned, and the cleaner's book-keeping"
RETENTION = "what retention deletes"
TRUNCATION = "what truncation leaves"
LIMITED_MAP = "an offset map of limited size that gets full"
FAILURE = "how a clean fails in Kafka"

#: Replayed up to the step that is about something else, with the cleans before it.
PARTLY = {
    "checkpoint-corrected": (4, SELECTION),
    "clean-aborted": (5, FAILURE),
    "corrupt-batch": (4, FAILURE),
    "crash-after-rename": (8, RELOAD),
    "crash-before-swap": (8, RELOAD),
    "crash-between-renames": (8, RELOAD),
    "crash-old-deleted": (8, RELOAD),
    "crash-one-index-left": (8, RELOAD),
    "delete-records": (6, RETENTION),
    "groups-index-overflow": (16, FAILURE),  # we write one segment more: see below
    "idempotent-last-batch": (6, RELOAD),
    "leader-epochs": (10, RELOAD),
    "legacy-last-batch-empty": (3, FAILURE),  # we drop the batch: see below
    "map-full": (6, LIMITED_MAP),
    "map-too-small": (2, LIMITED_MAP),
    "offset-index": (6, RELOAD),
    "recovery-indexes": (6, RELOAD),
    "recovery-split": (3, RELOAD),
    "recovery-torn-tail": (6, RELOAD),
    "recovery-transactions": (10, RELOAD),
    "retention-high-watermark": (6, RETENTION),
    "retention-no-policy": (6, RETENTION),
    "retention-size": (17, RETENTION),
    "retention-time": (8, RETENTION),
    "state-machine": (4, SELECTION),
    "tombstone-above-map": (6, LIMITED_MAP),
    "transactions-partial-map": (14, LIMITED_MAP),
    "transactions-v2": (21, RELOAD),
    "truncate": (8, TRUNCATION),
    "truncate-producers": (7, TRUNCATION),
}
NOT_AT_ALL = {
    "duplicate-sequences": "how a broker answers a producer that repeats itself",
    "follower-higher-epoch": "what a follower leaves out of a fetch",
    "retention-compact": SELECTION,
    "roll-by-time": "when a broker rolls a segment by its age",
    "selection": SELECTION,
}


def replay(name: str) -> Replay:
    path = SCENARIOS[name]
    lines: list[Line] = [json.loads(line) for line in path.with_suffix(".expected.jsonl").read_text().splitlines()]
    return Replay(json.loads(path.read_text()), lines)


def test_the_tables_name_scenarios_that_exist() -> None:
    assert len(SCENARIOS) == 80
    assert PARTLY.keys() | NOT_AT_ALL.keys() <= SCENARIOS.keys()


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - NOT_AT_ALL.keys()))
def test_every_step_of_a_scenario_leaves_what_it_leaves_in_kafka(name: str) -> None:
    done = replay(name)
    assert done.differences == []
    stop, _ = PARTLY.get(name, (None, None))
    assert done.ended_at == stop


def test_an_index_that_would_overflow_ends_a_segment_instead_of_the_clean() -> None:
    # groups-index-overflow: merged segments may need more entries than their sources had; Kafka fails and gives up the
    # partition.
    done = replay("groups-index-overflow")
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
