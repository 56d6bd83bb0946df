"""The result of writing a table."""

from __future__ import annotations

from dataclasses import dataclass

from cordwood.presentable import Presentable


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """What a table has of a partition: the offsets [start, end)."""

    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableResult(Presentable):
    """A table that was written.

    Attributes:
        is_changes: it holds what changed since an earlier table.
        deletes: the rows that delete a key.
        undecodable: the rows with a key or value that could not be decoded.
    """

    topic: str
    output: str
    format: str
    is_changes: bool
    partitions: tuple[PartitionOffsets, ...]
    rows: int
    deletes: int
    undecodable: int
    notes: tuple[str, ...]
    seconds: float
