"""Cleans in place and into copies that write key indexes, and use those of the previous clean."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

import cordwood
from cordwood.commands.in_place.room import RESERVE_BYTES
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.formats.key_index import KeyIndex
from cordwood.storage.index.files import create_index, indexes_in
from cordwood.storage.log.view import LogView
from tests.commands.growing_logs import (
    FS,
    OPTIONS,
    clean,
    clean_copy,
    closed,
    everything,
    files,
    grown,
    indexed,
    indexes,
    segments_searched,
    start,
)
from tests.commands.in_process import InThisProcess
from tests.logs import batch, make_log
from tests.storage.index_twins import believed

pytestmark = pytest.mark.more


@pytest.mark.parametrize("seed", range(3))
def test_rounds_with_the_index_of_the_round_before_leave_what_rounds_without_do(tmp_path: Path, seed: int) -> None:
    source, logs, twin = random.Random(seed), tmp_path / "logs", tmp_path / "twin"
    end = start(logs)
    for number in range(5):
        end = grown(logs, source, end)
        shutil.rmtree(twin, ignore_errors=True)
        shutil.copytree(logs, twin)
        clean(twin, read_all=True)
        # Once it has indexes, they are kept up to date.
        clean(logs, index=number == 0)
        assert files(logs / "t-0") == files(twin / "t-0")
        assert [path.name for path in (logs / "t-0" / ".cordwood").iterdir()] == ["index"]
        closed = sorted(int(path.stem) for path in (logs / "t-0").glob("*.log"))[:-1]
        assert list(believed(LogView(str(logs / "t-0"), fs=FS, log_start_offset=0))) == closed
        assert {base for base, _ in indexes_in(FS, str(logs / "t-0"))} == set(closed)
        modes = {path.stat().st_mode & 0o777 for path in (logs / "t-0" / ".cordwood" / "index").iterdir()}
        assert modes == {0o600}


def test_a_clean_makes_no_index_unless_asked_or_there_are_some(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = start(logs)
    grown(logs, random.Random(1), end)
    clean(logs)
    assert not (logs / "t-0" / ".cordwood").exists()


def test_an_index_that_would_be_large_beside_its_segment_is_not_made(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = start(logs, size=30)
    grown(logs, random.Random(1), end)
    clean(logs, index=True)
    assert not list(believed(LogView(str(logs / "t-0"), fs=FS, log_start_offset=0)))


def test_indexes_take_no_more_room_than_they_may(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = grown(logs, random.Random(1), start(logs))
    clean(logs, index=True)
    all_of_them = len(indexes(logs))
    grown(logs, random.Random(2), end)
    clean(logs, index_max=3_000)
    assert sum(indexes(logs)) <= 3_000
    assert 0 < len(indexes(logs)) < all_of_them


def test_where_the_disk_has_no_room_for_indexes_segments_are_cleaned_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, twin = tmp_path / "logs", tmp_path / "twin"
    grown(logs, random.Random(1), start(logs))
    shutil.copytree(logs, twin)
    result = clean(twin)
    assert result.in_place is not None
    room = RESERVE_BYTES + result.in_place.work_bytes_max
    monkeypatch.setattr(PosixFileSystem, "free_bytes", lambda *_: room)
    clean(logs, index=True)
    assert files(logs / "t-0") == files(twin / "t-0")
    assert indexes(logs) == []


def test_a_result_says_what_was_read_and_written_for_what_was_new(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = grown(logs, random.Random(1), start(logs))
    first = clean(logs, index=True).in_place
    assert first is not None and first.index_bytes == sum(indexes(logs))
    size = sum(len(data) for name, data in files(logs / "t-0").items() if name.endswith(".log"))
    make_log(logs / "t-0", [batch(end, (b"%d" % 399, b"v" * 2_000))], [batch(end + 1, (b"new", b"v" * 2_000))])
    result = clean(logs)
    second = result.in_place
    assert second is not None
    assert min(first.bytes_read, second.bytes_read) > size
    assert 0 < second.bytes_new < size / 20 < second.bytes_written
    assert "of the logs were new; " in result.text() and "of it key indexes" in result.text()
    assert f"{second.bytes_written / second.bytes_new:.1f} for each byte that was new" in result.text()


def test_an_exact_plan_says_what_a_clean_reads_and_writes(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = grown(logs, random.Random(1), start(logs))
    clean(logs, index=True)
    # A record that supersedes another, one that does not, and the active segment.
    for at, key in enumerate([b"7", b"new", b"last"]):
        make_log(logs / "t-0", [batch(end + at, (key, b"v" * 2_000))])
    plan = cordwood.plan_exact(str(logs), **OPTIONS)
    inodes = {path.stat().st_ino for path in (logs / "t-0").glob("*.log")}
    done = clean(logs).in_place
    assert done is not None
    assert plan.work.bytes_written == done.bytes_written - done.index_bytes > 0
    left = {path.stat().st_ino for path in (logs / "t-0").glob("*.log")}
    # The active one stays, too.
    assert plan.work.segments_kept == len(inodes & left) - 1 > 0
    assert plan.work.segments_written == len(left - inodes) > 0
    assert plan.work.segments_replaced == len(inodes - left)
    assert 0 < plan.work.bytes_read <= done.bytes_read
    assert f"files: {plan.work.segments_kept} segments kept, " in plan.text()
    assert plan.document()["exact"]["work"]["bytes_written"] == plan.work.bytes_written


# ---- copies ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return segments_searched(monkeypatch)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_has_indexes_which_the_next_clean_of_it_uses(tmp_path: Path, seed: int) -> None:
    source, logs, twin = random.Random(seed), tmp_path / "logs", tmp_path / "twin"
    end = start(logs)
    for number in range(4):
        end = grown(logs, source, end)
        before = everything(logs)
        clean_copy(logs, tmp_path / f"copy{number}", index=number == 0)
        assert everything(logs) == before, "what is only read does not change"
        shutil.rmtree(twin, ignore_errors=True)
        clean_copy(logs, twin, read_all=True)
        logs = tmp_path / f"copy{number}"
        assert files(logs / "t-0") == files(twin / "t-0")
        assert [path.name for path in (logs / "t-0" / ".cordwood").iterdir()] == ["index"]
        assert indexed(logs) == closed(logs)
        assert {path.stat().st_mode & 0o777 for path in (logs / "t-0" / ".cordwood" / "index").iterdir()} == {0o600}
    end = grown(logs, source, end)
    assert clean(logs).in_place is not None
    assert indexed(logs) == closed(logs)


def test_a_clean_in_place_of_a_copy_believes_its_indexes(tmp_path: Path, searched: list[int]) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    end = grown(logs, random.Random(1), start(logs))
    clean_copy(logs, copy, index=True)
    assert searched == []
    believed_before = indexed(copy)
    grown(copy, random.Random(2), end)
    clean(copy, engine=None, spark=InThisProcess())
    assert set(searched) == set(believed_before)


def test_a_copy_without_indexes_in_its_source_has_none_unless_asked(tmp_path: Path) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    grown(logs, random.Random(1), start(logs))
    clean_copy(logs, copy)
    assert not (copy / "t-0" / ".cordwood").exists()


def test_a_copy_gets_the_indexes_of_partitions_that_are_not_cleaned_unless_stale(tmp_path: Path) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    grown(logs, random.Random(1), start(logs))
    shutil.copytree(logs / "t-0", logs / "u-0")
    cordwood.index(str(logs))
    mine = indexed(logs, "u-0")
    # The index of a segment that has changed since, and that of a deleted segment.
    stale, gone = mine[1], logs / "u-0" / ".cordwood" / "index" / f"{7:020d}.keyhashes"
    shutil.copy(gone.with_name(f"{mine[2]:020d}.keyhashes"), gone)
    os.truncate(logs / "u-0" / f"{stale:020d}.log", (logs / "u-0" / f"{stale:020d}.log").stat().st_size // 2)
    clean_copy(logs, copy, topics=["t"])
    assert indexed(copy, "u-0") == [base for base in mine if base != stale]
    assert set(closed(copy)) <= set(indexed(copy))


def test_indexes_of_a_copy_take_no_more_room_than_they_may(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    grown(logs, random.Random(1), start(logs))
    clean_copy(logs, tmp_path / "all", index=True)
    clean_copy(logs, tmp_path / "some", index=True, index_max=3_000)
    assert sum(indexes(tmp_path / "some")) <= 3_000
    assert 0 < len(indexes(tmp_path / "some")) < len(indexes(tmp_path / "all"))


def test_where_the_disk_has_no_room_for_a_copy_and_its_indexes_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    grown(logs, random.Random(1), start(logs))
    size = sum(-(-len(data) // 4096) * 4096 for data in everything(logs).values())
    monkeypatch.setattr(PosixFileSystem, "free_bytes", lambda *_: size + (66 << 12))
    clean_copy(logs, tmp_path / "copy", index=True)
    assert indexes(tmp_path / "copy") == [] and closed(tmp_path / "copy")


def test_retention_takes_the_indexes_of_a_copy_with_their_segments(tmp_path: Path) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    grown(logs, random.Random(1), start(logs))
    cordwood.index(str(logs))
    overrides = ["cleanup.policy=compact,delete", "retention.bytes=300000"]
    clean_copy(logs, copy, retention=True, overrides=[*OPTIONS["overrides"], *overrides])
    assert min(closed(copy)) > 0
    assert set(closed(copy)) <= set(indexed(copy))


@pytest.mark.parametrize("left", range(6))
def test_a_disk_that_fills_while_a_copy_gets_indexes_leaves_the_copy_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    logs, copy = tmp_path / "logs", tmp_path / "copy"
    grown(logs, random.Random(1), start(logs))
    shutil.copytree(logs / "t-0", logs / "u-0")
    cordwood.index(str(logs))
    allowed = [left]

    def created(fs: PosixFileSystem, path: str, index: KeyIndex) -> None:
        allowed[0] -= 1
        if allowed[0] < 0:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "full", path)
        create_index(fs, path, index)

    monkeypatch.setattr("cordwood.storage.index.build.create_index", created)
    clean_copy(logs, copy, topics=["t"])
    found = indexed(copy, "u-0")
    # The last segment of the other partition may have got one, too.
    assert found == indexed(logs, "u-0")[: len(found)] and left - 1 <= len(found) <= left
    assert set(closed(copy)) <= set(indexed(copy))
