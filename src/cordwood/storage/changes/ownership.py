"""Check that this user can give the outputs of a clean in place the owner and group of the files that they replace.

A broker that cannot write to one of its files takes the whole log directory offline. So, before anything is written,
the owners of the old files are compared with the user of this process: only a privileged process can give a file to
another user, and an unprivileged user can give it only to a group that the user is in.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from cordwood.common.errors import RequestError
from cordwood.fs.base import FileInfo, LocalFileSystem
from cordwood.fs.users import User, group_name, user_name
from cordwood.storage.formats.filenames import OFFSET_CHECKPOINTS, WORK_FOLDER


def check_ownership(fs: LocalFileSystem, partitions: Iterable[str], user: User | None = None) -> None:
    """Raise RequestError if this user cannot replace the partitions' files by files of the same owner and group.

    Args:
        partitions: paths of partition directories. The checkpoints beside them are checked, too.
        user: the user of this process if None.
    """
    user = user or User.current()
    if user.privileged:
        return
    found = list(_written_to(fs, partitions))
    owners = {info.uid for _, info in found}
    # If all files have one owner, that user can replace them; otherwise only root can.
    as_whom = user_name(owners.pop() if len(owners) == 1 else 0)
    for path, info in found:
        if not info.is_directory and info.uid != user.uid:
            raise RequestError(
                f"{path} belongs to {user_name(info.uid)}, and {user_name(user.uid)} cannot make files for somebody "
                f"else, so what replaces it could keep a broker out. Run this as {as_whom}"
            )
        if not info.is_directory and info.gid not in user.gids:
            raise RequestError(
                f"{path} belongs to the group {group_name(info.gid)}, which {user_name(user.uid)} is not in, so what "
                f"replaces it could not. Add the user to the group, or run this as {user_name(0)}"
            )
        if info.is_directory and not user.may_write(info):
            raise RequestError(
                f"{path} cannot be changed: {user_name(user.uid)} may not write to it. Run this as {as_whom}"
            )


def check_apart(fs: LocalFileSystem, partitions: Iterable[str]) -> None:
    """Raise RequestError if two paths are the same directory, such as a symlink: both would be changed at once."""
    known: dict[str, str] = {}
    for path in partitions:
        other = known.setdefault(fs.real_path(path), path)
        if other != path:
            raise RequestError(
                f"{path} and {other} are the same directory, and would be changed at the same time. Remove the link, "
                "or choose one of them with --partition"
            )


def _written_to(fs: LocalFileSystem, partitions: Iterable[str]) -> Iterator[tuple[str, FileInfo]]:
    partitions = [path.rstrip("/") for path in partitions]
    for path in partitions:
        yield path, fs.stat(path)
        for info in fs.list(path):
            if not info.is_directory or info.name == WORK_FOLDER:
                yield f"{path}/{info.name}", info
    for parent in dict.fromkeys(posixpath.dirname(path) or "." for path in partitions):
        yield parent, fs.stat(parent)
        for info in fs.list(parent):
            if info.name in OFFSET_CHECKPOINTS:
                yield f"{parent}/{info.name}", info
