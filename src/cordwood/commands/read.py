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


def open_log(path: str, *, fs: Store | None = None) -> KeyedLog:
    """Open the log of one partition for reading, also while a broker writes to it.

    Raises:
        NotFoundError: there is no such directory, or no segment in it.
    """
    return open_log_as(KeyedLog, path, fs or file_system_for([path]))


def ls(paths: Sequence[str], options: ListOptions, *, fs: Store | None = None) -> Listing:
    """List the partitions of one broker's directories; see `cordwood.ls`."""
    one = options.selection
    node = Node.open(
        fs or file_system_for([*paths, one.metadata, one.server_properties]),
        paths,
        one.metadata,
        one.server_properties,
        one.overrides,
    )
    return list_partitions(node, paths, one.topics, one.partitions, index_entries=options.index_entries)


def check(*paths: str, fs: Store | None = None) -> list[Finding]:
    """Everything that is wrong with the files at some paths. Damage has `Severity.DAMAGE`.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.

    Raises:
        NotFoundError: a path leads to nothing that could be checked.
    """
    return list(Check(fs or file_system_for(paths)).run(paths))
