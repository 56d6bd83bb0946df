"""A file system that asks, before each read, whether its user may go on.

A clean that somebody aborts stops at its next read, wherever that is.
"""

from __future__ import annotations

from collections.abc import Callable

from cordwood.fs.base import Bytes, File, LocalFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.types import override

#: Called again and again; raises once its caller has to stop.
Check = Callable[[], None]
#: The most bytes that are read between two calls.
_PIECE_BYTES = 4 << 20


class CheckedFileSystem(WrappedFileSystem):
    """A file system on which every read of a few MiB is asked for."""

    def __init__(self, fs: LocalFileSystem, check: Check) -> None:
        super().__init__(fs)
        self._check = check

    @override
    def open(self, path: str) -> File:
        return _CheckedFile(self._fs.open(path), self._check)


class _CheckedFile(File):
    """A file whose reads are asked for, piece by piece."""

    def __init__(self, file: File, check: Check) -> None:
        self.path = file.path
        self._file = file
        self._check = check

    @override
    def size(self) -> int:
        return self._file.size()

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        target = target.cast("B")
        done = 0
        while True:
            self._check()
            piece = target[done : done + _PIECE_BYTES]
            count = self._file.read_into(position + done, piece)
            done += count
            if count < piece.nbytes or done == target.nbytes:
                return done

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        self._check()
        return self._file.read(position, size_bytes)

    @override
    def write(self, position: int, data: Bytes) -> None:
        self._file.write(position, data)

    @override
    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        self._file.write_back(position, size_bytes)

    @override
    def sync(self) -> None:
        self._file.sync()

    @override
    def close(self) -> None:
        self._file.close()
