"""Base classes of files, stores and file systems that change a few verbs and delegate all others; three small stores.

CountedStore    counts the bytes read from it
SyncsLater      syncs many small files together
Overlay         shows a directory through a table of names
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from cordwood.common.threads import in_parallel
from cordwood.common.types import override
from cordwood.fs.base import (
    Bytes,
    File,
    FileInfo,
    Link,
    LocalFileSystem,
    PutMode,
    ReadableFile,
    Store,
    Target,
    TargetStore,
)
from cordwood.fs.workspace import Workspace

_V = TypeVar("_V", bound=Callable[..., Any])


def _of_file(verb: _V) -> _V:
    """Return a method that calls the same method of the wrapped file."""
    name = verb.__name__

    def method(self: WrappedReadableFile, *arguments: Any) -> Any:
        return getattr(self._file, name)(*arguments)

    return cast(_V, method)


def _of_store(verb: _V) -> _V:
    """Return a method that calls the same method of the wrapped store, or of the store that contains the path."""
    name = verb.__name__

    def method(self: WrappedStore, path: str, *arguments: Any, **options: Any) -> Any:
        store, path = self._at(path)
        return getattr(store, name)(path, *arguments, **options)

    return cast(_V, method)


class WrappedReadableFile(ReadableFile):
    """Delegates every verb to another file, except `cached_reads`, and `read_direct_into`, which calls `read_into`."""

    def __init__(self, file: ReadableFile) -> None:
        self.path = file.path
        self._file = file

    size = _of_file(ReadableFile.size)
    read_into = _of_file(ReadableFile.read_into)
    read = _of_file(ReadableFile.read)
    expect_random_reads = _of_file(ReadableFile.expect_random_reads)
    close = _of_file(ReadableFile.close)


class WrappedFile(WrappedReadableFile, File):
    """Delegates every verb to another file, except `write_direct` and `write_shared`, which call `write`."""

    _file: File

    def __init__(self, file: File) -> None:
        super().__init__(file)

    write = _of_file(File.write)
    truncate = _of_file(File.truncate)
    write_back = _of_file(File.write_back)
    sync = _of_file(File.sync)


class WrappedStore(Store):
    """Delegates every verb except `location` to another store, or to the one of several stores that has the path."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _at(self, path: str) -> tuple[Store, str]:
        """Return the store that contains a path, and the path within it."""
        return self._store, path

    @property
    @override
    def concurrency(self) -> int:
        return self._store.concurrency

    list = _of_store(Store.list)
    stat = _of_store(Store.stat)
    exists = _of_store(Store.exists)
    open = _of_store(Store.open)
    put = _of_store(Store.put)
    delete = _of_store(Store.delete)
    absolute_path = _of_store(Store.absolute_path)
    real_path = _of_store(Store.real_path)
    is_link = _of_store(Store.is_link)
    dead_links = _of_store(Store.dead_links)
    reads_by_request = _of_store(Store.reads_by_request)
    path_on_disk = _of_store(Store.path_on_disk)
    disk_size = _of_store(Store.disk_size)
    lock_holder = _of_store(Store.lock_holder)


class WrappedTargetStore(WrappedStore, TargetStore):
    """Delegates every verb except `location` to another store; verbs with two paths, to the first store."""

    _store: TargetStore

    def __init__(self, store: TargetStore) -> None:
        super().__init__(store)

    @override
    def _at(self, path: str) -> tuple[TargetStore, str]:
        return self._store, path

    target = _of_store(TargetStore.target)
    create = _of_store(TargetStore.create)
    open_for_update = _of_store(TargetStore.open_for_update)
    make_directory = _of_store(TargetStore.make_directory)
    remove_directory = _of_store(TargetStore.remove_directory)
    unlink = _of_store(TargetStore.unlink)
    sync_file = _of_store(TargetStore.sync_file)
    sync_directory = _of_store(TargetStore.sync_directory)
    set_mtime_ns = _of_store(TargetStore.set_mtime_ns)
    shares_blocks = _of_store(TargetStore.shares_blocks)
    network_kind = _of_store(TargetStore.network_kind)
    free_bytes = _of_store(TargetStore.free_bytes)

    @override
    def delete_all(self, paths: Sequence[str]) -> None:
        stores: dict[int, tuple[TargetStore, list[str]]] = {}
        for place in paths:
            store, path = self._at(place)
            stores.setdefault(id(store), (store, []))[1].append(path)
        for store, of_store in stores.values():
            store.delete_all(of_store)

    @override
    def make_temporary_directory(self, prefix: str) -> str:
        return self._store.make_temporary_directory(prefix)

    @override
    def rename(self, source: str, target: str) -> None:
        self._store.rename(source, target)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        self._store.copy(source, target, mode=mode)

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        return self._store.try_link(link, source, target)


class WrappedFileSystem(WrappedTargetStore, LocalFileSystem):
    """Delegates every verb to another file system, except verbs composed of others (`put`, `delete`, `target` …).

    These call this object's other verbs.
    """

    _store: LocalFileSystem

    def __init__(self, fs: LocalFileSystem) -> None:
        super().__init__(fs)
        self._fs = fs

    put = LocalFileSystem.put
    delete = LocalFileSystem.delete
    delete_all = Store.delete_all
    sync_file = LocalFileSystem.sync_file
    try_link = LocalFileSystem.try_link

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        return Workspace(self, path, sources)

    open = _of_store(LocalFileSystem.open)
    link = _of_store(LocalFileSystem.link)
    symlink = _of_store(LocalFileSystem.symlink)
    lock_directory = _of_store(LocalFileSystem.lock_directory)
    set_owner = _of_store(LocalFileSystem.set_owner)
    set_mode = _of_store(LocalFileSystem.set_mode)


# ---- counted ---------------------------------------------------------------------------------------------------------


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


# ---- synced later ----------------------------------------------------------------------------------------------------

#: A process may open at least 256 files on all systems, and reads others meanwhile.
_OPEN_FILES_MAX = 128
#: Partitions up to this size take longer to sync than to write, so this many share their syncs.
_SMALL_BYTES, _SYNCED_TOGETHER = 1_000_000, 64


def is_small(size_bytes: int) -> bool:
    """Return whether a partition takes longer to sync than to write, so that it should be written to `SyncsLater`."""
    return size_bytes <= _SMALL_BYTES


def synced_together(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indexes of small partitions in portions, each to be written to `SyncsLater` and then synced."""
    small = [at for at, size_bytes in enumerate(sizes) if is_small(size_bytes)]
    for start in range(0, len(small), _SYNCED_TOGETHER):
        yield small[start : start + _SYNCED_TOGETHER]


class SyncsLater(WrappedTargetStore):
    """Delegates to another store, but postpones the syncs of files until `sync_all`.

    Small files take longer to sync than to write. Threads that wait for the disk together share commits of the file
    system's journal, but threads that run Python code together take turns, and each turn costs as much as a system
    call. So one thread writes many small files through this store, and then all of them are synced by several threads.

    Until then nothing may depend on these files being durable. Files stay open until their sync, so that it reports all
    errors of their writes; if too many are open, they are synced at once.
    """

    def __init__(self, store: TargetStore) -> None:
        super().__init__(store)
        self._files: list[File] = []
        self._paths: list[str] = []
        self._errors: dict[str, OSError] = {}

    @property
    @override
    def concurrency(self) -> int:
        return 1

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return _SyncedLater(self._store.create(path, exclusive=exclusive, mode=mode), self)

    @override
    def sync_file(self, path: str) -> None:
        self._paths.append(path)

    def take(self, file: File) -> None:
        """Own a file from its sync on."""
        self._files.append(file)
        if len(self._files) >= _OPEN_FILES_MAX:
            self._sync()

    def sync_all(self) -> dict[str, OSError]:
        """Sync and close the files; return the errors by path, of all files since the last call."""
        self._sync()
        errors, self._errors = self._errors, {}
        return errors

    def _sync(self) -> None:
        files, paths = self._files, self._paths
        self._files, self._paths = [], []

        def sync(file: File | str) -> None:
            try:
                if isinstance(file, str):
                    self._store.sync_file(file)
                else:
                    file.sync()
            except OSError as error:
                self._errors[file if isinstance(file, str) else file.path] = error

        try:
            waiting: list[File | str] = [*files, *paths]
            in_parallel(self._store.concurrency, sync, waiting)
        finally:
            for file in files:
                file.close()

    def close(self) -> None:
        """Close the files that were not synced, after a failure."""
        for file in self._files:
            file.close()
        self._files, self._paths = [], []


class _SyncedLater(WrappedFile):
    def __init__(self, file: File, store: SyncsLater) -> None:
        super().__init__(file)
        self._owner: SyncsLater | None = store

    write_direct = _of_file(File.write_direct)
    write_shared = _of_file(File.write_shared)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        pass

    @override
    def sync(self) -> None:
        if self._owner is not None:
            self._owner.take(self._file)
            self._owner = None

    @override
    def close(self) -> None:
        if self._owner is not None:
            self._file.close()


# ---- overlay ---------------------------------------------------------------------------------------------------------


class Overlay(WrappedStore):
    """A store in which one directory has the names and files of a table.

    Args:
        files: for each name in it, the path of the file that it refers to.
    """

    def __init__(self, store: Store, directory: str, files: Mapping[str, str]) -> None:
        super().__init__(store)
        self._directory = directory
        self._files = dict(files)

    def _real(self, path: str) -> str:
        folder, name = posixpath.split(path)
        if folder != self._directory:
            return path
        if name not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._files[name]

    def _outside(self, path: str) -> str:
        if posixpath.dirname(path) == self._directory:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return path

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        if path != self._directory:
            return super().list(path)
        return [self.stat(f"{path}/{name}") for name in sorted(self._files)]

    @override
    def stat(self, path: str) -> FileInfo:
        return replace(super().stat(self._real(path)), name=posixpath.basename(path))

    @override
    def exists(self, path: str) -> bool:
        folder, name = posixpath.split(path)
        return name in self._files if folder == self._directory else super().exists(path)

    @override
    def open(self, path: str) -> ReadableFile:
        return super().open(self._real(path))

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        super().put(self._outside(path), data, mode)

    @override
    def delete(self, path: str) -> None:
        super().delete(self._outside(path))
