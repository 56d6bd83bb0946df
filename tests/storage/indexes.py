"""Key indexes that are believed, each compared with one that is made anew."""

from __future__ import annotations

from collections.abc import Iterator

from cordwood.errors import CorruptFileError
from cordwood.storage.index.build import build
from cordwood.storage.index.files import read_index
from cordwood.storage.log.view import LogView


def believed(log: LogView) -> Iterator[int]:
    """The base offsets of the segments with an index that is believed; fails where one is wrong."""
    for segment in log.segments:
        try:
            index = read_index(segment)
        except (OSError, CorruptFileError):
            continue
        again = build(segment, index.header.secret, 1 << 30)
        assert again is not None and again.payload.tobytes() == index.payload.tobytes()
        yield segment.base_offset
