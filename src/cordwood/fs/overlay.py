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

from cordwood.fs.base import File, FileInfo, LocalFileSystem
from cordwood.fs.wrapped import WrappedFileSystem
from cordwood.types import override


class Overlay(WrappedFileSystem):
    """A file system with such a directory.

    Args:
        fs: where the files are.
        directory: the path that is seen so.
        files: path of the file that each name in it stands for.
    """

    def __init__(self, fs: LocalFileSystem, directory: str, files: Mapping[str, str]) -> None:
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
    def open(self, path: str) -> File:
        return super().open(self._real(path))

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        return super().create(self._outside(path), exclusive=exclusive, mode=mode)

    @override
    def open_for_update(self, path: str) -> File:
        return super().open_for_update(self._outside(path))

    @override
    def rename(self, source: str, target: str) -> None:
        super().rename(self._outside(source), self._outside(target))

    @override
    def link(self, source: str, target: str) -> None:
        super().link(self._real(source), self._outside(target))

    @override
    def symlink(self, source: str, target: str) -> None:
        super().symlink(self._real(source), self._outside(target))

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        super().copy(self._real(source), self._outside(target), mode=mode)

    @override
    def unlink(self, path: str) -> None:
        super().unlink(self._outside(path))

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        super().set_mtime_ns(self._outside(path), mtime_ns)

    @override
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        super().set_owner(self._outside(path), uid, gid)

    @override
    def set_mode(self, path: str, mode: int) -> None:
        super().set_mode(self._outside(path), mode)
