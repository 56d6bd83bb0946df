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

from cordwood.fs.base import Bytes, FileInfo, PutMode, ReadableFile, Store
from cordwood.fs.wrapped import WrappedStore
from cordwood.types import override


class Overlay(WrappedStore):
    """A store with such a directory.

    Args:
        store: where the files are.
        directory: the path that is seen so.
        files: path of the file that each name in it stands for.
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
