"""Temporary folders, which are removed with their contents."""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from collections.abc import Iterator

from cordwood.fs.base import Store, TargetStore

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


def _remove(fs: TargetStore, path: str) -> None:
    if fs.is_link(path):
        fs.unlink(path)
        return
    if not fs.exists(path):
        return
    for info in fs.list(path):
        if info.is_directory:
            _remove(fs, f"{path}/{info.name}")
        else:
            fs.unlink(f"{path}/{info.name}")
    fs.remove_directory(path)


@contextlib.contextmanager
def temporary_directory(fs: TargetStore, prefix: str) -> Iterator[str]:
    """Make a directory that no other user can read; remove it with its contents at the end of the `with` block."""
    path = fs.make_temporary_directory(prefix)
    try:
        yield path
    finally:
        remove_tree(fs, path)
