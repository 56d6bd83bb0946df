"""Commands that only read: open a log, list directories, check them."""

from __future__ import annotations

from collections.abc import Sequence

from cordwood.commands.selection import ListOptions
from cordwood.fs.base import Store
from cordwood.fs.by_url import file_system_for
from cordwood.storage.check import Check, Finding
from cordwood.storage.index.keyed_log import KeyedLog
from cordwood.storage.log.view import open_log_as
from cordwood.storage.node.listing import Listing, list_partitions
from cordwood.storage.node.node import Node


def open_log(path: str, *, index_dir: str | None = None, fs: Store | None = None) -> KeyedLog:
    """Open the log of one partition for reading, also while a broker writes to it.

    Args:
        path: the partition's directory.
        index_dir: folder of key indexes, with a folder for each partition; default: in the directory itself.
        fs: the store; default: what the path leads to.

    Raises:
        NotFoundError: there is no such directory, or no segment in it.
    """
    log = open_log_as(KeyedLog, path, fs or file_system_for([path, index_dir]))
    return log.with_indexes_in(None if index_dir is None else log.fs.absolute_path(index_dir))


def ls(paths: Sequence[str], options: ListOptions, *, fs: Store | None = None) -> Listing:
    """List the partitions of one broker's directories; see `cordwood.ls`."""
    one = options.selection
    node = Node.open(
        fs or file_system_for([*paths, one.metadata, one.server_properties, options.index_place.index_dir]),
        paths,
        one.metadata,
        one.server_properties,
        one.overrides,
    )
    root = options.index_place.root(node.fs, [place.path for place in node.places])
    entries = options.index_entries
    return list_partitions(node, paths, one.topics, one.partitions, index_entries=entries, index_root=root)


def check(*paths: str, fs: Store | None = None) -> list[Finding]:
    """Everything that is wrong with the files at some paths. Damage has `Severity.DAMAGE`.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.

    Raises:
        NotFoundError: a path leads to nothing that could be checked.
    """
    return list(Check(fs or file_system_for(paths)).run(paths))
