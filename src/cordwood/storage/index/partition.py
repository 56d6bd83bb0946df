"""Brings the key indexes of a partition up to date: one per segment, all under the same secret."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.presentable import Presentable
from cordwood.storage.formats.key_index import Header
from cordwood.storage.index.build import build, is_worth_keeping, new_secret
from cordwood.storage.index.files import indexes_in, read_index, remove_indexes, write_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class IndexedPartition:
    """The key indexes of a partition.

    Attributes:
        segments: that hold anything.
        indexed: how many of them have an index now.
        made: how many of these were made by this run.
        removed: how many index files were removed.
        size_bytes: of all indexes.
        log_bytes: of all segments.
    """

    path: str
    segments: int
    indexed: int
    made: int
    removed: int
    size_bytes: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class IndexResult(Presentable):
    """What `cordwood index` did; `partitions` in the order of their paths."""

    partitions: tuple[IndexedPartition, ...]


def index_partition(fs: LocalFileSystem, log: LogView, memory_bytes: int) -> IndexedPartition:
    """Make the indexes that are missing, and remove those that are not believed or have no segment."""
    segments = [segment for segment in log.segments if segment.size_bytes]
    before = {base_offset for base_offset, _ in indexes_in(fs, log.path)}
    believed = dict(_believed(segments))
    secret = next((header.secret for header in believed.values()), None) or new_secret()
    indexed, made = set(), 0
    for segment in segments:
        header = believed.get(segment.base_offset)
        if header is not None and header.secret == secret and header.covered_bytes == segment.size_bytes:
            indexed.add(segment.base_offset)
            continue
        index = build(segment, secret, memory_bytes)
        if index is not None and is_worth_keeping(index):
            write_index(fs, log.path, index)
            indexed.add(segment.base_offset)
            made += 1
    remove_indexes(fs, log.path, but=indexed)
    return _indexed(fs, log, len(indexed), made, len(before - indexed))


def _believed(segments: list[Segment]) -> Iterator[tuple[int, Header]]:
    for segment in segments:
        try:
            yield segment.base_offset, read_index(segment).header
        except (OSError, CorruptFileError):
            continue


def drop_indexes(fs: LocalFileSystem, log: LogView) -> IndexedPartition:
    """Remove all indexes of a partition."""
    return _indexed(fs, log, 0, 0, remove_indexes(fs, log.path))


def _indexed(fs: LocalFileSystem, log: LogView, indexed: int, made: int, removed: int) -> IndexedPartition:
    return IndexedPartition(
        log.path,
        sum(segment.size_bytes > 0 for segment in log.segments),
        indexed,
        made,
        removed,
        sum(info.size_bytes for _, info in indexes_in(fs, log.path)),
        log.size_bytes,
    )
