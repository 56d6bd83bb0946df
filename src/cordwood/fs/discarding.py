"""A file system that takes what is written to one folder and does not keep it, for a clean on trial.

Logs are measured and thrown away; small files (indexes) stay in memory, to be read back. All else is passed on, and
only reading is.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from cordwood.fs.base import Bytes, File, FileInfo, FileSystem, view_of
from cordwood.fs.wrapped import WrappedFileSystem


class DiscardingFileSystem(WrappedFileSystem):
    """Reads as the file system within, but for one folder, of which it keeps names, sizes, times and small files.

    Args:
        fs: to read from.
        folder: need not exist there, and is flat.
        thrown_away: ends of the names whose bytes are not kept.
    """

    def __init__(self, fs: FileSystem, folder: str, *, thrown_away: tuple[str, ...] = (".log",)) -> None:
        super().__init__(fs)
        self._folder = folder
        self._thrown_away = thrown_away
        self._files: dict[str, DiscardedFile] = {}

    def list(self, path: str) -> Sequence[FileInfo]:
        """Of the folder what was written to it."""
        if path != self._folder:
            return super().list(path)
        return [file.info for _, file in sorted(self._files.items())]

    def stat(self, path: str) -> FileInfo:
        """Of a file of the folder as it was written."""
        return self._files[path].info if path in self._files else super().stat(path)

    def open(self, path: str) -> File:
        """A file of the folder as it was written."""
        return self._files[path] if path in self._files else super().open(path)

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        """A file of the folder."""
        if posixpath.dirname(path) != self._folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        file = self._files[path] = DiscardedFile(path, keep=not path.endswith(self._thrown_away))
        return file

    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        """Nothing."""

    def sync_directory(self, path: str) -> None:
        """Nothing."""

    def rename(self, source: str, target: str) -> None:
        """Within the folder."""
        file = self._files[target] = self._files.pop(source)
        file.path, file.info = target, replace(file.info, name=posixpath.basename(target))

    def link(self, source: str, target: str) -> None:
        """Nowhere."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), target)

    def unlink(self, path: str) -> None:
        """Of the folder."""
        del self._files[path]

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Of a file of the folder."""
        file = self._files[path]
        file.info = replace(file.info, mtime_ns=mtime_ns)

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """Of a file of the folder."""
        file = self._files[path]
        file.info = replace(file.info, uid=uid, gid=gid)

    def set_mode(self, path: str, mode: int) -> None:
        """Of a file of the folder."""
        file = self._files[path]
        file.info = replace(file.info, mode=mode)


class DiscardedFile:
    """A file that is written from its start to its end."""

    def __init__(self, path: str, *, keep: bool) -> None:
        self.path = path
        self.info = FileInfo(posixpath.basename(path), 0, 0, is_directory=False)
        self._kept = bytearray() if keep else None

    def size(self) -> int:
        """Length in bytes, now."""
        return self.info.size_bytes

    def read_into(self, position: int, target: memoryview) -> int:
        """What was kept."""
        data = self.read(position, target.nbytes)
        target.cast("B")[: len(data)] = data
        return len(data)

    def read(self, position: int, size_bytes: int) -> bytes:
        """What was kept."""
        assert self._kept is not None, f"{self.path} was thrown away"
        return bytes(self._kept[position : position + size_bytes])

    def write(self, position: int, data: Bytes) -> None:
        """Add to the end."""
        assert position == self.size(), "written in order"
        if self._kept is not None:
            self._kept += view_of(data)
        self.info = replace(self.info, size_bytes=position + view_of(data).nbytes)

    def truncate(self, size_bytes: int) -> None:
        """Never: it is written once."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)

    def write_back(self, position: int, size_bytes: int) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""
