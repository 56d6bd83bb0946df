"""Key indexes for tests: build those of all segments, and compare valid indexes with newly built ones."""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.common.errors import CorruptFileError
from cordwood.fs.base import LocalFileSystem
from cordwood.storage.index.build import build
from cordwood.storage.index.files import read_index, write_index
from cordwood.storage.log.view import LogView


def believed(log: LogView) -> Iterator[int]:
    """Return the base offsets of segments with a valid index; fail if its contents are wrong."""
    for segment in log.segments:
        try:
            index = read_index(segment)
        except (OSError, CorruptFileError):
            continue
        again = build(segment, index.header.secret, 1 << 30)
        assert again is not None and again.payload.tobytes() == index.payload.tobytes()
        yield segment.base_offset


def index_all(fs: LocalFileSystem, log: LogView) -> int:
    """Make an index of each segment, however small its records are; return the number of indexes."""
    found = [build(one, bytes(range(16)), 1 << 30) for one in log.segments]
    for index in found:
        if index is not None:
            write_index(fs, log.path, index)
    return sum(index is not None for index in found)
