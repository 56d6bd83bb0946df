"""A group without changes is not rewritten: its segment keeps its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition
from cordwood.cleaning.engine.task import faults
from cordwood.fs.posix import PosixFileSystem
from cordwood.record.batch import encode_batch
from cordwood.record.record import Record
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.engine.logs import data, make_log

pytestmark = pytest.mark.more

FS = PosixFileSystem()
#: One segment each.
GROUPS = {"segment_bytes": 1}


def clean(log: LogView, target: Path, **settings: object) -> Cleaned:
    target.mkdir()
    return clean_partition(
        FS,
        log,
        str(target),
        CleanRequest(
            first_dirty=0,
            first_uncleanable=log.segments[-1].base_offset,
            now_ms=10,
            settings=CleanSettings(**(GROUPS | settings)),  # type: ignore[arg-type]
            producers=Producers(),
        ),
    )


def with_first(folder: Path, *batches: bytes) -> LogView:
    """A log whose first segment has these batches, and whose second supersedes its own first record."""
    return make_log(folder, (0, list(batches)), (10, [data(10, b"x"), data(11, b"x")]), (20, [data(20)]))


def test_a_segment_in_which_nothing_changes_keeps_its_files(tmp_path: Path) -> None:
    log = with_first(tmp_path / "t-0", data(0, b"a"), data(1, b"b"))
    cleaned = clean(log, tmp_path / "out")
    assert (cleaned.replaced, cleaned.outputs, set(cleaned.kept)) == (((0,), (10,)), ((0,), (10,)), {0})
    assert list(cleaned.written) == [((10,), (10,))]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == sorted(offset_name(10, kind) for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX))
    assert (cleaned.counts.records_read, cleaned.counts.records_kept, cleaned.counts.records_superseded) == (4, 3, 1)
    assert cleaned.counts.batches_verbatim == 3
    assert cleaned.counts.bytes_read == sum(segment.size_bytes for segment in log.segments[:2])
    files = [(path.name, path.stat().st_size) for path in (tmp_path / "out").iterdir()]
    assert list(faults(FS, str(tmp_path / "out"), files, cleaned, 20)) == []


def tombstone(offset: int) -> bytes:
    return encode_batch([Record(offset, 0, b"t", None)])


FIRST = data(0, b"a")


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(data(1, b"x"), id="superseded in another segment"),
        pytest.param(data(1, b"a"), id="superseded in the same segment"),
        pytest.param(tombstone(1), id="tombstone"),
        pytest.param(encode_batch([Record(1, 0, None, b"v")]), id="no key"),
        pytest.param(encode_batch([Record(1, 0, b"b", b"v")], transactional=True, producer_id=5), id="transaction"),
        pytest.param(encode_batch([], base_offset=1, last_offset=1), id="empty"),
        pytest.param(encode_batch([Record(1, 0, b"b", b"v")], delete_horizon_ms=5), id="horizon that has passed"),
        pytest.param(encode_batch([Record(1, 0, b"t", None)], delete_horizon_ms=10), id="horizon that passes now"),
        pytest.param(encode_batch([Record(1, 0, None, b"v")], delete_horizon_ms=11), id="no key, and a horizon"),
    ],
)
def test_a_segment_of_which_something_may_change_is_written(tmp_path: Path, batch: bytes) -> None:
    cleaned = clean(with_first(tmp_path / "t-0", FIRST, batch), tmp_path / "out")
    assert cleaned.kept == set()
    assert (tmp_path / "out" / offset_name(0, FileKind.LOG)).exists()


def test_tombstones_whose_time_has_not_come_change_nothing(tmp_path: Path) -> None:
    ahead = encode_batch([Record(1, 0, b"t", None), Record(2, 0, b"u", b"v")], delete_horizon_ms=11)
    assert clean(with_first(tmp_path / "t-0", FIRST, ahead), tmp_path / "out").kept == {0}


def other_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.OFFSET_INDEX)).write_bytes(bytes([0, 0, 0, 1, 0, 0, 0, 69]))


def no_time_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.TIME_INDEX)).unlink()


def transaction_index(folder: Path) -> None:
    (folder / offset_name(0, FileKind.TRANSACTION_INDEX)).touch()


@pytest.mark.parametrize("change", [other_index, no_time_index, transaction_index])
def test_a_segment_whose_indexes_would_be_others_is_written(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with_first(tmp_path / "t-0", FIRST, data(1, b"b"))
    change(tmp_path / "t-0")
    log = LogView(str(tmp_path / "t-0"), log_start_offset=0, fs=FS)
    assert clean(log, tmp_path / "out").kept == set()


def test_segments_that_become_one_are_written(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", (0, [data(0, b"a")]), (1, [data(1, b"b")]), (2, [data(2)]))
    cleaned = clean(log, tmp_path / "out", segment_bytes=1 << 20)
    assert (cleaned.replaced, set(cleaned.kept)) == (((0, 1),), set())
    assert clean(log, tmp_path / "alone").kept == {0, 1}


def test_an_index_that_is_too_large_for_its_limit_is_written_anew(tmp_path: Path) -> None:
    log = with_first(tmp_path / "t-0", *(data(at, b"%d" % at, size=4096) for at in range(4)))
    assert clean(log, tmp_path / "out").kept == {0}
    assert clean(log, tmp_path / "small", index=IndexLimits(size_bytes=16)).kept == set()
