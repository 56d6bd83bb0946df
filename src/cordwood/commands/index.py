"""`index`: makes the key indexes of segments, or removes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

import cordwood.report.index  # noqa: F401 - so that a result can show itself
from cordwood.arguments import AnyPath, checked, text_paths
from cordwood.commands.opening import select_partitions
from cordwood.commands.selection import IndexPlace, Selection
from cordwood.fs.base import LocalFileSystem, Store
from cordwood.fs.by_url import file_system_for, local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.machine import memory_bytes
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.ownership import check_ownership
from cordwood.storage.index.partition import IndexResult, drop_indexes, index_partition
from cordwood.storage.log.recovered import broker_would_load
from cordwood.storage.node.node import LocatedPartition, list_places

#: The part of this machine's memory that keys may take while an index is made.
_MEMORY_SHARE = 4


def index(
    *paths: AnyPath,
    drop: bool = False,
    index_dir: AnyPath | None = None,
    index_max: int | None = None,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    no_broker_elsewhere: bool = False,
    fs: LocalFileSystem | None = None,
) -> IndexResult:
    """Make the key indexes of partitions, or remove them.

    Indexes that are up to date stay. No file of the log changes.

    Args:
        paths: log directories, folders of several, or partition directories.
        drop: remove all indexes.
        index_dir: the folder for the indexes, with a folder for each partition; the directories are only read then, so
            a broker may be running, and they may be in an object store. Default: `.cordwood/index` of each partition.
        index_max: bytes that the indexes of a partition may take; those of its newest segments are left out. Default: a
            tenth of its log.
        topics: only topics with these names, or matching these globs.
        partitions: only partitions with these numbers or names, or matching these globs.
        no_broker_elsewhere: no broker on another machine uses this network disk.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file, or belongs to another user.
        LockedError: a broker or another program holds one of the log directories.
    """
    selection = Selection(
        topics=checked("topics", Sequence[str], topics), partitions=checked("partitions", Sequence[str], partitions)
    )
    given = text_paths(paths)
    with ExitStack() as held:
        if index_dir is not None:
            index_dir = local_path(os.fspath(index_dir))
            found = _places(fs or file_system_for([*given, index_dir]), given, selection)
            fs = fs or PosixFileSystem()
        else:
            fs, given = fs or PosixFileSystem(), tuple(map(local_path, given))
            for path in directories_to_lock(fs, (place.path for place in _places(fs, given, selection))):
                check_local(fs, path, no_broker_elsewhere=no_broker_elsewhere)
                held.enter_context(fs.lock_directory(path))
            # Listed again: before the locks, another process may have changed the directories.
            found = _places(fs, given, selection)
            check_ownership(fs, [place.path for place in found])
        root = IndexPlace(index_dir=index_dir).root(fs, [place.path for place in found])
        memory = memory_bytes() // _MEMORY_SHARE
        logs = [place.log().with_indexes_in(root) for place in found]
        return IndexResult(
            tuple(drop_indexes(fs, log) if drop else index_partition(fs, log, memory, index_max) for log in logs)
        )


def _places(fs: Store, paths: Sequence[str], selection: Selection) -> list[LocatedPartition]:
    sources = [fs.absolute_path(path) for path in paths]
    selected = select_partitions(list_places(fs, sources)[1], sources, selection)
    return [place for place in selected if broker_would_load(place.name)]
