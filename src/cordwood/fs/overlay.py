"""Show a directory through a table of names: each name refers to a file that may have another path.

So a log can be opened in its state after renames that have not happened yet. The directory contains only the names in
the table, and is read-only; all other paths are unchanged.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cordwood.common.types import override
from cordwood.fs.base import Bytes, FileInfo, PutMode, ReadableFile, Store
from cordwood.fs.wrapped import WrappedStore


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
