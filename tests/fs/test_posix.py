"""Errors that only a real file system can cause: strange files, symlinks, descriptors, short system calls."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cordwood.common.errors import RequestError
from cordwood.fs.posix import PosixFile, PosixFileSystem
from tests.fs.trees import content, put

fs = PosixFileSystem()
OPENERS: list[Callable[[str], PosixFile]] = [fs.open, fs.open_for_update, lambda path: fs.create(path, exclusive=False)]


def open_descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


@pytest.mark.parametrize("opened", OPENERS)
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, opened: Callable[[str], PosixFile]) -> None:
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    before = open_descriptors()
    for path in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(OSError, match="Not a regular file but a FIFO, socket or device: '"):
            opened(str(path))
    with pytest.raises(IsADirectoryError):
        opened(str(tmp_path))
    assert open_descriptors() == before
    listener.close()


def test_an_error_of_an_open_file_says_which_file_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x")
    with fs.open(str(tmp_path / "log")) as file, pytest.raises(OSError, match="log") as caught:
        file.write(0, b"y")  # opened for reading only
    assert caught.value.filename == str(tmp_path / "log")


def test_a_lock_held_elsewhere_in_the_process_survives_an_attempt_to_open_it(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with lock.open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        with pytest.raises(RequestError):
            fs.open(str(lock))
        child = os.fork()
        if child == 0:  # record locks are a matter between processes
            try:
                with lock.open("w") as other:
                    fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(0)
            except OSError:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_symlinks_are_followed_and_those_to_nowhere_are_not_listed(tmp_path: Path) -> None:
    put(fs, str(tmp_path / "f"), b"abc")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "directory").symlink_to(".")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "circle").symlink_to("circle")
    listed = fs.list(str(tmp_path))
    assert [(info.name, info.is_directory) for info in listed] == [("directory", True), ("f", False), ("link", False)]
    assert listed[1].inode == listed[2].inode
    assert content(fs, str(tmp_path / "link")) == b"abc"


def test_entries_that_vanish_during_the_listing_are_left_out(tmp_path: Path) -> None:
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            for number in range(50):
                put(fs, str(tmp_path / f"{number}"), b"")
            for number in range(50):
                fs.unlink(str(tmp_path / f"{number}"))

    put(fs, str(tmp_path / "stays"), b"")
    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(500):
            assert fs.list(str(tmp_path))[-1].name == "stays"
    finally:
        stop.set()
        thread.join()


def test_short_reads_and_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, preadv, pwrite = os.pread, os.preadv, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, position: preadv(fd, [buffers[0][:3]], position))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:3], position))
    path = str(tmp_path / "f")
    put(fs, path, b"0123456789")
    with fs.open(path) as file:
        assert file.read(1, 8) == b"12345678"
        target = bytearray(12)
        assert file.read_into(0, memoryview(target)) == 10
        assert target == b"0123456789\0\0"


def test_reading_an_absurd_length_allocates_no_more_than_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "f")
    put(fs, path, b"abc")
    asked: list[int] = []
    pread = os.pread

    def recording(descriptor: int, size_bytes: int, position: int) -> bytes:
        asked.append(size_bytes)
        return pread(descriptor, size_bytes, position)

    monkeypatch.setattr(os, "pread", recording)
    with fs.open(path) as file:
        assert file.read(1, 1 << 40) == b"bc"
    assert asked == [2]


def test_descriptors_are_not_inherited_and_are_given_back(tmp_path: Path) -> None:
    before = open_descriptors()
    with fs.create(str(tmp_path / "f")) as file:
        assert isinstance(file, PosixFile)
        assert not os.get_inheritable(file._open_descriptor())
    fs.sync_directory(str(tmp_path))
    fs.list(str(tmp_path))
    assert open_descriptors() == before


def test_closing_twice_does_not_close_another_file(tmp_path: Path) -> None:
    first = fs.create(str(tmp_path / "a"))
    first.close()
    with fs.create(str(tmp_path / "b")) as second:  # reuses the descriptor's number
        first.close()
        second.write(0, b"abc")
    assert content(fs, str(tmp_path / "b")) == b"abc"


def test_setting_the_mtime_leaves_the_access_time(tmp_path: Path) -> None:
    path = tmp_path / "f"
    put(fs, str(path), b"")
    os.utime(path, ns=(1_000_000_000, 2_000_000_000))
    fs.set_mtime_ns(str(path), 3_000_000_000)
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1_000_000_000, 3_000_000_000)
