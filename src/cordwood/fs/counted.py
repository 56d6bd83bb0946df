"""A store that counts the bytes read from it."""

from __future__ import annotations

import threading

from cordwood.common.types import override
from cordwood.fs.base import ReadableFile, Store
from cordwood.fs.wrapped import WrappedReadableFile, WrappedStore


class CountedStore(WrappedStore):
    """Delegates to another store, and counts the bytes that all threads read.

    Args:
        suffix: count only files with this suffix, or one of these suffixes.
    """

    def __init__(self, store: Store, *, suffix: str | tuple[str, ...] = "") -> None:
        super().__init__(store)
        self.bytes_read = 0
        self._suffix = suffix
        self._lock = threading.Lock()

    @override
    def open(self, path: str) -> ReadableFile:
        file = super().open(path)
        return _CountedFile(file, self) if path.endswith(self._suffix) else file

    def add(self, count: int) -> None:
        """Add bytes that were read."""
        with self._lock:
            self.bytes_read += count


class _CountedFile(WrappedReadableFile):
    def __init__(self, file: ReadableFile, store: CountedStore) -> None:
        super().__init__(file)
        self._counter = store

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        count = self._file.read_into(position, target)
        self._counter.add(count)
        return count

    @override
    def read_direct_into(self, position: int, target: memoryview) -> int:
        count = self._file.read_direct_into(position, target)
        self._counter.add(count)
        return count

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        data = self._file.read(position, size_bytes)
        self._counter.add(len(data))
        return data
