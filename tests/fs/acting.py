"""A file system that calls a test's function before a file is opened, written or renamed; the call may fail."""

from __future__ import annotations

from collections.abc import Callable

from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, LocalFileSystem
from cordwood.fs.wrapped import WrappedFile, WrappedFileSystem

#: Called with a verb and its path; of two paths with the first.
Before = Callable[[str, str], None]


class Acting(WrappedFileSystem):
    """Calls a function before a file is opened, created, copied, renamed, written or synced.

    The function may use the file system within; its exceptions are raised by the verb. Tasks run in this process, and
    one operation after the other.
    """

    def __init__(self, fs: LocalFileSystem, before: Before) -> None:
        super().__init__(fs)
        self._before = before

    @property
    @override
    def concurrency(self) -> int:
        return 1

    @override
    def open(self, path: str) -> File:
        self._before("open", path)
        return super().open(path)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        self._before("create", path)
        return _ActingFile(super().create(path, exclusive=exclusive, mode=mode), self._before)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        self._before("copy", source)
        super().copy(source, target, mode=mode)

    @override
    def rename(self, source: str, target: str) -> None:
        self._before("rename", source)
        super().rename(source, target)


class _ActingFile(WrappedFile):
    def __init__(self, file: File, before: Before) -> None:
        super().__init__(file)
        self._before = before

    @override
    def write(self, position: int, data: Bytes) -> None:
        self._before("write", self.path)
        super().write(position, data)

    @override
    def sync(self) -> None:
        self._before("sync", self.path)
        super().sync()


def spoil(fs: LocalFileSystem, path: str) -> None:
    """Change the last byte of a file."""
    with fs.open_for_update(path) as file:
        last = file.size() - 1
        file.write(last, bytes([file.read(last, 1)[0] ^ 1]))
