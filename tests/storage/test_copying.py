"""Copies of log directories: their contents, files shared at no cost, and no copy after a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cordwood.common.errors import LockedError, NotFoundError, RequestError
from cordwood.common.types import TopicPartition
from cordwood.fs.base import Link
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import Workspace, leftovers, remove_tree
from cordwood.storage.changes.copy import Replacement, copy_partition, lay_out, remove_segments
from cordwood.storage.formats import checkpoints, filenames
from cordwood.storage.log.files import copy_file
from cordwood.storage.log.view import LogView
from cordwood.storage.node.node import Node
from tests.fixtures import copy_of, fixture
from tests.fs.disks import HOLD, contents

pytestmark = pytest.mark.more

fs = PosixFileSystem()


def copied(
    log: LogView, target: Path, replacement: Replacement | None = None, *, link: Link | None = None
) -> dict[str, bytes]:
    target.mkdir()
    copy_partition(fs, log, str(target), replacement, link=link)
    return contents(target)


# ---- files and partitions --------------------------------------------------------------------------------------------


def test_cleanly_shut_down_partition_is_copied_with_its_files_times(tmp_path: Path) -> None:
    source = fixture("kraft-before") / "payments-0"
    expected = contents(source)
    del expected[filenames.offset_name(358, ".snapshot")]  # its segment was cleaned away; a broker removes it
    assert copied(LogView(str(source), fs=fs), tmp_path / "copy") == expected
    for path in map(source.joinpath, expected):
        assert (tmp_path / "copy" / path.name).stat().st_mtime_ns == path.stat().st_mtime_ns


def test_a_pipe_in_a_partition_is_left_out(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    expected = copied(LogView(str(source), fs=fs), tmp_path / "before")
    os.mkfifo(source / "pipe")
    assert copied(LogView(str(source), fs=fs), tmp_path / "copy") == expected


def test_what_a_crash_left_is_copied_as_it_will_be_loaded(tmp_path: Path) -> None:
    source = fixture("kraft-crashed-swap") / "crash-0"
    found = copied(LogView(str(source), fs=fs), tmp_path / "copy")
    assert not [name for name in found if name.endswith((".swap", ".cleaned", ".deleted"))]
    (swapped,) = source.glob("*.log.swap")
    assert found[swapped.name.removesuffix(".swap")] == swapped.read_bytes()
    assert sorted(found) == sorted(contents(fixture("kraft-crashed-swap-recovered") / "crash-0") | {
        name: b"" for name in found if name.endswith(".snapshot")
    })  # fmt: skip


def test_only_logs_that_nobody_appends_to_are_linked(tmp_path: Path) -> None:
    source = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    copied(LogView(str(source), fs=fs), tmp_path / "copy", link=Link.HARD)
    *closed, active = sorted(source.glob("*.log"))
    linked = {path.name for path in source.iterdir() if path.samefile(tmp_path / "copy" / path.name)}
    assert linked == {path.name for path in closed}
    assert (tmp_path / "copy" / active.name).read_bytes() == active.read_bytes()


def test_cleaned_segments_take_the_place_of_others_and_of_their_snapshots(tmp_path: Path) -> None:
    # case 155
    source = fixture("kraft-before") / "orders-0"
    first, second, third, fourth, *_ = (segment.base_offset for segment in LogView(str(source), fs=fs).segments)
    folder = tmp_path / "outputs"
    folder.mkdir()
    name = filenames.offset_name(second, ".log")
    (folder / name).write_bytes(b"new")
    replacement = Replacement(str(folder), (name,), frozenset({second, third}), frozenset({second}), fourth)
    found = copied(LogView(str(source), fs=fs), tmp_path / "copy", replacement)
    assert found[name] == b"new"
    files = {base: {file[20:] for file in found if file.startswith(f"{base:020d}")} for base in (first, second, third)}
    # That of a base that stays is still true.
    assert files == {first: {".log", ".index", ".timeindex"}, second: {".log", ".snapshot"}, third: set()}
    assert f"{fourth:020d}.snapshot" in found


def test_a_copy_of_what_is_kept_read_only_can_be_written_to(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    source.chmod(0o440)
    copy_file(fs, str(source), str(tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o640


def test_a_file_larger_than_a_buffer_is_copied_whole(tmp_path: Path) -> None:
    data = os.urandom((3 << 20) + 17)
    (tmp_path / "source").write_bytes(data)
    copy_file(fs, str(tmp_path / "source"), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data


def test_a_log_without_any_segment_left_goes_on_at_its_end(tmp_path: Path) -> None:
    path = copy_of(fixture("kraft-before") / "orders-0", tmp_path / "orders-0")
    bases = [segment.base_offset for segment in LogView(str(path), fs=fs).segments]
    end = LogView(str(path), fs=fs).next_offset
    remove_segments(fs, str(path), bases[:2], end)
    assert LogView(str(path), fs=fs).first_offset == bases[2]
    remove_segments(fs, str(path), bases, end)
    assert [segment.base_offset for segment in LogView(str(path), fs=fs).segments] == [end]
    assert LogView(str(path), fs=fs).next_offset == end


# ---- the work folder -------------------------------------------------------------------------------------------------


def test_a_new_directory_gets_its_name_last_and_nothing_else_is_left(tmp_path: Path) -> None:
    with Workspace(fs, str(tmp_path / "new"), []) as work:
        (Path(work.data) / "file").write_bytes(b"abc")
        assert not (tmp_path / "new").exists()
        work.publish()
    assert os.listdir(tmp_path) == ["new"]
    assert contents(tmp_path / "new") == {"file": b"abc"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit])
def test_whatever_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "empty").mkdir()

    def fail() -> None:
        with Workspace(fs, str(tmp_path / "empty"), []) as work:
            (Path(work.outputs) / "folder").mkdir()
            (Path(work.outputs) / "folder" / "file").write_bytes(b"abc")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == ["empty"]


def test_a_target_that_is_not_new_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for target in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(RequestError, match="not empty"):
            Workspace(fs, str(target), [])
    with pytest.raises(NotFoundError, match="does not exist"):
        Workspace(fs, str(tmp_path / "missing" / "new"), [])


def test_a_target_within_a_source_is_refused_also_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "alias").symlink_to("logs")
    for target, said in (("logs", "is to be cleaned"), ("logs/new", "is in .*logs"), ("alias/new", "is in .*logs")):
        with pytest.raises(RequestError, match=f"{said}.* only read"):
            Workspace(fs, str(tmp_path / target), [str(tmp_path / "logs")])
    Workspace(fs, str(tmp_path / "logs-2"), [str(tmp_path / "logs")])


def test_what_a_killed_run_left_is_found_by_the_name_of_what_it_made(tmp_path: Path) -> None:
    left = Workspace(fs, str(tmp_path / "new"), []).path
    Path(left).mkdir()
    (tmp_path / ".new.cordwood-file").touch()
    Path(Workspace(fs, str(tmp_path / "newer"), []).path).mkdir()
    assert leftovers(fs, str(tmp_path / "new")) == [left]
    assert leftovers(fs, str(tmp_path / "missing" / "new")) == []


def test_a_folder_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    remove_tree(fs, str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []


# ---- log directories -------------------------------------------------------------------------------------------------


def laid_out(root: Path, *paths: Path) -> dict[str, tuple[str, bool, int]]:
    texts = [str(path) for path in paths]
    copies = lay_out(fs, Node.open(fs, texts), texts, str(root))
    return {copy.source.path: (copy.path, copy.whole, len(copy.places)) for copy in copies}


def test_one_directory_becomes_the_copy_itself_and_several_become_folders_in_it(tmp_path: Path) -> None:
    jbod = fixture("kraft-jbod-before")
    a, b = str(jbod / "a"), str(jbod / "b")
    assert laid_out(Path("/new"), jbod / "a") == {a: ("/new", True, 5)}
    for paths in ([jbod], [jbod / "a", jbod / "b"]):
        assert laid_out(Path("/new"), *paths) == {a: ("/new/a", True, 5), b: ("/new/b", True, 5)}
    assert laid_out(Path("/new"), jbod / "a" / "disk-0-1") == {a: ("/new", False, 1)}
    assert laid_out(Path("/new"), jbod / "a", jbod / "a" / "disk-0-1") == {a: ("/new", True, 5)}


def test_a_directory_that_someone_holds_is_refused(tmp_path: Path) -> None:
    directory = copy_of(fixture("kraft-jbod-before") / "a", tmp_path / "a")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory / filenames.LOCK)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(LockedError, match=f"pid {holder.pid}"):
            laid_out(tmp_path / "new", directory)
        holder.communicate("\n")


def test_checkpoints_keep_their_entries_and_get_the_new_first_dirty_offsets(tmp_path: Path) -> None:
    source = fixture("kraft-after")
    (copy,) = lay_out(fs, Node.open(fs, [str(source)]), [str(source)], str(tmp_path))
    copy.cleaner_offsets[TopicPartition("orders", 0)] = 999
    copy.copy_files(fs)
    copy.write_checkpoints(fs)
    before = checkpoints.decode((source / filenames.CLEANER_OFFSETS).read_bytes())
    after = checkpoints.decode((tmp_path / filenames.CLEANER_OFFSETS).read_bytes())
    assert after == {**before, TopicPartition("orders", 0): 999}
    unchanged = [name for name in os.listdir(source) if (source / name).is_file() and name != filenames.CLEANER_OFFSETS]
    assert filenames.CLEAN_SHUTDOWN in unchanged
    for name in unchanged:
        assert (tmp_path / name).read_bytes() == (source / name).read_bytes(), name


def test_a_partition_that_was_asked_for_takes_only_its_own_entries_along(tmp_path: Path) -> None:
    source = fixture("kraft-after")
    paths = [str(source / "orders-1")]
    (copy,) = lay_out(fs, Node.open(fs, paths), paths, str(tmp_path))
    copy.copy_files(fs)
    copy.write_checkpoints(fs)
    for name in (filenames.CLEANER_OFFSETS, filenames.HIGH_WATERMARKS, filenames.RECOVERY_POINTS):
        before = checkpoints.decode((source / name).read_bytes())
        name_of_it = TopicPartition("orders", 1)
        assert checkpoints.decode((tmp_path / name).read_bytes()) == {name_of_it: before[name_of_it]}
    assert not (tmp_path / filenames.META_PROPERTIES).exists()


# ---- full disks ------------------------------------------------------------------------------------------------------
