"""The folder for key indexes outside the partitions' directories."""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from cordwood.common.errors import RequestError
from cordwood.fs.base import Store
from cordwood.fs.workspace import is_within
from cordwood.storage.formats.filenames import index_folder


def check_root(fs: Store, root: str | None, partitions: Collection[str]) -> None:
    """Raise if the folder is within a log directory, or if two partitions would share a subfolder of it.

    Raises:
        RequestError: the folder cannot hold the indexes of all these partitions.
    """
    if root is None:
        return
    first: dict[str, str] = {}
    for partition in partitions:
        directory = posixpath.dirname(fs.real_path(partition))
        if is_within(fs.real_path(root), directory):
            raise RequestError(f"{root} is in {directory}, which may hold logs only. Name a folder elsewhere")
        other = first.setdefault(index_folder(partition, root), partition)
        if other != partition:
            what = f"{other} and {partition} have the same name, so they would share the key indexes in {root}"
            raise RequestError(f"{what}. Name one log directory at a time, each with a folder of its own")
