"""A segment is the same file as when its index was made, or its bytes are compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cordwood.common.types import override
from cordwood.fs.base import FileInfo
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import CountedStore
from cordwood.storage.formats.key_index import Flag, Identity, KeyIndex, with_identity
from cordwood.storage.index.build import build, index_partition
from cordwood.storage.index.files import create_index, read_index, take_over_indexes, write_index
from cordwood.storage.index.identity import (
    TICK_NS,
    has_no_transactions,
    is_same_log,
    is_same_output,
    look,
)
from cordwood.storage.index.search import SparseIndex
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.segment_writer import IndexLimits
from cordwood.storage.log.view import LogView
from tests.logs import batch, make_log, marker

FS = PosixFileSystem()
LIMITS = IndexLimits()


def some_segment(folder: Path) -> Segment:
    make_log(folder, [batch(at, (b"%d" % at, b"v" * 500)) for at in range(100)])
    (segment,) = LogView(str(folder), fs=FS).segments
    return segment


def with_look(segment: Segment, after_ns: int = 3 * TICK_NS, limits: IndexLimits | None = LIMITS) -> KeyIndex:
    """Write an index whose look was some time after the last change of the log."""
    index = build(segment, bytes(16), 1 << 30)
    seen = look(FS, segment.directory, segment.base_offset, limits)
    assert index is not None and seen is not None
    seen = replace(seen, looked_ns=seen.files[0].ctime_ns + after_ns)
    index = with_identity(index, seen)
    write_index(FS, segment.directory, index)
    return index


def settled(segment: Segment) -> None:
    """Wait until the look of `with_look` is in the past, and the next change gets another time."""
    newest_ns = max(FS.stat(str(path)).ctime_ns for path in Path(segment.directory).iterdir() if path.is_file())
    while FS.stat(segment.directory).ctime_ns < newest_ns + 4 * TICK_NS:
        os.utime(segment.directory)


def seen_in(segment: Segment) -> Identity:
    identity = read_index(segment).identity
    assert identity is not None
    return identity


def test_files_that_did_not_change_are_the_same(tmp_path: Path) -> None:
    segment = some_segment(tmp_path / "t-0")
    with_look(segment)
    settled(segment)
    assert is_same_log(seen_in(segment), segment, in_order=True)
    assert is_same_output(segment, LIMITS) and has_no_transactions(segment)
    assert not is_same_output(segment, replace(LIMITS, interval_bytes=100))


def append_and_truncate(path: Path) -> None:
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"more")
    os.truncate(path, size)


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def restore(path: Path) -> None:
    """Write another file of the same bytes and times, as rsync and tar do."""
    info, beside = path.stat(), path.with_suffix(".new")
    beside.write_bytes(path.read_bytes())
    os.utime(beside, ns=(info.st_atime_ns, info.st_mtime_ns))
    beside.replace(path)


def rewrite_with_old_times(path: Path) -> None:
    info = path.stat()
    rewrite(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


CHANGES: list[Callable[[Path], object]] = [
    append_and_truncate,
    rewrite,
    restore,
    rewrite_with_old_times,
    Path.unlink,
    lambda path: path.chmod(0o600),
    lambda path: os.truncate(path, path.stat().st_size),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [".log", ".timeindex"])
def test_any_change_of_a_file_is_seen(tmp_path: Path, kind: str, change: Callable[[Path], object]) -> None:
    segment = some_segment(tmp_path / "t-0")
    with_look(segment)
    settled(segment)
    identity = seen_in(segment)
    change(Path(segment.path).with_suffix(kind))
    assert is_same_log(identity, segment) is (kind != ".log")
    assert not is_same_output(segment, LIMITS)


@pytest.mark.parametrize(
    "after_ns", [0, TICK_NS, -TICK_NS, 1 << 60], ids=["at once", "within a tick", "before", "in the future"]
)
def test_a_look_that_may_have_missed_a_change_counts_for_nothing(tmp_path: Path, after_ns: int) -> None:
    segment = some_segment(tmp_path / "t-0")
    with_look(segment, after_ns)
    settled(segment)
    assert not is_same_log(seen_in(segment), segment)


def test_times_in_whole_seconds_count_for_nothing(tmp_path: Path) -> None:
    class Coarse(PosixFileSystem):
        @override
        def stat(self, path: str) -> FileInfo:
            info = super().stat(path)
            return replace(info, ctime_ns=info.ctime_ns // 10**9 * 10**9)

    segment = replace(some_segment(tmp_path / "t-0"), fs=Coarse())
    identity = look(segment.fs, segment.directory, 0)
    settled(segment)
    assert identity is not None and not is_same_log(identity, segment)


def test_a_search_reads_nothing_of_the_same_file_and_a_sample_of_another(tmp_path: Path) -> None:
    segment = some_segment(tmp_path / "t-0")
    with_look(segment)
    settled(segment)
    read = []
    for is_changed in (False, True):
        if is_changed:
            os.utime(segment.path)
        counted = CountedStore(FS, suffix=".log")
        with SparseIndex(replace(segment, fs=counted)):
            read.append(counted.bytes_read)
    assert read[0] == 0 and read[1] >= 64 * 61


def test_outputs_have_an_identity_once_they_are_in_their_place(tmp_path: Path) -> None:
    work, partition = tmp_path / "t-0" / ".cordwood" / "work", tmp_path / "t-0"
    partition.mkdir()
    (partition / ".cordwood").mkdir()
    segment = some_segment(work)
    index = build(segment, bytes(16), 1 << 30)
    assert index is not None
    path = f"{tmp_path}/{0:020d}.keyhashes"
    create_index(FS, path, with_identity(index, look(FS, str(work), 0, LIMITS, in_place=False)))
    for file in list(work.iterdir()):
        file.replace(partition / file.name)
    (there,) = LogView(str(partition), fs=FS).segments
    settled(there)
    take_over_indexes(FS, str(partition), [path])
    assert is_same_output(there, LIMITS)


def test_another_file_in_the_place_of_an_output_never_matches(tmp_path: Path) -> None:
    segment = some_segment(tmp_path / "t-0")
    index = build(segment, bytes(16), 1 << 30)
    assert index is not None
    path = f"{tmp_path}/{0:020d}.keyhashes"
    create_index(FS, path, with_identity(index, look(FS, segment.directory, 0, LIMITS, in_place=False)))
    restore(Path(segment.path))
    settled(segment)
    take_over_indexes(FS, segment.directory, [path])
    assert seen_in(segment).looked_ns == 0
    assert not is_same_log(seen_in(segment), segment)


def test_a_made_identity_counts_for_a_clean_if_the_clean_would_write_the_same(tmp_path: Path) -> None:
    segment = some_segment(tmp_path / "t-0")
    for is_same in (True, False):
        if not is_same:
            os.truncate(Path(segment.path).with_suffix(".timeindex"), 0)
            Path(segment.key_index_path).unlink()
        settled(segment)
        index_partition(FS, LogView(segment.directory, fs=FS), 1 << 30)
        identity = seen_in(segment)
        assert is_same_log(identity, segment) and is_same_log(identity, segment, in_order=True) is is_same
        assert is_same_output(segment, LIMITS) is is_same


def test_a_segment_with_a_marker_has_transactions_although_its_file_is_the_same(tmp_path: Path) -> None:
    make_log(tmp_path / "t-0", [batch(0, (b"a", b"v" * 2_000)), marker(1, 7, committed=True)])
    (segment,) = LogView(str(tmp_path / "t-0"), fs=FS).segments
    index = with_look(segment)
    settled(segment)
    assert index.header.flags & Flag.CONTROL
    assert is_same_log(seen_in(segment), segment) and not has_no_transactions(segment)
