"""Shared by the tests of file systems: a whole tree as a value, and shorthands for making one."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from cordwood.fs.base import LocalFileSystem
from cordwood.testing.memory_journal import Change

#: Every path below a root: a file's bytes, None for a directory.
Tree = dict[str, bytes | None]


def tree(fs: LocalFileSystem, root: str = "/") -> Tree:
    """The files and directories below `root`, by their path from there."""
    found: Tree = {}
    to_visit = [""]
    while to_visit:
        directory = to_visit.pop()
        for info in fs.list(f"{root}/{directory}"):
            path = f"{directory}{info.name}"
            if info.is_directory:
                found[path] = None
                to_visit.append(f"{path}/")
            else:
                found[path] = content(fs, f"{root}/{path}")
    return found


def content(fs: LocalFileSystem, path: str) -> bytes:
    """All bytes of a file."""
    with fs.open(path) as file:
        return file.read(0, file.size())


def put(fs: LocalFileSystem, path: str, data: bytes, *, sync: bool = False) -> None:
    """Write a new file, or replace an existing one."""
    with fs.create(path, exclusive=False) as file:
        file.write(0, data)
        if sync:
            file.sync()


def sync_everything(fs: LocalFileSystem, root: str = "/") -> None:
    """Make all files and names below `root` durable."""
    for path, data in tree(fs, root).items():
        if data is None:
            fs.sync_directory(f"{root}/{path}")
        else:
            with fs.open(f"{root}/{path}") as file:
                file.sync()
    fs.sync_directory(root)


def drawn(data: st.DataObject) -> Callable[[Change], int]:
    """For `crash`: Hypothesis decides each change, and shrinks to as few losses as it can."""
    return lambda change: data.draw(st.sampled_from([change.parts, 0]) | st.integers(0, change.parts), change.text)
