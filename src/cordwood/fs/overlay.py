"""A directory seen through a table of names: each stands for a file that may lie elsewhere, under another name.

So a log can be opened as it will be once files have been renamed, while none of them has been. Only what the table
names is in the directory, and nothing in it can be changed; all other paths are what they are.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cordwood.fs.base import File, FileInfo, FileSystem
from cordwood.fs.wrapped import WrappedFileSystem


class Overlay(WrappedFileSystem):
    """A file system with such a directory.

    Args:
        fs: where the files are.
        directory: the path that is seen so.
        files: path of the file that each name in it stands for.
    """

    def __init__(self, fs: FileSystem, directory: str, files: Mapping[str, str]) -> None:
        super().__init__(fs)
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

    def list(self, path: str) -> Sequence[FileInfo]:
        """The names of the table; elsewhere as the file system within."""
        if path != self._directory:
            return super().list(path)
        return [self.stat(f"{path}/{name}") for name in sorted(self._files)]

    def stat(self, path: str) -> FileInfo:
        """Of the file that is meant, under the name that was asked for."""
        return replace(super().stat(self._real(path)), name=posixpath.basename(path))

    def exists(self, path: str) -> bool:
        """Whether the table has it; elsewhere as the file system within."""
        folder, name = posixpath.split(path)
        return name in self._files if folder == self._directory else super().exists(path)

    def open(self, path: str) -> File:
        """Open the file that is meant."""
        return super().open(self._real(path))

    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        """Not in the directory."""
        return super().create(self._outside(path), exclusive=exclusive, mode=mode)

    def open_for_update(self, path: str) -> File:
        """Not in the directory."""
        return super().open_for_update(self._outside(path))

    def rename(self, source: str, target: str) -> None:
        """Not in the directory."""
        super().rename(self._outside(source), self._outside(target))

    def link(self, source: str, target: str) -> None:
        """From the directory, not into it."""
        super().link(self._real(source), self._outside(target))

    def unlink(self, path: str) -> None:
        """Not in the directory."""
        super().unlink(self._outside(path))

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        """Not in the directory."""
        super().set_mtime_ns(self._outside(path), mtime_ns)

    def set_owner(self, path: str, uid: int, gid: int) -> None:
        """Not in the directory."""
        super().set_owner(self._outside(path), uid, gid)

    def set_mode(self, path: str, mode: int) -> None:
        """Not in the directory."""
        super().set_mode(self._outside(path), mode)
