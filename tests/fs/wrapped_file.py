"""A file that does what another file does; tests override what they watch or break."""

from __future__ import annotations

from cordwood.fs.base import Bytes, File
from cordwood.types import override


class WrappedFile(File):
    """Delegates every verb to another file."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._file = file

    @override
    def size(self) -> int:
        return self._file.size()

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        return self._file.read_into(position, target)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
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
