"""Files, stores and file systems that delegate to another one: base classes for those that change a verb or two."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.fs.base import (
    Bytes,
    DirectoryLock,
    File,
    FileInfo,
    LocalFileSystem,
    LockHolder,
    PutMode,
    ReadableFile,
    Store,
)
from cordwood.types import override


class WrappedReadableFile(ReadableFile):
    """Delegates every verb to another file."""

    def __init__(self, file: ReadableFile) -> None:
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
    def close(self) -> None:
        self._file.close()


class WrappedFile(WrappedReadableFile, File):
    """Delegates every verb to another file, but `write_shared`, which is a `write` of this one."""

    _file: File

    def __init__(self, file: File) -> None:
        super().__init__(file)

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


class WrappedStore(Store):
    """Delegates every verb to another store. Its location is in this process."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    @override
    def concurrency(self) -> int:
        return self._store.concurrency

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        return self._store.list(path)

    @override
    def stat(self, path: str) -> FileInfo:
        return self._store.stat(path)

    @override
    def exists(self, path: str) -> bool:
        return self._store.exists(path)

    @override
    def open(self, path: str) -> ReadableFile:
        return self._store.open(path)

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        self._store.put(path, data, mode)

    @override
    def delete(self, path: str) -> None:
        self._store.delete(path)

    @override
    def absolute_path(self, path: str) -> str:
        return self._store.absolute_path(path)

    @override
    def lock_holder(self, path: str) -> LockHolder | None:
        return self._store.lock_holder(path)


class WrappedFileSystem(LocalFileSystem):
    """Delegates every verb to another file system, except `put` and `delete`, which use this object's other verbs."""

    def __init__(self, fs: LocalFileSystem) -> None:
        self._fs = fs

    @property
    @override
    def concurrency(self) -> int:
        return self._fs.concurrency

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        return self._fs.list(path)

    @override
    def stat(self, path: str) -> FileInfo:
        return self._fs.stat(path)

    @override
    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    @override
    def open(self, path: str) -> File:
        return self._fs.open(path)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return self._fs.create(path, exclusive=exclusive, mode=mode)

    @override
    def open_for_update(self, path: str) -> File:
        return self._fs.open_for_update(path)

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        self._fs.make_directory(path, mode=mode)

    @override
    def make_temporary_directory(self, prefix: str) -> str:
        return self._fs.make_temporary_directory(prefix)

    @override
    def remove_directory(self, path: str) -> None:
        self._fs.remove_directory(path)

    @override
    def rename(self, source: str, target: str) -> None:
        self._fs.rename(source, target)

    @override
    def link(self, source: str, target: str) -> None:
        self._fs.link(source, target)

    @override
    def symlink(self, source: str, target: str) -> None:
        self._fs.symlink(source, target)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        self._fs.copy(source, target, mode=mode)

    @override
    def shares_blocks(self, path: str) -> bool:
        return self._fs.shares_blocks(path)

    @override
    def free_bytes(self, path: str) -> int | None:
        return self._fs.free_bytes(path)

    @override
    def unlink(self, path: str) -> None:
        self._fs.unlink(path)

    @override
    def sync_directory(self, path: str) -> None:
        self._fs.sync_directory(path)

    @override
    def lock_directory(self, path: str) -> DirectoryLock:
        return self._fs.lock_directory(path)

    @override
    def lock_holder(self, path: str) -> LockHolder | None:
        return self._fs.lock_holder(path)

    @override
    def absolute_path(self, path: str) -> str:
        return self._fs.absolute_path(path)

    @override
    def real_path(self, path: str) -> str:
        return self._fs.real_path(path)

    @override
    def network_kind(self, path: str) -> str | None:
        return self._fs.network_kind(path)

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self._fs.set_mtime_ns(path, mtime_ns)

    @override
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        self._fs.set_owner(path, uid, gid)

    @override
    def set_mode(self, path: str, mode: int) -> None:
        self._fs.set_mode(path, mode)
