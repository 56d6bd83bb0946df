"""What only reads: open a log, list directories, check them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cordwood.fs.base import Store
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.check import Check, Finding
from cordwood.storage.log import view
from cordwood.storage.log.view import LogView
from cordwood.storage.node.listing import Listing, list_partitions
from cordwood.storage.node.node import Node


def open_log(path: str, *, fs: Store | None = None) -> LogView:
    """Open the log of one partition for reading, also while a broker writes to it.

    Args:
        path: of a partition's directory, such as `/var/kafka/orders-0`.
        fs: default: the machine's.

    Raises:
        NotFoundError: there is no such directory, or no segment in it.
    """
    return view.open_log(path, fs=fs or PosixFileSystem())


def ls(
    *paths: str,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    metadata: str | None = None,
    server_properties: str | None = None,
    overrides: Iterable[str] = (),
    index_entries: bool = False,
    fs: Store | None = None,
) -> Listing:
    """List the partitions of one broker's directories.

    Args:
        paths: log directories, folders of several, or partitions' directories.
        topics: only topics of these names, or that match these globs; default: all.
        partitions: only these numbers or names (`3`, `orders-3`), or those that match these globs; default: all.
        metadata: `__cluster_metadata-0`, or the directory it is in; default: in any of the directories.
        server_properties: path of the broker's settings.
        overrides: configs as `key=value` or `topic:key=value`.
        index_entries: count the entries of indexes, which reads them.
        fs: default: the machine's.

    Raises:
        NotFoundError: nothing is there, or nothing that was asked for.
        RequestError: a path is a file; or the directories belong to different brokers.
        ConfigError: a setting that Kafka would not take.
    """
    node = Node.open(fs or PosixFileSystem(), paths, metadata, server_properties, overrides)
    return list_partitions(node, paths, topics, partitions, index_entries=index_entries)


def check(*paths: str, fs: Store | None = None) -> list[Finding]:
    """Everything that is wrong with the files at some paths. Damage has `Severity.DAMAGE`.

    Args:
        paths: log directories, folders of several, partitions' directories, or files.
        fs: default: the machine's.

    Raises:
        NotFoundError: a path leads to nothing that could be checked.
    """
    return list(Check(fs or PosixFileSystem()).run(paths))
