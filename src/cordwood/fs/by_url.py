"""The file system that a path leads to: URLs of object stores, `file://` URLs and paths of this machine side by side.

So a command reads a bucket and writes to a directory of this machine, and what is below the commands knows only the one
file system that it is given.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from cordwood.errors import RequestError
from cordwood.fs.base import (
    Bytes,
    DirectoryLock,
    File,
    FileInfo,
    LocalFileSystem,
    LockHolder,
    PutMode,
)
from cordwood.fs.location import Location, location_in_this_process
from cordwood.fs.object_files import ObjectFilesLocation, ObjectFileSystem
from cordwood.fs.objects import is_object_url
from cordwood.fs.posix import PosixFileSystem
from cordwood.types import override

_FILE = "file://"


def is_url(path: str) -> bool:
    """Whether a path is a URL: of an object store, or of a file."""
    return path.startswith(_FILE) or is_object_url(path)


def file_system_for(paths: Iterable[str | None]) -> LocalFileSystem:
    """What the paths of a user lead to: this machine's file system, unless one is a URL.

    Raises:
        RequestError: a path is a URL of some other kind.
    """
    named = [path for path in paths if path is not None]
    for path in named:
        scheme, colon, _ = path.partition("://")
        if colon and scheme.isalnum() and not is_url(path):
            kinds = "s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///PATH"
            raise RequestError(f"{path}: {scheme}:// is not a kind of store that can be read. Give {kinds}")
    if not any(map(is_url, named)):
        return PosixFileSystem()
    return UrlFileSystem(in_this_process=any(path.startswith("memory:") for path in named))


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """All that paths and URLs lead to, from the machine on which the location is opened.

    Attributes:
        objects: of the URLs of object stores.
        in_this_process: these include some of `memory://`, which no other process sees.
    """

    objects: ObjectFilesLocation
    in_this_process: bool

    def open(self) -> UrlFileSystem:
        """The file system."""
        return UrlFileSystem(self.objects.open(), in_this_process=self.in_this_process)


class UrlFileSystem(LocalFileSystem):
    """The files that paths and URLs lead to. A path of this machine is passed on to its file system.

    Args:
        objects: what is in object stores.
        in_this_process: see `UrlLocation`.
    """

    def __init__(self, objects: ObjectFileSystem | None = None, *, in_this_process: bool = False) -> None:
        self.objects = objects or ObjectFileSystem()
        self._local = PosixFileSystem()
        self._in_this_process = in_this_process

    def _at(self, path: str) -> tuple[LocalFileSystem, str]:
        """The file system of a path, and the path there."""
        if is_object_url(path):
            return self.objects, path
        return self._local, local_path(path)

    @property
    @override
    def concurrency(self) -> int:
        return self.objects.concurrency

    @override
    def location(self) -> Location[LocalFileSystem]:
        if self._in_this_process:
            return location_in_this_process(self)
        return UrlLocation(self.objects.location(), in_this_process=False)

    @override
    def list(self, path: str) -> Sequence[FileInfo]:
        fs, path = self._at(path)
        return fs.list(path)

    @override
    def stat(self, path: str) -> FileInfo:
        fs, path = self._at(path)
        return fs.stat(path)

    @override
    def exists(self, path: str) -> bool:
        fs, path = self._at(path)
        return fs.exists(path)

    @override
    def open(self, path: str) -> File:
        fs, path = self._at(path)
        return fs.open(path)

    @override
    def create(self, path: str, *, exclusive: bool = True, mode: int = 0o666) -> File:
        fs, path = self._at(path)
        return fs.create(path, exclusive=exclusive, mode=mode)

    @override
    def open_for_update(self, path: str) -> File:
        fs, path = self._at(path)
        return fs.open_for_update(path)

    @override
    def make_directory(self, path: str, *, mode: int = 0o777) -> None:
        fs, path = self._at(path)
        fs.make_directory(path, mode=mode)

    @override
    def remove_directory(self, path: str) -> None:
        fs, path = self._at(path)
        fs.remove_directory(path)

    @override
    def unlink(self, path: str) -> None:
        fs, path = self._at(path)
        fs.unlink(path)

    @override
    def sync_directory(self, path: str) -> None:
        fs, path = self._at(path)
        fs.sync_directory(path)

    @override
    def shares_blocks(self, path: str) -> bool:
        fs, path = self._at(path)
        return fs.shares_blocks(path)

    @override
    def free_bytes(self, path: str) -> int | None:
        fs, path = self._at(path)
        return fs.free_bytes(path)

    @override
    def lock_directory(self, path: str) -> DirectoryLock:
        fs, path = self._at(path)
        return fs.lock_directory(path)

    @override
    def lock_holder(self, path: str) -> LockHolder | None:
        fs, path = self._at(path)
        return fs.lock_holder(path)

    @override
    def absolute_path(self, path: str) -> str:
        fs, path = self._at(path)
        return fs.absolute_path(path)

    @override
    def real_path(self, path: str) -> str:
        fs, path = self._at(path)
        return fs.real_path(path)

    @override
    def network_kind(self, path: str) -> str | None:
        fs, path = self._at(path)
        return fs.network_kind(path)

    @override
    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        fs, path = self._at(path)
        fs.set_mtime_ns(path, mtime_ns)

    @override
    def set_owner(self, path: str, uid: int, gid: int) -> None:
        fs, path = self._at(path)
        fs.set_owner(path, uid, gid)

    @override
    def set_mode(self, path: str, mode: int) -> None:
        fs, path = self._at(path)
        fs.set_mode(path, mode)

    @override
    def put(
        self,
        path: str,
        data: Bytes,
        mode: PutMode = PutMode.REPLACE,
        *,
        like: FileInfo | None = None,
        beside: str | None = None,
    ) -> None:
        fs, path = self._at(path)
        fs.put(path, data, mode, like=like, beside=beside)

    @override
    def delete(self, path: str) -> None:
        fs, path = self._at(path)
        fs.delete(path)

    @override
    def make_temporary_directory(self, prefix: str) -> str:
        return self._local.make_temporary_directory(prefix)

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        (there, source), (here, target) = self._at(source), self._at(target)
        if there is here:
            here.copy(source, target, mode=mode)
        elif here is self.objects:
            with there.open(source) as original:
                self.objects.copy_in(original, target)
        else:
            with here.create(target, mode=mode) as copied:
                self.objects.copy_out(source, copied)

    @override
    def rename(self, source: str, target: str) -> None:
        fs, source, target = self._both_at(source, target)
        fs.rename(source, target)

    @override
    def link(self, source: str, target: str) -> None:
        fs, source, target = self._both_at(source, target)
        fs.link(source, target)

    @override
    def symlink(self, source: str, target: str) -> None:
        fs, source, target = self._both_at(source, target)
        fs.symlink(source, target)

    def _both_at(self, source: str, target: str) -> tuple[LocalFileSystem, str, str]:
        """The file system of two paths; between two of them a name cannot be given."""
        (there, source), (here, target) = self._at(source), self._at(target)
        if there is not here:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        return here, source, target


def local_path(path: str) -> str:
    """The path on this machine that a `file://` URL stands for; any other path as it is.

    Raises:
        RequestError: the URL names another machine.
    """
    if not path.startswith(_FILE):
        return path
    host, slash, rest = path[len(_FILE) :].partition("/")
    if host not in ("", "localhost"):
        raise RequestError(
            f"{path} names the machine {host}. Write a file on this machine with three slashes: file:///…"
        )
    return unquote(slash + rest) or "/"
