"""Choose the store for a path: URLs of object stores, `file://` URLs and paths of this machine side by side.

So a command can read a bucket and write to a directory of this machine, while the layers below the commands use a
single store.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.types import override
from cordwood.fs.base import Link, Target, TargetStore
from cordwood.fs.location import Location, location_in_this_process
from cordwood.fs.object_requests import is_object_url, place_of, refuse_secrets
from cordwood.fs.posix import PosixFileSystem
from cordwood.fs.wrapped import WrappedTargetStore

if TYPE_CHECKING:
    from cordwood.fs.object_targets import ObjectTargetsLocation, ObjectTargetStore

#: A file URL with three slashes, or with one, as Spark writes it.
_FILE = re.compile(r"file:(?://([^/]*))?(/.*|$)", re.DOTALL)


#: Hadoop's schemes for S3, and URLs with one slash too few or too many.
_MISSPELT = re.compile(r"(s3|gs|az|memory)[an]?:/+(?=[^/])")


def is_url(path: str) -> bool:
    """Return whether a path is a URL of an object store or of a file."""
    return is_object_url(path) or _FILE.fullmatch(path) is not None


def _check(path: str) -> None:
    """Raise RequestError for an unsupported URL, with advice on the right form."""
    refuse_secrets(path)
    if is_object_url(path):
        place_of(path)  # raises if it names no bucket
    elif (misspelt := _MISSPELT.match(path)) is not None:
        better = f"{misspelt[1]}://{path[misspelt.end() :]}"
        raise RequestError(f"{path} is not a URL that can be read. Write it as {better}")
    scheme, colon, _ = path.partition("://")
    if colon and scheme.isalnum() and not is_url(path):
        kinds = "s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///PATH"
        raise RequestError(f"{path}: {scheme}:// is not a kind of store that can be read. Give {kinds}")


def named(path: str) -> str:
    """Return the path unless it is empty, which is usually an unset variable and never meant as a directory.

    Raises:
        NotFoundError: it is empty.
    """
    if not path:
        raise NotFoundError("the path is empty; for the current directory give .")
    return path


def file_system_for(paths: Iterable[str | None]) -> TargetStore:
    """Return the store for a user's paths: this machine's file system, unless one of them is a URL.

    Raises:
        RequestError: a path is a URL of some other kind, names no bucket, or contains credentials.
        NotFoundError: a path is empty.
    """
    given = [named(path) for path in paths if path is not None]
    for path in given:
        _check(path)
    if not any(map(is_url, given)):
        return PosixFileSystem()
    return UrlStore(in_this_process=any(path.startswith("memory:") for path in given))


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """The location of the store for all paths and URLs, as seen by the machine that opens it."""

    objects: ObjectTargetsLocation

    @property
    def in_this_process(self) -> bool:
        """False; see `UrlStore.location`."""
        return False

    def open(self) -> UrlStore:
        """Open the store."""
        return UrlStore(self.objects.open())


class UrlStore(WrappedTargetStore):
    """A store for paths and URLs. Paths of this machine are delegated to its file system.

    Args:
        in_this_process: some URLs are `memory://`, which no other process can read.
    """

    def __init__(self, objects: ObjectTargetStore | None = None, *, in_this_process: bool = False) -> None:
        from cordwood.fs.object_targets import ObjectTargetStore  # most commands read no bucket

        self._objects = objects or ObjectTargetStore()
        self._local = PosixFileSystem()
        super().__init__(self._local)  # temporary files are local
        self._in_this_process = in_this_process

    @override
    def _at(self, path: str) -> tuple[TargetStore, str]:
        refuse_secrets(path)
        return (self._objects, path) if is_object_url(path) else (self._local, local_path(path))

    @property
    @override
    def concurrency(self) -> int:
        return self._objects.concurrency

    @override
    def location(self) -> Location[TargetStore]:
        return location_in_this_process(self) if self._in_this_process else UrlLocation(self._objects.location())

    @override
    def target(self, path: str, sources: Sequence[str]) -> Target:
        store, path = self._at(path)
        return store.target(path, [source for where, source in map(self._at, sources) if where is store])

    @override
    def copy(self, source: str, target: str, *, mode: int = 0o666) -> None:
        (there, source), (here, target) = self._at(source), self._at(target)
        if there is here:
            here.copy(source, target, mode=mode)
        elif here is self._objects:
            with there.open(source) as original:
                self._objects.copy_in(original, target)
        else:
            with here.create(target, mode=mode) as copied:
                self._objects.copy_out(source, copied)

    @override
    def rename(self, source: str, target: str) -> None:
        (there, source), (here, target) = self._at(source), self._at(target)
        if there is not here:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        here.rename(source, target)

    @override
    def try_link(self, link: Link, source: str, target: str) -> bool:
        (there, source), (here, target) = self._at(source), self._at(target)
        return there is here and here.try_link(link, source, target)


def local_path(path: str, advice: str = "Give a directory of this machine") -> str:
    """Return the path on this machine: the path in a `file:` URL, or any other path unchanged.

    Raises:
        RequestError: the URL refers to an object store or another machine, or is unsupported.
    """
    _check(path)
    if is_object_url(path):
        raise RequestError(f"{path} is in an object store, where no file can be changed in place. {advice}")
    match = _FILE.fullmatch(path)
    if match is None:
        return path
    if match[1] not in (None, "", "localhost"):
        raise RequestError(
            f"{path} names the machine {match[1]}. Write a file on this machine with three slashes: file:///…"
        )
    return unquote(match[2]) or "/"
