"""Steps on a file system and their outcomes, the same on every implementation."""

from __future__ import annotations

import errno

from hypothesis import strategies as st

from cordwood.fs.base import LocalFileSystem

paths = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)
small = st.integers(0, 6)
steps = st.one_of(
    st.tuples(st.just("create"), paths, st.booleans()),
    st.tuples(st.just("write"), paths, small, st.binary(max_size=4)),
    st.tuples(st.just("truncate"), paths, small),
    st.tuples(st.just("read"), paths, small, small),
    st.tuples(st.sampled_from(["mkdir", "mkdir", "rmdir", "unlink", "list", "is_directory", "sync_directory"]), paths),
    st.tuples(st.sampled_from(["rename", "link"]), paths, paths),
)


def outcome(fs: LocalFileSystem, root: str, verb: str, path: str, *arguments: object) -> object:
    """What a step gives: its value, or the errno."""
    at = f"{root}/{path}"
    try:
        match verb, arguments:
            case "create", (bool(exclusive),):
                fs.create(at, exclusive=exclusive).close()
            case "write", (int(position), bytes(data)):
                with fs.open_for_update(at) as file:
                    file.write(position, data)
                    return file.size()
            case "truncate", (int(size_bytes),):
                with fs.open_for_update(at) as file:
                    file.truncate(size_bytes)
            case "read", (int(position), int(size_bytes)):
                with fs.open(at) as file:
                    return file.read(position, size_bytes)
            case "mkdir", ():
                fs.make_directory(at)
            case "rmdir", ():
                fs.remove_directory(at)
            case "unlink", ():
                fs.unlink(at)
            case "list", ():
                return [(info.name, info.is_directory) for info in fs.list(at)]
            case "is_directory", ():
                return fs.stat(at).is_directory
            case "sync_directory", ():
                fs.sync_directory(at)
            case "rename", (str(target),):
                fs.rename(at, f"{root}/{target}")
            case "link", (str(target),):
                fs.link(at, f"{root}/{target}")
            case _:
                raise AssertionError(f"no such step: {verb} {arguments}")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None
