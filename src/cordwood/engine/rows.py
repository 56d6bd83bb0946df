"""Rows of sections: what tasks hand each other where something else moves rows from task to task, as Spark's shuffle.

    row          stage target run chunk number part data    stage and target: the task that reads the row
    data         CRC-32C u32, number of parts u32, bytes of a section (`engine.sections`)

A section is cut into parts, so that no row is large. Its CRC covers the other columns, too. A task gets all rows of its
target in the order of the other columns, and takes section after section; so it notices whatever is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import crc32c
import numpy.typing as npt

from cordwood.engine import sections
from cordwood.engine.sections import LostSectionError

#: A part of a section has at most so many bytes. Spark holds a hundred rows of each task in memory now and then.
PART_BYTES = 256 << 10
_FRAME = struct.Struct("<2I")
_KEY = struct.Struct("<7q")


class Stage(IntEnum):
    """Who reads a row."""

    MERGE = 1
    REWRITE = 2


class Row(NamedTuple):
    """A part of a section. The rows of a stage are sorted by all fields but the data.

    Attributes:
        stage, target: the task that reads it.
        run, chunk, number: which section it is of those that the task reads.
        part: running number within the section.
        data: see above.
    """

    stage: int
    target: int
    run: int
    chunk: int
    number: int
    part: int
    data: Any


def rows_of(
    stage: Stage, target: int, section: tuple[int, int, int], pieces: Iterable[bytes | memoryview]
) -> Iterator[Row]:
    """The rows of a section (run, chunk, number), which is given as it was encoded."""
    views = [memoryview(piece) for piece in pieces]
    parts = -(-sum(view.nbytes for view in views) // PART_BYTES)
    data = bytearray(_FRAME.size)
    part = 0
    for view in views:
        while view.nbytes:
            room = PART_BYTES + _FRAME.size - len(data)
            data += view[:room]
            view = view[room:]
            if len(data) == PART_BYTES + _FRAME.size:
                yield _framed(Row(stage, target, *section, part, data), parts)
                data, part = bytearray(_FRAME.size), part + 1
    if len(data) > _FRAME.size:
        yield _framed(Row(stage, target, *section, part, data), parts)


def _framed(row: Row, parts: int) -> Row:
    _FRAME.pack_into(row.data, 0, _crc(row, parts), parts)
    return row


def _crc(row: Row, parts: int) -> int:
    key = _KEY.pack(*row[:6], parts)
    return crc32c.crc32c(memoryview(row.data)[_FRAME.size :], crc32c.crc32c(key))


class RowReader:
    """Takes sections from the rows of a target.

    Args:
        rows: sorted.
        where: the path of the partition, for errors.
    """

    def __init__(self, rows: Iterator[Row], where: str) -> None:
        self._rows = rows
        self._where = where

    def get(self, section: tuple[int, int, int], *kinds: npt.DTypeLike) -> list[npt.NDArray[Any]]:
        """The arrays of the next section (run, chunk, number), which has to be this one.

        Raises:
            LostSectionError: it is missing, or damaged.
        """
        data, parts, count = bytearray(), 0, 1
        while parts < count:
            row = next(self._rows, None)
            if row is None or row[2:6] != (*section, parts):
                raise LostSectionError(self._where, f"row {parts} of section {section} is gone")
            crc, count = _FRAME.unpack_from(row.data)
            if crc != _crc(row, count):
                raise LostSectionError(
                    self._where, f"row {parts} of what is left of {section} is not as it was written"
                )
            data += memoryview(row.data)[_FRAME.size :]
            parts += 1
        return sections.decode(data, kinds)
