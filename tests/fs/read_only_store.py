"""A read-only store that is not a local disk: a dict of bytes."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Self

from cordwood.common.types import override
from cordwood.fs.base import Bytes, FileInfo, PutMode, ReadableFile, Store


class ReadOnlyStore(Store):
    """Files by their paths. As in an object store, a directory is there as long as a file is in it.

    Args:
        files: contents, and modification time in nanoseconds since the epoch, by path.
    """

    def __init__(self, files: Mapping[str, tuple[bytes, int]]) -> None:
        self._files = dict(files)

    @classmethod
    def copy_of(cls, store: Store, *paths: str) -> Self:
        """The files in some directories of another store."""
        files: dict[str, tuple[bytes, int]] = {}

        def add(path: str) -> None:
            for info in store.list(path):
                name = f"{path}/{info.name}"
                if info.is_directory:
                    add(name)
                else:
                    with store.open(name) as file:
                        files[name] = file.read(0, info.size_bytes), info.mtime_ns

        for path in paths:
            add(path)
        return cls(files)

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        inside = posixpath.join(path, "")
        names = {name[len(inside) :].partition("/")[0] for name in self._files if name.startswith(inside)}
        if not names:
            raise _error(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
        return [self.stat(f"{inside}{name}") for name in sorted(names)]

    @override
    def stat(self, path: str) -> FileInfo:
        path = path.rstrip("/")
        if path in self._files:
            data, mtime_ns = self._files[path]
            return FileInfo(posixpath.basename(path), len(data), mtime_ns, is_directory=False)
        if any(name.startswith(f"{path}/") for name in self._files):
            return FileInfo(posixpath.basename(path), 0, 0, is_directory=True)
        raise _error(errno.ENOENT, path)

    @override
    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    @override
    def open(self, path: str) -> ReadableFile:
        if self.stat(path).is_directory:
            raise _error(errno.EISDIR, path)
        return _File(path, self._files[path][0])

    @override
    def put(self, path: str, data: Bytes, mode: PutMode = PutMode.REPLACE) -> None:
        raise _error(errno.EROFS, path)

    @override
    def delete(self, path: str) -> None:
        raise _error(errno.EROFS, path)


class _File(ReadableFile):
    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self._data = data

    @override
    def size(self) -> int:
        return len(self._data)

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        return self._data[position : position + size_bytes]

    @override
    def close(self) -> None:
        pass


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
