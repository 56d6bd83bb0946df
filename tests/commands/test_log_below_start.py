"""A log that ends below its log start offset, in a directory that was shut down cleanly.

A broker that loads such a log deletes all segments and starts an empty log at the log start offset; so do we, in a copy
and in place. Kafka's behavior is case 168 of its log manager, and
`LogLoader.deleteSegmentsIfLogStartGreaterThanLogEnd`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cordwood
from cordwood.api import clean, clean_in_place
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.results import Fate
from cordwood.cleaning.rules.plan import Decision
from cordwood.cli.clean import exit_code_of
from cordwood.cli.main import EXIT_DAMAGE
from cordwood.common.types import TopicPartition
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check import Kind
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.view import LogView
from tests.fixtures import copy_of, facts, fixture
from tests.kafka_tools import Broker
from tests.storage.swaps import EMPTY_SNAPSHOT

pytestmark = pytest.mark.more

ORDERS = TopicPartition("orders", 0)
#: Above the end of orders-0 in every case.
START = 1_000_000
NOW_MS = int(facts("kraft")["cleaning_1_ended_ms"])
#: Files that a broker leaves of the log and its state.
EMPTY = {
    **{f"{START:020}{kind}": b"" for kind in (".log", ".index", ".timeindex")},
    f"{START:020}.snapshot": EMPTY_SNAPSHOT,
    "leader-epoch-checkpoint": b"0\n0\n",
}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that a broker shut down cleanly, and whose checkpoint was then changed."""
    path = copy_of(fixture("kraft-before"), tmp_path / "logs")
    starts = path / filenames.LOG_START_OFFSETS
    starts.write_bytes(checkpoints.encode({**checkpoints.decode(starts.read_bytes()), ORDERS: START}))
    return path


def expected(directory: Path) -> dict[str, bytes]:
    return {**EMPTY, "partition.metadata": (directory / "orders-0" / "partition.metadata").read_bytes()}


def test_plan_says_that_the_next_load_empties_the_log(directory: Path) -> None:
    (found,) = make_plan(str(directory / "orders-0"), now_ms=NOW_MS).partitions
    assert (found.decision, found.log_start_offset, found.log_end_offset) == (Decision.LEAVE, START, START)
    end = LogView(str(fixture("kraft-before") / "orders-0"), fs=PosixFileSystem()).next_offset
    assert str(found.reason) == (
        f"it ends at offset {end}, below its log start offset: the next load replaces it by an empty log "
        f"({START} in log-start-offset-checkpoint)"
    )


def test_check_finds_nothing_but_the_log_start_offset(directory: Path) -> None:
    (found,) = cordwood.check(str(directory))
    assert (found.kind, found.offset) == (Kind.CHECKPOINT_BEYOND_END, START)
    assert found.path == str(directory / filenames.LOG_START_OFFSETS)


def test_copy_has_an_empty_log_at_the_log_start_offset(directory: Path, spark: SparkSession, tmp_path: Path) -> None:
    source = contents(directory / "orders-0")
    target = tmp_path / "new"
    result = clean(str(directory), output=str(target), spark=spark, topics=["orders"], now_ms=NOW_MS, single_copy=True)
    assert contents(target / "orders-0") == expected(directory)
    assert contents(directory / "orders-0") == source
    points = checkpoints.decode((target / filenames.RECOVERY_POINTS).read_bytes())
    assert points[ORDERS] == START
    (orders,) = [one for one in result.partitions if one.name == "orders-0"]
    assert orders.fate is Fate.COPIED and "below its log start offset" in orders.why
    assert orders.bytes_before > 0 and orders.bytes_after == 0
    assert cordwood.check(str(target)) == []


def test_in_place_nothing_is_deleted_without_a_backup(directory: Path, spark: SparkSession) -> None:
    before = contents(directory / "orders-0")
    result = clean_in_place(str(directory), spark=spark, topics=["orders"], now_ms=NOW_MS, single_copy=True)
    (orders,) = [one for one in result.partitions if one.name == "orders-0"]
    assert orders.fate is Fate.FAILED and "would delete all of it" in orders.why
    assert contents(directory / "orders-0") == before


def test_in_place_leaves_an_empty_log_at_the_log_start_offset(directory: Path, spark: SparkSession) -> None:
    before, kept = expected(directory), str(directory) + "-old"
    whole = contents(directory / "orders-0")
    result = clean_in_place(
        str(directory), spark=spark, topics=["orders"], now_ms=NOW_MS, single_copy=True, keep_old=kept
    )
    (orders,) = [one for one in result.partitions if one.name == "orders-0"]
    assert orders.notes == (
        f"{directory}/orders-0 ends below its log start offset {START}: "
        "its records were deleted, now its segments are, too",
    )
    assert contents(directory / "orders-0") == before
    assert cordwood.check(str(directory)) == []
    cordwood.undo(kept)
    assert contents(directory / "orders-0") == whole


@pytest.mark.kafka
def test_broker_makes_the_same_empty_log(directory: Path, kafka_broker: Broker) -> None:
    kafka_broker.start(directory, log_cleaner_enable="false", file_delete_delay_ms="0", log_segment_delete_delay_ms="0")
    kafka_broker("stop", directory)
    found = contents(directory / "orders-0")
    ours = expected(directory)
    # It led the partition in a new epoch, from the log's start on; files that wait to be deleted may still be there.
    version, count, entry, end = found.pop("leader-epoch-checkpoint").split(b"\n")
    assert (version, count, entry.split(b" ")[1], end) == (b"0", b"1", str(START).encode(), b"")
    assert ours.pop("leader-epoch-checkpoint") == b"0\n0\n"
    assert {name: data for name, data in found.items() if not name.endswith(".deleted")} == ours


def test_copy_says_that_it_has_none_of_the_records(directory: Path, tmp_path: Path) -> None:
    result = clean(str(directory), output=str(tmp_path / "new"), engine="here", topics=["sessions"], now_ms=NOW_MS)
    (orders,) = [one for one in result.partitions if one.topic_partition == ORDERS]
    assert any("no record of it is in the copy" in note for note in orders.notes)
    assert orders.left_out_bytes == sum(path.stat().st_size for path in (directory / "orders-0").glob("*.log"))
    assert exit_code_of(result) == EXIT_DAMAGE
