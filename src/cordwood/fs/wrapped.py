"""Files, stores and file systems that delegate to another one: base classes for those that change a verb or two."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.fs.base import (
    Bytes,
    DirectoryLock,
    File,
    FileInfo,
    Link,
    LocalFileSystem,
    LockHolder,
    PutMode,
    ReadableFile,
    Store,
    Target,
    TargetStore,
)
from cordwood.fs.workspace import Workspace
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

    def _at(self, path: str) -> tuple[Store, str]:
        """The store that has a path, and the path there: every verb goes through here."""
        return self._store, path

    @property
    @override
    def concurrency(self) -> int:
        return self._store.concurrency

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        store, path = self._at(path)
        return store.list(path)

    @override
    def stat(self, path: str) -> FileInfo:
        store, path = self._at(path)
        return store.stat(path)

    @override
    def exists(self, path: str) -> bool:
        store, path = self._at(path)
        return store.exists(path)

    @override
    def open(self, path: str) -> ReadableFile:
        store, path = self._at(path)
        return store.open(path)

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        store, path = self._at(path)
        store.put(path, data, mode)

    @override
    def delete(self, path: str) -> None:
        store, path = self._at(path)
        store.delete(path)

    @override
    def absolute_path(self, path: str) -> str:
        store, path = self._at(path)
        return store.absolute_path(path)

    @override
    def real_path(self, path: str) -> str:
        store, path = self._at(path)
        return store.real_path(path)

    @override
    def reads_by_request(self, path: str) -> bool:
        store, path = self._at(path)
        return store.reads_by_request(path)

    @override
    def path_on_disk(self, path: str) -> str | None:
        store, path = self._at(path)
        return store.path_on_disk(path)

    @override
    def lock_holder(self, path: str) -> LockHolder | None:
        store, path = self._at(path)
        return store.lock_holder(path)


class WrappedTargetStore(WrappedStore, TargetStore):
    """Delegates every verb to another target store."""

    _store: TargetStore

    def __init__(self, store: TargetStore) -> None:
        super().__init__(store)

    @override
    def _at(self, path: str) -> tuple[TargetStore, str]:
        return self._store, path

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        store, path = self._at(path)
        return store.target(path, sources)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        store, path = self._at(path)
        return store.create(path, exclusive=exclusive, mode=mode)

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        store, path = self._at(path)
        store.make_directory(path, mode=mode)

    @override
    def make_temporary_directory(self, prefix: str) -> str:
        return self._store.make_temporary_directory(prefix)

    @override
    def remove_directory(self, path: str) -> None:
        store, path = self._at(path)
        store.remove_directory(path)

    @override
    def rename(self, source: str, target: str) -> None:
        self._store.rename(source, target)

    @override
    def unlink(self, path: str) -> None:
        store, path = self._at(path)
        store.unlink(path)

    @override
    def sync_file(self, path: str) -> None:
        store, path = self._at(path)
        store.sync_file(path)

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        store, path = self._at(path)
        store.set_mtime_ns(path, mtime_ns)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        self._store.copy(source, target, mode=mode)

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        return self._store.try_link(link, source, target)

    @override
    def shares_blocks(self, path: str) -> bool:
        store, path = self._at(path)
        return store.shares_blocks(path)

    @override
    def free_bytes(self, path: str) -> int | None:
        store, path = self._at(path)
        return store.free_bytes(path)


class WrappedFileSystem(WrappedTargetStore, LocalFileSystem):
    """Delegates every verb to another file system, except those that consist of others (`put`, `delete`, `target` …).

    These use this object's other verbs.
    """

    _store: LocalFileSystem

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self._fs = fs

    put = LocalFileSystem.put
    delete = LocalFileSystem.delete
    sync_file = LocalFileSystem.sync_file
    try_link = LocalFileSystem.try_link

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        return Workspace(self, path, sources)

    @override
    def open(self, path: str) -> File:
        return self._fs.open(path)

    @override
    def open_for_update(self, path: str) -> File:
        return self._fs.open_for_update(path)

    @override
    def link(self, source: str, target: str) -> None:
        self._fs.link(source, target)

    @override
    def symlink(self, source: str, target: str) -> None:
        self._fs.symlink(source, target)

    @override
    def sync_directory(self, path: str) -> None:
        self._fs.sync_directory(path)

    @override
    def lock_directory(self, path: str) -> DirectoryLock:
        return self._fs.lock_directory(path)

    @override
    def network_kind(self, path: str) -> str | None:
        return self._fs.network_kind(path)

    @override
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        self._fs.set_owner(path, uid, gid)

    @override
    def set_mode(self, path: str, mode: int) -> None:
        self._fs.set_mode(path, mode)
