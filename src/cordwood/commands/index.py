"""`index`: make or remove the key indexes of segments."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from cordwood.commands.opening import select_partitions
from cordwood.commands.options import ChosenPartitions, IndexingOptions, IndexPlace
from cordwood.common.text import Cells, Column, bytes_text, cells_of, printable, register, table
from cordwood.fs.base import LocalFileSystem, Store
from cordwood.fs.by_url import file_system_for, local_path
from cordwood.fs.locks import check_local, directories_to_lock
from cordwood.fs.machine import memory_bytes
from cordwood.fs.posix import PosixFileSystem
from cordwood.storage.changes.swap import check_apart, check_ownership
from cordwood.storage.index.build import IndexResult, drop_indexes, index_partition
from cordwood.storage.log.loaded import broker_would_load
from cordwood.storage.node.node import LocatedPartition, list_places

#: An index build may use this machine's memory divided by this number for keys.
_MEMORY_SHARE = 4


def index(paths: Sequence[str], options: IndexingOptions, *, fs: LocalFileSystem | None = None) -> IndexResult:
    """Make the key indexes of partitions, or remove them.

    Indexes that are up to date stay. No file of the log changes.

    Raises:
        NotFoundError: there is nothing at a path, or no partition was selected.
        RequestError: a path is a file, or belongs to another user.
        LockedError: a broker or another program holds one of the log directories.
    """
    chosen, index_dir = options.chosen, options.index_dir
    with ExitStack() as held:
        if index_dir is not None:
            index_dir = local_path(index_dir)
            found = _places(fs or file_system_for([*paths, index_dir]), paths, chosen)
            fs = fs or PosixFileSystem()
        else:
            fs, paths = fs or PosixFileSystem(), tuple(map(local_path, paths))
            for path in directories_to_lock(fs, (place.path for place in _places(fs, paths, chosen))):
                check_local(fs, path, no_broker_elsewhere=options.no_broker_elsewhere)
                held.enter_context(fs.lock_directory(path))
            # List again: another process may have changed the directories before they were locked.
            found = _places(fs, paths, chosen)
            check_apart(fs, [place.path for place in found])
            check_ownership(fs, [place.path for place in found])
        root = IndexPlace(index_dir=index_dir).root(fs, [place.path for place in found])
        memory = memory_bytes() // _MEMORY_SHARE
        logs = [place.log().with_indexes_in(root) for place in found]
        return IndexResult(
            tuple(
                drop_indexes(fs, log) if options.drop else index_partition(fs, log, memory, options.index_max)
                for log in logs
            )
        )


def _places(fs: Store, paths: Sequence[str], chosen: ChosenPartitions) -> list[LocatedPartition]:
    sources = [fs.absolute_path(path) for path in paths]
    selected = select_partitions(list_places(fs, sources)[1], sources, chosen)
    return [place for place in selected if broker_would_load(place.name)]


# ---- the result as text and JSON -------------------------------------------------------------------------------------


_COLUMNS: Cells = (
    (Column("PARTITION"), lambda one: posixpath.basename(one.path)),
    (Column("SEGMENTS", True), lambda one: f"{one.segments:,}"),
    (Column("INDEXED", True), lambda one: f"{one.indexed:,}"),
    (Column("MADE", True), lambda one: f"{one.made:,}"),
    (Column("REMOVED", True), lambda one: f"{one.removed:,}"),
    (Column("INDEXES", True), lambda one: bytes_text(one.size_bytes)),
    (Column("OF THE LOG", True), lambda one: f"{100 * one.size_bytes / max(1, one.log_bytes):.1f} %"),
)


def _lines(result: IndexResult) -> Iterator[str]:
    return map(printable, table(*cells_of(_COLUMNS, result.partitions)))


def _document(result: IndexResult) -> dict[str, Any]:
    rows = (dataclasses.asdict(one) for one in result.partitions)
    return {"partitions": [{**row, "path": printable(row["path"])} for row in rows]}


register(IndexResult, lines=_lines, document=_document)
