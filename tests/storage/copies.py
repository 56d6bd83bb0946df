"""Comparable contents of copies, disks that fill up, and a process that locks a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from cordwood.fs.base import File, is_full
from cordwood.fs.posix import PosixFileSystem

#: A program that holds the lock of a log directory until it reads a line.
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


class FullDisk(PosixFileSystem):
    """A disk that is full after a given number of new files and directories."""

    def __init__(self, room: int) -> None:
        self.room = room

    def _take(self, path: str) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:  # type: ignore[override]
        self._take(path)
        return super().create(path, exclusive=exclusive, mode=mode)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        self._take(path)
        super().make_directory(path, mode=mode)


def until_it_succeeds(attempt: Callable[[FullDisk], object]) -> int:
    """Try on a disk with room for 0, 1, 2, … files; return the number of failures."""
    for room in range(1000):
        try:
            attempt(FullDisk(room))
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return room
    raise AssertionError("it never succeeds")
