"""`index`: makes the key indexes of segments, or removes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import cordwood.report.index  # noqa: F401 - so that a result can show itself
from cordwood.commands.opening import select_partitions
from cordwood.commands.selection import Selection
from cordwood.fs.base import LocalFileSystem
from cordwood.fs.by_url import local_path
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
    *paths: str,
    drop: bool = False,
    topics: Sequence[str] = (),
    partitions: Sequence[str] = (),
    no_broker_elsewhere: bool = False,
    fs: LocalFileSystem | None = None,
) -> IndexResult:
    """Make the key indexes of partitions, in `.cordwood/index` of their directories, or remove them.

    Indexes that are up to date stay. No file of the log changes.

    Args:
        paths: log directories, folders of several, or partition directories.
        drop: remove all indexes.
        topics: only topics with these names, or matching these globs.
        partitions: only partitions with these numbers or names, or matching these globs.
        no_broker_elsewhere: no broker on another machine uses this network disk.
        fs: the file system; default: this machine's.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file, or belongs to another user.
        LockedError: a broker or another program holds one of the log directories.
    """
    fs = fs or PosixFileSystem()
    sources = [local_path(path) for path in paths]
    selection = Selection(topics=topics, partitions=partitions)

    def places() -> list[LocatedPartition]:
        selected = select_partitions(list_places(fs, sources)[1], sources, selection)
        return [place for place in selected if broker_would_load(place.name)]

    with ExitStack() as held:
        for path in directories_to_lock(fs, (place.path for place in places())):
            check_local(fs, path, no_broker_elsewhere=no_broker_elsewhere)
            held.enter_context(fs.lock_directory(path))
        # Listed again: before the locks, another process may have changed the directories.
        found = places()
        check_ownership(fs, [place.path for place in found])
        memory = memory_bytes() // _MEMORY_SHARE
        logs = [place.log() for place in found]
        return IndexResult(tuple(drop_indexes(fs, log) if drop else index_partition(fs, log, memory) for log in logs))
