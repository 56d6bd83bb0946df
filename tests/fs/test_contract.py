"""The promises of `cordwood.fs.base`, tested on every file system alike; and on two side by side, by Hypothesis."""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordwood.common.errors import RequestError
from cordwood.fs.base import DIRECT_BLOCK_BYTES, Bytes, LocalFileSystem, PutMode
from cordwood.fs.direct import DIRECT_READ_BYTES_MIN, aligned_buffer, read_direct
from cordwood.fs.pooled import PooledFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.workspace import Workspace
from cordwood.testing.memory import MemoryFileSystem, every_cut
from cordwood.testing.memory_journal import lose_all
from tests.fs.contract import local_outcome, local_steps
from tests.fs.lock_holders import on_linux
from tests.fs.trees import content, put, sync_everything, tree


def memory(*, can_crash: bool = True) -> MemoryFileSystem:
    return MemoryFileSystem(now_ns=itertools.count().__next__, can_crash=can_crash)


_FILE_SYSTEMS: dict[str, Callable[[], LocalFileSystem]] = {
    "posix": PosixFileSystem,
    "memory": memory,
    "memory without crashes": lambda: memory(can_crash=False),
    "pooled": lambda: PooledFileSystem(PosixFileSystem(), 100),
    "pooled, one file open": lambda: PooledFileSystem(PosixFileSystem(), 1),
}


@pytest.fixture(params=_FILE_SYSTEMS)
def fs(request: pytest.FixtureRequest) -> LocalFileSystem:
    return _FILE_SYSTEMS[request.param]()


@pytest.fixture
def root(fs: LocalFileSystem, tmp_path: Path) -> str:
    if isinstance(fs, MemoryFileSystem):
        fs.make_directory("/logs")
        return "/logs"
    return str(tmp_path)


# Bytes


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)])
def test_what_is_written_is_read_back(fs: LocalFileSystem, root: str, data: Bytes) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, data)
        assert file.read(0, 3) == b"abc"
        assert file.size() == 3
    assert content(fs, f"{root}/f") == b"abc"


@pytest.mark.parametrize(
    ("position", "size_bytes", "expected"),
    [(0, 5, b"01234"), (2, 2, b"23"), (2, 100, b"234"), (5, 1, b""), (99, 1, b""), (0, 0, b""), (0, 1 << 60, b"01234")],
)
def test_a_read_is_short_only_at_the_end(
    fs: LocalFileSystem, root: str, position: int, size_bytes: int, expected: bytes
) -> None:
    put(fs, f"{root}/f", b"01234")
    with fs.open(f"{root}/f") as file:
        assert file.read(position, size_bytes) == expected
        target = bytearray(b"-" * min(size_bytes, 8))
        assert file.read_into(position, memoryview(target)) == len(expected)
        assert target == expected.ljust(len(target), b"-")


def test_read_into_fills_an_array_of_any_type(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", np.arange(5, dtype=np.int64).tobytes())
    target = np.full(4, -1, np.int64)
    with fs.open(f"{root}/f") as file:
        assert file.read_into(8, target.data) == 32
    assert target.tolist() == [1, 2, 3, 4]


def test_negative_positions_and_lengths_are_refused(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, b"abc")
        for act in (
            lambda: file.read(-1, 1),
            lambda: file.read(0, -1),
            lambda: file.write(-1, b"x"),
            lambda: file.truncate(-1),
        ):
            with pytest.raises(OSError) as raised:
                act()
            assert raised.value.errno == errno.EINVAL


def test_writing_within_a_file_keeps_the_bytes_around_it(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, b"aaaaa")
        file.write(1, b"bb")
        file.write(4, b"cc")
        file.write(2, b"")
    assert content(fs, f"{root}/f") == b"abbacc"


def test_a_hole_reads_as_zeros(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(3, b"x")
        file.write(9, b"")  # an empty write makes no hole
    assert content(fs, f"{root}/f") == b"\0\0\0x"


def test_truncate_cuts_and_lengthens_with_zeros(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, b"abcdef")
        file.truncate(2)
        assert file.size() == 2
        file.truncate(4)
    assert content(fs, f"{root}/f") == b"ab\0\0"


def test_open_for_update_keeps_what_is_there(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    with fs.open_for_update(f"{root}/f") as file:
        file.write(1, b"x")
        file.sync()
        assert file.read(0, 3) == b"axc"


def test_a_file_opened_for_reading_cannot_be_changed(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    with fs.open(f"{root}/f") as file:
        with pytest.raises(OSError):
            file.write(0, b"x")
        with pytest.raises(OSError):
            file.write_direct(0, aligned_buffer(DIRECT_BLOCK_BYTES))
        with pytest.raises(OSError):
            file.truncate(0)
        file.sync()  # but data of other writers may be made durable through it
    assert content(fs, f"{root}/f") == b"abc"


def test_a_closed_file_does_nothing_but_close_again(fs: LocalFileSystem, root: str) -> None:
    file = fs.create(f"{root}/f")
    file.write(0, b"abc")
    file.close()
    file.close()
    for act in (
        file.size,
        lambda: file.read(0, 1),
        lambda: file.write(0, b"x"),
        lambda: file.truncate(0),
        lambda: file.write_back(0, 1),
        lambda: file.write_direct(0, aligned_buffer(DIRECT_BLOCK_BYTES)),
        lambda: read_direct(file, 0, 1),
        file.sync,
    ):
        with pytest.raises(OSError) as raised:
            act()
        assert raised.value.errno == errno.EBADF
    assert content(fs, f"{root}/f") == b"abc"


def test_two_open_files_see_each_others_writes(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as writer, fs.open(f"{root}/f") as reader:
        assert reader.size() == 0
        writer.write(0, b"abc")
        assert reader.read(0, 3) == b"abc"


# Names


def test_exclusive_create_refuses_a_name_that_exists(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    fs.make_directory(f"{root}/d")
    for name in ("f", "d"):
        with pytest.raises(FileExistsError):
            fs.create(f"{root}/{name}")
    assert tree(fs, root) == {"f": b"abc", "d": None}


def test_create_without_exclusive_cuts_an_existing_file_in_place(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    with fs.open(f"{root}/f") as reader, fs.create(f"{root}/f", exclusive=False) as file:
        assert file.size() == 0
        file.write(0, b"x")
        assert reader.read(0, 3) == b"x"


def test_a_new_file_gets_the_mode_that_was_asked_for(fs: LocalFileSystem, root: str) -> None:
    fs.create(f"{root}/f", mode=0o600).close()
    assert fs.stat(f"{root}/f").mode == 0o600


def test_a_listing_is_sorted_and_tells_files_from_directories(fs: LocalFileSystem, root: str) -> None:
    for name in ("b", "a10", "a9", "Z", "é"):
        put(fs, f"{root}/{name}", name.encode())
    fs.make_directory(f"{root}/c")
    listed = fs.list(root)
    assert [info.name for info in listed] == ["Z", "a10", "a9", "b", "c", "é"]
    assert [info.name for info in listed if info.is_directory] == ["c"]
    assert [info.size_bytes for info in listed if not info.is_directory] == [1, 3, 2, 1, 2]
    assert listed == [fs.stat(f"{root}/{info.name}") for info in listed]
    assert fs.list(f"{root}/c") == []


def test_stat_names_the_last_part_of_the_path(fs: LocalFileSystem, root: str) -> None:
    fs.make_directory(f"{root}/d")
    assert fs.stat(f"{root}/d/").name == "d"
    assert fs.stat("/").name == ""
    assert fs.stat("/").is_directory


def test_exists_says_whether_a_path_leads_anywhere(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"")
    found = {path: fs.exists(path) for path in (root, f"{root}/f", f"{root}/g", f"{root}/g/h", f"{root}/f/h", "")}
    assert [path for path, there in found.items() if there] == [root, f"{root}/f"]


def test_a_directory_is_removed_only_when_empty(fs: LocalFileSystem, root: str) -> None:
    fs.make_directory(f"{root}/d")
    put(fs, f"{root}/d/f", b"")
    with pytest.raises(OSError) as raised:
        fs.remove_directory(f"{root}/d")
    assert raised.value.errno == errno.ENOTEMPTY
    fs.unlink(f"{root}/d/f")
    fs.remove_directory(f"{root}/d")
    assert tree(fs, root) == {}


def test_rename_replaces_a_file(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/new", b"new")
    put(fs, f"{root}/old", b"old")
    inode = fs.stat(f"{root}/new").inode
    fs.rename(f"{root}/new", f"{root}/old")
    assert tree(fs, root) == {"old": b"new"}
    assert fs.stat(f"{root}/old").inode == inode


def test_rename_to_the_same_name_changes_nothing(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    fs.rename(f"{root}/f", f"{root}/f")
    assert tree(fs, root) == {"f": b"abc"}


def test_rename_moves_a_directory_with_all_that_is_in_it(fs: LocalFileSystem, root: str) -> None:
    fs.make_directory(f"{root}/a")
    fs.make_directory(f"{root}/a/b")
    fs.make_directory(f"{root}/empty")
    put(fs, f"{root}/a/b/f", b"abc")
    fs.rename(f"{root}/a", f"{root}/empty")
    assert tree(fs, root) == {"empty": None, "empty/b": None, "empty/b/f": b"abc"}


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("missing", "f", errno.ENOENT),
        ("f", "missing/f", errno.ENOENT),
        ("f", "f/f", errno.ENOTDIR),
        ("f", "d", errno.EISDIR),
        ("d", "f", errno.ENOTDIR),
        ("e", "d", errno.ENOTEMPTY),
        ("d", "d/e/d", errno.EINVAL),
        ("d/e", "d", errno.ENOTEMPTY),
        ("d/g", "d", errno.ENOTEMPTY),
    ],
)
def test_renames_that_make_no_sense_are_refused(
    fs: LocalFileSystem, root: str, source: str, target: str, code: int
) -> None:
    put(fs, f"{root}/f", b"abc")
    for name in ("d", "d/e", "e"):
        fs.make_directory(f"{root}/{name}")
    put(fs, f"{root}/d/g", b"")
    before = tree(fs, root)
    with pytest.raises(OSError) as raised:
        fs.rename(f"{root}/{source}", f"{root}/{target}")
    assert raised.value.errno == code
    assert tree(fs, root) == before


def test_a_link_is_one_more_name_of_the_same_file(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    fs.make_directory(f"{root}/d")
    fs.link(f"{root}/f", f"{root}/d/g")
    with fs.open_for_update(f"{root}/d/g") as file:
        file.write(3, b"def")
    assert tree(fs, root) == {"f": b"abcdef", "d": None, "d/g": b"abcdef"}
    assert fs.stat(f"{root}/f").inode == fs.stat(f"{root}/d/g").inode
    fs.rename(f"{root}/d/g", f"{root}/f")  # both stay, as POSIX has it
    assert tree(fs, root) == {"f": b"abcdef", "d": None, "d/g": b"abcdef"}
    fs.unlink(f"{root}/f")
    assert tree(fs, root) == {"d": None, "d/g": b"abcdef"}


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("f", "g", errno.EEXIST),
        ("f", "f", errno.EEXIST),
        ("f", "d", errno.EEXIST),
        ("d", "g", errno.EEXIST),
        ("d", "e", errno.EPERM),
        ("f", "missing/f", errno.ENOENT),
        ("f", "f/f", errno.ENOTDIR),
    ],
)
def test_links_that_make_no_sense_are_refused(
    fs: LocalFileSystem, root: str, source: str, target: str, code: int
) -> None:
    put(fs, f"{root}/f", b"abc")
    put(fs, f"{root}/g", b"def")
    fs.make_directory(f"{root}/d")
    before = tree(fs, root)
    with pytest.raises(OSError) as raised:
        fs.link(f"{root}/{source}", f"{root}/{target}")
    assert raised.value.errno == code
    assert tree(fs, root) == before


def test_owner_and_mode_are_what_was_set(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    fs.make_directory(f"{root}/d")
    # Only root may give files away.
    uid, gid = (1234, 5678) if os.getuid() == 0 else (os.getuid(), os.getgid())
    for name in ("f", "d"):
        fs.set_owner(f"{root}/{name}", uid, gid)
        fs.set_mode(f"{root}/{name}", 0o750)
        info = fs.stat(f"{root}/{name}")
        assert (info.uid, info.gid, info.mode) == (uid, gid, 0o750)


def test_an_open_file_outlives_its_name(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"abc")
    with fs.open_for_update(f"{root}/f") as file:
        fs.unlink(f"{root}/f")
        put(fs, f"{root}/f", b"another")
        file.write(3, b"def")
        file.sync()
        assert file.read(0, 10) == b"abcdef"
    assert tree(fs, root) == {"f": b"another"}


def test_an_open_file_stays_itself_when_renamed_or_replaced(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/old", b"old")
    put(fs, f"{root}/new", b"new")
    with fs.open(f"{root}/old") as old, fs.open_for_update(f"{root}/new") as new:
        fs.rename(f"{root}/new", f"{root}/old")
        new.write(3, b"er")
        assert old.read(0, 9) == b"old"
    assert tree(fs, root) == {"old": b"newer"}


def test_mtime_is_what_was_set_until_the_next_write(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, b"abc")
        fs.set_mtime_ns(f"{root}/f", 1_700_000_000_123_000_000)
        assert fs.stat(f"{root}/f").mtime_ns == 1_700_000_000_123_000_000
        file.write(0, b"x")
    assert fs.stat(f"{root}/f").mtime_ns != 1_700_000_000_123_000_000


def test_bytes_on_their_way_to_the_disk_are_what_they_were(fs: LocalFileSystem, root: str) -> None:
    with fs.create(f"{root}/f") as file:
        file.write(0, data := os.urandom(10_000))
        file.write_back(0, 4096)
        file.write_back(8192, 10_000)  # the range beyond the end is ignored
        assert file.read(0, 20_000) == data


def test_what_is_written_directly_is_read_directly_and_by_others(fs: LocalFileSystem, root: str) -> None:
    data = aligned_buffer(64 * DIRECT_BLOCK_BYTES)
    data[:] = np.frombuffer(os.urandom(data.size), np.uint8)
    with fs.create(f"{root}/f") as file:
        file.write(0, b"x" * 5000)
        file.write_direct(DIRECT_BLOCK_BYTES, data)
        file.write(65 * DIRECT_BLOCK_BYTES, b"end")
        file.sync()
        whole = b"x" * DIRECT_BLOCK_BYTES + data.tobytes() + b"end"
        assert file.read(0, 300_000) == whole
        for position in (0, 1, 4095, 4096, 9000, len(whole) - 2, len(whole), len(whole) + 5000):
            for size in (0, 1, 4096, DIRECT_READ_BYTES_MIN - 1, DIRECT_READ_BYTES_MIN, 140_000, 300_000):
                assert read_direct(file, position, size).tobytes() == whole[position : position + size]
    assert content(fs, f"{root}/f") == whole


def test_syncing_changes_nothing_that_can_be_seen(fs: LocalFileSystem, root: str) -> None:
    fs.make_directory(f"{root}/d")
    put(fs, f"{root}/d/f", b"abc")
    before = tree(fs, root)
    sync_everything(fs, root)
    assert tree(fs, root) == before


# Errors

VERBS: dict[str, Callable[[LocalFileSystem, str], object]] = {
    "list": lambda fs, path: fs.list(path),
    "stat": lambda fs, path: fs.stat(path),
    "open": lambda fs, path: fs.open(path),
    "open_for_update": lambda fs, path: fs.open_for_update(path),
    "remove_directory": lambda fs, path: fs.remove_directory(path),
    "unlink": lambda fs, path: fs.unlink(path),
    "sync_directory": lambda fs, path: fs.sync_directory(path),
    "set_mtime_ns": lambda fs, path: fs.set_mtime_ns(path, 0),
    "set_owner": lambda fs, path: fs.set_owner(path, os.getuid(), os.getgid()),
    "set_mode": lambda fs, path: fs.set_mode(path, 0o644),
    "rename": lambda fs, path: fs.rename(path, path + "2"),
    "link": lambda fs, path: fs.link(path, path + "2"),
}
MAKERS: dict[str, Callable[[LocalFileSystem, str], object]] = {
    "create": lambda fs, path: fs.create(path),
    "make_directory": lambda fs, path: fs.make_directory(path),
}
OPENERS = {name: (VERBS | MAKERS)[name] for name in ("open", "open_for_update", "create")}


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_path_is_not_found(fs: LocalFileSystem, root: str, verb: str) -> None:
    for path in (f"{root}/missing", f"{root}/missing/f", ""):
        with pytest.raises(FileNotFoundError):
            VERBS[verb](fs, path)


@pytest.mark.parametrize("verb", MAKERS)
def test_nothing_is_made_in_a_missing_directory(fs: LocalFileSystem, root: str, verb: str) -> None:
    with pytest.raises(FileNotFoundError):
        MAKERS[verb](fs, f"{root}/missing/f")
    assert tree(fs, root) == {}


@pytest.mark.parametrize("verb", VERBS | MAKERS)
def test_a_path_through_a_file_names_no_directory(fs: LocalFileSystem, root: str, verb: str) -> None:
    put(fs, f"{root}/f", b"")
    with pytest.raises(NotADirectoryError):
        (VERBS | MAKERS)[verb](fs, f"{root}/f/g")


@pytest.mark.parametrize("verb", ["list", "remove_directory", "sync_directory"])
def test_verbs_for_directories_refuse_a_file(fs: LocalFileSystem, root: str, verb: str) -> None:
    put(fs, f"{root}/f", b"")
    with pytest.raises(NotADirectoryError):
        VERBS[verb](fs, f"{root}/f")


@pytest.mark.parametrize("verb", ["open", "open_for_update", "unlink"])
def test_verbs_for_files_refuse_a_directory(fs: LocalFileSystem, root: str, verb: str) -> None:
    fs.make_directory(f"{root}/d")
    with pytest.raises((IsADirectoryError, PermissionError)):  # macOS: EPERM for unlink
        VERBS[verb](fs, f"{root}/d")
    with pytest.raises(IsADirectoryError):
        fs.create(f"{root}/d", exclusive=False)


@pytest.mark.parametrize("verb", OPENERS)
def test_the_lock_file_is_never_opened(fs: LocalFileSystem, root: str, verb: str) -> None:
    with pytest.raises(RequestError, match=r"\.lock"):
        OPENERS[verb](fs, f"{root}/.lock")
    assert tree(fs, root) == {}


# Whole files


@pytest.mark.parametrize("mode", PutMode)
def test_put_writes_a_whole_file_and_leaves_nothing_beside_it(fs: LocalFileSystem, root: str, mode: PutMode) -> None:
    fs.put(f"{root}/f", b"abc", mode)
    assert tree(fs, root) == {"f": b"abc"}


def test_put_replaces_a_file_only_if_told_to(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"old")
    with pytest.raises(FileExistsError):
        fs.put(f"{root}/f", b"new", PutMode.CREATE)
    assert tree(fs, root) == {"f": b"old"}
    with fs.open(f"{root}/f") as before:
        fs.put(f"{root}/f", b"new", PutMode.REPLACE)
        assert before.read(0, 9) == b"old"
    assert tree(fs, root) == {"f": b"new"}


def test_put_keeps_the_owner_and_permissions_of_a_file_when_told_to(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f", b"old")
    fs.set_mode(f"{root}/f", 0o640)
    fs.put(f"{root}/f", b"new", like=fs.stat(f"{root}/f"))
    assert (content(fs, f"{root}/f"), fs.stat(f"{root}/f").mode) == (b"new", 0o640)
    fs.put(f"{root}/f", b"newer")
    assert fs.stat(f"{root}/f").mode != 0o640


def test_put_overwrites_what_an_interrupted_run_left_beside_the_file(fs: LocalFileSystem, root: str) -> None:
    put(fs, f"{root}/f.tmp", b"of a run that was cut off")
    fs.put(f"{root}/f", b"abc", beside=f"{root}/f.tmp")
    assert tree(fs, root) == {"f": b"abc"}


@pytest.mark.parametrize("mode", PutMode)
def test_put_refuses_the_name_of_a_directory(fs: LocalFileSystem, root: str, mode: PutMode) -> None:
    fs.make_directory(f"{root}/d")
    with pytest.raises((IsADirectoryError, FileExistsError)):
        fs.put(f"{root}/d", b"abc", mode)
    assert list(tree(fs, root)) == ["d"]


def test_files_that_are_gone_already_do_not_stop_a_deletion_of_many(fs: LocalFileSystem, root: str) -> None:
    for name in "abc":
        fs.put(f"{root}/{name}", b"")
    fs.delete_all([f"{root}/{name}" for name in ("a", "gone", "c")])
    assert list(fs.names_in(root)) == ["b"]


def test_put_and_delete_survive_a_power_cut() -> None:
    fs = MemoryFileSystem(now_ns=itertools.count().__next__)
    fs.put("f", b"abc")
    assert tree(fs.crash(lose_all), "/") == {"f": b"abc"}
    fs.delete("f")
    assert tree(fs.crash(lose_all), "/") == {}


def test_a_power_cut_during_put_leaves_the_old_file_or_the_new_one() -> None:
    def prepare() -> MemoryFileSystem:
        fs = MemoryFileSystem(now_ns=itertools.count().__next__)
        fs.put("f", b"old")
        return fs

    seen = {
        content(after, "f") for fs in every_cut(prepare, lambda fs: fs.put("f", b"newer")) for after in fs.crashes()
    }
    assert seen == {b"old", b"newer"}


@pytest.mark.parametrize("size", [0, 1, 4096, (2 << 20) + 1])
def test_a_copy_has_the_same_bytes_and_a_name_of_its_own(fs: LocalFileSystem, root: str, size: int) -> None:
    put(fs, f"{root}/source", data := os.urandom(size))
    fs.copy(f"{root}/source", f"{root}/target", mode=0o600)
    assert content(fs, f"{root}/target") == data
    assert fs.stat(f"{root}/target").mode == 0o600
    assert fs.stat(f"{root}/target").inode != fs.stat(f"{root}/source").inode
    with pytest.raises(FileExistsError):
        fs.copy(f"{root}/source", f"{root}/target")


def test_a_temporary_directory_is_new_and_private(fs: LocalFileSystem) -> None:
    paths = [fs.make_temporary_directory("test-") for _ in range(2)]
    assert len(set(paths)) == 2
    for path in paths:
        assert fs.stat(path).mode & 0o077 == 0 and not fs.list(path)
        fs.remove_directory(path)


# Side by side: the memory behaves as the disk does at every operation


@settings(max_examples=150, deadline=None)
@given(st.lists(local_steps, max_size=40))
def test_memory_answers_as_the_disk_does(script: list[tuple[str, ...]]) -> None:
    in_memory = memory(), memory(can_crash=False)
    with tempfile.TemporaryDirectory() as root:
        for step in script:
            said = local_outcome(PosixFileSystem(), root, *step)
            assert [local_outcome(one, "", *step) for one in in_memory] == [said, said], step
        assert [tree(one, "/") for one in in_memory] == [tree(PosixFileSystem(), root)] * 2


# Locks and paths


@on_linux
def test_the_holder_of_a_lock_is_seen_until_it_is_released(fs: LocalFileSystem, root: str) -> None:
    assert fs.lock_holder(root) is None
    with fs.lock_directory(root):
        holder = fs.lock_holder(root)
        assert holder is not None and holder.pid == os.getpid() and not holder.is_broker
    assert fs.lock_holder(root) is None
    assert fs.lock_holder(f"{root}/missing") is None


def test_a_real_path_has_no_detours_and_need_not_exist(fs: LocalFileSystem, root: str) -> None:
    real = fs.real_path(root)
    assert fs.real_path(f"{root}//a/./b/../c/") == f"{real}/a/c"
    assert fs.real_path("/") == "/"


def test_an_absolute_path_has_no_detours(fs: LocalFileSystem) -> None:
    assert fs.absolute_path("/missing//a/./b/../c/") == "/missing/a/c"
    here = fs.absolute_path(".")
    assert fs.absolute_path("a") == posixpath.join(here, "a")
    assert here == ("/" if isinstance(fs, MemoryFileSystem) else os.getcwd())


def test_a_path_in_memory_does_not_follow_symlinks_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "alias").symlink_to("logs")
    fs = MemoryFileSystem(now_ns=itertools.count().__next__)
    parts = (tmp_path / "alias").parts
    for count in range(2, len(parts) + 1):
        fs.make_directory(posixpath.join(*parts[:count]))
    target = str(tmp_path / "alias" / "new")
    assert Workspace(fs, target, []).target == target
