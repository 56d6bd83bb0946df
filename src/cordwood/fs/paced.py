"""Stores that read and write files piece by piece; before each piece a `Pace` may wait, or stop its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, ReadableFile, Store, TargetStore, view_of
from cordwood.fs.wrapped import WrappedFile, WrappedReadableFile, WrappedStore, WrappedTargetStore


class Pace(Protocol):
    """Decides when the next bytes may be read or written, and the largest number at once."""

    @property
    def piece_bytes(self) -> int:
        """Size in bytes of the largest piece."""
        ...

    def wait_for(self, size_bytes: int) -> None:
        """Return once `size_bytes` may be read or written; raise an exception to stop the caller."""
        ...


class PacedStore(WrappedStore):
    """A store whose reads have a pace."""

    def __init__(self, store: Store, pace: Callable[[], Pace]) -> None:
        super().__init__(store)
        self._pace = pace

    @override
    def open(self, path: str) -> ReadableFile:
        return _PacedReadableFile(self._store.open(path), self._pace())


class PacedTargetStore(PacedStore, WrappedTargetStore):
    """A store whose reads and writes have a pace."""

    _store: TargetStore

    def __init__(self, store: TargetStore, pace: Callable[[], Pace]) -> None:
        super().__init__(store, pace)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return _PacedFile(self._store.create(path, exclusive=exclusive, mode=mode), self._pace())


class _PacedReadableFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, pace: Pace) -> None:
        super().__init__(file)
        self._pace = pace

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        # Count only the bytes left in the file, as a window may reach past its end.
        target = target.cast("B")[: max(0, self._file.size() - position)]
        done = 0
        for piece in self._pieces(target):
            count = self._file.read_into(position + done, piece)
            done += count
            if count < piece.nbytes:
                break
        return done

    @override
    def read_direct_into(self, position: int, target: memoryview) -> int:
        self._wait_for(min(target.nbytes, max(0, self._file.size() - position)))
        return self._file.read_direct_into(position, target)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        # The size may come from a damaged file, so do not allocate a buffer of that size.
        parts, missing = [], min(size_bytes, max(0, self._file.size() - position))
        while missing:
            piece_bytes = min(missing, self._pace.piece_bytes)
            self._pace.wait_for(piece_bytes)
            part = self._file.read(position, piece_bytes)
            if not part:
                break
            parts.append(part)
            position += len(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_for(self, size_bytes: int) -> None:
        """Wait, one piece at a time, until `size_bytes` may be read or written at once."""
        while size_bytes > 0:
            self._pace.wait_for(min(size_bytes, self._pace.piece_bytes))
            size_bytes -= self._pace.piece_bytes

    def _pieces(self, data: memoryview) -> Iterator[memoryview]:
        """Yield each piece once it may be read or written."""
        size = self._pace.piece_bytes
        for start in range(0, data.nbytes, size):
            piece = data[start : start + size]
            self._pace.wait_for(piece.nbytes)
            yield piece


class _PacedFile(_PacedReadableFile, WrappedFile):
    _file: File

    def __init__(self, file: File, pace: Pace) -> None:
        super().__init__(file, pace)

    @override
    def write(self, position: int, data: Bytes) -> None:
        for piece in self._pieces(view_of(data)):
            self._file.write(position, piece)
            position += piece.nbytes

    @override
    def write_direct(self, position: int, data: Bytes) -> None:
        self._wait_for(view_of(data).nbytes)
        self._file.write_direct(position, data)

    @override
    def write_shared(self, position: int, data: Bytes, source: ReadableFile, source_position: int) -> None:
        # The number of shared bytes is unknown beforehand, so wait for all of them.
        self._wait_for(view_of(data).nbytes)
        while isinstance(source, _PacedReadableFile):
            source = source._file
        self._file.write_shared(position, data, source, source_position)
