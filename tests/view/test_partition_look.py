"""Looks at a node and at one of its partitions: the bytes that they read of large logs, and the marked figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.commands.options import Selection, WhyOptions
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.index import search
from cordwood.storage.index.contents import ContentSource
from cordwood.storage.log.view import LogView
from cordwood.view.node_look import NodeLook, look_at_all, look_at_node
from cordwood.view.pages import partition
from cordwood.view.pages.frame import Links
from cordwood.view.pages.report import view_html
from cordwood.view.partition_look import PartitionLook, look_at_partition
from tests.logs import LARGE_SEGMENTS, T0, batch, make_large_log, put_snapshot
from tests.storage.index_twins import index_all

#: Bytes that a look may read of a segment. All headers take several times as many.
SEGMENT_BYTES_MAX = 500 << 10
#: Bytes of the files of the node, and of each segment's end.
OTHER_BYTES_MAX = 1 << 20
DELETED = WhyOptions(selection=Selection(overrides=("cleanup.policy=delete",)), now_ms=T0)
COMPACTED = replace(DELETED, selection=Selection(overrides=("cleanup.policy=compact",)))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> LogView:
    return make_large_log(tmp_path_factory.mktemp("large") / "t-0")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> LogView:
    log = make_large_log(tmp_path_factory.mktemp("indexed") / "t-0", keys=1000)
    index_all(PosixFileSystem(), log)
    return log


def looked(log: LogView, options: WhyOptions) -> tuple[PartitionLook, int]:
    """A look at a partition, and the number of bytes that it read."""
    counted = CountedStore(PosixFileSystem())
    return look_at_partition(log.path, options, fs=counted), counted.bytes_read


def shown(look: PartitionLook) -> str:
    return str(partition.partition_page(look, [], Links([])))


def test_the_page_of_a_large_log_takes_a_few_reads_a_segment(large: LogView) -> None:
    few, few_bytes = looked(large, DELETED)
    exact, all_bytes = looked(large, replace(DELETED, exact=True))
    assert few_bytes < LARGE_SEGMENTS * SEGMENT_BYTES_MAX + OTHER_BYTES_MAX < all_bytes
    assert few.checked is None and exact.checked is not None
    assert few.contents is not None and few.contents.source is ContentSource.PLACES
    assert exact.contents is not None and few.contents.estimate == exact.contents.estimate, "all is live"
    assert few.listing.log_end_offset == exact.listing.log_end_offset
    ours, theirs = ([one.index_entries for one in look.listing.segments] for look in (few, exact))
    assert ours == theirs


def test_the_page_of_a_large_log_marks_each_estimate_and_names_the_sample(large: LogView) -> None:
    page = shown(looked(large, DELETED)[0])
    assert page.count("≈") > 2 * LARGE_SEGMENTS, "records and batches of each segment"
    assert "sampled: 16 places a segment in t-0: records are ±" in page
    assert "--exact reads all batch headers" in page
    assert "a sample of the batch headers was read" in page
    exact = shown(looked(large, replace(DELETED, exact=True))[0])
    assert "≈" not in exact and "ampled" not in exact


def test_the_page_of_a_small_log_marks_nothing(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(batch(0, "a=1 b=2"))
    look = look_at_partition(str(tmp_path / "t-0"), DELETED)
    assert not look.is_sampled and look.checked is not None
    assert "≈" not in shown(look)


def test_of_key_indexes_the_page_reads_a_part_and_marks_the_bytes(
    indexed: LogView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_ENTRIES_MIN", 0)
    few, few_bytes = looked(indexed, COMPACTED)
    assert few_bytes < LARGE_SEGMENTS * SEGMENT_BYTES_MAX + OTHER_BYTES_MAX
    assert few.contents is not None and few.contents.source is ContentSource.INDEXES
    assert few.contents.segments[0].bytes_of.keys() == {"superseded"}, "all its keys are in later segments"
    assert "≈" in shown(few) and "superseded: ≈ " in shown(few)


def test_a_log_without_key_indexes_is_estimated_by_the_sample_that_why_reads(large: LogView) -> None:
    look, read_bytes = looked(large, COMPACTED)
    assert read_bytes < (9 << 20) + LARGE_SEGMENTS * SEGMENT_BYTES_MAX
    assert look.contents is not None and look.contents.source is ContentSource.SAMPLE
    without, few_bytes = looked(large, replace(COMPACTED, keys=False))
    assert without.contents is None and "its keys were not counted" in shown(without)
    assert few_bytes < LARGE_SEGMENTS * SEGMENT_BYTES_MAX + OTHER_BYTES_MAX


# ---- the node --------------------------------------------------------------------------------------------------------


def looked_at_node(log: LogView, options: WhyOptions) -> tuple[NodeLook, int]:
    counted = CountedStore(PosixFileSystem())
    return look_at_node([log.path], options, fs=counted), counted.bytes_read


def test_a_look_at_a_node_takes_a_few_reads_a_segment_and_names_sampled_logs(
    large: LogView,
) -> None:
    few, few_bytes = looked_at_node(large, DELETED)
    exact, all_bytes = looked_at_node(large, replace(DELETED, exact=True))
    assert few_bytes < LARGE_SEGMENTS * SEGMENT_BYTES_MAX + OTHER_BYTES_MAX < all_bytes
    assert few.transactions is not None and exact.transactions is not None
    assert [str(one) for one in few.transactions.sampled] == ["t-0"] and exact.transactions.sampled == ()
    assert "None seems to be open in 1 log." in view_html([large.path], DELETED)


def test_an_open_transaction_of_a_large_log_is_found_where_the_sample_shows_one(tmp_path: Path) -> None:
    log = make_large_log(tmp_path / "t-0")
    end = log.next_offset
    with Path(log.segments[-1].path).open("ab") as file:
        file.write(batch(end, "a=1", producer=7))
    look, _ = looked_at_node(log, DELETED)
    assert look.transactions is not None and look.transactions.sampled == ()
    assert [(one.producer_id, one.logs[0].first_offset) for one in look.transactions.transactions] == [(7, end)]


def test_no_header_is_read_behind_a_snapshot_at_the_end_of_a_log(large: LogView, tmp_path: Path) -> None:
    log = make_large_log(tmp_path / "t-0")
    put_snapshot(tmp_path / "t-0", log.next_offset)
    look, few_bytes = looked_at_node(log, DELETED)
    assert look.transactions is not None and look.transactions.sampled == ()
    assert few_bytes < looked_at_node(large, DELETED)[1]


def test_the_part_of_a_partition_in_a_file_has_the_causes_of_the_node(indexed: LogView) -> None:
    look, (found,) = look_at_all([indexed.path], COMPACTED, 1)
    assert look.why is not None
    assert found.why.partitions[0] is look.why.partitions[0]
