"""Temporary folders, removed with their contents; and a new directory, made in a folder beside it, then renamed.

    DIR2's parent/
      .DIR2.cordwood-1f0c/         made first, removed at the end
        data/                      becomes DIR2 by one rename, once its content is durable
        outputs/                   files that tasks write, with a folder per attempt
        progress/                  progress of the tasks

A killed run leaves its folder beside the target; `leftovers` finds it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import posixpath
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from cordwood.common.errors import NotFoundError, RequestError
from cordwood.common.threads import in_parallel
from cordwood.common.types import override
from cordwood.fs.base import LocalFileSystem, Store, Target, TargetStore

_REMOVE_ATTEMPTS = 20
_REMOVE_PAUSE_SECONDS = 0.1


def mode_of(fs: Store, *paths: str) -> int:
    """Return the permissions for a copy of several directories: all that each of them has, and all for the owner."""
    return functools.reduce(operator.and_, (fs.stat(path).mode for path in paths), 0o777) | 0o700


def remove_tree(fs: TargetStore, path: str) -> None:
    """Remove a folder and its contents, even while an abandoned task still writes to it.

    A symlink, at the path or within, is removed without its target.
    """
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            _remove(fs, path)
            return
        except FileNotFoundError:
            continue
        except OSError:
            if attempt == _REMOVE_ATTEMPTS - 1:
                raise
            time.sleep(_REMOVE_PAUSE_SECONDS)


def _remove(fs: TargetStore, path: str, *, exists: bool = False) -> None:
    if fs.is_link(path):
        fs.unlink(path)
        return
    if not exists and not fs.exists(path):
        return
    for name, is_directory in fs.names_in(path).items():
        if is_directory:
            _remove(fs, f"{path}/{name}", exists=True)
        else:
            fs.unlink(f"{path}/{name}")
    fs.remove_directory(path)


@contextlib.contextmanager
def temporary_directory(fs: TargetStore, prefix: str) -> Iterator[str]:
    """Make a directory that no other user can read; remove it with its contents at the end of the `with` block."""
    path = fs.make_temporary_directory(prefix)
    try:
        yield path
    finally:
        remove_tree(fs, path)


class Workspace(Target):
    """The folder in which a new directory is made. The end of the `with` block always removes it."""

    def __init__(self, fs: LocalFileSystem, target: str, sources: Iterable[str]) -> None:
        """Raise an error if the target is not new or empty, or is within a source."""
        self._fs = fs
        self._sources = tuple(sources)
        self.target = fs.real_path(target)
        _check_target(fs, self.target, posixpath.dirname(self.target), self._sources)
        self.path = f"{work_folder_prefix(self.target)}{secrets.token_hex(4)}"
        self.data, self.outputs, self.progress = (f"{self.path}/{name}" for name in ("data", "outputs", "progress"))

    @override
    def __enter__(self) -> Self:
        try:
            # Only its owner can read it; the new directory gets the permissions of its source.
            self._fs.make_directory(self.path, mode=0o700)
            self._fs.make_directory(self.data, mode=mode_of(self._fs, *self._sources))
            for path in (self.outputs, self.progress):
                self._fs.make_directory(path)
        except BaseException:
            remove_tree(self._fs, self.path)
            raise
        return self

    @override
    def __exit__(self, *_: object) -> None:
        remove_tree(self._fs, self.path)

    @override
    def publish(self) -> None:
        in_parallel(self._fs.concurrency, self._fs.sync_directory, list(_directories(self._fs, self.data)))
        try:
            self._fs.rename(self.data, self.target)
            self._fs.sync_directory(posixpath.dirname(self.target))
        except BaseException:
            # The name may not survive a power cut, so remove the output. Removing needs no space; a rename might.
            if not self._fs.exists(self.data):
                remove_tree(self._fs, self.target)
            raise


def _directories(fs: LocalFileSystem, path: str) -> Iterator[str]:
    """Yield a directory and all directories below it."""
    yield path
    for name, is_directory in fs.names_in(path).items():
        if is_directory:
            yield from _directories(fs, f"{path}/{name}")


def work_folder_prefix(target: str) -> str:
    """Return the common prefix of the paths of all work folders for a directory."""
    parent, name = posixpath.split(target)
    return f"{parent.rstrip('/')}/.{name}.cordwood-"


def leftovers(fs: TargetStore, target: str) -> list[str]:
    """Return work folders left by killed runs for the same directory. Call it while this run has no work folder."""
    parent, start = posixpath.split(work_folder_prefix(fs.real_path(target)))
    try:
        names = [info.name for info in fs.list(parent) if info.is_directory and info.name.startswith(start)]
    except OSError:
        return []  # callers use the result only for a hint
    return [posixpath.join(parent, name) for name in names]


def check_outside(fs: Store, target: str, sources: Iterable[str]) -> None:
    """Raise RequestError for a new folder within a folder that is only read.

    Args:
        target: result of `real_path`.
    """
    for source in map(fs.real_path, sources):
        if is_within(target, source):
            raise RequestError(f"{target} is in {source}, which is only read. Name a folder elsewhere")


def _check_target(fs: LocalFileSystem, target: str, parent: str, sources: Sequence[str]) -> None:
    if target in map(fs.real_path, sources):
        raise RequestError(f"{target} is to be cleaned, and is only read. Name a new folder for the copy")
    check_outside(fs, target, sources)
    if not fs.exists(parent):
        raise NotFoundError(f"{parent} does not exist, so {target} cannot be made in it")
    if not fs.exists(target):
        return
    info = fs.stat(target)
    if not info.is_directory or fs.list(target):
        raise RequestError(f"{target} exists and is not empty; give a new folder for the copy")
    if info.device != fs.stat(parent).device:
        raise RequestError(f"{target} is a disk of its own. The copy gets its name last; name a new folder in {target}")


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or within it (both are results of `real_path`)."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")
