"""Updates the key indexes of a partition: one per segment, all with the same secret."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cordwood.common.errors import CorruptFileError
from cordwood.common.presentable import Presentable
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.formats.key_index import Header
from cordwood.storage.index.build import build, is_worth_keeping, new_secret
from cordwood.storage.index.files import indexes_in, read_index, remove_indexes, write_index
from cordwood.storage.log.segment import Segment
from cordwood.storage.log.view import LogView


@dataclass(frozen=True, slots=True)
class IndexedPartition:
    """The key indexes of a partition.

    Attributes:
        segments: number of segments that are not empty.
        indexed: number of segments that now have an index.
        made: number of indexes that this run built.
        removed: number of removed index files.
        size_bytes: size of all indexes.
        log_bytes: size of all segments.
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
    """The result of `cordwood index`; `partitions` in the order of their paths."""

    partitions: tuple[IndexedPartition, ...]


def index_partition(
    fs: LocalFileSystem, log: LogView, memory_bytes: int, bytes_max: int | None = None
) -> IndexedPartition:
    """Build missing indexes, and remove indexes that are invalid or have no segment.

    Args:
        memory_bytes: memory limit for the keys of a segment.
        bytes_max: size limit for all indexes; the newest segments get none beyond it. Without it, only the limit of
            `is_worth_keeping` applies to each index.
    """
    segments = [segment for segment in log.segments if segment.size_bytes]
    before = {base_offset for base_offset, _ in indexes_in(fs, log.path, log.index_root)}
    believed = dict(_believed(segments))
    secret = next((header.secret for header in believed.values()), None) or new_secret()
    indexed, made, left_bytes = set(), 0, 1 << 62 if bytes_max is None else bytes_max
    for segment in segments:
        header = believed.get(segment.base_offset)
        is_current = header is not None and header.secret == secret and header.covered_bytes == segment.size_bytes
        index = None if is_current else build(segment, secret, memory_bytes)
        if header is None or not is_current:
            header = None if index is None or not is_worth_keeping(index) else index.header
        if header is None:
            continue
        left_bytes -= header.file_bytes
        if left_bytes < 0:
            break
        indexed.add(segment.base_offset)
        if index is not None:
            write_index(fs, log.path, index, log.index_root)
            made += 1
    remove_indexes(fs, log.path, indexed, log.index_root)
    return _indexed(fs, log, len(indexed), made, len(before - indexed))


def _believed(segments: list[Segment]) -> Iterator[tuple[int, Header]]:
    for segment in segments:
        try:
            yield segment.base_offset, read_index(segment).header
        except (OSError, CorruptFileError):
            continue


def drop_indexes(fs: LocalFileSystem, log: LogView) -> IndexedPartition:
    """Remove all indexes of a partition."""
    return _indexed(fs, log, 0, 0, remove_indexes(fs, log.path, root=log.index_root))


def _indexed(fs: LocalFileSystem, log: LogView, indexed: int, made: int, removed: int) -> IndexedPartition:
    return IndexedPartition(
        log.path,
        sum(segment.size_bytes > 0 for segment in log.segments),
        indexed,
        made,
        removed,
        sum(info.size_bytes for _, info in indexes_in(fs, log.path, log.index_root)),
        log.size_bytes,
    )
