"""Real brokers' directories cleaned in place: the files equal those of a copy, at any free space."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cordwood.api import clean, clean_in_place
from cordwood.api import plan as make_plan
from cordwood.cleaning.engine.results import CleanResult, Fate
from cordwood.cleaning.engine.task import FailureKind
from cordwood.cleaning.rules.plan import Decision
from cordwood.commands.in_place.room import RESERVE_BYTES
from cordwood.common.errors import RequestError
from cordwood.common.text import bytes_text
from cordwood.storage.formats import filenames
from tests.commands.in_process import InThisProcess
from tests.fixtures import copy_of, facts, fixture
from tests.fs.disks import Room

pytestmark = pytest.mark.more

#: Enough of a fixture's partitions to meet every rule, few enough to be quick.
TOPICS = ("orders", "payments", "producers", "codec-lz4", "short-tombstones", "trimmed-both")
#: Three partitions of two groups each, of about the same size.
SMALL = ("recode-none", "sessions")
#: All but `large`, whose only group is unchanged and needs no room.
CHANGING = ("[!l]*", "ledger")
IN_PROCESS = cast(SparkSession, InThisProcess())


@pytest.fixture(scope="module")
def now_ms() -> int:
    return int(facts("kraft")["cleaning_1_ended_ms"])


def files(root: Path) -> dict[str, bytes]:
    """All files but the lock, as a directory that was never locked has no lock file."""
    found = {}
    for path in root.rglob("*"):
        if path.is_file() and path.name != filenames.LOCK:
            data = path.read_bytes()
            # Its entries have no order.
            lines = path.name == filenames.CLEANER_OFFSETS
            found[str(path.relative_to(root))] = b"\n".join(sorted(data.splitlines())) if lines else data
    return found


def times(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*.log")}


def partitions(root: Path, topics: Sequence[str]) -> dict[str, bytes]:
    """The files of the partitions of some topics."""
    names = {path.name for topic in topics for path in root.glob(f"{topic}-*")}
    return {name: data for name, data in files(root).items() if name.split("/")[0] in names}


def copied(source: Path, target: Path, now_ms: int, topics: Sequence[str] = ()) -> tuple[dict[str, bytes], CleanResult]:
    result = clean(str(source), output=str(target), spark=IN_PROCESS, now_ms=now_ms, single_copy=True, topics=topics)
    return files(target), result


def test_a_directory_cleaned_in_place_is_what_its_copy_is(spark: SparkSession, now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    expected, copy = copied(mine, tmp_path / "copy", now_ms)
    result = clean_in_place(str(mine), spark=spark, now_ms=now_ms, single_copy=True)
    assert files(mine) == expected
    assert times(mine) == times(tmp_path / "copy")
    assert result.counts == copy.counts
    assert len(result.with_fate(Fate.CLEANED)) == len(copy.with_fate(Fate.CLEANED)) > 8
    assert result.in_place is not None
    assert result.in_place.waves == 1
    again = clean_in_place(str(mine), spark=spark, now_ms=now_ms, single_copy=True)
    assert not again.with_fate(Fate.CLEANED)
    assert files(mine) == expected


def test_little_room_takes_more_waves_to_the_same_end(spark: SparkSession, now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    _, copy = copied(mine, tmp_path / "copy", now_ms, topics=SMALL)
    plan = make_plan(str(mine), now_ms=now_ms, single_copy=True, topics=SMALL)
    groups = [one.compaction.group_bytes for one in plan.with_decision(Decision.CLEAN) if one.compaction is not None]
    assert max(map(len, groups)) > 1
    room = max(map(max, groups))
    result = clean_in_place(str(mine), spark=spark, now_ms=now_ms, single_copy=True, topics=SMALL, work_space=room)
    assert not result.with_fate(Fate.FAILED), result.text()
    assert result.in_place is not None
    assert result.in_place.waves > 1
    assert result.in_place.work_bytes_max <= room
    # The proof of each wave reads all of the log.
    assert (result.in_place.verified or 0) > copy.counts.records_read
    assert partitions(mine, SMALL) == partitions(tmp_path / "copy", SMALL)
    assert result.counts == copy.counts


def test_what_does_not_fit_is_left_as_it_is_and_the_rest_is_cleaned(
    spark: SparkSession, now_ms: int, tmp_path: Path
) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    before = files(mine)
    # Few topics: each of the many waves is proved.
    result = clean_in_place(
        str(mine), spark=spark, now_ms=now_ms, single_copy=True, work_space=60_000, topics=["orders", "segment-mb"]
    )
    failed = result.with_fate(Fate.FAILED)
    assert failed
    assert result.with_fate(Fate.CLEANED)
    assert {one.failure.kind for one in failed if one.failure} == {FailureKind.FULL}
    assert "--work-space" in failed[0].why
    after = files(mine)
    for one in failed:
        name = os.path.basename(one.path)
        assert {k: v for k, v in before.items() if k.startswith(f"{name}/")} == {
            k: v for k, v in after.items() if k.startswith(f"{name}/")
        }


def test_full_disk_is_explained_once_for_all_partitions_with_figures_that_differ(now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    plan = make_plan(str(mine), now_ms=now_ms, single_copy=True, topics=CHANGING)
    needs = [max(one.compaction.group_bytes) for one in plan.with_decision(Decision.CLEAN) if one.compaction]
    free = RESERVE_BYTES + 1
    kept = tmp_path / "kept"
    result = clean_in_place(
        mine, now_ms=now_ms, single_copy=True, topics=CHANGING, keep_old=kept, spark=IN_PROCESS, fs=Room(free)
    )
    failed = result.with_fate(Fate.FAILED)
    assert len(failed) == len(needs) > 8
    for one in failed:
        assert one.failure is not None and one.failure.bytes_needed is not None
        assert f"take up to {one.failure.bytes_needed:,} B at once" in one.why
        assert f"{free:,} B of the disk are free, including a reserve of 8,388,608 B" in one.why
        assert f"free at least {one.failure.bytes_needed - 1:,} B of that disk" in one.why
        assert "--work-space" not in one.why
    text = result.text()
    assert text.count("NOT CLEANED: ") == text.count("including a reserve") == 1
    # Changes of loading can be undone; the text recommends `undo` only where files were kept.
    assert ("cordwood undo" in text) == kept.exists()


def test_too_little_work_space_names_the_option_and_the_least_that_is_enough(now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    disk = Room(1 << 40)
    result = clean_in_place(
        mine, now_ms=now_ms, single_copy=True, topics=CHANGING, work_space=1, spark=IN_PROCESS, fs=disk
    )
    one = result.with_fate(Fate.FAILED)[0]
    assert one.failure is not None
    assert f"give at least --work-space {one.failure.bytes_needed}" in one.why
    assert "free at least" not in one.why


def test_a_segment_in_which_nothing_changes_is_left_where_it_is_and_counts_as_clean(
    spark: SparkSession, now_ms: int, tmp_path: Path
) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    logs = sorted((mine / "large-0").glob("*.log"))
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in logs]
    for fate in (Fate.CLEANED, Fate.LEFT):
        result = clean_in_place(str(mine), spark=spark, now_ms=now_ms, topics=["large"], ignore_ratio=True)
        assert [one.fate for one in result.partitions] == [fate]
        assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in logs] == before
    checkpoint = (mine / filenames.CLEANER_OFFSETS).read_text()
    assert f"large 0 {int(logs[-1].stem)}" in checkpoint


def test_room_that_old_segments_keep_is_said(spark: SparkSession, now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    result = clean_in_place(str(mine), spark=spark, now_ms=now_ms, topics=["orders"], keep_old=str(tmp_path / "kept"))
    assert result.in_place is not None
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").rglob("orders-*/*"))
    assert result.in_place.kept_bytes == kept > 0
    assert (
        f"the old files are in {tmp_path}/kept and take {bytes_text(kept)} there until you delete it" in result.text()
    )


def test_a_damaged_partition_is_refused_before_any_of_its_waves(
    spark: SparkSession, now_ms: int, tmp_path: Path
) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    plan = make_plan(str(mine), now_ms=now_ms, single_copy=True, topics=SMALL)
    several = [one for one in plan.with_decision(Decision.CLEAN) if one.compaction and len(one.compaction.groups) > 1]
    victim = several[0]
    assert victim.compaction is not None
    last = victim.compaction.groups[-1][-1]
    path = Path(victim.path) / filenames.offset_name(last, filenames.FileKind.LOG)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    before = files(Path(victim.path))
    room = max(max(one.compaction.group_bytes) for one in plan.with_decision(Decision.CLEAN) if one.compaction)
    result = clean_in_place(str(mine), spark=spark, now_ms=now_ms, single_copy=True, topics=SMALL, work_space=room)
    assert [one.path for one in result.with_fate(Fate.FAILED)] == [victim.path]
    assert files(Path(victim.path)) == before
    assert len(result.with_fate(Fate.CLEANED)) == len(plan.with_decision(Decision.CLEAN)) - 1


def test_nothing_of_a_work_folder_is_left(spark: SparkSession, now_ms: int, tmp_path: Path) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    left = mine / "orders-0" / filenames.WORK_FOLDER / "0123"
    left.mkdir(parents=True)
    (left / "00000000000000000000.log").write_bytes(b"of a run that was killed")
    clean_in_place(str(mine), spark=spark, now_ms=now_ms, single_copy=True, topics=TOPICS)
    assert not list(mine.rglob(filenames.WORK_FOLDER))


def test_a_keep_folder_on_another_disk_is_refused_before_anything_is_done(
    now_ms: int, other_disk: Path, tmp_path: Path
) -> None:
    mine = copy_of(fixture("kraft-before"), tmp_path / "mine")
    before = files(mine)
    with pytest.raises(RequestError, match="another file system"):
        clean_in_place(str(mine), spark=IN_PROCESS, now_ms=now_ms, keep_old=str(other_disk / "kept"))
    assert files(mine) == before
