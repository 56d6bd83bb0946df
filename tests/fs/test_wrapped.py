from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cordwood.fs.base import LocalFileSystem
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import Overlay, SyncsLater
from cordwood.storage.log.files import read_file
from cordwood.testing.memory import MemoryFileSystem
from cordwood.testing.memory_journal import lose_all


def tree() -> tuple[LocalFileSystem, Overlay]:
    fs = MemoryFileSystem(lambda: 7)
    for path in ("t-0", "out"):
        fs.make_directory(path)
    for path, data in (("t-0/0.log", b"old"), ("t-0/5.log", b"kept"), ("out/0.log.1", b"newer")):
        with fs.create(path) as file:
            file.write(0, data)
    return fs, Overlay(fs, "t-0", {"5.log": "t-0/5.log", "0.log": "out/0.log.1"})


def test_names_of_the_table_are_read_from_the_files_they_stand_for() -> None:
    fs, seen = tree()
    assert [(info.name, info.size_bytes) for info in seen.list("t-0")] == [("0.log", 5), ("5.log", 4)]
    assert read_file(seen, "t-0/0.log") == b"newer"
    assert (seen.stat("t-0/0.log").name, seen.stat("t-0/0.log").inode) == ("0.log", fs.stat("out/0.log.1").inode)
    assert seen.exists("t-0/0.log")


def test_what_the_table_does_not_name_is_not_in_the_directory() -> None:
    fs, _ = tree()
    seen = Overlay(fs, "t-0", {"0.log": "out/0.log.1"})
    assert [info.name for info in seen.list("t-0")] == ["0.log"]
    assert not seen.exists("t-0/5.log")
    for look in (seen.open, seen.stat):
        with pytest.raises(FileNotFoundError):
            look("t-0/5.log")


def test_elsewhere_all_is_as_it_is_and_may_be_changed() -> None:
    _, seen = tree()
    seen.put("out/9.log", b"x")
    seen.delete("out/0.log.1")
    assert [info.name for info in seen.list("out")] == ["9.log"]
    assert read_file(seen, "out/9.log") == b"x"


def test_nothing_in_the_directory_can_be_changed() -> None:
    fs, seen = tree()
    for change in (
        lambda: seen.put("t-0/9.log", b"x"),
        lambda: seen.put("t-0/5.log", b"x"),
        lambda: seen.delete("t-0/5.log"),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS
    assert {info.name for info in fs.list("t-0")} == {"0.log", "5.log"}


def test_syncs_wait_until_all_are_made_and_each_file_survives_a_power_cut_after_them() -> None:
    fs = MemoryFileSystem(lambda: 7)
    with fs.create("copied") as file:
        file.write(0, b"old")
    later = SyncsLater(fs)
    with later.create("written") as file:
        file.write(0, b"new")
        file.sync()
    later.sync_file("copied")
    later.rename("written", "renamed")
    assert not [one for one in fs.operations if one.startswith("sync")]
    assert later.sync_all() == {}
    fs.sync_directory("/")
    after = fs.crash(lose_all)
    assert [read_file(after, name) for name in ("copied", "renamed")] == [b"old", b"new"]
    assert later.sync_all() == {}, "each file is synced once"


def test_a_file_that_cannot_be_synced_later_is_named_and_the_others_are_synced() -> None:
    fs = MemoryFileSystem(lambda: 7)
    later = SyncsLater(fs)
    with later.create("good") as file:
        file.write(0, b"x")
        file.sync()
    later.sync_file("gone")
    ((path, error),) = later.sync_all().items()
    assert (path, error.errno) == ("gone", errno.ENOENT)
    assert [one for one in fs.operations if one.startswith("sync")] == ["sync good"]


def test_files_are_synced_earlier_before_too_many_are_open(tmp_path: Path) -> None:
    later = SyncsLater(PosixFileSystem())
    open_before = len(os.listdir("/dev/fd"))
    for number in range(300):
        with later.create(f"{tmp_path}/{number}") as file:
            file.write(0, b"x")
            file.sync()
        assert len(os.listdir("/dev/fd")) <= open_before + 128
    assert later.sync_all() == {}
    assert len(os.listdir("/dev/fd")) == open_before
