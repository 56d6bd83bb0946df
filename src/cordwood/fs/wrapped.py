"""A file system that passes everything on to another: the base of those that differ in a verb or two."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from cordwood.fs.base import Bytes, DirectoryLock, File, FileInfo, FileSystem


class WrappedFileSystem:
    """As the file system within; see `cordwood.fs.base.FileSystem` for what each verb promises."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def list(self, path: str) -> Sequence[FileInfo]:
        """As the file system within."""
        return self._fs.list(path)

    def stat(self, path: str) -> FileInfo:
        """As the file system within."""
        return self._fs.stat(path)

    def exists(self, path: str) -> bool:
        """As the file system within."""
        return self._fs.exists(path)

    def open(self, path: str) -> File:
        """As the file system within."""
        return self._fs.open(path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        """As the file system within."""
        return self._fs.create(path, exclusive=exclusive, mode=mode)

    def open_for_update(self, path: str) -> File:
        """As the file system within."""
        return self._fs.open_for_update(path)

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """As the file system within."""
        self._fs.make_directory(path, mode=mode)

    def remove_directory(self, path: str) -> None:
        """As the file system within."""
        self._fs.remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        """As the file system within."""
        self._fs.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """As the file system within."""
        self._fs.link(source, target)

    def unlink(self, path: str) -> None:
        """As the file system within."""
        self._fs.unlink(path)

    def sync_directory(self, path: str) -> None:
        """As the file system within."""
        self._fs.sync_directory(path)

    def lock_directory(self, path: str) -> DirectoryLock:
        """As the file system within."""
        return self._fs.lock_directory(path)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """As the file system within."""
        self._fs.set_mtime_ns(path, mtime_ns)

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """As the file system within."""
        self._fs.set_owner(path, uid, gid)

    def set_mode(self, path: str, mode: int) -> None:
        """As the file system within."""
        self._fs.set_mode(path, mode)


class WrappedFile:
    """As the file within."""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._file = file

    def size(self) -> int:
        """As the file within."""
        return self._file.size()

    def read_into(self, position: int, target: memoryview) -> int:
        """As the file within."""
        return self._file.read_into(position, target)

    def read(self, position: int, size_bytes: int) -> bytes:
        """As the file within."""
        return self._file.read(position, size_bytes)

    def write(self, position: int, data: Bytes) -> None:
        """As the file within."""
        self._file.write(position, data)

    def truncate(self, size_bytes: int) -> None:
        """As the file within."""
        self._file.truncate(size_bytes)

    def write_back(self, position: int, size_bytes: int) -> None:
        """As the file within."""
        self._file.write_back(position, size_bytes)

    def sync(self) -> None:
        """As the file within."""
        self._file.sync()

    def close(self) -> None:
        """As the file within."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
