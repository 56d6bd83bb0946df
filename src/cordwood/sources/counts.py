"""Counts of what was read, and of what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields


@dataclass(slots=True)
class ReadCounts:
    """Counts of one read, or of several together.

    Attributes:
        bytes_read: of all files, to plan and to read.
        segments: that were read, or a part of them.
        segments_skipped: of the same partitions, without a look into their `.log`.
        bytes_skipped: of `.log` files, in segments that were skipped and in parts of others.
        batches_skipped: that were read, but not decoded: too old, aborted, or without records.
        records_skipped: that were decoded, but whose keys and values were not copied.
        damaged: places at which nothing could be read (`failOnDamage` is `false`).
        offsets_lost: that were asked for and are not there (`failOnDataLoss` is `false`).
    """

    records: int = 0
    bytes_read: int = 0
    segments: int = 0
    segments_skipped: int = 0
    bytes_skipped: int = 0
    batches: int = 0
    batches_skipped: int = 0
    records_skipped: int = 0
    damaged: int = 0
    offsets_lost: int = 0

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(*(one - two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(self._parts()) or "nothing"

    def _parts(self) -> Iterator[str]:
        for one in fields(self):
            if count := getattr(self, one.name):
                yield f"{one.name.replace('_', ' ')}: {count:,}"
