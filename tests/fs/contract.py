"""Steps on a store and their outcomes, the same on every implementation: those of any target store, and of a disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

from hypothesis import strategies as st

from cordwood.fs.base import LocalFileSystem, TargetStore

paths = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)
small = st.integers(0, 6)
target_steps = st.one_of(
    st.tuples(st.just("create"), paths, st.booleans()),
    st.tuples(st.just("write anew"), paths, small, st.binary(max_size=4)),
    st.tuples(st.just("read"), paths, small, small),
    st.tuples(st.sampled_from(["mkdir", "mkdir", "rmdir", "unlink", "list", "is_directory", "sync_file"]), paths),
    st.tuples(st.just("rename"), paths, paths),
)
local_steps = st.one_of(
    target_steps,
    st.tuples(st.just("write"), paths, small, st.binary(max_size=4)),
    st.tuples(st.just("truncate"), paths, small),
    st.tuples(st.just("sync_directory"), paths),
    st.tuples(st.just("link"), paths, paths),
)


def _said(act: Callable[[], object]) -> object:
    """The value of a step, or its errno."""
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def target_outcome(store: TargetStore, root: str, verb: str, path: str, *arguments: object) -> object:
    """The outcome of a step on any target store."""
    return _said(lambda: _on_target(store, root, verb, path, *arguments))


def local_outcome(fs: LocalFileSystem, root: str, verb: str, path: str, *arguments: object) -> object:
    """The outcome of a step on a local file system."""
    return _said(lambda: _on_disk(fs, root, verb, path, *arguments))


def _on_target(store: TargetStore, root: str, verb: str, path: str, *arguments: object) -> object:
    at = f"{root}/{path}"
    match verb, arguments:
        case "create", (bool(exclusive),):
            store.create(at, exclusive=exclusive).close()
        case "write anew", (int(position), bytes(data)):
            with store.create(at, exclusive=False) as file:
                file.write(position, data)
                return file.size()
        case "read", (int(position), int(size_bytes)):
            with store.open(at) as opened:
                return opened.read(position, size_bytes)
        case "mkdir", ():
            store.make_directory(at)
        case "rmdir", ():
            store.remove_directory(at)
        case "unlink", ():
            store.unlink(at)
        case "list", ():
            listed = [(info.name, info.is_directory) for info in store.list(at)]
            assert list(store.names_in(at).items()) == listed
            return listed
        case "is_directory", ():
            return store.stat(at).is_directory
        case "sync_file", ():
            store.sync_file(at)
        case "rename", (str(target),):
            store.rename(at, f"{root}/{target}")
        case _:
            raise AssertionError(f"no such step: {verb} {arguments}")
    return None


def _on_disk(fs: LocalFileSystem, root: str, verb: str, path: str, *arguments: object) -> object:
    at = f"{root}/{path}"
    match verb, arguments:
        case "write", (int(position), bytes(data)):
            with fs.open_for_update(at) as file:
                file.write(position, data)
                return file.size()
        case "truncate", (int(size_bytes),):
            with fs.open_for_update(at) as file:
                file.truncate(size_bytes)
        case "sync_directory", ():
            fs.sync_directory(at)
        case "link", (str(target),):
            fs.link(at, f"{root}/{target}")
        case _:
            return _on_target(fs, root, verb, path, *arguments)
    return None
