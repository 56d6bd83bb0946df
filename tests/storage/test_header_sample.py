"""Samples of the headers of large logs: their reads, their exact fields, the errors of estimates, and wrong indexes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from cordwood.commands.ls import ls
from cordwood.commands.options import ListOptions
from cordwood.common.types import NONE
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats import offset_index
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.header_sample import UNITS, sample_headers
from cordwood.storage.log.view import LogView
from cordwood.storage.node.listing import PartitionListing, SegmentListing
from tests.logs import LARGE_SEGMENTS, T0, make_large_log, make_log

#: Bytes that an answer may read of a segment. All headers take ten times as many.
SEGMENT_BYTES_MAX = 200 << 10


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LogView:
    return make_large_log(tmp_path_factory.mktemp("plain") / "t-0")


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> LogView:
    return make_large_log(tmp_path_factory.mktemp("cleaned") / "t-0", holes=True)


def listed(log: LogView, *, exact: bool = False) -> PartitionListing:
    (found,) = ls([log.path], ListOptions(exact=exact)).partitions
    return found


def of_ends(segment: SegmentListing) -> dict[str, object]:
    """The fields of a segment that are never estimates."""
    left_out = {*segment.estimates, "estimates", "records_exact", "records_error"}
    return {one.name: getattr(segment, one.name) for one in fields(segment) if one.name not in left_out}


def test_a_large_log_is_listed_from_a_few_reads_a_segment(plain: LogView) -> None:
    few, all_headers = CountedStore(PosixFileSystem()), CountedStore(PosixFileSystem())
    ls([plain.path], ListOptions(), fs=few)
    ls([plain.path], ListOptions(exact=True), fs=all_headers)
    assert few.bytes_read < LARGE_SEGMENTS * SEGMENT_BYTES_MAX < all_headers.bytes_read


class Reads(CountedStore):
    """Counts reads."""

    reads = 0

    def add(self, count: int) -> None:
        self.reads += 1
        super().add(count)


def test_the_read_of_a_place_also_shows_where_the_next_one_begins(plain: LogView) -> None:
    store = Reads(PosixFileSystem())
    assert sample_headers(LogView(plain.path, fs=store).segments[0]) is not None
    assert store.reads < 2 * UNITS


def test_offsets_sizes_and_newest_times_of_a_sampled_log_are_exact(cleaned: LogView) -> None:
    some, exact = listed(cleaned), listed(cleaned, exact=True)
    assert all(one.estimates for one in some.segments)
    assert not any(one.estimates for one in exact.segments)
    for sampled, known in zip(some.segments, exact.segments, strict=True):
        left_out = dict.fromkeys(sampled.estimates)
        assert of_ends(sampled) == {name: value for name, value in of_ends(known).items() if name not in left_out}
    assert (some.log_end_offset, some.size_bytes) == (exact.log_end_offset, exact.size_bytes)


def test_records_of_a_log_that_was_never_cleaned_are_estimated_without_an_error(plain: LogView) -> None:
    some, exact = listed(plain), listed(plain, exact=True)
    assert [one.records for one in some.segments] == [one.records for one in exact.segments]
    assert not some.records_exact
    assert some.estimates == ("records", "codecs", "oldest_ms", "damage")


def test_records_of_a_cleaned_log_are_within_their_error(cleaned: LogView) -> None:
    some, exact = listed(cleaned), listed(cleaned, exact=True)
    assert 0 < some.records_error < exact.records / 4
    assert abs(some.records - exact.records) < 1.5 * some.records_error


def test_a_log_up_to_the_limit_is_listed_exactly(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [encode_batch([Record(at, T0, b"k", bytes(2000))]) for at in range(200)])
    assert sample_headers(log.segments[0]) is not None
    assert listed(log).records == 200
    assert not listed(log).estimates


@pytest.mark.parametrize("shift", [-1, 4096, 1 << 30])
def test_all_headers_are_read_where_index_entries_do_not_fit(plain: LogView, tmp_path: Path, shift: int) -> None:
    copy = tmp_path / "t-0"
    copy.mkdir()
    for file in Path(plain.path).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    wrong = copy / offset_name(plain.segments[1].base_offset, FileKind.OFFSET_INDEX)
    entries = np.frombuffer(wrong.read_bytes(), offset_index.ENTRY).copy()
    entries["position"] += shift
    wrong.write_bytes(entries.tobytes())
    log = LogView(str(copy), fs=PosixFileSystem())
    assert sample_headers(log.segments[1]) is None
    some = listed(log)
    assert [not one.estimates for one in some.segments] == [number == 1 for number in range(LARGE_SEGMENTS)]
    assert some.segments[1].records == listed(plain, exact=True).segments[1].records


def test_a_sum_over_units_of_equal_batches_is_exact(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", [encode_batch([Record(at, T0, b"k", bytes(5000))]) for at in range(500)])
    sample = sample_headers(log.segments[0])
    assert sample is not None
    assert (sample.units == NONE).sum() > 1
    total = sample.total(np.ones(sample.rows.size))
    assert (total.value, total.error) == pytest.approx((500, 0), abs=1e-6)
    assert replace(total, value=0) != total
