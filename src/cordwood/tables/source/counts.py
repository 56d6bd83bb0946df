"""Counts of data that was read and skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields


@dataclass(slots=True)
class ReadCounts:
    """Counts of one read, or of several together.

    Attributes:
        bytes_read: bytes of all files, to plan and to read.
        segments: segments that were read at least in part.
        segments_skipped: segments of the same partitions whose `.log` was not opened.
        bytes_skipped: bytes of `.log` files, in skipped segments and in skipped parts of other segments.
        batches_skipped: batches that were read but not decoded: too old, aborted, or without records.
        records_skipped: records that were decoded, but whose keys and values were not copied.
        damaged: damaged places that were skipped (`failOnDamage` is `false`).
        offsets_lost: requested offsets that were missing (`failOnDataLoss` is `false`).
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
