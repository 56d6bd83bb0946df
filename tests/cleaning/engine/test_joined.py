"""Small segments are read as one, with the results and the errors of segments that are read one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.cleaning.engine.facts import CleanSettings
from cordwood.cleaning.engine.keys import DirtySection
from cordwood.cleaning.engine.partition import Cleaned, CleanRequest, clean_partition, join
from cordwood.cleaning.rules.transactions import AbortTracker
from cordwood.common.errors import CorruptBatchError
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.filenames import FileKind, offset_name
from cordwood.storage.log.segment import JoinedSegment, Segment
from cordwood.storage.log.view import LogView
from cordwood.storage.recovery.replay import Producers
from tests.cleaning.engine.logs import data, make_log

pytestmark = pytest.mark.more


def small(path: Path) -> LogView:
    """Five segments of two records; `a` is in each of them."""
    return make_log(path, *((2 * at, [data(2 * at, b"a"), data(2 * at + 1, b"k%d" % at)]) for at in range(5)))


def cleaned(log: LogView, target: Path) -> Cleaned:
    target.mkdir()
    request = CleanRequest(
        first_dirty=0, first_uncleanable=8, now_ms=0, settings=CleanSettings(), producers=Producers()
    )
    return clean_partition(PosixFileSystem(), log, str(target), request)


def path_of(log: LogView, base: int) -> Path:
    return Path(log.path, offset_name(base, FileKind.LOG))


def test_each_of_the_joined_segments_has_its_own_counts(tmp_path: Path) -> None:
    found = cleaned(small(tmp_path / "log"), tmp_path / "out")
    assert found.replaced == ((0, 2, 4, 6),)
    counts = [(one.records_read, one.records_kept, one.records_superseded) for one in found.segments[0]]
    assert counts == [(2, 1, 1), (2, 1, 1), (2, 1, 1), (2, 2, 0)]


def test_damage_is_reported_in_the_file_and_at_the_position_that_have_it(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    damaged = bytearray(path_of(log, 4).read_bytes())
    damaged[-1] ^= 1
    path_of(log, 4).write_bytes(damaged)
    with pytest.raises(CorruptBatchError) as error:
        cleaned(log, tmp_path / "out")
    assert (error.value.path, error.value.position) == (str(path_of(log, 4)), len(damaged) // 2)


def test_a_batch_that_is_cut_and_goes_on_in_the_next_file_is_damage(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    first, second = path_of(log, 2), path_of(log, 4)
    whole = first.read_bytes() + second.read_bytes()
    middle = first.stat().st_size - 10
    first.write_bytes(whole[:middle])
    second.write_bytes(whole[middle:])
    with pytest.raises(CorruptBatchError) as error:
        cleaned(LogView(log.path, fs=log.fs, log_start_offset=0), tmp_path / "out")
    assert error.value.path == str(first)


def test_no_join_extends_over_a_group_or_over_the_start_of_the_dirty_section(tmp_path: Path) -> None:
    log = small(tmp_path / "log")
    segments = log.segments

    def bases(joined: tuple[Segment, ...] | list[Segment]) -> list[list[int]]:
        return [
            [part.base_offset for part in one.parts] if isinstance(one, JoinedSegment) else [one.base_offset]
            for one in joined
        ]

    dirty = DirtySection(segments[1:], 3, 10, AbortTracker())
    groups, own = join([segments[:4], segments[4:]], dirty)
    assert [bases(group) for group in groups] == [[[0], [2], [4, 6]], [[8]]]
    assert bases(own.segments) == [[2], [4, 6], [8]]
