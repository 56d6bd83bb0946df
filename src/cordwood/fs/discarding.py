"""A file system that accepts writes to one folder and discards them, for a trial clean (`cordwood plan --exact`).

The bytes of logs are counted and discarded; small files (indexes) stay in memory and can be read back. Reads of all
other paths are delegated to the wrapped file system; creating a file elsewhere fails.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace

from cordwood.common.types import override
from cordwood.fs.base import Bytes, File, FileInfo, Link, ReadableFile, TargetStore, view_of
from cordwood.fs.wrapped import WrappedTargetStore

#: Suffix of the files whose bytes are discarded.
_DISCARDED = ".log"


class DiscardingStore(WrappedTargetStore):
    """Reads from another file system, except in one folder: there it keeps names, sizes, times and small files.

    Args:
        folder: the folder that accepts writes. It need not exist in `store`, and has no subfolders.
    """

    def __init__(self, store: TargetStore, folder: str) -> None:
        super().__init__(store)
        self._folder = folder
        self._files: dict[str, DiscardedFile] = {}

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        if path != self._folder:
            return super().list(path)
        return [file.info for _, file in sorted(self._files.items())]

    @override
    def stat(self, path: str) -> FileInfo:
        return self._files[path].info if path in self._files else super().stat(path)

    @override
    def open(self, path: str) -> ReadableFile:
        return self._files[path] if path in self._files else super().open(path)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        if posixpath.dirname(path) != self._folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        file = self._files[path] = DiscardedFile(path, keep=not path.endswith(_DISCARDED))
        return file

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        pass

    @override
    def rename(self, source: str, target: str) -> None:
        file = self._files[target] = self._files.pop(source)
        file.path, file.info = target, replace(file.info, name=posixpath.basename(target))

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        return False

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        TargetStore.copy(self, source, target, mode=mode)

    @override
    def sync_file(self, path: str) -> None:
        pass

    @override
    def unlink(self, path: str) -> None:
        del self._files[path]

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        file = self._files[path]
        file.info = replace(file.info, mtime_ns=mtime_ns)


class DiscardedFile(File):
    """A file that is written sequentially, from start to end."""

    def __init__(self, path: str, *, keep: bool) -> None:
        self.path = path
        self.info = FileInfo(posixpath.basename(path), 0, 0, is_directory=False)
        self._kept = bytearray() if keep else None

    @override
    def size(self) -> int:
        return self.info.size_bytes

    @override
    def read_into(self, position: int, target: memoryview) -> int:
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    @override
    def read(self, position: int, size_bytes: int) -> bytes:
        assert self._kept is not None, f"{self.path} was thrown away"
        return bytes(self._kept[position : position + size_bytes])

    @override
    def write(self, position: int, data: Bytes) -> None:
        assert position == self.size(), "written in order"
        if self._kept is not None:
            self._kept += view_of(data)
        self.info = replace(self.info, size_bytes=position + view_of(data).nbytes)

    @override
    def truncate(self, size_bytes: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)

    @override
    def write_back(self, position: int, size_bytes: int) -> None:
        pass

    @override
    def sync(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass
