"""The store that a path leads to: URLs of object stores, `file://` URLs and paths of this machine side by side.

So a command compares a directory of this machine with a copy in a bucket, and what is below the commands knows only the
one store that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from cordwood.errors import RequestError
from cordwood.fs.base import Bytes, FileInfo, LockHolder, PutMode, ReadableFile, Store
from cordwood.fs.location import Location
from cordwood.fs.objects import ObjectStore, Patience, is_object_url
from cordwood.fs.posix import PosixFileSystem
from cordwood.types import override

_FILE = "file://"


def is_url(path: str) -> bool:
    """Whether a path is a URL: of an object store, or of a file."""
    return path.startswith(_FILE) or is_object_url(path)


def store_for(paths: Iterable[str | None]) -> Store:
    """The store that a command reads paths of its user in: this machine's file system, unless one is a URL.

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
    return UrlStore(in_this_process=any(path.startswith("memory:") for path in named))


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """All that paths and URLs lead to, from the machine on which the location is opened.

    Attributes:
        patience: with the servers of object stores.
        in_this_process: the URLs include some of `memory://`, which no other process sees.
    """

    patience: Patience
    in_this_process: bool

    def open(self) -> UrlStore:
        """The store."""
        return UrlStore(self.patience, in_this_process=self.in_this_process)


class UrlStore(Store):
    """Reads from whatever a path leads to."""

    def __init__(self, patience: Patience | None = None, *, in_this_process: bool = False) -> None:
        self._objects = ObjectStore(patience)
        self._local = PosixFileSystem()
        self._in_this_process = in_this_process

    def _at(self, path: str) -> tuple[Store, str]:
        """The store of a path, and the path there."""
        if is_object_url(path):
            return self._objects, path
        return self._local, local_path(path)

    @property
    @override
    def concurrency(self) -> int:
        return self._objects.concurrency

    @override
    def location(self) -> Location[Store]:
        return UrlLocation(self._objects.patience, self._in_this_process)

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
    def lock_holder(self, path: str) -> LockHolder | None:
        store, path = self._at(path)
        return store.lock_holder(path)


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
