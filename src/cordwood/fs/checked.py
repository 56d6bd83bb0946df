"""A file system that asks, every few MiB, whether its user may go on.

A clean that is aborted stops at its next read or write. A task in another process cannot be notified; it checks for a
folder that is removed once the task's result is no longer wanted.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

from cordwood.fs.base import Bytes, File, ReadableFile, TargetStore, view_of
from cordwood.fs.location import Location
from cordwood.fs.wrapped import WrappedFile, WrappedReadableFile, WrappedTargetStore
from cordwood.types import override

#: Called repeatedly; raises once its caller must stop.
Check = Callable[[], None]
#: The most bytes that are read or written between two calls.
_PIECE_BYTES = 4 << 20
#: A look at a folder costs a system call, so that it is not done for every few bytes.
_LOOK_SECONDS = 0.05


class CheckedTargetStore(WrappedTargetStore):
    """A file system on which every read and write of a few MiB is asked for."""

    def __init__(self, store: TargetStore, check: Check) -> None:
        super().__init__(store)
        self._check = check

    @override
    def open(self, path: str) -> ReadableFile:
        return _CheckedReadableFile(self._store.open(path), self._check)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return _CheckedFile(self._store.create(path, exclusive=exclusive, mode=mode), self._check)


class _CheckedReadableFile(WrappedReadableFile):
    """A file whose reads are asked for, piece by piece."""

    def __init__(self, file: ReadableFile, check: Check) -> None:
        super().__init__(file)
        self._check = check

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
        parts = []
        while True:
            self._check()
            part = self._file.read(position, min(size_bytes, _PIECE_BYTES))
            parts.append(part)
            position += len(part)
            size_bytes -= len(part)
            if len(part) < _PIECE_BYTES or not size_bytes:
                return part if len(parts) == 1 else b"".join(parts)


class _CheckedFile(_CheckedReadableFile, WrappedFile):
    """A file whose reads and writes are asked for, piece by piece."""

    _file: File

    def __init__(self, file: File, check: Check) -> None:
        super().__init__(file, check)

    @override
    def write(self, position: int, data: Bytes) -> None:
        view = view_of(data)
        for start in range(0, view.nbytes, _PIECE_BYTES):
            self._check()
            self._file.write(position + start, view[start : start + _PIECE_BYTES])

    @override
    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        self._check()  # once: what is shared takes no time, whatever its size
        if isinstance(source, _CheckedReadableFile):
            source = source._file
        self._file.write_shared(position, data, source, source_position)


@dataclass(frozen=True, slots=True)
class WantedLocation:
    """Where a file system is, for a task whose result is wanted as long as a folder is there.

    Attributes:
        folder: every read and write fails with FileNotFoundError soon after it was removed.
    """

    location: Location[TargetStore]
    folder: str

    @property
    def in_this_process(self) -> bool:
        """As the location below it."""
        return self.location.in_this_process

    def open(self) -> TargetStore:
        """The file system."""
        fs, folder, looked = self.location.open(), self.folder, 0.0

        def check() -> None:
            nonlocal looked
            now = time.monotonic()
            if now - looked >= _LOOK_SECONDS:
                looked = now
                if not fs.exists(folder):
                    raise FileNotFoundError(errno.ENOENT, "It was removed: the task's result is unwanted", folder)

        return CheckedTargetStore(fs, check)
